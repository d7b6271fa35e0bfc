"""Time as a dependency; only this module reads the machine's clocks.

Times are integer milliseconds. ``now_ms`` is wall time since the epoch, which can jump;
``monotonic_ms`` only moves forward and differs between processes. Code that deletes or issues
something first asks `doubt_of` or `require_trusted_time`.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

from pricekeeper.errors import ClockInDoubtError

NS_PER_MS: Final = 1_000_000
LEAP_MS_MAX: Final = 60_000
"""A larger difference from the expected wall time is in doubt."""
STEADY_MS: Final = 15 * 60_000
"""A leap is believed after the clock has run evenly for this long without contradiction."""
ANCHOR_MS: Final = 60 * 60_000
"""How often the expected difference follows the real one; clocks may drift `LEAP_MS_MAX` in it."""


class Clock(Protocol):
    """The time, as components see it."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    async def sleep_ms(self, duration_ms: int) -> None: ...


def _steady_clock() -> Callable[[], int]:
    """A clock that also counts while the machine sleeps: else each suspend looks like a leap.

    Linux: ``CLOCK_BOOTTIME``; macOS: ``CLOCK_MONOTONIC``.
    """
    which = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return time.monotonic_ns if which is None else partial(time.clock_gettime_ns, which)


_read_steady_ns: Final = _steady_clock()


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // NS_PER_MS

    def monotonic_ms(self) -> int:
        return _read_steady_ns() // NS_PER_MS

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that a test moves; sleepers wake in the order of their times."""

    def __init__(self, now_ms: int = 1_768_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._sleeps = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps += 1
        heapq.heappush(self._sleepers, (self._monotonic_ms + duration_ms, self._sleeps, woken))
        await woken

    def advance_ms(self, duration_ms: int) -> None:
        if duration_ms < 0:
            raise ValueError("time passes forward; use jump_ms to set the wall clock back")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ms:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def jump_ms(self, offset_ms: int) -> None:
        """Set the wall clock, as an operator or NTP would. No sleeper wakes."""
        self._now_ms += offset_ms

    @property
    def sleepers(self) -> int:
        return sum(not woken.done() for _, _, woken in self._sleepers)


class Doubt(StrEnum):
    """Why wall time is not believed."""

    LEAP = "it has leapt away from the monotonic clock"
    BEHIND = "it is behind the newest time in the store"
    CONTRADICTED = "the store's own clock shows another time"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What wall time is compared with; differences are wall time less monotonic time."""

    expected_ms: int | None = None
    """The last believed difference; none before the first reading."""
    store_ms: int | None = None
    """The difference by the store's own clock, if it has one."""
    stored_ms: int | None = None
    """The difference at which wall time is the newest moment in the store."""


def judge(difference_ms: int, evidence: Evidence) -> Doubt | None:
    """Whether to doubt wall time. The store's own clock decides if it has one."""
    if evidence.store_ms is not None:
        agrees = abs(difference_ms - evidence.store_ms) <= LEAP_MS_MAX
        return None if agrees else Doubt.CONTRADICTED
    if evidence.expected_ms is not None:
        agrees = abs(difference_ms - evidence.expected_ms) <= LEAP_MS_MAX
        return None if agrees else Doubt.LEAP
    if evidence.stored_ms is not None and difference_ms < evidence.stored_ms - LEAP_MS_MAX:
        return Doubt.BEHIND
    return None


class TrustedClock:
    """Wall time while the monotonic clock and the store confirm it; else evenly running time.

    In doubt, ``now_ms`` is the last believed time plus the monotonic time since. Doubt ends:

    - once it is within `LEAP_MS_MAX` of that, or of the store's own clock;
    - without a store clock, once it has run evenly for `STEADY_MS`, but never at a time before the
      expiry of items that were already deleted.

    Threads may share it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        uses_store_date: bool = True,
        on_change: Callable[[Doubt | None, int], None] = lambda _doubt, _leap_ms: None,
    ) -> None:
        """``on_change`` gets the leap when doubt begins, changes or ends.

        ``uses_store_date`` is false for a simulated clock.
        """
        self._clock = clock
        self._read_wall = clock.now_ms
        self._read_steady = clock.monotonic_ms
        self._read_ns = _readers_ns(clock)
        self.monotonic_ms: Callable[[], int] = clock.monotonic_ms
        self._uses_store_date = uses_store_date
        self._on_change = on_change
        self._lock = threading.RLock()
        self._window_ns = _NO_WINDOW
        """The range of differences that needs no second look, and until when."""
        self._believed_ms: int | None = None
        self._evidence = Evidence()
        self._store_agreed = False
        self._deleted_until_ms = 0
        self._doubt: Doubt | None = None
        self._steady_since: tuple[int, int] | None = None
        """In doubt: the present difference, and since when it lasts."""
        self.leaps = 0

    def now_ms(self) -> int:
        read_wall, read_steady = self._read_ns
        wall_ns, steady_ns = read_wall(), read_steady()
        low_ns, high_ns, until_ns = self._window_ns
        difference_ns = wall_ns - steady_ns
        if low_ns <= difference_ns <= high_ns and steady_ns < until_ns:
            self._believed_ms = difference_ns // NS_PER_MS
            return wall_ns // NS_PER_MS
        return self._look()

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._clock.sleep_ms(duration_ms)

    @property
    def doubt(self) -> Doubt | None:
        self.now_ms()
        return self._doubt

    @property
    def leap_ms(self) -> int:
        """How far wall time is ahead of the time in use; 0 without doubt."""
        now_ms = self.now_ms()
        return 0 if self._doubt is None else self._read_wall() - now_ms

    def note_store_date(self, date_ms: int) -> None:
        if not self._uses_store_date:
            return
        with self._lock:
            wall_ms, steady_ms = self._read_both()
            store_ms = date_ms - steady_ms
            self._evidence = replace(self._evidence, store_ms=store_ms)
            contradicted = judge(wall_ms - steady_ms, self._evidence) is not None
            if contradicted and not self._store_agreed:
                self._believed_ms = store_ms  # nothing has ever confirmed our own time
            self._store_agreed = self._store_agreed or not contradicted
            self._look()

    def note_newest_moment(self, newest_ms: int) -> None:
        with self._lock:
            stored_ms = newest_ms - self._read_steady()
            # The earlier judgement lacked this knowledge, so judge again.
            self._evidence = replace(self._evidence, expected_ms=None, stored_ms=stored_ms)
            self._look()

    def note_deleted(self, until_ms: int) -> None:
        with self._lock:
            self._deleted_until_ms = max(self._deleted_until_ms, until_ms)

    def _look(self) -> int:
        with self._lock:
            wall_ms, steady_ms = self._read_both()
            difference_ms = wall_ms - steady_ms
            doubt = judge(difference_ms, self._evidence)
            if doubt is not None and self._has_settled(doubt, wall_ms, steady_ms):
                doubt = None
            if doubt is None:
                self._believe(difference_ms, steady_ms)
                return wall_ms
            self._go_on_without(doubt, difference_ms)
            return steady_ms + (self._believed_ms or 0)

    def _read_both(self) -> tuple[int, int]:
        """Both clocks at one moment: a thread may be suspended between readings."""
        before_ms, wall_ms, after_ms = self._read_steady(), self._read_wall(), self._read_steady()
        expected_ms = self._evidence.store_ms
        if expected_ms is None:
            expected_ms = self._evidence.expected_ms
        if expected_ms is None:
            return wall_ms, after_ms
        first_ms, last_ms = sorted((before_ms, after_ms))  # the demo's clock can be set back
        return wall_ms, min(max(wall_ms - expected_ms, first_ms), last_ms)

    def _has_settled(self, doubt: Doubt, wall_ms: int, steady_ms: int) -> bool:
        difference_ms = wall_ms - steady_ms
        if self._steady_since is None or abs(difference_ms - self._steady_since[0]) > LEAP_MS_MAX:
            self._steady_since = (difference_ms, steady_ms)
        lasted = steady_ms - self._steady_since[1] >= STEADY_MS
        alone = doubt is not Doubt.CONTRADICTED
        return lasted and alone and wall_ms >= self._deleted_until_ms

    def _believe(self, difference_ms: int, steady_ms: int) -> None:
        was, leap_ms = self._doubt, difference_ms - (self._believed_ms or difference_ms)
        self._doubt, self._steady_since = None, None
        self._believed_ms = difference_ms
        centre_ms = self._evidence.store_ms
        if centre_ms is None:
            centre_ms = difference_ms
        self._evidence = replace(self._evidence, expected_ms=difference_ms)
        low_ms, high_ms = centre_ms - LEAP_MS_MAX, centre_ms + LEAP_MS_MAX
        until_ms = steady_ms + ANCHOR_MS
        self._window_ns = (low_ms * NS_PER_MS, high_ms * NS_PER_MS, until_ms * NS_PER_MS)
        if was is not None:
            self._on_change(None, leap_ms)

    def _go_on_without(self, doubt: Doubt, difference_ms: int) -> None:
        was, self._doubt = self._doubt, doubt
        self._window_ns = _NO_WINDOW
        if self._believed_ms is None or (was is None and doubt is Doubt.BEHIND):
            # All that is known is that time has reached the stored moment.
            known_ms = self._evidence.store_ms
            self._believed_ms = self._evidence.stored_ms if known_ms is None else known_ms
        if was is None:
            self.leaps += 1
        if was is not doubt:
            self._on_change(doubt, difference_ms - (self._believed_ms or 0))


_NO_WINDOW: Final = (1, 0, 0)


def _readers_ns(clock: Clock) -> tuple[Callable[[], int], Callable[[], int]]:
    """Clock readers in nanoseconds, unwrapped: requests ask for the time up to five times."""
    if type(clock) is SystemClock:  # one that is made from it may read otherwise
        return time.time_ns, _read_steady_ns
    return lambda: clock.now_ms() * NS_PER_MS, lambda: clock.monotonic_ms() * NS_PER_MS


def doubt_of(clock: Clock) -> Doubt | None:
    """Why that clock's time is in doubt; only a `TrustedClock` doubts."""
    return clock.doubt if isinstance(clock, TrustedClock) else None


def require_trusted_time(clock: Clock) -> None:
    """Raise `ClockInDoubtError` if time is in doubt: what is issued now could live too long."""
    doubt = doubt_of(clock)
    if doubt is not None:
        raise ClockInDoubtError(doubt)
