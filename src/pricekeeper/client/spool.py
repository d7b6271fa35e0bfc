"""What the service must still be told, in a file that outlives the process.

Captures, usage records and voids are appended here before anything else is done with them; a
process that is killed afterwards has lost nothing. Each process has a file of its own in the
folder of its client, and holds a lock on it. A file that nobody holds belonged to a process that
is gone: whoever finds it takes its entries over. Telling one twice is harmless, because the
service counts each once.

What the service refused for good is kept in a second file, for a person to look at. None of it
holds a secret or a word of a prompt. How the files look is in `spool_files`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from pricekeeper.client.spool_files import (
    Line,
    SpoolEntry,
    append_refused,
    create_file,
    files_of,
    find_folder,
    framed,
    locked,
    read_entries,
    read_folder,
    read_refused,
    write_all,
)

__all__ = ["Spool", "SpoolEntry", "find_folder", "read_folder", "read_refused"]

ENTRIES_MAX: Final = 20_000
"""How many entries wait at the most. Calls are refused earlier, so that what is under way fits."""
ENTRIES_FULL: Final = ENTRIES_MAX - 2_000
FILE_BYTES_MAX: Final = 8 << 20
"""A file that is longer, and mostly of entries that were told, is written anew."""

_log = logging.getLogger("pricekeeper")


class Spool:
    """The entries of one process. Safe to use from any thread."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        """Where the file is; ``None`` if all is in memory only."""
        # Reentrant, because a finalizer may append while its thread is in here already.
        self._lock = threading.RLock()
        self._pending: dict[int, SpoolEntry] = {}
        self.last_number = 0
        """Of the entry that was appended last."""
        self._path: Path | None = None
        self._fd = -1
        self._bytes = self._bytes_at_first = 0
        self._is_unsynced = False
        self._is_behind = False
        """Whether the file does not have all that waits, because it could not be written."""
        self._is_closed = False
        if folder is not None and not self._begin_file():
            self.folder = None

    @property
    def is_full(self) -> bool:
        """Whether no further call should be begun."""
        return len(self._pending) >= ENTRIES_FULL

    def __len__(self) -> int:
        return len(self._pending)

    def append(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Keep an entry, with its number; ``None`` if there is no room for it.

        A killed process does not lose it; `sync` is for a machine that stops.
        """
        with self._lock:
            if len(self._pending) >= ENTRIES_MAX:
                _log.error("the spool is full: %s %s is lost", entry.kind, entry.id)
                return None
            if self._is_closed:  # what waited then is in a file that is no longer this process's
                self._pending.clear()
                self._is_closed = False
            self.last_number += 1
            kept = msgspec.structs.replace(entry, number=self.last_number)
            data = framed(Line(entry=kept))  # raises for what is no JSON, before it is kept
            self._pending[kept.number] = kept
            self._write(data)
            return kept

    def pending(self, most: int) -> list[SpoolEntry]:
        """The entries that have waited longest."""
        with self._lock:
            return list(islice(self._pending.values(), most))

    def finish(self, entries: Iterable[SpoolEntry]) -> None:
        """Forget entries: the service knows them."""
        with self._lock:
            numbers = (one.number for one in entries)
            done = [one for one in numbers if self._pending.pop(one, None) is not None]
            if not done or self._fd < 0:
                return
            if not self._pending:
                self._empty_file()
                return
            self._write(framed(Line(done=done)))
            if self._bytes > max(FILE_BYTES_MAX, 2 * self._bytes_at_first):
                self._begin_file()

    def postpone(self, entry: SpoolEntry) -> None:
        """Put an entry behind the others, in memory: it is told again later."""
        with self._lock:
            if self._pending.pop(entry.number, None) is not None:
                self._pending[entry.number] = entry

    def refuse(self, entry: SpoolEntry, reason: str) -> None:
        """Keep an entry that the service will never take apart from the others."""
        _log.error("the price keeper refused %s %s: %s", entry.kind, entry.id, reason)
        if self.folder is not None:
            append_refused(self.folder, entry, reason)
        self.finish([entry])

    def sync(self) -> None:
        """Have the disk keep what was appended."""
        with self._lock:
            fd = os.dup(self._fd) if self._fd >= 0 and self._is_unsynced else -1
            self._is_unsynced = False
        if fd < 0:
            return
        try:
            os.fsync(fd)
        except OSError as error:
            self._is_unsynced = True
            _log.error("the disk does not keep the spool file: %s", error)
        finally:
            os.close(fd)

    def adopt(self) -> int:
        """Take over what processes that are gone have left; how many entries."""
        if self.folder is None:
            return 0
        taken = 0
        for path in files_of(self.folder):
            if path == self._path:
                continue
            with locked(path) as fd:
                entries = [] if fd is None else read_entries(fd, path)
                if fd is None or not self._has_room(len(entries)):
                    continue
                for entry in entries:
                    self.append(entry)
                self.sync()
                if not self._is_behind:
                    path.unlink(missing_ok=True)
                taken += len(entries)
        return taken

    def close(self) -> None:
        """Let go of the file; it is deleted if everything was told."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            in_memory = bool(self._pending) and (self._fd < 0 or self._is_behind)
            if in_memory and (self.folder is None or not self._begin_file()):
                _log.error("%d entries were kept in memory only, and are lost", len(self))
            if self._fd < 0:
                return
            with contextlib.suppress(OSError):
                if not self._pending and self._path is not None:
                    self._path.unlink(missing_ok=True)
                else:
                    os.fsync(self._fd)
            os.close(self._fd)
            self._fd, self._path = -1, None

    def abandon(self) -> None:
        """Leave the file to the process that this one was forked from."""
        self._lock = threading.RLock()  # another thread may have held it when the fork happened
        if self._fd >= 0:
            os.close(self._fd)  # the lock stays: the parent has the same open file
        self._fd, self._path, self._is_behind = -1, None, False
        self._pending.clear()

    def _has_room(self, entries: int) -> bool:
        """Whether that many fit, and calls can go on; all at once if nothing else waits."""
        if self._is_behind:
            return False
        waiting = len(self._pending)
        return waiting + entries < ENTRIES_FULL or (not waiting and entries <= ENTRIES_MAX)

    def _write(self, data: bytes) -> None:
        """Append to the file, or begin one with all that waits if there is none that is whole."""
        if self.folder is None:
            return
        if self._fd < 0 or self._is_behind:
            self._begin_file()
            return
        try:
            write_all(self._fd, data)
        except OSError as error:
            self._is_behind = True
            _log.error("the spool file can't be written (%s): usage is kept in memory", error)
            return
        self._bytes += len(data)
        self._is_unsynced = True

    def _empty_file(self) -> None:
        try:
            os.ftruncate(self._fd, 0)
        except OSError as error:  # what is in it will be told again, which is harmless
            _log.error("the spool file can't be emptied: %s", error)
            return
        self._bytes = self._bytes_at_first = 0
        self._is_behind = False

    def _begin_file(self) -> bool:
        """Write all that waits to a new file, and drop the one before; whether that is done."""
        assert self.folder is not None  # noqa: S101 - called only where there is one
        data = b"".join(framed(Line(entry=one)) for one in self._pending.values())
        try:
            path, fd = create_file(self.folder)
        except OSError as error:
            self._report_unwritable(error)
            return False
        try:
            write_all(fd, data)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            path.unlink(missing_ok=True)
            self._report_unwritable(error)
            return False
        old_fd, old_path = self._fd, self._path
        self._fd, self._path = fd, path
        self._bytes = self._bytes_at_first = len(data)
        self._is_behind = False
        if old_fd >= 0 and old_path is not None:
            old_path.unlink(missing_ok=True)
            os.close(old_fd)
        return True

    def _report_unwritable(self, error: OSError) -> None:
        if self._fd < 0 and not self._is_behind:
            _log.warning("no spool file in %s (%s): usage is in memory only", self.folder, error)
            self._is_behind = True
