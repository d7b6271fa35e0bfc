"""The caller of a stream on another server than ours."""

import asyncio
from typing import Any

from pricekeeper.gateway.caller import DRAIN_SECS_MAX, Caller, Drains, Receive
from pricekeeper.gateway.meter import GatewayMeter


def receiving(leaves: asyncio.Event) -> Receive:
    """The messages of a caller that leaves once it may."""

    async def receive() -> Any:
        await leaves.wait()
        return {"type": "http.disconnect"}

    return receive


async def test_a_message_says_that_the_caller_has_left() -> None:
    """From then on the rest is read for so long; what comes after the end changes nothing."""
    meter, leaves = GatewayMeter(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        caller = Caller(receiving(leaves), None, limit, Drains(meter))
        leaves.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert caller.has_left
        due = limit.when()
        assert due is not None
        assert DRAIN_SECS_MAX - 1 < due - loop.time() <= DRAIN_SECS_MAX
        caller.forget(is_whole=True)
    assert meter.drains["whole"] == 1


async def test_nobody_leaves_a_stream_that_has_ended() -> None:
    meter, leaves = GatewayMeter(), asyncio.Event()
    async with asyncio.timeout(None) as limit:
        caller = Caller(receiving(leaves), None, limit, Drains(meter))
        caller.forget(is_whole=True)
        leaves.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not caller.has_left
        assert limit.when() is None
    assert not meter.drains["whole"]
