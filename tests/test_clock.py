"""Time as a dependency: the machine's, and the one that tests move by hand."""

import asyncio
import time

import pytest

from pricekeeper.clock import Clock, ManualClock, SystemClock


async def _settle() -> None:
    """Let every task that can run do so: a few turns of the loop are enough for these."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_system_clock_tells_epoch_milliseconds() -> None:
    before_ms = time.time_ns() // 1_000_000
    now_ms = SystemClock().now_ms()
    after_ms = time.time_ns() // 1_000_000
    assert before_ms <= now_ms <= after_ms
    assert type(now_ms) is int


async def test_the_system_clock_measures_what_it_slept() -> None:
    clock: Clock = SystemClock()
    start_ms = clock.monotonic_ms()
    await clock.sleep_ms(5)
    assert clock.monotonic_ms() - start_ms >= 4  # two roundings down may eat one


def test_a_manual_clock_stands_still() -> None:
    """Time passes only on command, on both clocks alike."""
    clock = ManualClock(now_ms=1_000)
    assert (clock.now_ms(), clock.now_ms(), clock.monotonic_ms()) == (1_000, 1_000, 0)
    clock.advance_ms(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_250, 250)


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    """The sleeper of the earliest moment wakes first; equals keep their order."""
    clock, woken = ManualClock(), list[str]()

    async def sleeper(name: str, duration_ms: int) -> None:
        await clock.sleep_ms(duration_ms)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, duration_ms in [("late", 300), ("first", 100), ("second", 100), ("middle", 200)]:
            tasks.create_task(sleeper(name, duration_ms))
        await _settle()
        clock.advance_ms(300)
    assert woken == ["first", "second", "middle", "late"]


async def test_a_sleeper_wakes_at_its_time_and_not_before() -> None:
    clock = ManualClock()
    async with asyncio.TaskGroup() as tasks:
        sleep = tasks.create_task(clock.sleep_ms(100))
        await _settle()
        clock.advance_ms(99)
        await _settle()
        assert not sleep.done()
        assert clock.sleepers == 1
        clock.advance_ms(1)
        await _settle()
        assert sleep.done()
        assert clock.sleepers == 0


@pytest.mark.parametrize("duration_ms", [0, -1])
async def test_to_sleep_no_time_only_lets_others_run(duration_ms: int) -> None:
    clock, others = ManualClock(), list[str]()
    asyncio.get_running_loop().call_soon(others.append, "ran")
    await clock.sleep_ms(duration_ms)
    assert others == ["ran"]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleep = asyncio.create_task(clock.sleep_ms(100))
    await _settle()
    sleep.cancel()
    await _settle()
    assert clock.sleepers == 0
    clock.advance_ms(100)
    assert sleep.cancelled()


async def test_a_jump_of_the_wall_clock_wakes_nobody() -> None:
    clock = ManualClock(now_ms=1_000)
    sleep = asyncio.create_task(clock.sleep_ms(100))
    await _settle()
    clock.jump_ms(500)
    assert clock.now_ms() == 1_500
    clock.jump_ms(-1_000)
    assert clock.now_ms() == 500
    await _settle()
    assert clock.monotonic_ms() == 0
    assert not sleep.done()
    sleep.cancel()


def test_time_passes_forward() -> None:
    with pytest.raises(ValueError, match="forward"):
        ManualClock().advance_ms(-1)
