"""A wrapped client of aiobotocore: the same calls, on any event loop."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.config import Config

from pricekeeper import AsyncPriceKeeper, wrap
from wrapping.bodies import encoded
from wrapping.faces import SESSION
from wrapping.world import Program, messages


@pytest.fixture
async def bedrock(program: Program) -> AsyncIterator[Any]:
    arguments = program.client_arguments(Config(retries={"total_max_attempts": 1}))
    async with SESSION.create_client("bedrock-runtime", **arguments) as client:
        yield wrap(client, program.async_keeper())


async def judge(program: Program) -> None:
    """In a thread, so that tasks of this loop can continue."""
    await asyncio.to_thread(program.assert_exact)


async def test_an_invoked_body_may_be_read_in_parts(program: Program, bedrock: Any) -> None:
    asked = {"modelId": "nova", "body": encoded("nova")}
    async with (await bedrock.invoke_model(**asked))["body"] as body:
        assert body.readable()
        first, rest = await body.read(10), await body.read()
        assert json.loads(first + rest)
        assert await body.read() == b""
        assert not body.readable()
    pieces = [piece async for piece in (await bedrock.invoke_model(**asked))["body"]]
    assert json.loads(b"".join(pieces))
    await judge(program)


async def test_a_hundred_calls_at_once_on_one_loop(program: Program, bedrock: Any) -> None:
    async def work(number: int) -> None:
        given = {"modelId": "premium", "messages": messages(input_tokens=number, output_tokens=7)}
        if number % 2:
            await bedrock.converse(**given)
        else:
            async for _ in (await bedrock.converse_stream(**given))["stream"]:
                break

    await asyncio.gather(*(work(number) for number in range(100)))
    assert len(program.ledger.entries) == 100
    await judge(program)


def test_two_loops_in_two_threads_share_one_keeper(program: Program) -> None:
    keeper = program.async_keeper()
    ready = threading.Barrier(2)

    async def work(number: int) -> None:
        arguments = program.client_arguments()
        async with SESSION.create_client("bedrock-runtime", **arguments) as client:
            bedrock = wrap(client, keeper)
            await asyncio.to_thread(ready.wait)
            for step in range(5):
                script = {"input_tokens": 100 * number + step, "output_tokens": 9}
                await bedrock.converse(modelId="auto", messages=messages(**script))
                given = {"modelId": "standard", "messages": messages(**script)}
                reply = await bedrock.converse_stream(**given)
                assert [event async for event in reply["stream"]]

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda number: asyncio.run(work(number)), range(2)))
    assert len(program.ledger.entries) == 20
    program.assert_exact()


async def test_a_loop_goes_on_while_an_authorization_is_waited_for(program: Program) -> None:
    """Another thread asks the service."""
    arguments = program.client_arguments()
    async with SESSION.create_client("bedrock-runtime", **arguments) as client:
        bedrock = wrap(client, program.async_keeper())
        await bedrock.converse(modelId="auto", messages=messages())
        beats = 0
        call = asyncio.create_task(bedrock.converse(modelId="auto", messages=messages()))
        while not call.done():
            await asyncio.sleep(0)
            beats += 1
        await call
    assert beats > 10
    await judge(program)


async def test_a_keeper_of_its_own_is_closed_after_what_is_being_read(program: Program) -> None:
    """``close`` waits for abandoned streams, within the deadline, and the loop continues."""
    program.keeper.close()
    arguments = program.client_arguments()
    async with SESSION.create_client("bedrock-runtime", **arguments) as client:
        async with AsyncPriceKeeper(**program.credentials) as keeper:
            bedrock = wrap(client, keeper)
            given = {"modelId": "auto", "messages": messages(between_ms=30)}
            async for _ in (await bedrock.converse_stream(**given))["stream"]:
                break
        assert keeper.untold == 0
    program.forget_keeper()
    await judge(program)
