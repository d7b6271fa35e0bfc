"""Wall time is believed as far as the monotonic clock and the store agree with it."""

import threading
import time

import pytest

from pricekeeper.clock import (
    ANCHOR_MS,
    LEAP_MS_MAX,
    STEADY_MS,
    Doubt,
    Evidence,
    ManualClock,
    SystemClock,
    TrustedClock,
    doubt_of,
    judge,
    require_trusted_time,
)
from pricekeeper.errors import ClockInDoubtError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_768_000_000_000


class Changes:
    """What the clock has told about itself."""

    def __init__(self) -> None:
        self.told: list[tuple[Doubt | None, int]] = []

    def __call__(self, doubt: Doubt | None, leap_ms: int) -> None:
        self.told.append((doubt, leap_ms))


@pytest.fixture
def machine() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def clock(machine: ManualClock, changes: Changes) -> TrustedClock:
    clock = TrustedClock(machine, on_change=changes)
    assert clock.now_ms() == START_MS
    return clock


@pytest.mark.parametrize(
    ("evidence", "difference_ms", "doubt"),
    [
        (Evidence(), 5, None),
        (Evidence(expected_ms=0), LEAP_MS_MAX, None),
        (Evidence(expected_ms=0), LEAP_MS_MAX + 1, Doubt.LEAP),
        (Evidence(expected_ms=0), -LEAP_MS_MAX, None),
        (Evidence(expected_ms=0), -LEAP_MS_MAX - 1, Doubt.LEAP),
        (Evidence(stored_ms=0), -LEAP_MS_MAX, None),
        (Evidence(stored_ms=0), -LEAP_MS_MAX - 1, Doubt.BEHIND),
        (Evidence(stored_ms=0), 30 * DAY_MS, None),  # a long stop looks like that
        (Evidence(expected_ms=0, stored_ms=-DAY_MS), -HOUR_MS, Doubt.LEAP),
        (Evidence(store_ms=0), LEAP_MS_MAX, None),
        (Evidence(store_ms=0), LEAP_MS_MAX + 1, Doubt.CONTRADICTED),
        (Evidence(expected_ms=DAY_MS, store_ms=0), 0, None),  # the store knows better
        (Evidence(expected_ms=0, store_ms=DAY_MS), 0, Doubt.CONTRADICTED),
        (Evidence(stored_ms=DAY_MS, store_ms=0), 0, None),
    ],
)
def test_what_is_believed(evidence: Evidence, difference_ms: int, doubt: Doubt | None) -> None:
    """A minute either way; the store's own clock decides before anything else."""
    assert judge(difference_ms, evidence) is doubt


def test_without_a_leap_it_is_the_wall_clock(machine: ManualClock, clock: TrustedClock) -> None:
    for correction_ms in (0, 20_000, -35_000, 59_000):
        machine.jump_ms(correction_ms)
        machine.advance_ms(1_000)
        assert clock.now_ms() == machine.now_ms()
        assert doubt_of(clock) is None
        assert clock.leap_ms == 0
    assert clock.leaps == 0


@pytest.mark.parametrize("leap_ms", [LEAP_MS_MAX + 1, -LEAP_MS_MAX - 1, DAY_MS, -HOUR_MS])
def test_time_goes_on_evenly_through_a_leap(
    machine: ManualClock, clock: TrustedClock, changes: Changes, leap_ms: int
) -> None:
    """It neither leaps along nor stops, reports it once, and is right again at once."""
    machine.advance_ms(5_000)
    machine.jump_ms(leap_ms)
    assert clock.now_ms() == START_MS + 5_000
    machine.advance_ms(70_000)
    assert clock.now_ms() == START_MS + 75_000
    assert doubt_of(clock) is Doubt.LEAP
    assert clock.leap_ms == leap_ms
    machine.jump_ms(-leap_ms)
    assert clock.now_ms() == machine.now_ms() == START_MS + 75_000
    assert (doubt_of(clock), clock.leap_ms, clock.leaps) == (None, 0, 1)
    assert changes.told == [(Doubt.LEAP, leap_ms), (None, 0)]


@pytest.mark.parametrize("leap_ms", [DAY_MS, -DAY_MS])
def test_a_leap_that_lasts_is_believed_in_the_end(
    machine: ManualClock, clock: TrustedClock, changes: Changes, leap_ms: int
) -> None:
    """A machine was paused, or a wrong clock corrected: nothing else would ever heal that."""
    machine.jump_ms(leap_ms)
    clock.now_ms()
    machine.advance_ms(STEADY_MS - 1)
    assert doubt_of(clock) is Doubt.LEAP
    machine.advance_ms(1)
    assert doubt_of(clock) is None
    assert clock.now_ms() == machine.now_ms()
    assert changes.told == [(Doubt.LEAP, leap_ms), (None, leap_ms)]


def test_a_clock_that_keeps_leaping_is_not_believed(
    machine: ManualClock, clock: TrustedClock
) -> None:
    machine.jump_ms(DAY_MS)
    for _ in range(10):
        assert doubt_of(clock) is Doubt.LEAP
        machine.advance_ms(STEADY_MS // 2)
        machine.jump_ms(HOUR_MS)
    assert clock.now_ms() == START_MS + 5 * STEADY_MS


def test_what_was_deleted_does_not_come_to_life(machine: ManualClock, clock: TrustedClock) -> None:
    """A time at which deleted items would be alive is not believed, however long it lasts."""
    clock.note_deleted(START_MS - DAY_MS)
    machine.jump_ms(-2 * DAY_MS)
    clock.now_ms()
    machine.advance_ms(DAY_MS - 1)
    assert doubt_of(clock) is Doubt.LEAP
    machine.advance_ms(1)
    assert doubt_of(clock) is None  # now it shows them as expired


def test_a_clock_that_runs_too_fast_is_noticed(machine: ManualClock, clock: TrustedClock) -> None:
    """Also if it never leaps: it may gain a minute in an hour, and not in less."""
    for _ in range(100):
        machine.advance_ms(60_000)
        machine.jump_ms(600)  # 1 %
        assert doubt_of(clock) is None
    fast = TrustedClock(machine)
    fast.now_ms()
    for _ in range(60):
        machine.advance_ms(ANCHOR_MS // 60)
        machine.jump_ms(1_200)
        assert fast.leap_ms <= 60 * 1_200  # to ask for it, as metrics do, changes nothing
    assert doubt_of(fast) is Doubt.LEAP


def test_a_start_behind_what_was_stored_is_in_doubt(machine: ManualClock) -> None:
    """Time runs from the stored moment until wall time has passed it, which is believed."""
    clock = TrustedClock(machine)
    clock.note_newest_moment(START_MS + DAY_MS)
    assert doubt_of(clock) is Doubt.BEHIND
    machine.advance_ms(1_000)
    assert clock.now_ms() == START_MS + DAY_MS + 1_000
    machine.jump_ms(3 * DAY_MS)  # a machine without a battery hears the time from the network
    assert doubt_of(clock) is None
    assert clock.now_ms() == START_MS + 3 * DAY_MS + 1_000
    machine.jump_ms(DAY_MS)
    assert doubt_of(clock) is Doubt.LEAP  # from then on it is as with any other clock


def test_a_start_ahead_of_what_was_stored_is_a_long_stop(machine: ManualClock) -> None:
    """The two look the same; sweeping is bounded in another way."""
    clock = TrustedClock(machine)
    clock.note_newest_moment(START_MS - 300 * DAY_MS)
    assert doubt_of(clock) is None


def test_the_store_confirms_a_correction_at_once(
    machine: ManualClock, clock: TrustedClock, changes: Changes
) -> None:
    """A virtual machine was paused for a day: the next answer of the store says so."""
    clock.note_store_date(START_MS)
    machine.jump_ms(DAY_MS)
    assert doubt_of(clock) is Doubt.CONTRADICTED
    assert clock.now_ms() == START_MS
    clock.note_store_date(START_MS + DAY_MS)
    assert doubt_of(clock) is None
    assert clock.now_ms() == START_MS + DAY_MS
    assert changes.told == [(Doubt.CONTRADICTED, DAY_MS), (None, DAY_MS)]


def test_a_leap_that_the_store_contradicts_is_never_believed(
    machine: ManualClock, clock: TrustedClock
) -> None:
    machine.jump_ms(DAY_MS)
    for _ in range(10):
        clock.note_store_date(START_MS + machine.monotonic_ms())
        assert doubt_of(clock) is Doubt.CONTRADICTED
        assert clock.now_ms() == START_MS + machine.monotonic_ms()
        machine.advance_ms(STEADY_MS)


def test_a_clock_that_was_wrong_at_the_start_goes_by_the_store(machine: ManualClock) -> None:
    """An unconfirmed time gives way to the store's time; once corrected it counts."""
    clock = TrustedClock(machine)
    assert clock.now_ms() == START_MS
    clock.note_store_date(START_MS - DAY_MS)
    assert doubt_of(clock) is Doubt.CONTRADICTED
    assert clock.now_ms() == START_MS - DAY_MS
    machine.advance_ms(1_000)
    assert clock.now_ms() == START_MS - DAY_MS + 1_000
    machine.jump_ms(-DAY_MS)
    assert doubt_of(clock) is None


def test_one_strange_answer_of_the_store_does_not_move_the_time(
    machine: ManualClock, clock: TrustedClock
) -> None:
    """Once the store has agreed, a contradiction is a doubt and no more."""
    clock.note_store_date(START_MS)
    clock.note_store_date(START_MS + 365 * DAY_MS)
    assert doubt_of(clock) is Doubt.CONTRADICTED
    machine.advance_ms(1_000)
    assert clock.now_ms() == START_MS + 1_000
    clock.note_store_date(START_MS + 1_000)
    assert doubt_of(clock) is None


def test_a_simulated_clock_does_not_hear_the_store(machine: ManualClock) -> None:
    clock = TrustedClock(machine, uses_store_date=False)
    clock.note_store_date(START_MS - DAY_MS)
    assert doubt_of(clock) is None


class Slow(ManualClock):
    """A clock whose reader is put aside for two minutes after each reading of either clock."""

    slow = False

    def now_ms(self) -> int:
        now_ms = super().now_ms()
        self.advance_ms(120_000 * self.slow)
        return now_ms

    def monotonic_ms(self) -> int:
        now_ms = super().monotonic_ms()
        self.advance_ms(120_000 * self.slow)
        return now_ms


def test_a_thread_that_is_put_aside_is_no_leap(changes: Changes) -> None:
    """However often: the clocks were read at different moments, and still agree."""
    machine = Slow(START_MS)
    clock = TrustedClock(machine, on_change=changes)
    clock.now_ms()
    machine.slow = True
    for _ in range(100):
        assert START_MS < clock.now_ms() <= machine.now_ms()
    assert changes.told == []
    machine.jump_ms(DAY_MS)
    assert doubt_of(clock) is Doubt.LEAP  # a real leap is seen through it


def test_issuing_asks_for_trusted_time(machine: ManualClock, clock: TrustedClock) -> None:
    """A clock that does not judge itself is believed: a command's, or a test's."""
    require_trusted_time(machine)
    require_trusted_time(clock)
    machine.jump_ms(DAY_MS)
    assert doubt_of(machine) is None
    with pytest.raises(ClockInDoubtError, match="monotonic"):
        require_trusted_time(clock)


def test_the_machines_own_clocks_agree_with_each_other() -> None:
    """Read by many threads at once, for as long as that takes."""
    clock = TrustedClock(SystemClock())

    def read() -> None:
        for _ in range(2_000):
            clock.now_ms()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (doubt_of(clock), clock.leaps) == (None, 0)


def test_the_monotonic_clock_counts_the_sleep_of_the_machine() -> None:
    """Where there is such a clock: else each suspend would be a leap."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        pytest.skip("this machine has no clock that counts its sleep")
    before_ms = time.clock_gettime_ns(boottime) // 1_000_000
    now_ms = SystemClock().monotonic_ms()
    assert before_ms <= now_ms <= time.clock_gettime_ns(boottime) // 1_000_000


class Counted(ManualClock):
    """Counts how often it is read."""

    walls = steadies = 0

    def now_ms(self) -> int:
        self.walls += 1
        return super().now_ms()

    def monotonic_ms(self) -> int:
        self.steadies += 1
        return super().monotonic_ms()


def test_a_reading_costs_one_more_reading() -> None:
    """Wall clock and monotonic clock once each, without a lock, unless something has changed."""
    machine = Counted(START_MS)
    clock = TrustedClock(machine)
    clock.now_ms()
    machine.walls = machine.steadies = 0
    for _ in range(100):
        clock.now_ms()
    assert (machine.walls, machine.steadies) == (100, 100)
