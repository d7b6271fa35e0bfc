"""Time as a dependency. Only this module reads the machine's clocks.

Everything that needs to know or to wait for a time is handed a `Clock`. All of it is in
integer milliseconds: ``now_ms`` is wall time since the epoch, which can jump;
``monotonic_ms`` only moves forward and means nothing between processes.

A service runs on a `TrustedClock`, which doubts wall time that leaps. What destroys or issues
something asks `doubt_of` or `require_trusted_time` before it does so.
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
"""Wall time that is further than this from what is expected is in doubt."""
STEADY_MS: Final = 15 * 60_000
"""A leap that nothing outside contradicts is believed when the clock has run evenly for so long."""
ANCHOR_MS: Final = 60 * 60_000
"""How often the expected difference of the clocks follows the real one: a clock that is slowly
corrected, or that drifts, may move by `LEAP_MS_MAX` in this time."""


class Clock(Protocol):
    """What a component may know about time."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Time that never goes back, for measuring durations."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Let that much time pass."""
        ...


def _steady_clock() -> Callable[[], int]:
    """The clock that also counts the time in which the machine sleeps, if there is one.

    With any other clock each suspend looks like a leap of the wall clock. Linux calls it
    ``CLOCK_BOOTTIME``; on macOS ``CLOCK_MONOTONIC`` is such a clock.
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
    """A clock that a test moves; sleepers wake in the order of their times.

    It ships with the package so that users can test their own budgets without waiting.
    """

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
        """Let time pass, and wake the sleepers whose time has come."""
        if duration_ms < 0:
            raise ValueError("time passes forward; use jump_ms to set the wall clock back")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ms:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def jump_ms(self, offset_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would. Nobody wakes."""
        self._now_ms += offset_ms

    @property
    def sleepers(self) -> int:
        """How many are waiting: what a test watches before it lets time pass."""
        return sum(not woken.done() for _, _, woken in self._sleepers)


class Doubt(StrEnum):
    """Why wall time is not believed."""

    LEAP = "it has leapt away from the monotonic clock"
    BEHIND = "it is behind what was stored before this start"
    CONTRADICTED = "the store's own clock shows another time"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What wall time is compared with. A difference is wall time less monotonic time."""

    expected_ms: int | None = None
    """The difference that was believed last; none before the first reading."""
    store_ms: int | None = None
    """The difference by the store's own clock, if it has one that is not this machine's."""
    stored_ms: int | None = None
    """The difference at which wall time would be the newest moment that was found in the store."""


def judge(difference_ms: int, evidence: Evidence) -> Doubt | None:
    """Whether wall time can be believed. The store's own clock decides if it has one."""
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
    """Wall time as far as the monotonic clock and the store agree; else time goes on evenly.

    While wall time is in doubt, ``now_ms`` is the time that was believed last plus what the
    monotonic clock has measured since. Wall time is believed again as soon as it is within
    `LEAP_MS_MAX` of that, or of the store's own clock. Where nothing outside of this machine
    tells the time, it is also believed when it has run evenly for `STEADY_MS`: after a virtual
    machine was paused, or a wrong clock was corrected. It is never believed, though, if it is so
    far back that expired items were deleted which it would show as alive.

    Threads may share it. Nothing is kept but a few integers.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        uses_store_date: bool = True,
        on_change: Callable[[Doubt | None, int], None] = lambda _doubt, _leap_ms: None,
    ) -> None:
        """Judge that clock.

        ``on_change`` is called when doubt begins, changes or ends, with how far wall time was from
        the time that was believed. A clock that is not this machine's, as in a simulation, has
        nothing to do with the store's own clock: then ``uses_store_date`` is false.
        """
        self._clock = clock
        self._read_wall = clock.now_ms
        self._read_steady = clock.monotonic_ms
        self._read_ns = _readers_ns(clock)
        self.monotonic_ms: Callable[[], int] = clock.monotonic_ms
        """Time that never goes back. Every request asks for it, so nothing is around it."""
        self._uses_store_date = uses_store_date
        self._on_change = on_change
        self._lock = threading.RLock()
        self._window_ns = _NO_WINDOW
        """Which differences are believed without a second look, and until when; none at first."""
        self._believed_ms: int | None = None
        """The difference by which time goes on while wall time is in doubt."""
        self._evidence = Evidence()
        self._store_agreed = False
        self._deleted_until_ms = 0
        self._doubt: Doubt | None = None
        self._steady_since: tuple[int, int] | None = None
        """While in doubt: the difference that wall time has now, and since when."""
        self.leaps = 0
        """How often doubt began."""

    def now_ms(self) -> int:
        """Wall time if it is believed, else the time that goes on evenly."""
        read_wall, read_steady = self._read_ns
        wall_ns, steady_ns = read_wall(), read_steady()
        low_ns, high_ns, until_ns = self._window_ns
        difference_ns = wall_ns - steady_ns
        if low_ns <= difference_ns <= high_ns and steady_ns < until_ns:
            self._believed_ms = difference_ns // NS_PER_MS
            return wall_ns // NS_PER_MS
        return self._look()

    async def sleep_ms(self, duration_ms: int) -> None:
        """Let that much time pass."""
        await self._clock.sleep_ms(duration_ms)

    @property
    def doubt(self) -> Doubt | None:
        """Why wall time is not believed at this moment; ``None`` if it is."""
        self.now_ms()
        return self._doubt

    @property
    def leap_ms(self) -> int:
        """How far wall time is ahead of the time to go by; 0 without doubt."""
        now_ms = self.now_ms()
        return 0 if self._doubt is None else self._read_wall() - now_ms

    def note_store_date(self, date_ms: int) -> None:
        """Take note of the time that the store's own clock shows at this moment."""
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
        """Take note of the newest moment in the store, which is being opened."""
        with self._lock:
            stored_ms = newest_ms - self._read_steady()
            # What was believed before was believed without this knowledge: judge it anew.
            self._evidence = replace(self._evidence, expected_ms=None, stored_ms=stored_ms)
            self._look()

    def note_deleted(self, until_ms: int) -> None:
        """Take note that items were deleted which expired until then."""
        with self._lock:
            self._deleted_until_ms = max(self._deleted_until_ms, until_ms)

    def _look(self) -> int:
        """Judge wall time, and return the time to go by."""
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
        """Both clocks at one moment.

        A thread may be put aside between two readings. So wall time is read between two readings
        of the monotonic clock, and the moment between these that fits best is taken.
        """
        before_ms, wall_ms, after_ms = self._read_steady(), self._read_wall(), self._read_steady()
        expected_ms = self._evidence.store_ms
        if expected_ms is None:
            expected_ms = self._evidence.expected_ms
        if expected_ms is None:
            return wall_ms, after_ms
        first_ms, last_ms = sorted((before_ms, after_ms))  # the demo's clock can be set back
        return wall_ms, min(max(wall_ms - expected_ms, first_ms), last_ms)

    def _has_settled(self, doubt: Doubt, wall_ms: int, steady_ms: int) -> bool:
        """Whether wall time has run evenly for long enough, and nothing outside contradicts it."""
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
            # Nothing better is known than that time has reached what was stored.
            known_ms = self._evidence.store_ms
            self._believed_ms = self._evidence.stored_ms if known_ms is None else known_ms
        if was is None:
            self.leaps += 1
        if was is not doubt:
            self._on_change(doubt, difference_ms - (self._believed_ms or 0))


_NO_WINDOW: Final = (1, 0, 0)


def _readers_ns(clock: Clock) -> tuple[Callable[[], int], Callable[[], int]]:
    """What reads wall time and monotonic time, in nanoseconds.

    Every request asks for the time, some of them five times, and the machine's clocks can be read
    without a function of ours around them.
    """
    if type(clock) is SystemClock:  # one that is made from it may read otherwise
        return time.time_ns, _read_steady_ns
    return lambda: clock.now_ms() * NS_PER_MS, lambda: clock.monotonic_ms() * NS_PER_MS


def doubt_of(clock: Clock) -> Doubt | None:
    """Why that clock's time is in doubt; a clock that does not judge itself is believed."""
    return clock.doubt if isinstance(clock, TrustedClock) else None


def require_trusted_time(clock: Clock) -> None:
    """Raise `ClockInDoubtError` if the time is in doubt: what is issued now could last too long."""
    doubt = doubt_of(clock)
    if doubt is not None:
        raise ClockInDoubtError(doubt)
