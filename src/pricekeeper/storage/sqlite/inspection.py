"""Whether a database file is whole: SQLite's own check, for no longer than it may take.

It reads every page that is in use, so on a large file it takes long. Nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import apsw

from pricekeeper.clock import Clock

_STEPS: Final = 10_000
"""Instructions of SQLite between two looks at the clock: under a millisecond."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The damage that was found. ``complete`` says whether there was time to check all."""

    damage: str | None
    complete: bool = True


def check_file(path: str, clock: Clock, patience_ms: int) -> FileCheck:
    """Look for damage, until some is found or the time is up."""
    deadline_ms = clock.monotonic_ms() + patience_ms
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.Error as error:
        return FileCheck(str(error))
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.set_progress_handler(lambda: clock.monotonic_ms() > deadline_ms, _STEPS)
        result = str(connection.execute("PRAGMA quick_check(1)").get)
    except apsw.InterruptError:
        return FileCheck(None, complete=False)
    except apsw.Error as error:
        return FileCheck(str(error))
    finally:
        connection.close()
    return FileCheck(None if result == "ok" else result)
