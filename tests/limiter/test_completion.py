"""Whatever moment a caller is cancelled at: what was done is either handed over or undone."""

import asyncio

import pytest

from pricekeeper.errors import StoreUnavailableError
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

    caller = asyncio.create_task(completion.of(work(), undo))
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
        await completion.of(work(), undo)
    caller = asyncio.create_task(completion.of(work(), undo))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await completion.drain()
