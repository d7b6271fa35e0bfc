"""Streams are metered to their end, even if the caller abandons them.

Bedrock bills a stream in full, even if it is not read, and so does the stand-in.
"""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import EventStreamError
from urllib3.exceptions import HTTPError

from pricekeeper.client.threads import WorkQueue
from pricekeeper.client.wrapping import async_streams, streams
from scraping import until
from wrapping.faces import FACES
from wrapping.stream_faces import (
    ABANDONED,
    OPERATIONS,
    SLOW,
    STALLING,
    assert_exact,
    assert_marked,
    begin,
    events_of,
    opened,
    read_all,
    read_one,
)
from wrapping.world import Program

LOST = (HTTPError, aiohttp.ClientPayloadError)


@pytest.fixture(params=FACES)
async def bedrock(program: Program, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with opened(request.param, program, max_pool_connections=50) as client:
        yield client


@pytest.fixture
async def boto3_client(program: Program) -> AsyncIterator[Any]:
    async with opened("boto3", program) as client:
        yield client


async def shut_down(stream: Any) -> None:
    """As pydantic-ai does: end the connection, if the stream shows one, then close."""
    await read_one(stream)
    with suppress(AttributeError):
        stream._raw_stream.connection.sock.shutdown(socket.SHUT_RDWR)
    stream.close()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", [*ABANDONED.values(), shut_down], ids=[*ABANDONED, "shut down"])
async def test_an_abandoned_stream_is_read_on_to_its_end(
    program: Program, bedrock: Any, operation: str, way: Any
) -> None:
    stream = await begin(bedrock, operation, **SLOW)
    await way(stream)
    del stream
    await assert_exact(program)
    assert [entry.hung_up for entry in program.ledger.entries] == [False]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_break_is_no_end(program: Program, bedrock: Any, operation: str) -> None:
    whole = await read_all(await begin(bedrock, operation, events=6))
    stream = await begin(bedrock, operation, events=6)
    events = [await read_one(stream), await read_one(stream), *await read_all(stream)]
    assert len(events) == len(whole)
    await assert_exact(program)


async def test_a_closed_stream_has_no_further_events(program: Program, bedrock: Any) -> None:
    stream = await begin(bedrock, **SLOW)
    events = events_of(stream)
    await anext(events)
    stream.close()
    assert [event async for event in events] == []
    stream.close()
    await assert_exact(program)


@pytest.mark.parametrize(
    ("fate", "error"),
    [("breaks-off", EventStreamError), ("cut", LOST), ("cut", None)],
    ids=["an error of Bedrock", "a lost connection", "a lost connection, unread"],
)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_stream_that_breaks_off_stays_held(
    program: Program, bedrock: Any, operation: str, fate: str, error: Any
) -> None:
    """There was output, of unknown length."""
    stream = await begin(bedrock, operation, fate=fate)
    if error is not None:
        with pytest.raises(error):
            await read_all(stream)
    del stream
    await assert_marked(program, 1)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_stream_that_stalls_is_held_when_its_reader_gives_up(
    program: Program, face: str, operation: str
) -> None:
    async with opened(face, program, read_timeout=0.5) as client:
        stream = await begin(client, operation, **STALLING)
        with pytest.raises((HTTPError, TimeoutError)):
            await read_all(stream)
        del stream
        await assert_marked(program, 1)


async def test_many_are_read_on_at_once(program: Program, bedrock: Any) -> None:
    begun = [await begin(bedrock, **SLOW) for _ in range(40)]
    await read_one(begun[-1])
    del begun
    await assert_exact(program)
    assert len(program.ledger.entries) == 40


@pytest.mark.parametrize(("bound", "value"), [("BYTES_MAX", 100), ("SECS_MAX", 0.1)])
@pytest.mark.parametrize(("face", "room"), [*zip(FACES, (streams, async_streams), strict=True)])
async def test_a_stream_that_is_too_long_is_left_held(
    program: Program, monkeypatch: pytest.MonkeyPatch, face: str, room: Any, bound: str, value: Any
) -> None:
    """Even if the client would wait for an hour without data."""
    monkeypatch.setattr(room, bound, value)
    async with opened(face, program, read_timeout=3_600) as client:
        (await begin(client, **(STALLING if bound == "SECS_MAX" else SLOW))).close()
        await asyncio.to_thread(streams.wait_for_threads, 5)
        await asyncio.to_thread(async_streams.wait_for_tasks, 5)
        assert streams.drainer.is_idle
        assert not async_streams._open
        await assert_marked(program, 1)


def read_in_thread(events: Any) -> threading.Thread:
    """A thread that reads, and has begun."""
    reads = threading.Event()

    def read() -> None:
        reads.set()
        list(events)

    reader = threading.Thread(target=read)
    reader.start()
    reads.wait()
    return reader


async def test_a_stream_may_be_closed_while_another_thread_waits_for_it(
    program: Program, boto3_client: Any
) -> None:
    """The reading thread waits for the other one, and counts its bytes, too."""
    stream = await begin(boto3_client, between_ms=200, output_tokens=31)
    events = iter(stream)
    next(events)
    reader = read_in_thread(events)
    stream.close()
    reader.join()
    await assert_exact(program)


async def test_the_connection_of_a_drained_stream_is_used_again(
    program: Program, boto3_client: Any
) -> None:
    for _ in range(3):
        await read_one(await begin(boto3_client, **SLOW))
        program.tell()
    await assert_exact(program)
    pool = next(iter(boto3_client._endpoint.http_session._manager.pools._container.values()))
    assert pool.num_connections == 1


@pytest.fixture
def fresh_drainer(monkeypatch: pytest.MonkeyPatch) -> WorkQueue:
    """One without threads of earlier tests, and one thread at the most."""
    drainer = WorkQueue("pricekeeper-drain")
    monkeypatch.setattr(streams, "drainer", drainer)
    return drainer


async def test_more_than_may_wait_are_left_held(
    program: Program,
    boto3_client: Any,
    fresh_drainer: WorkQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "WAITING_MAX", 2)
    begun = [await begin(boto3_client, between_ms=40) for _ in range(6)]
    begun.pop().close()
    until(lambda: fresh_drainer.waiting == 0)  # the thread has taken it
    del begun
    gc.collect()
    program.tell()
    assert len(program.records()) == 3
    await assert_marked(program, 3)


async def test_a_finalizer_waits_for_no_lock(
    program: Program,
    boto3_client: Any,
    fresh_drainer: WorkQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream may be freed while its thread writes to the spool and too many wait."""
    monkeypatch.setattr(streams, "WAITING_MAX", 0)
    stream = await begin(boto3_client)
    events = iter(stream)
    while "metadata" not in next(events):
        pass
    with program.keeper.engine.spool._lock:
        del events, stream
        gc.collect()
    await assert_exact(program)
