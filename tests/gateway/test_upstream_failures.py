"""Upstreams that refuse, break or are not there: what is free is free, nothing is paid twice."""

import json
import socket
from collections.abc import Callable
from http.client import HTTPConnection, IncompleteRead
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError
from urllib3.exceptions import ProtocolError

from free_port import free_port
from gateway.attempts import bedrock_client
from gateway.conftest import MakeWorld, ScriptedWorld
from gateway.models import BY_LABEL, bill
from gateway.wire import CHUNKED, Caller, Parsed, Received, Upstream, chunk, hang_up
from gateway.world import App, World, claude_body, converse_body, directive, held_by
from pricekeeper.standin.refusals import REFUSALS
from scraping import until

FREE = [
    "AccessDeniedException", "ExpiredTokenException", "InternalServerException",
    "ModelErrorException", "ModelNotReadyException", "ModelTimeoutException",
    "ResourceNotFoundException", "ServiceQuotaExceededException", "ServiceUnavailableException",
    "ThrottlingException", "UnrecognizedClientException", "ValidationException",
]  # fmt: skip


@pytest.mark.parametrize("fate", FREE)
@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
def test_what_bedrock_refuses_is_passed_on_as_it_is_and_given_back(
    world: World, app: App, fate: str, operation: str
) -> None:
    reply = world.post(f"/model/premium/{operation}", converse_body(directive(fate=fate)), app)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (REFUSALS[fate], fate)
    assert reply.json["message"] == "as scripted"
    assert "retry-after" not in reply.headers
    assert world.assert_equal(app) == 0
    assert app.unfinished("open") == []


@pytest.mark.parametrize("fate", ["ThrottlingException", "ServiceUnavailableException",
                                  "ValidationException", "InternalServerException"])  # fmt: skip
@pytest.mark.parametrize("path", ["/anthropic/v1/messages", "/openai/v1/chat/completions"])
def test_the_other_dialects_refuse_in_their_own_words(
    world: World, app: App, path: str, fate: str
) -> None:
    model = "gpt" if "openai" in path else "premium"
    reply = world.post(path, claude_body(directive(fate=fate), model=model), app)
    assert reply.status == REFUSALS[fate]
    assert reply.json["error"]["message"] == "as scripted"
    assert world.assert_equal(app) == 0


def test_throttling_is_repeated_by_the_client_and_each_attempt_is_its_own(
    world: World, app: App
) -> None:
    """Two refusals are given back, and the third attempt is counted."""
    text = directive(fate="ThrottlingException", fate_times=2, output_tokens=5)
    retries = {"total_max_attempts": 3, "mode": "standard"}
    with bedrock_client(world, app, retries=retries) as client:
        client.converse(modelId="premium", **converse_body(text))
        assert client.attempts == 3
    assert world.ledger.attempts == {"Converse": 3}
    assert world.assert_equal(app) > 0


@pytest.mark.parametrize("fate", ["hangs-up", "gateway-504"])
@pytest.mark.parametrize("operation", ["converse", "converse_stream"])
def test_a_lost_reply_is_not_asked_for_again(
    own_world: World, own_app: App, fate: str, operation: str
) -> None:
    """One attempt of a retrying client; charged at the hold."""
    with bedrock_client(own_world, own_app) as client:
        with pytest.raises(ClientError) as refused:
            getattr(client, operation)(modelId="premium", **converse_body(directive(fate=fate)))
        assert client.attempts == 1
    assert refused.value.response["Error"]["Code"] == "ModelErrorException"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert "charged" in refused.value.response["Error"]["Message"]
    assert own_world.ledger.billed_calls == 1
    own_world.assert_unsettled(own_app)


def test_an_upstream_that_stays_silent_is_a_lost_reply(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pricekeeper.gateway.upstream.SILENCE_SECS_MAX", 0.3)
    world = make_world()
    app = App(world.api).register()
    reply = world.converse(app, text=directive(fate="silent"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (424, "ModelErrorException")
    assert world.ledger.wait_until(lambda entries: entries[0].hung_up)
    world.assert_unsettled(app)


@pytest.mark.parametrize("path", ["/anthropic/v1/messages", "/openai/v1/chat/completions"])
@pytest.mark.parametrize("fate", ["gateway-504", "hangs-up"])
def test_a_lost_reply_of_the_other_dialects_is_final_too(
    own_world: World, own_app: App, path: str, fate: str
) -> None:
    model = "gpt" if "openai" in path else "premium"
    reply = own_world.post(path, claude_body(directive(fate=fate), model=model), own_app)
    assert reply.status == 424
    assert "charged" in reply.json["error"]["message"]
    own_world.assert_unsettled(own_app)


def test_an_upstream_that_is_not_there_costs_nothing(make_world: MakeWorld) -> None:
    """A client may try again, and does; no attempt leaves anything behind."""
    world = make_world(f"http://127.0.0.1:{free_port()}")
    app = App(world.api).register()
    retries = {"total_max_attempts": 2}
    with bedrock_client(world, app, retries=retries) as client:
        with pytest.raises(ClientError, match="ServiceUnavailableException") as refused:
            client.converse(modelId="premium", **converse_body())
        assert client.attempts == 2
    assert "127.0.0.1" not in str(refused.value)
    free = world.post("/model/premium/count-tokens", {"input": {}}, app)
    assert free.status == 503
    world.assert_equal(app)
    assert app.unfinished("open") == []


CUT: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("/model/premium/converse-stream", converse_body),
    ("/model/premium/invoke-with-response-stream", claude_body),
    ("/anthropic/v1/messages", lambda text: claude_body(text, model="premium", stream=True)),
    (
        "/openai/v1/chat/completions",
        lambda text: {"model": "gpt", "stream": True, **claude_body(text)},
    ),
]


@pytest.mark.parametrize(("path", "body"), CUT)
@pytest.mark.parametrize("fate", ["cut", "breaks-off"])
def test_a_stream_that_dies_is_broken_and_charged_at_the_hold(
    own_world: World, own_app: App, path: str, body: Any, fate: str
) -> None:
    """The caller has all that came, and no end of it unless the upstream made one."""
    with Caller(own_world) as caller:
        text = directive(fate=fate, output_tokens=50, events=20)
        caller.send(own_app, path, body(text), "connection: close")
        received = caller.read_all()
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"\r\n0\r\n\r\n") == (fate == "breaks-off")
    own_world.assert_unsettled(own_app)


def direct_bytes(world: World, path: str, body: dict[str, Any]) -> int:
    """How much of such a stream the stand-in itself sends before it goes."""
    model = body.get("model", "premium")
    model_id = BY_LABEL[model].model_id
    options = {"stream_options": {"include_usage": True}} if "openai" in path else {}
    sent = {**body, "model": model_id, **options} if "model" in body else body
    connection = HTTPConnection(urlsplit(world.upstream_url).netloc, timeout=20)
    try:
        connection.request("POST", path.replace("premium", model_id), json.dumps(sent))
        with pytest.raises(IncompleteRead) as cut:
            connection.getresponse().read()
        return len(cut.value.partial)
    finally:
        connection.close()


@pytest.mark.parametrize("path", [path for path, _ in CUT])
def test_a_stream_that_dies_has_been_passed_on_so_far(
    own_world: World, own_app: App, path: str
) -> None:
    """As many bytes of it as the stand-in itself sends to a caller of its own."""
    _, body = next(one for one in CUT if one[0] == path)
    text = directive(fate="cut", output_tokens=50, events=20)
    with Caller(own_world) as caller:
        caller.send(own_app, path, body(text), "connection: close")
        received = caller.read_all()
    (body_bytes,) = Parsed(received).bodies
    assert direct_bytes(own_world, path, body(text)) == len(body_bytes)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("frames", [0, 1])
def test_botocore_does_not_repeat_a_stream_that_has_begun(
    scripted: ScriptedWorld, frames: int, reset: bool
) -> None:
    """Also if nothing but its head has come: the head is passed on at once."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(CHUNKED + chunk(b"\0\0\0\x10\0\0\0\0") * frames)
        hang_up(peer, reset=reset)

    with scripted(answer) as (world, upstream, app):
        with bedrock_client(world, app) as client:
            with pytest.raises((ResponseStreamingError, ProtocolError, ClientError)):
                list(client.converse_stream(modelId="premium", **converse_body())["stream"])
            assert client.attempts == 1
        assert len(upstream.requests) == 1
    world.assert_unsettled(app)


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_head_goes_out_although_all_that_has_come_is_held_back(
    scripted: ScriptedWorld, is_whole: bool
) -> None:
    """Half an event may be the one that is hidden; who has seen the head does not call again."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(CHUNKED + chunk(b'data: {"choices') + b"0\r\n\r\n" * is_whole)
        hang_up(peer)

    with scripted(answer) as (world, _upstream, app):
        with Caller(world) as caller:
            caller.send(app, "/openai/v1/chat/completions", claude_body(model="gpt", stream=True),
                        "connection: close")  # fmt: skip
            received = caller.read_all()
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert Parsed(received).bodies == [b'data: {"choices' if is_whole else b""]
        assert received.endswith(b"\r\n0\r\n\r\n") is is_whole
    world.assert_unsettled(app)


def test_a_reply_that_is_cut_is_lost(scripted: ScriptedWorld) -> None:
    """Half of a JSON text is no answer."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"usage":')
        hang_up(peer)

    with scripted(answer) as (world, _upstream, app):
        assert world.converse(app).status == 424
    world.assert_unsettled(app)


@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
def test_an_answer_without_usage_is_served_and_left_at_its_hold(
    own_world: World, own_app: App, operation: str
) -> None:
    """It is never counted as nothing."""
    body = converse_body(directive(no_usage=True))
    reply = own_world.post(f"/model/premium/{operation}", body, own_app)
    assert reply.status == 200
    assert "x-pricekeeper-cost-usd-micros" not in reply.headers
    assert bill(own_world.ledger.entries) > 0
    own_world.assert_unsettled(own_app)


def test_a_call_that_costs_more_than_its_hold_is_counted_in_full(world: World, app: App) -> None:
    """If a bound was too low, the books are right all the same."""
    reply = world.converse(app, text=directive(input_tokens=90_000, output_tokens=10))
    cost = world.assert_equal(app)
    assert cost > held_by(reply)


def test_the_upstream_may_close_after_each_answer(scripted: ScriptedWorld) -> None:
    """The next call opens a connection, and none is lost."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        body = b'{"usage":{"inputTokens":1,"outputTokens":1}}'
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        peer.sendall(head + body)
        hang_up(peer)

    with scripted(answer) as (world, upstream, app):
        for _number in range(5):
            assert world.converse(app).status == 200
        assert upstream.connections == 5
    until(lambda: app.books().spent == 5 * 30, app.books)
