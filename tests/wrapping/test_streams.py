"""Streams of boto3 are metered to their end, even if the caller abandons them.

Bedrock bills a stream in full, even if it is not read, and so does the stand-in.
"""

import gc
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import EventStreamError
from urllib3.exceptions import HTTPError

from pricekeeper import wrap
from pricekeeper.client.threads import WorkQueue
from pricekeeper.client.wrapping import streams
from scraping import until
from wrapping.bodies import encoded
from wrapping.world import Program, messages

OPERATIONS = ["converse_stream", "invoke_model_with_response_stream"]
SLOW = {"between_ms": 15, "output_tokens": 31}


class CallerError(Exception):
    """Raised by the caller's code."""


def begin(bedrock: Any, operation: str = "converse_stream", /, **script: Any) -> Any:
    """A stream that was not read yet."""
    if operation == "converse_stream":
        return bedrock.converse_stream(
            modelId="premium",
            messages=messages(**script),
            inferenceConfig={"maxTokens": 50},
        )["stream"]
    body = encoded("premium", 50, **script)
    return bedrock.invoke_model_with_response_stream(modelId="premium", body=body)["body"]


def read_one(stream: Any) -> Any:
    """Read one event, and stop."""
    for event in stream:
        return event
    return None


def break_off(stream: Any) -> None:
    read_one(stream)


def read_and_close(stream: Any) -> None:
    read_one(stream)
    stream.close()


def shut_down(stream: Any) -> None:
    """As pydantic-ai does: end the connection, if the stream shows one, then close."""
    read_one(stream)
    with suppress(AttributeError):
        stream._raw_stream.connection.sock.shutdown(socket.SHUT_RDWR)
    stream.close()


def raise_inside(stream: Any) -> None:
    def read() -> None:
        for _ in stream:
            raise CallerError

    with pytest.raises(CallerError):
        read()


def keep_in_a_cycle(stream: Any) -> None:
    """Drop it so that only the garbage collector finds it."""
    read_one(stream)
    cycle = [stream]
    cycle.append(cycle)


ABANDONED: dict[str, Callable[[Any], object]] = {
    "break": break_off,
    "close": lambda stream: stream.close(),
    "close after an event": read_and_close,
    "shut down": shut_down,
    "never iterated": lambda _: None,
    "raise in the loop": raise_inside,
    "a cycle": keep_in_a_cycle,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", ABANDONED)
def test_an_abandoned_stream_is_read_on_to_its_end(
    program: Program, operation: str, way: str
) -> None:
    stream = begin(program.client(), operation, **SLOW)
    ABANDONED[way](stream)
    del stream
    gc.collect()
    program.assert_exact()
    assert [entry.hung_up for entry in program.ledger.entries] == [False]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_break_is_no_end(program: Program, operation: str) -> None:
    stream = begin(program.client(), operation, events=6)
    whole = [str(event) for event in begin(program.client(), operation, events=6)]
    events = [str(read_one(stream)), str(read_one(stream))]
    events += [str(event) for event in stream]
    assert len(events) == len(whole)
    program.assert_exact()


def test_a_closed_stream_has_no_further_events(program: Program) -> None:
    stream = begin(program.client(), **SLOW)
    events = iter(stream)
    next(events)
    stream.close()
    assert list(events) == []
    stream.close()
    program.assert_exact()


def test_a_stream_may_be_closed_while_another_thread_waits_for_it(program: Program) -> None:
    """The reading thread waits for the other one, and counts its bytes, too."""
    stream = begin(program.client(), between_ms=200, output_tokens=31)
    events = iter(stream)
    next(events)
    reads = threading.Event()

    def read() -> None:
        reads.set()
        list(events)

    reader = threading.Thread(target=read)
    reader.start()
    reads.wait()
    stream.close()
    reader.join()
    program.assert_exact()


def test_the_connection_of_a_drained_stream_is_used_again(program: Program) -> None:
    bedrock = program.client()
    for _ in range(3):
        read_one(begin(bedrock, **SLOW))
        program.tell()
    program.assert_exact()
    pool = next(iter(bedrock._endpoint.http_session._manager.pools._container.values()))
    assert pool.num_connections == 1


@pytest.mark.parametrize(
    ("fate", "error"),
    [("breaks-off", EventStreamError), ("cut", HTTPError), ("cut", None)],
    ids=["an error of Bedrock", "a lost connection", "a lost connection, unread"],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stream_that_breaks_off_stays_held(
    program: Program, operation: str, fate: str, error: type[Exception] | None
) -> None:
    """There was output, of unknown length."""
    stream = begin(program.client(), operation, fate=fate)
    if error is not None:
        with pytest.raises(error):
            list(stream)
    del stream
    program.assert_marked(1)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stream_that_stalls_is_held_when_its_reader_gives_up(
    program: Program, operation: str
) -> None:
    stream = begin(program.retrying(1, 0.1), operation, between_ms=600_000)
    with pytest.raises(HTTPError):
        list(stream)
    del stream
    program.assert_marked(1)


@pytest.fixture
def fresh_drainer(monkeypatch: pytest.MonkeyPatch) -> WorkQueue:
    """One without threads of earlier tests, and one thread at the most."""
    drainer = WorkQueue("pricekeeper-drain")
    monkeypatch.setattr(streams, "drainer", drainer)
    return drainer


def test_many_are_read_on_at_once(program: Program) -> None:
    bedrock = wrap(program.bare_client(max_pool_connections=50), program.keeper)
    begun = [begin(bedrock, **SLOW) for _ in range(40)]
    del begun
    gc.collect()
    program.assert_exact()
    assert len(program.ledger.entries) == 40


def test_more_than_may_wait_are_left_held(
    program: Program, fresh_drainer: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WAITING_MAX", 2)
    bedrock = program.client()
    begun = [begin(bedrock, between_ms=40) for _ in range(6)]
    begun.pop().close()
    until(lambda: fresh_drainer.waiting == 0)  # the thread has taken it
    del begun
    gc.collect()
    program.tell()
    assert len(program.records()) == 3
    program.assert_marked(3)


def test_a_stream_that_is_too_long_is_left_held(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BYTES_MAX", 100)
    begin(program.client(), **SLOW).close()
    program.assert_marked(1)


def test_a_stream_that_takes_too_long_is_left_held(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the client would wait for an hour without data."""
    monkeypatch.setattr(streams, "SECS_MAX", 0.1)
    begin(program.retrying(1, 3_600), between_ms=600_000).close()
    streams.wait_for_threads(5)
    assert streams.drainer.is_idle
    program.assert_marked(1)


def test_a_finalizer_waits_for_no_lock(
    program: Program, fresh_drainer: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may be freed while its thread writes to the spool and too many wait."""
    monkeypatch.setattr(streams, "WAITING_MAX", 0)
    stream = begin(program.client())
    events = iter(stream)
    while "metadata" not in next(events):
        pass
    with program.keeper.engine.spool._lock:
        del events, stream
        gc.collect()
    program.assert_exact()
