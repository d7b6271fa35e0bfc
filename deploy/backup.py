#!/usr/bin/env python3
"""A backup of a SQLite store, taken while the service runs.

::

    python backup.py data/pricekeeper.db backup/pricekeeper.db

Copying the file itself is no backup: the last commits are still in the log beside it, and
the two change while they are read. Here SQLite writes the copy, from one moment, without keeping
writers waiting. A database that can't be read to the end gives none. The copy is on the disk
before it takes the place of the last one.

Run it with the Python that the service runs with: it needs apsw, whose SQLite is recent enough
to be let near a live log.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import apsw

BUSY_TIMEOUT_MS = 30_000


def backup(source: Path, target: Path) -> None:
    """Put a copy of the store at the target, or raise and leave the last one there."""
    fresh = target.with_name(target.name + ".new")
    fresh.unlink(missing_ok=True)  # of a run that was interrupted
    try:
        connection = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.execute("VACUUM INTO ?", (str(fresh),))
        finally:
            connection.close()
        _sync(fresh)
        fresh.replace(target)
        _sync(target.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Run from the command line: 0 if there is a new backup, 1 if not, 2 for wrong arguments."""
    if len(arguments) != 2:  # noqa: PLR2004 - from, to
        sys.stderr.write("usage: backup.py STORE_FILE BACKUP_FILE\n")
        return 2
    source, target = map(Path, arguments)
    os.umask(0o077)
    try:
        backup(source, target)
    except (apsw.Error, OSError) as error:
        sys.stderr.write(f"no backup of {source}: {error}\n")
        return 1
    sys.stdout.write(f"{target}: {target.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
