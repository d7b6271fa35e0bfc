"""Streams of aiobotocore are metered to their end, even if their reader ends."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from botocore.config import Config
from botocore.exceptions import EventStreamError

from pricekeeper import AsyncPriceKeeper, wrap
from pricekeeper.client.wrapping import async_streams
from pricekeeper.client.wrapping.metered_call import MeteredCall
from scraping import until
from wrapping.bodies import encoded
from wrapping.faces import SESSION
from wrapping.world import HOLD_MS, Program, messages

OPERATIONS = ["converse_stream", "invoke_model_with_response_stream"]
SLOW = {"between_ms": 15, "output_tokens": 31}
SLOWER = {"between_ms": 250, "output_tokens": 31}
"""Still under way when a busy machine looks at it."""
STALLING = {"between_ms": 600_000}


class CallerError(Exception):
    """Raised by the caller's code."""


@pytest.fixture
async def bedrock(program: Program) -> AsyncIterator[Any]:
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        yield wrap(client, program.async_keeper())


async def begin(bedrock: Any, operation: str = "converse_stream", /, **script: Any) -> Any:
    """A stream that was not read yet."""
    if operation == "converse_stream":
        reply = await bedrock.converse_stream(
            modelId="premium",
            messages=messages(**script),
            inferenceConfig={"maxTokens": 50},
        )
        return reply["stream"]
    body = encoded("premium", 50, **script)
    reply = await bedrock.invoke_model_with_response_stream(modelId="premium", body=body)
    return reply["body"]


async def read_one(stream: Any) -> Any:
    """Read one event, and stop."""
    async for event in stream:
        return event
    return None


async def assert_exact(program: Program) -> None:
    """In a thread, so that tasks of this loop can continue."""
    gc.collect()
    await asyncio.to_thread(program.assert_exact)


async def assert_marked(program: Program, calls: int) -> None:
    gc.collect()
    await asyncio.to_thread(program.assert_marked, calls)


async def break_off(stream: Any) -> None:
    await read_one(stream)


async def close(stream: Any) -> None:
    stream.close()


async def read_and_close(stream: Any) -> None:
    await read_one(stream)
    stream.close()


async def never_iterate(stream: Any) -> None:
    assert stream is not None


async def raise_inside(stream: Any) -> None:
    async def read() -> None:
        async for _ in stream:
            raise CallerError

    with pytest.raises(CallerError):
        await read()


async def keep_in_a_cycle(stream: Any) -> None:
    """Drop it so that only the garbage collector finds it."""
    await read_one(stream)
    cycle = [stream]
    cycle.append(cycle)


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


ABANDONED: dict[str, Callable[[Any], Awaitable[None]]] = {
    "break": break_off,
    "close": close,
    "close after an event": read_and_close,
    "never iterated": never_iterate,
    "raise in the loop": raise_inside,
    "a cycle": keep_in_a_cycle,
    "cancelled": cancel,
    "timed out": time_out,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", ABANDONED)
async def test_an_abandoned_stream_is_read_on_to_its_end(
    program: Program, bedrock: Any, operation: str, way: str
) -> None:
    stream = await begin(bedrock, operation, **SLOW)
    await ABANDONED[way](stream)
    del stream
    await assert_exact(program)
    assert [entry.hung_up for entry in program.ledger.entries] == [False]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_break_is_no_end(program: Program, bedrock: Any, operation: str) -> None:
    whole = [event async for event in await begin(bedrock, operation, events=6)]
    stream = await begin(bedrock, operation, events=6)
    events = [await read_one(stream), await read_one(stream)]
    events += [event async for event in stream]
    assert len(events) == len(whole)
    await assert_exact(program)


async def test_a_closed_stream_has_no_further_events(program: Program, bedrock: Any) -> None:
    stream = await begin(bedrock, **SLOW)
    events = aiter(stream)
    await anext(events)
    stream.close()
    assert [event async for event in events] == []
    stream.close()
    await assert_exact(program)


@pytest.mark.parametrize(
    ("fate", "error"),
    [("breaks-off", EventStreamError), ("cut", aiohttp.ClientPayloadError), ("cut", None)],
    ids=["an error of Bedrock", "a lost connection", "a lost connection, unread"],
)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_stream_that_breaks_off_stays_held(
    program: Program, bedrock: Any, operation: str, fate: str, error: type[Exception] | None
) -> None:
    """There was output, of unknown length."""
    stream = await begin(bedrock, operation, fate=fate)
    if error is not None:
        with pytest.raises(error):
            _ = [event async for event in stream]
    del stream
    await assert_marked(program, 1)


async def test_a_stream_that_stalls_is_held_when_its_reader_gives_up(program: Program) -> None:
    arguments = program.client_arguments(Config(read_timeout=1))
    async with SESSION.create_client("bedrock-runtime", **arguments) as client:
        stream = await begin(wrap(client, program.async_keeper()), **STALLING)
        with pytest.raises(TimeoutError):
            _ = [event async for event in stream]
        del stream
        await assert_marked(program, 1)


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


@pytest.mark.parametrize("way", ["break", "close", "never iterated", "cancelled"])
async def test_a_client_that_is_closed_has_its_streams_read_on(program: Program, way: str) -> None:
    async with SESSION.create_client("bedrock-runtime", **program.client_arguments()) as client:
        bedrock = wrap(client, program.async_keeper())
        stream = await begin(bedrock, **SLOWER)
        await ABANDONED[way](stream)
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


async def test_many_are_read_on_at_once(program: Program, bedrock: Any) -> None:
    async def work() -> None:
        await read_one(await begin(bedrock, **SLOW))

    await asyncio.gather(*(work() for _ in range(40)))
    await assert_exact(program)
    assert len(program.ledger.entries) == 40


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


@pytest.mark.parametrize(("bound", "value"), [("BYTES_MAX", 100), ("SECS_MAX", 0.1)])
async def test_a_stream_that_is_too_long_is_left_held(
    program: Program, bedrock: Any, monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    monkeypatch.setattr(async_streams, bound, value)
    script = {"between_ms": 600_000 if bound == "SECS_MAX" else 15}
    (await begin(bedrock, **script)).close()
    await asyncio.to_thread(async_streams.wait_for_tasks, 5)
    assert not async_streams._open
    await assert_marked(program, 1)


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
