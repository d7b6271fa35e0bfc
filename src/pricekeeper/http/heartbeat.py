"""The heartbeat of a worker: a sign, a few times a second, that its event loop still turns.

Whoever asks the worker itself waits in the same queue as every other request, and a loop that is
stuck does not answer at all. So the worker leaves a sign where somebody else can look at it: in
memory for a thread of the same process, in a file for the process that has started it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from pricekeeper.clock import Clock

BEAT_MS: Final = 250
ALIVE_MS_MAX: Final = 10_000
"""A loop that has not turned for so long does not count as alive."""

_DIGITS: Final = 20


class Heartbeat(Protocol):
    """Where a worker leaves its sign."""

    def beat(self, now_ms: int) -> None:
        """Leave a sign. The moment is of the monotonic clock, which a machine's processes share."""
        ...


class HeartbeatInMemory:
    """For another thread of the same process."""

    def __init__(self) -> None:
        self.last_ms: int | None = None

    def beat(self, now_ms: int) -> None:
        self.last_ms = now_ms


class HeartbeatInFile:
    """For another process: a file in that folder, named after this one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def beat(self, now_ms: int) -> None:
        if self._file is None:
            path = _path(self._folder, os.getpid())
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.pwrite(self._file, b"%0*d" % (_DIGITS, now_ms), 0)  # in place: it never grows


def read_heartbeat(folder: Path, pid: int) -> int | None:
    """When that process left its last sign; ``None`` if it has not left any yet."""
    try:
        text = _path(folder, pid).read_bytes()
    except FileNotFoundError:
        return None
    return int(text) if len(text) == _DIGITS else None


async def beat_forever(heartbeat: Heartbeat, clock: Clock) -> None:
    """Leave a sign with every turn, or every few: the loop is what calls this again."""
    while True:
        heartbeat.beat(clock.monotonic_ms())
        await clock.sleep_ms(BEAT_MS)


def _path(folder: Path, pid: int) -> Path:
    return folder / f"heartbeat-{pid}"
