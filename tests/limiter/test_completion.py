"""Whatever moment a caller is cancelled at: what was done is either handed over or undone."""

import asyncio
import gc
from typing import Any

import pytest

from pricekeeper.errors import NotFoundError, StoreUnavailableError
from pricekeeper.limiter.completion import Completion


@pytest.mark.parametrize("turns", range(8))
async def test_a_result_is_handed_over_or_undone_and_never_both(turns: int) -> None:
    """Cancelled before it began, while it was under way, or when the result was there already."""
    completion = Completion()
    undone: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    async def undo(result: str) -> None:
        await asyncio.sleep(0)
        undone.append(result)

    caller = asyncio.create_task(completion.complete(work(), undo))
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    caller.cancel()
    [outcome] = await asyncio.gather(caller, return_exceptions=True)
    await completion.drain()

    assert (outcome == "done") != (undone == ["done"])


async def test_errors_go_to_the_caller_and_to_nobody_if_it_is_gone() -> None:
    """Nothing is undone that failed."""
    completion = Completion()

    async def work() -> str:
        await asyncio.sleep(0)
        raise StoreUnavailableError("away")

    async def undo(_: str) -> None:
        pytest.fail("there is nothing to undo")

    with pytest.raises(StoreUnavailableError):
        await completion.complete(work(), undo)
    caller = asyncio.create_task(completion.complete(work(), undo))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await completion.drain()


async def test_a_failure_that_a_caller_left_behind_is_no_traceback() -> None:
    """Also if there was nothing to undo: its store has counted it."""
    felt: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: felt.append(told["message"]))
    completion = Completion()

    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise StoreUnavailableError("away")

    caller = asyncio.create_task(completion.complete(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await completion.drain()
    del caller
    gc.collect()
    await asyncio.sleep(0)
    assert felt == []


async def test_everything_is_waited_for_also_what_was_begun_meanwhile() -> None:
    """Work may have an end of its own to bring about."""
    completion = Completion()
    done = []

    async def work(left: int) -> None:
        await asyncio.sleep(0)
        if left:
            completion.start(work(left - 1))
        done.append(left)

    completion.start(work(3))
    await completion.drain()

    assert done == [3, 2, 1, 0]


async def test_when_the_loop_is_shut_down_nobody_is_left_waiting() -> None:
    """Then the work itself is cancelled, and so is whoever waits for it."""
    completion = Completion()

    async def work() -> None:
        await asyncio.Event().wait()

    caller = asyncio.create_task(completion.complete(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in completion._tasks:
        task.cancel()
    async with asyncio.timeout(10):
        [outcome] = await asyncio.gather(caller, return_exceptions=True)

    assert isinstance(outcome, asyncio.CancelledError)


@pytest.mark.parametrize("turns", range(6))
async def test_what_cannot_be_undone_is_nobodys_to_deal_with(turns: int) -> None:
    """The caller is gone; where it happened it was counted."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    completion = Completion()

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def undo(_: str) -> None:
        raise NotFoundError("lease")

    caller = asyncio.create_task(completion.complete(work(), undo))
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await completion.drain()
    del caller
    gc.collect()

    assert complaints == []
