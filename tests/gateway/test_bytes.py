"""What comes back are the upstream's bytes, as they come, in valid HTTP."""

import json
import socket
import threading
from typing import Any

import pytest

from gateway.conftest import MakeWorld, ScriptedWorld
from gateway.models import BY_LABEL
from gateway.wire import CHUNKED, Caller, Parsed, Received, Upstream, chunk, sending, whole
from gateway.world import App, World, claude_body, connection_to, converse_body, directive
from http_fixtures import Api, Reply
from pricekeeper.standin import Running

MIB = 1 << 20
STREAMED = [
    ("/model/premium/converse-stream", converse_body(directive(events=30))),
    ("/model/premium/invoke-with-response-stream", claude_body(directive(events=30))),
    ("/anthropic/v1/messages", claude_body(directive(events=30), model="premium", stream=True)),
]
WHOLE = [
    ("/model/premium/converse", converse_body()),
    ("/model/premium/invoke", claude_body()),
    ("/anthropic/v1/messages", claude_body(model="premium")),
    ("/openai/v1/chat/completions", {"model": "gpt", **claude_body(), "stream": False}),
]


@pytest.mark.parametrize(("path", "body"), [*STREAMED, *WHOLE])
def test_the_body_is_the_upstreams_byte_for_byte(
    module_standin: Running, scripted: ScriptedWorld, path: str, body: dict[str, Any]
) -> None:
    """An upstream that replays what the stand-in has answered, and what arrives."""
    model_id = BY_LABEL[body.get("model", "premium")].model_id
    sent = {**body, "model": model_id} if "model" in body else body
    module_standin.ledger.clear()
    direct = Api(module_standin.url).call("POST", path.replace("premium", model_id), sent)
    kind = f"content-type: {direct.headers['content-type']}"

    with scripted(sending(whole(direct.data, kind))) as (world, _upstream, app):
        through = world.post(path, body, app)
        assert (through.status, through.data) == (direct.status, direct.data)
        assert through.headers["content-type"] == direct.headers["content-type"]
        world.assert_equal(app, module_standin.ledger.entries)


def test_the_body_of_any_bytes_is_untouched(scripted: ScriptedWorld) -> None:
    bodies = [b"", b"\0" * 3, bytes(range(256)) * 1000, b"\xff" * (3 * MIB)]

    def answer(_: Upstream, peer: socket.socket, request: Received) -> None:
        peer.sendall(whole(bodies[int(request.json["messages"][0]["content"][0]["text"])]))

    with scripted(answer) as (world, upstream, app):
        for number, body in enumerate(bodies):
            assert world.converse(app, text=str(number)).data == body
        assert upstream.connections == 1  # kept alive
    world.assert_unsettled(app, len(bodies))


@pytest.mark.parametrize("path", ["/model/premium/converse-stream", "/anthropic/v1/messages"])
def test_the_first_event_arrives_while_the_upstream_still_works(
    scripted: ScriptedWorld, path: str
) -> None:
    """The upstream continues only when the caller has read the part before."""
    seen = [threading.Event() for _ in range(4)]

    def answer(upstream: Upstream, peer: socket.socket, _: Received) -> None:
        peer.sendall(CHUNKED)
        for number, event in enumerate(seen):
            assert event.wait(20)
            peer.sendall(chunk(b"data: %d\n\n" % number))
        upstream.over.wait()

    with scripted(answer) as (world, upstream, app), Caller(world) as caller:
        is_converse = "/converse" in path
        body = claude_body(model="premium", stream=True)
        caller.send(app, path, converse_body() if is_converse else body)
        assert b"200 OK" in caller.read_until(b"\r\n\r\n")
        for number, event in enumerate(seen):
            event.set()
            caller.read_until(b"data: %d\n\n" % number)
        upstream.over.set()
        assert b"\r\n0\r\n\r\n" not in caller.read_all()


def test_headers_are_passed_but_not_those_of_the_connection(scripted: ScriptedWorld) -> None:
    """Each once, and ours beside them."""

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        lines = ("x-amzn-requestid: abc", "x-amzn-bedrock-input-token-count: 7", "set-cookie: a=b",
                 "keep-alive: timeout=5", "connection: keep-alive, x-hop", "x-hop: 1",
                 "proxy-connection: x", "trailer: x", "te: x", "server: S", "upgrade: h2c",
                 "date: Mon, 16 Nov 2026 00:00:00 GMT", "content-type: application/json",
                 "proxy-authenticate: x")  # fmt: skip
        peer.sendall(whole(b"{}", *lines))

    with scripted(answer) as (world, _upstream, app), Caller(world) as caller:
        caller.send(app, "/model/premium/converse", converse_body(), "connection: close")
        parsed = Parsed(caller.read_all())
    (headers,) = parsed.headers
    ours = {name for name in headers if name.startswith("x-pricekeeper-")}
    assert ours == {
        "x-pricekeeper-authorization-id", "x-pricekeeper-model-label",
        "x-pricekeeper-held-usd-micros", "x-pricekeeper-max-output-tokens",
    }  # fmt: skip
    assert headers.keys() - ours == {
        "x-amzn-requestid", "x-amzn-bedrock-input-token-count", "set-cookie", "content-type",
        "content-length", "date", "connection",
    }  # fmt: skip
    assert headers["connection"] == "close"
    assert "16 Nov 2026 00:00:00" not in headers["date"]


def test_what_is_sent_on_has_no_credentials_of_the_caller(scripted: ScriptedWorld) -> None:
    """Nor its cookies, its address, its client or its types; only what Bedrock reads there."""
    with scripted(sending(whole(b"{}"))) as (world, upstream, app):
        extra = {"cookie": "a=b", "x-forwarded-for": "1.2.3.4", "x-api-key": "k", "user-agent": "u",
                 "x-pricekeeper-tag-team": "red", "accept": "text/csv", "content-type": "a/b",
                 "x-amzn-bedrock-service-tier": "flex", "x-amzn-bedrock-new": "n",
                 "anthropic-beta": "b", "expect": "x"}  # fmt: skip
        world.post("/model/premium/converse", converse_body(), app, **extra)
        world.post("/model/premium/invoke", claude_body(), app, **extra)
        world.post("/anthropic/v1/messages", claude_body(model="premium"), app, **extra)
        requests = upstream.requests
    names = {"host", "content-type", "content-length", "accept"}
    more = [set(), {"x-amzn-bedrock-service-tier"}, {"anthropic-beta"}]
    assert [one.headers.keys() - names for one in requests] == more
    for request in requests:
        assert names <= request.headers.keys()
        assert request.headers["content-type"] == "application/json"
        assert request.headers["accept"] in ("application/json", "*/*")
        assert request.headers["host"] == upstream.url.removeprefix("http://")


def test_a_connection_is_kept_for_many_calls(world: World, app: App) -> None:
    """Plain ones, streams and refusals, in any order."""
    with connection_to(world) as connection:
        headers = {"authorization": f"Bearer {app.pair}", "content-type": "application/json"}
        for path in ("converse", "converse-stream", "unknown", "converse-stream", "converse"):
            body = json.dumps(converse_body())
            connection.request("POST", f"/bedrock/model/premium/{path}", body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (404 if path == "unknown" else 200)
            assert answer.headers.get("connection") is None
    world.assert_equal(app)


def test_pipelined_calls_are_answered_in_order(world: World, app: App) -> None:
    """A stream among them, and each is counted."""
    with Caller(world) as caller:
        for operation in ("converse", "converse-stream", "nothing", "converse-stream"):
            caller.send(app, f"/model/premium/{operation}", converse_body())
        caller.send(app, "/model/premium/converse", converse_body(), "connection: close")
        parsed = Parsed(caller.read_all())
    assert parsed.statuses == [200, 200, 404, 200, 200]
    assert [headers.get("transfer-encoding") for headers in parsed.headers] == [
        None, "chunked", None, "chunked", None,
    ]  # fmt: skip
    assert parsed.bodies[1] == parsed.bodies[3] != b""
    world.assert_equal(app)


@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
def test_http_1_0_is_answered_without_chunks(world: World, app: App, operation: str) -> None:
    """The end of the connection is the end of the answer."""
    with Caller(world) as caller:
        caller.send(app, f"/model/premium/{operation}", converse_body(), version="1.0")
        received = caller.read_all()
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == world.post(f"/model/premium/{operation}", converse_body(), app).data
    world.assert_equal(app)


def test_head_has_no_body_and_does_no_harm(world: World, app: App) -> None:
    with connection_to(world) as connection:
        connection.request("HEAD", "/bedrock/model/premium/converse-stream")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (405, b"")
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200


@pytest.mark.parametrize("pieces", [[1], [7, 1000], [65_536]])
def test_every_chunk_is_valid_however_the_upstream_cuts_it(
    scripted: ScriptedWorld, pieces: list[int]
) -> None:
    """Parsed by the parser that refuses the most."""
    data = bytes(range(256)) * 40

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(CHUNKED)
        at = 0
        while at < len(data):
            size = pieces[at % len(pieces)]
            peer.sendall(chunk(data[at : at + size]))
            at += size
        peer.sendall(b"0\r\n\r\n")

    with scripted(answer) as (world, _upstream, app), Caller(world) as caller:
        path = "/model/premium/converse-stream"
        caller.send(app, path, converse_body(), "connection: close")
        parsed = Parsed(caller.read_all())
    assert (parsed.whole, parsed.bodies) == (1, [data])


def large_body(size: int) -> bytes:
    """A body of exactly that many bytes, most of them a picture."""
    picture = {"image": {"format": "png", "source": {"bytes": ""}}}
    body = converse_body()
    body["messages"][0]["content"].append(picture)
    picture["image"]["source"] = {"bytes": "A" * (size - len(json.dumps(body)))}
    return json.dumps(body).encode()


def test_a_body_may_have_25_mib_and_not_a_byte_more(scripted: ScriptedWorld) -> None:
    """Bedrock's own limit; beyond it nothing is authorized and nothing is sent on."""
    sizes: list[int] = []

    def answer(_: Upstream, peer: socket.socket, request: Received) -> None:
        sizes.append(len(request.body))
        peer.sendall(whole(b"{}"))

    with scripted(answer) as (world, _upstream, app):
        reply = world.post("/model/premium/converse", large_body(25 * MIB), app)
        assert reply.status == 200, reply.data
        assert sizes[0] > 25 * MIB - 1000
        refused = world.post("/model/premium/converse", large_body(25 * MIB + 1), app)
        assert refused.status == 413
        assert refused.headers["x-amzn-errortype"] == "ValidationException"
    assert len(sizes) == 1
    assert len(app.unfinished("open")) == 1


def test_a_body_in_chunks_is_bounded_as_it_comes(make_world: MakeWorld) -> None:
    """What does not say its length is refused once it is too long."""
    world = make_world(gateway_body_mb_max=1)
    app = App(world.api).register()
    with Caller(world) as caller:
        lines = ["POST /bedrock/model/premium/converse HTTP/1.1", "host: x",
                 f"authorization: Bearer {app.pair}", "transfer-encoding: chunked"]  # fmt: skip
        caller.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        for _ in range(17):
            caller.socket.sendall(chunk(b" " * 65_536))
        assert b" 413 " in caller.read_until(b"}")
    assert world.ledger.attempts == {}
    assert app.unfinished("open") == []


def test_a_body_that_never_ends_is_given_up(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow upload is cut off by the server's own bound, and nothing was held for it."""
    monkeypatch.setattr("pricekeeper.http.protocol.ARRIVAL_SECS_MAX", 1)
    monkeypatch.setattr("pricekeeper.http.protocol._LOOK_EVERY_SECS", 0.1)
    world = make_world()
    app = App(world.api).register()
    with Caller(world) as caller:
        lines = ["POST /bedrock/model/premium/converse HTTP/1.1", "host: x", "content-length: 9",
                 f"authorization: Bearer {app.pair}"]  # fmt: skip
        caller.socket.sendall(("\r\n".join(lines) + "\r\n\r\n{").encode())
        assert b" 408 " in caller.read_all()
    assert world.ledger.attempts == {}
    assert app.unfinished("open") == []


def test_several_large_calls_run_at_once(scripted: ScriptedWorld) -> None:
    """Bodies of calls under way do not keep others out."""
    calls, begun, go_on = 4, threading.Semaphore(0), threading.Event()

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        begun.release()
        go_on.wait(20)
        peer.sendall(whole(b"{}"))

    with scripted(answer) as (world, _upstream, app):
        replies: list[Reply] = []
        threads = [
            threading.Thread(
                target=lambda: replies.append(
                    world.post("/model/premium/converse", large_body(20 * MIB), app)
                )
            )
            for _ in range(calls)
        ]
        for thread in threads:
            thread.start()
        for _ in range(calls):
            assert begun.acquire(timeout=20)
        go_on.set()
        for thread in threads:
            thread.join()
    assert [reply.status for reply in replies] == [200] * calls


def test_a_refusal_that_comes_in_pieces_is_whole(scripted: ScriptedWorld) -> None:
    """So is the answer to a call that is free."""
    body = json.dumps({"message": "x" * 300_000}).encode()

    def answer(_: Upstream, peer: socket.socket, request: Received) -> None:
        status = "200 OK" if "count" in request.path else "429 Too Many Requests"
        head = whole(body, "x-amzn-errortype: ThrottlingException", status=status)
        for at in range(0, len(head), 20_000):
            peer.sendall(head[at : at + 20_000])

    with scripted(answer) as (world, _upstream, app):
        for operation, status in (("converse", 429), ("count-tokens", 200)):
            reply = world.post(f"/model/premium/{operation}", converse_body(), app)
            assert (reply.status, len(reply.data)) == (status, len(body))
    world.assert_equal(app)
