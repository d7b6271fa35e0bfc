"""Callers that hang up or do not read: their calls are read on and counted, within bounds."""

import resource
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import ScriptedWorld
from gateway.wire import CHUNKED, Answer, Caller, Received, Upstream, chunk, sending, whole
from gateway.world import App, World, claude_body, converse_body, directive
from scraping import scrape, until

MIB = 1 << 20
STREAM = "/model/premium/converse-stream"
LONG = directive(events=40, between_ms=15, output_tokens=60)


def drains(world: World, outcome: str) -> float:
    return scrape(world.api)[f'pricekeeper_gateway_drains_total{{outcome="{outcome}"}}']


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (STREAM, converse_body(LONG)),
        ("/model/premium/invoke-with-response-stream", claude_body(LONG)),
        ("/anthropic/v1/messages", claude_body(LONG, model="premium", stream=True)),
        ("/openai/v1/chat/completions", claude_body(LONG, model="gpt", stream=True)),
    ],
)
def test_a_stream_whose_caller_leaves_is_read_to_its_usage(
    world: World, app: App, path: str, body: dict[str, Any], reset: bool
) -> None:
    """However it leaves; the upstream sees nothing of it."""
    before = drains(world, "whole")
    caller = Caller(world)
    caller.send(app, path, body)
    caller.read_until(b"\r\n\r\n")
    caller.hang_up(reset=reset)
    assert world.assert_equal(app) > 0
    assert not any(entry.hung_up for entry in world.ledger.entries)
    until(lambda: drains(world, "whole") == before + 1)


@pytest.mark.parametrize("path", [STREAM, "/model/premium/converse"])
def test_a_caller_that_leaves_before_the_answer_is_counted(
    world: World, app: App, path: str
) -> None:
    """The model runs, so the call is counted."""
    caller = Caller(world)
    caller.send(app, path, converse_body(directive(delay_ms=300, output_tokens=50)))
    assert world.ledger.wait_until(lambda entries: len(entries) == 1)
    caller.hang_up()
    assert world.assert_equal(app) > 0
    assert not any(entry.hung_up for entry in world.ledger.entries)


def test_a_caller_that_leaves_before_its_request_is_whole_costs_nothing(
    world: World, app: App
) -> None:
    for cut in (30, 400):
        caller = Caller(world)
        lines = [f"POST /bedrock{STREAM} HTTP/1.1", "host: x", "content-length: 5000",
                 f"authorization: Bearer {app.pair}"]  # fmt: skip
        caller.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode()[:cut])
        caller.hang_up()
    world.converse(app)
    assert world.ledger.attempts == {"Converse": 1}
    world.assert_equal(app)


def stalling(gone: threading.Semaphore) -> Answer:
    """A stream that stops after its first part, until the gateway lets it go."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(CHUNKED + chunk(b"first"))
        peer.settimeout(20)
        if not peer.recv(1):
            gone.release()

    return answer


def test_beyond_the_bound_on_drains_a_call_is_left_at_its_hold(
    scripted: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upstream is let go, and what it bills in full stays charged, and is marked."""
    monkeypatch.setattr("pricekeeper.gateway.caller.DRAINS_MAX", 1)
    gone = threading.Semaphore(0)
    with scripted(stalling(gone)) as (world, upstream, app):
        before = drains(world, "no_room")
        for _ in range(3):
            caller = Caller(world)
            caller.send(app, STREAM, converse_body())
            caller.read_until(b"first")
            caller.hang_up()
        for _ in range(2):
            assert gone.acquire(timeout=20)
        assert drains(world, "no_room") == before + 2
        upstream.over.set()
    world.assert_unsettled(app, 3)


def test_a_drain_has_an_end_also_if_the_upstream_is_silent(
    scripted: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time begins when the caller leaves, not with the next event."""
    monkeypatch.setattr("pricekeeper.gateway.caller.DRAIN_SECS_MAX", 0.2)
    gone = threading.Semaphore(0)
    with scripted(stalling(gone)) as (world, _upstream, app):
        before = drains(world, "given_up")
        caller = Caller(world)
        caller.send(app, STREAM, converse_body())
        caller.read_until(b"first")
        caller.hang_up()
        assert gone.acquire(timeout=20)
        until(lambda: drains(world, "given_up") == before + 1)
    world.assert_unsettled(app)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_reader_that_does_not_read_holds_no_memory_and_is_cut_off(
    scripted: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of 100 MB stops at what buffers hold; then it is read to its end and counted."""
    monkeypatch.setattr("pricekeeper.http.protocol.UNREAD_SECS_MAX", 1)
    monkeypatch.setattr("pricekeeper.http.protocol._LOOK_EVERY_SECS", 0.2)
    with scripted(streaming(100 * MIB)) as (world, _upstream, app):
        world.converse(app, "unknown")
        before, drained = resident_bytes(), drains(world, "whole")
        with Caller(world, receive_buffer=4096) as caller:
            caller.send(app, STREAM, converse_body())
            caller.read_until(b"\r\n\r\n")
            peak = before

            def is_drained() -> bool:
                nonlocal peak
                peak = max(peak, resident_bytes())
                return drains(world, "whole") == drained + 1

            until(is_drained)
            assert peak - before < 20 * MIB
            assert len(caller.read_all()) < 5 * MIB
    assert until_spent(app) == 7 * 5 + 9 * 25


def streaming(size: int) -> Answer:
    """A stream of that many bytes, which says at its end what it used."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(CHUNKED)
        payload = frame_of(65_536)
        for _number in range(size // len(payload)):
            peer.sendall(chunk(payload))
        peer.sendall(chunk(usage_frame(7, 9)) + b"0\r\n\r\n")

    return answer


def frame_of(size: int) -> bytes:
    """A frame of AWS's encoding without headers, of that size in all."""
    return size.to_bytes(4) + b"\0" * (size - 4)


def usage_frame(input_tokens: int, output_tokens: int) -> bytes:
    """The last frame of a stream of Converse."""
    payload = b'{"usage":{"inputTokens":%d,"outputTokens":%d}}' % (input_tokens, output_tokens)
    return (len(payload) + 16).to_bytes(4) + b"\0" * 8 + payload + b"\0" * 4


def until_spent(app: App) -> int:
    until(lambda: app.books().held == 0 and app.books().spent > 0, app.books)
    return app.books().spent


def test_a_slow_reader_gets_every_byte(scripted: ScriptedWorld) -> None:
    """What is not read yet waits with the upstream."""
    with scripted(streaming(8 * MIB)) as (world, _upstream, app):
        with Caller(world, receive_buffer=4096) as caller:
            caller.send(app, STREAM, converse_body(), "connection: close")
            received = 0
            while part := caller.socket.recv(30_000):
                received += len(part)
                tail = part
        assert received > 8 * MIB
        assert tail.endswith(b"0\r\n\r\n")
    assert until_spent(app) == 7 * 5 + 9 * 25


def test_whole_streams_and_left_ones_are_told_apart(world: World, app: App) -> None:
    """In the metrics, by their outcome."""
    served = 'pricekeeper_gateway_calls_total{label="premium",outcome="served"}'
    left = served.replace("served", "left")
    before = scrape(world.api)
    world.post(STREAM, converse_body(), app)
    caller = Caller(world)
    caller.send(app, STREAM, converse_body(LONG))
    caller.read_until(b"\r\n\r\n")
    caller.hang_up()
    world.assert_equal(app)

    def moved() -> list[float]:
        after = scrape(world.api)
        return [after.get(name, 0) - before.get(name, 0) for name in (served, left)]

    until(lambda: moved() == [1, 1], moved)


def test_a_reply_that_nobody_reads_is_counted(
    scripted: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is longer than all buffers."""
    monkeypatch.setattr("pricekeeper.http.protocol.UNREAD_SECS_MAX", 1)
    monkeypatch.setattr("pricekeeper.http.protocol._LOOK_EVERY_SECS", 0.2)
    reply = b'{"usage":{"inputTokens":3,"outputTokens":4},"x":"%b"}' % (b"x" * (8 * MIB))
    with (
        scripted(sending(whole(reply))) as (world, _upstream, app),
        Caller(world, receive_buffer=4096) as caller,
    ):
        caller.send(app, "/model/premium/converse", converse_body())
        assert until_spent(app) == 3 * 5 + 4 * 25
