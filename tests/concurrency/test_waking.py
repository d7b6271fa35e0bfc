"""A wait ends with its sleep or its event, and leaves no task behind."""

import asyncio

import pytest

from pricekeeper.concurrency import wait_or_wake


@pytest.mark.parametrize("is_woken", [True, False])
async def test_the_first_of_sleep_and_event_ends_the_wait(is_woken: bool) -> None:
    wake, slept = asyncio.Event(), asyncio.Event()
    (wake if is_woken else slept).set()

    async def sleep() -> None:
        await slept.wait()

    await wait_or_wake(sleep(), wake)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_wait_cancels_both() -> None:
    waiting = asyncio.create_task(wait_or_wake(asyncio.sleep(3600), asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
