"""The deadline of a request: what it ends, what it does not count, and whom it leaves alone."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from metering.conftest import CATALOGUE, a_policy, a_usage
from metering.scripted_store import ScriptedStore
from pricekeeper.clock import SystemClock
from pricekeeper.concurrency.deadline import TICK_SECS, Deadlines
from pricekeeper.errors import DeadlineExceededError
from pricekeeper.metering import Metering, Outcome
from pricekeeper.pricing import PriceBook
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import open_store

LONG_MS = 3_600_000
AT_ONCE_MS = 0


@pytest.mark.parametrize("may_be_applied", [False, True])
async def test_it_ends_whatever_is_waited_for(*, may_be_applied: bool) -> None:
    deadlines = Deadlines(AT_ONCE_MS)

    async def request() -> None:
        with deadlines.begin() as deadline:
            deadline.may_be_applied = may_be_applied
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceededError) as ended:
        await request()
    assert ended.value.may_be_applied is may_be_applied
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)  # nothing of it is left to strike later


async def test_a_cancellation_by_another_caller_at_the_deadline_stays_one() -> None:
    """A service that is shut down cancels its requests, also those whose time has just ended."""

    async def request() -> None:
        with closing(Deadlines(LONG_MS)) as deadlines, deadlines.begin() as deadline:
            deadline.expire()
            task.cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_many_at_once_need_one_timer() -> None:
    deadlines = Deadlines(AT_ONCE_MS)

    async def request(waits: bool) -> None:
        with deadlines.begin():
            if waits:
                await asyncio.Event().wait()

    ended = await asyncio.gather(*(request(n % 2 == 0) for n in range(200)), return_exceptions=True)
    assert [isinstance(one, DeadlineExceededError) for one in ended] == [True, False] * 100
    assert deadlines._timer is None
    assert not deadlines._due


async def test_a_timeout_or_cancellation_of_something_else_stays_what_it_is() -> None:
    """A service that is shut down cancels its requests."""

    async def request() -> None:
        with closing(Deadlines(LONG_MS)) as deadlines, deadlines.begin():
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError), closing(Deadlines(LONG_MS)) as deadlines, deadlines.begin():
        raise TimeoutError


async def test_time_in_a_pause_does_not_count() -> None:
    deadlines, elapsed = Deadlines(AT_ONCE_MS), asyncio.Event()
    reached = asyncio.Event()

    async def request() -> None:
        with deadlines.begin() as deadline:
            with deadline.pause():
                asyncio.get_running_loop().call_later(4 * TICK_SECS, elapsed.set)
                await elapsed.wait()
            reached.set()
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceededError):
        await request()
    assert reached.is_set()


async def test_one_that_leaves_does_not_take_its_neighbours_along() -> None:
    """Two records share a commit: one's time is up, the other one is answered, and both count."""
    goes_on = asyncio.Event()

    async def held(send: Callable[[], Awaitable[None]]) -> None:
        await goes_on.wait()
        await send()

    clock = SystemClock()
    real = await open_store(SqliteLocation(MEMORY), clock=clock)
    await real.create_tables()
    store = ScriptedStore(real, held)
    metering = Metering(store, clock, PriceBook(store, clock, CATALOGUE))
    policy, leaves, stays = a_policy(), a_usage(), a_usage()

    async def leave() -> None:
        with Deadlines(AT_ONCE_MS).begin():
            await metering.record(policy, leaves)

    leaving = asyncio.create_task(leave())
    staying = asyncio.create_task(metering.record(policy, stays))
    with pytest.raises(DeadlineExceededError):
        await leaving
    assert not staying.done()
    assert [len(sent) for sent in store.sent] == [1]  # one page for both
    goes_on.set()
    assert (await staying).outcome is Outcome.ACCEPTED
    assert (await metering.record(policy, leaves)).outcome is Outcome.DUPLICATE
    await metering.close()
    await real.close()
