"""Background work is looked after: a crash is counted, told, and followed by another try."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import structlog
from structlog.testing import capture_logs

from pricekeeper.bootstrap import Supervisor
from pricekeeper.bootstrap.supervision import PAUSE_FIRST_MS, PAUSE_MAX_MS
from pricekeeper.clock import ManualClock

TURNS = 10
"""Turns of the loop after which all that needs no time is done."""


class Job:
    """Ends in the given ways, and notes its starts."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.starts_ms: list[int] = []
        self.ending: Callable[[], None] = self.crash
        self.lasts_ms = 0

    @staticmethod
    def crash() -> None:
        raise ZeroDivisionError("no good")

    async def __call__(self) -> None:
        self.starts_ms.append(self.clock.monotonic_ms())
        if self.lasts_ms:
            await self.clock.sleep_ms(self.lasts_ms)
        self.ending()

    def pauses_ms(self) -> list[int]:
        """From each end to the start after it."""
        starts = zip(self.starts_ms, self.starts_ms[1:], strict=False)
        return [later - earlier - self.lasts_ms for earlier, later in starts]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def supervisor(clock: ManualClock) -> AsyncIterator[Supervisor]:
    structlog.reset_defaults()
    supervisor = Supervisor(clock)
    yield supervisor
    await supervisor.close()


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def let_pass(clock: ManualClock, duration_ms: int) -> None:
    """Second by second, so that who wakes can fall asleep again."""
    for _ in range(duration_ms // 1_000):
        await settle()
        clock.advance_ms(1_000)
    await settle()


async def test_a_crash_is_followed_by_another_try(
    supervisor: Supervisor, clock: ManualClock
) -> None:
    """After pauses that double up to a minute, and for as long as it takes."""
    job = Job(clock)
    supervisor.start("prices", job)
    with capture_logs():
        await let_pass(clock, 300_000)
    assert job.pauses_ms() == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert (PAUSE_FIRST_MS, PAUSE_MAX_MS) == (1_000, 60_000)


async def test_crashes_are_counted_and_logged(supervisor: Supervisor, clock: ManualClock) -> None:
    """By the job's name, from zero; the log has the error and the pause."""
    job = Job(clock)
    supervisor.start("prices", job)
    assert supervisor.crashes == {"prices": 0}
    with capture_logs() as logs:
        await let_pass(clock, 3_000)
    assert supervisor.crashes == {"prices": 3}
    assert [(line["event"], line["job"], line["pause_ms"]) for line in logs] == [
        ("job_crashed", "prices", 1_000),
        ("job_crashed", "prices", 2_000),
        ("job_crashed", "prices", 4_000),
    ]
    assert all(line["log_level"] == "error" and line["exc_info"] for line in logs)


async def test_a_job_that_ran_for_long_is_taken_for_healthy(
    supervisor: Supervisor, clock: ManualClock
) -> None:
    """Its next crash is a new one: it starts over at the short pause."""
    job = Job(clock)
    job.lasts_ms = 2 * PAUSE_MAX_MS
    supervisor.start("aggregator", job)
    with capture_logs():
        await let_pass(clock, 4 * job.lasts_ms)
    assert set(job.pauses_ms()) == {PAUSE_FIRST_MS}
    assert supervisor.crashes["aggregator"] == 3


async def test_a_job_that_merely_ends_is_no_crash(
    supervisor: Supervisor, clock: ManualClock
) -> None:
    """It is restarted, and no error is logged."""
    job = Job(clock)
    job.ending = lambda: None
    supervisor.start("aggregator", job)
    await let_pass(clock, 3_000)
    assert len(job.starts_ms) == 3
    assert supervisor.crashes["aggregator"] == 0


async def test_one_job_does_not_disturb_another(supervisor: Supervisor, clock: ManualClock) -> None:
    """Each has its own pauses and its own count."""
    bad, good = Job(clock), Job(clock)
    good.lasts_ms = 10 * PAUSE_MAX_MS
    supervisor.start("bad", bad)
    supervisor.start("good", good)
    with capture_logs():
        await let_pass(clock, 8_000)
    assert supervisor.crashes == {"bad": 4, "good": 0}
    assert len(good.starts_ms) == 1


async def test_closing_ends_the_jobs_and_waits_for_their_end(clock: ManualClock) -> None:
    """Whether they run or pause; what they do on the way out is done before it returns."""
    supervisor, ended = Supervisor(clock), []

    async def tidy() -> None:
        try:
            await clock.sleep_ms(1_000_000)
        finally:
            await asyncio.sleep(0)
            ended.append("tidied")

    supervisor.start("tidy", tidy)
    supervisor.start("bad", Job(clock))
    with capture_logs():
        await settle()
        await supervisor.close()
    assert ended == ["tidied"]
    assert clock.sleepers == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("pricekeeper-")]
