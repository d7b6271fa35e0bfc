"""What the file records of the time, and how far expired rows may be deleted.

An expired row counts as absent, so deleting it late only costs space. Deleting it early is
irreparable: without its revocation, a token is valid again. At a start, a clock that is ahead looks
like a long stop. So:

- A row is deleted a day after its expiry (`SWEEP_AFTER_MS`).
- A sweep continues where the last one ended, and its time passes at most twice as fast as the
  monotonic clock's.

So a clock must be ahead for a day before anything is deleted that a right clock would still show.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

import apsw
import msgspec

from pricekeeper.clock import LEAP_MS_MAX
from pricekeeper.storage.sqlite.database import MOMENTS, STATEMENTS, connect, translated

SWEEP_AFTER_MS: Final = 24 * 3_600_000
SWEEP_PACE: Final = 2

_BUSY_TIMEOUT_MS: Final = 5_000
_KEY: Final = ("clock", "")


class Moments(msgspec.Struct, frozen=True):
    """What services have recorded of the time, in milliseconds since the epoch."""

    newest_ms: int
    leap_ms: int = 0
    """How far wall time was ahead of the time in use; 0 if it was believed."""
    swept_until_ms: int = 0
    """Rows that expired until then were due; a new sweep starts here."""
    deleted_until_ms: int = 0

    @property
    def latest_ms(self) -> int:
        return max(self.newest_ms, self.swept_until_ms, self.deleted_until_ms)

    def followed_by(self, later: Moments) -> Moments:
        """The record after these later ones. Doubt changes only the leap."""
        if later.leap_ms:
            return msgspec.structs.replace(self, leap_ms=later.leap_ms)
        return msgspec.structs.replace(later, deleted_until_ms=self.deleted_until_ms)


def sweep_until_ms(now_ms: int, swept_until_ms: int | None, elapsed_ms: int) -> int:
    """Up to which expiry rows may be deleted now.

    ``swept_until_ms`` is the last result, if any, and ``elapsed_ms`` the monotonic time since then,
    or since a later start.
    """
    due_ms = now_ms - SWEEP_AFTER_MS
    if swept_until_ms is None:
        return due_ms
    return min(due_ms, swept_until_ms + SWEEP_PACE * elapsed_ms)


def read_moments(connection: apsw.Connection) -> Moments | None:
    """The moments in the file; ``None`` if there are none or they are unreadable."""
    try:
        for (data,) in connection.execute(STATEMENTS[MOMENTS].peek, _KEY):
            return _decode(data)
    except apsw.SQLError as error:
        if "no such table" not in str(error):  # then the file is new
            raise
    except msgspec.MsgspecError:
        pass  # the next sweep replaces it
    return None


def write_moments(connection: apsw.Connection, moments: Moments) -> None:
    """Write these. The caller holds a transaction."""
    row = (*_KEY, None, msgspec.msgpack.encode(moments))
    connection.execute(STATEMENTS[MOMENTS].upsert, row)


def load_moments(path: str) -> Moments | None:
    """Read the moments in the file at that path."""
    with closing(connect(path, busy_timeout_ms=_BUSY_TIMEOUT_MS, read_only=True)) as connection:
        try:
            return read_moments(connection)
        except apsw.Error as error:
            raise translated(error) from error


def forget_ahead(path: str, now_ms: int, *, dry_run: bool) -> bool:
    """Remove moments after this time from the file; returns whether there were any."""
    with closing(connect(path, busy_timeout_ms=_BUSY_TIMEOUT_MS)) as connection:
        try:
            with connection:
                moments = read_moments(connection)
                if moments is None or moments.latest_ms <= now_ms + LEAP_MS_MAX:
                    return False
                if not dry_run:
                    write_moments(connection, Moments(now_ms, 0, now_ms - SWEEP_AFTER_MS, now_ms))
        except apsw.Error as error:
            raise translated(error) from error
    return True


_decode = msgspec.msgpack.Decoder(Moments).decode
