"""Streams of aiobotocore are metered to their end, even if their reader ends."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from pricekeeper import AsyncPriceKeeper, wrap
from pricekeeper.client.wrapping import async_streams
from pricekeeper.client.wrapping.metered_call import MeteredCall
from scraping import until
from wrapping.faces import SESSION
from wrapping.stream_faces import (
    OPERATIONS,
    SLOW,
    STALLING,
    assert_exact,
    assert_marked,
    begin,
    close,
    never_iterate,
    opened,
    read_one,
)
from wrapping.world import HOLD_MS, Program, messages

SLOWER = {"between_ms": 150, "output_tokens": 31}
"""Still under way when a busy machine looks at it."""


@pytest.fixture
async def bedrock(program: Program) -> AsyncIterator[Any]:
    async with opened("aiobotocore", program) as client:
        yield client


async def cancel(stream: Any) -> None:
    """Cancel the task that reads, in the middle of a read."""

    async def read() -> None:
        async for _ in stream:
            begun.set()

    begun = asyncio.Event()
    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(stream: Any) -> None:
    """Give up at the first event that takes longer than a moment."""
    events = aiter(stream)
    await anext(events)
    with suppress(TimeoutError, StopAsyncIteration):
        while True:
            await asyncio.wait_for(anext(events), 0.001)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", [cancel, time_out])
async def test_an_abandoned_stream_is_read_on_to_its_end(
    program: Program, bedrock: Any, operation: str, way: Callable[[Any], Awaitable[None]]
) -> None:
    stream = await begin(bedrock, operation, **SLOW)
    await way(stream)
    del stream
    await assert_exact(program)
    assert [entry.hung_up for entry in program.ledger.entries] == [False]


async def test_a_call_that_is_cancelled_before_its_answer_stays_held(
    program: Program, bedrock: Any
) -> None:
    """The model runs."""
    given = {"modelId": "premium", "messages": messages(delay_ms=600_000)}
    task = asyncio.create_task(bedrock.converse(**given))
    billed = asyncio.to_thread(program.ledger.wait_until, lambda entries: len(entries) == 1)
    assert await billed
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_marked(program, 1)


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_call_that_is_cancelled_at_any_point_is_not_below_the_bill(
    program: Program, bedrock: Any, turns: int
) -> None:
    """While it is authorized, sent or read: the call is voided, counted or marked."""
    task = asyncio.create_task(bedrock.converse(modelId="premium", messages=messages()))
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    assert isinstance(outcome, dict | asyncio.CancelledError)
    del outcome, task
    gc.collect()

    def judge() -> None:
        program.forget_unknown()
        until(is_settled, lambda: f"{program.books()}, and the bill is {program.bill}")

    def is_settled() -> bool:
        # The cancelled request may still reach the service.
        program.tell()
        books = program.books()
        if books.held:
            program.world.clock.pass_ms(HOLD_MS + 1_000)
        return not books.held and books.spent <= program.bill <= books.spent + books.unsettled

    await asyncio.to_thread(judge)


@pytest.mark.parametrize("way", [read_one, close, never_iterate, cancel])
async def test_a_client_that_is_closed_has_its_streams_read_on(
    program: Program, way: Callable[[Any], Awaitable[None]]
) -> None:
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        bedrock = wrap(client, program.async_keeper())
        stream = await begin(bedrock, **SLOWER)
        await way(stream)
        (session,) = client._endpoint.http_session._sessions.values()
        connector = session.connector
    assert not program.records()
    assert not connector.closed
    await assert_exact(program)
    assert [entry.hung_up for entry in program.ledger.entries] == [False]
    await asyncio.to_thread(until, lambda: connector.closed)
    del stream


async def test_a_client_without_streams_is_closed_at_once(program: Program) -> None:
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        bedrock = wrap(client, program.async_keeper())
        stream = await begin(bedrock)
        _ = [event async for event in stream]
        (session,) = client._endpoint.http_session._sessions.values()
        connector = session.connector
    assert connector.closed


async def test_a_reader_whose_client_is_closed_does_not_take_it_for_the_end(
    program: Program,
) -> None:
    """It gets an error, as without the wrapper; the usage is counted."""
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        stream = await begin(wrap(client, program.async_keeper()), **SLOWER)
        events = aiter(stream)
        await anext(events)
    with pytest.raises(aiohttp.ClientConnectionError):
        _ = [event async for event in events]
    await assert_exact(program)


async def leave_two(program: Program, **script: Any) -> list[Any]:
    """Abandon a stream, leave another one unread, and end."""
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        bedrock = wrap(client, program.async_keeper())
        (await begin(bedrock, **script)).close()
        return [await begin(bedrock, **script)]


def test_a_loop_that_ends_waits_for_its_streams(program: Program) -> None:
    """``asyncio.run`` cancels the tasks that read, and waits for them."""
    kept = asyncio.run(leave_two(program, **SLOW))
    kept.clear()
    gc.collect()
    program.assert_exact()


def test_a_loop_that_ends_waits_no_longer_than_the_deadline(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeteredCall, "deadline_secs", 0.1)

    async def work() -> float:
        await leave_two(program, **STALLING)
        return time.monotonic()

    ended_at = asyncio.run(work())
    assert time.monotonic() - ended_at < 4  # a busy machine may be slow
    program.assert_marked(2)


def test_a_loop_that_ends_after_the_answer_knows_what_was_used(program: Program) -> None:
    async def work() -> None:
        async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
            stream = await begin(wrap(client, program.async_keeper()))
            async for event in stream:
                if "metadata" in event:
                    break
            kept.append(stream)

    kept: list[Any] = []
    asyncio.run(work())
    kept.clear()
    gc.collect()
    program.assert_exact()


async def test_what_was_dropped_just_now_is_waited_for(
    program: Program, bedrock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop notices the abandoned stream before the keeper looks for them."""
    seen: list[int] = []
    monkeypatch.setattr(AsyncPriceKeeper, "_close", lambda _: seen.append(len(async_streams._open)))
    stream = await begin(bedrock, **SLOWER)
    await read_one(stream)
    del stream
    await program.async_keeper().close()
    assert seen == [1]
    await assert_exact(program)


async def test_more_than_may_be_read_at_once_are_left_held(
    program: Program, bedrock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_streams, "TASKS_MAX", 2)
    begun = [await begin(bedrock, between_ms=40) for _ in range(5)]
    for stream in begun:
        stream.close()
    await asyncio.to_thread(program.tell)
    assert len(await asyncio.to_thread(program.records)) == 2
    await assert_marked(program, 3)


async def test_a_stream_may_be_closed_while_another_task_waits_for_it(
    program: Program, bedrock: Any
) -> None:
    """The reading task waits for the other one, and counts its bytes, too."""
    stream = await begin(bedrock, between_ms=100, output_tokens=31)
    await read_one(stream)
    reader = asyncio.create_task(read_one(stream))
    await asyncio.sleep(0)
    stream.close()
    await reader
    del stream
    await assert_exact(program)
