"""OpenAI's and Anthropic's paths: counted, with usage that is asked for and hidden again."""

import json
import socket
from typing import Any

import pytest

from gateway.conftest import ScriptedWorld
from gateway.models import BY_LABEL
from gateway.wire import Received, Upstream, chunk
from gateway.world import App, World, claude_body, directive, held_by
from http_fixtures import Api
from pricekeeper.bedrock.sse import EVENT_BYTES_MAX, SseUsage
from pricekeeper.standin import Running
from scraping import until

CHAT = "/openai/v1/chat/completions"
MESSAGES = "/anthropic/v1/messages"
GPT = BY_LABEL["gpt"].model_id
CACHED = {"cache_read": 11, "input_tokens": 50}


def chat_body(text: str = "hello", model: str = "gpt", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def without_ids(events: bytes) -> list[Any]:
    """The events of a stream, without what is another for each."""
    found = []
    for event in events.decode().strip().split("\n\n"):
        data = event.partition("data: ")[2]
        said = data if data == "[DONE]" else json.loads(data)
        if isinstance(said, dict):
            said = {name: one for name, one in said.items() if name not in ("id", "created")}
            said.get("message", {}).pop("id", None)
        found.append(said)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("script", [{}, CACHED], ids=["plain", "cached"])
def test_chat_completions_are_counted(
    world: World, app: App, stream: bool, asks: bool, script: dict[str, int]
) -> None:
    body = chat_body(directive(**script), stream=stream)
    if asks:
        body["stream_options"] = {"include_usage": True}
    assert world.post(CHAT, body, app).status == 200
    assert world.assert_equal(app) > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script", [{}, {**CACHED, "cache_write_5m": 7, "cache_write_1h": 5}], ids=["plain", "cached"]
)
def test_messages_are_counted(world: World, app: App, stream: bool, script: Any) -> None:
    body = claude_body(directive(**script), model="premium", stream=stream)
    assert world.post(MESSAGES, body, app).status == 200
    assert world.assert_equal(app) > 0


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": None}, {"other": 1}]
)
def test_usage_that_was_not_asked_for_is_not_seen(
    module_standin: Running, world: World, app: App, options: Any
) -> None:
    """The events are those of the stand-in to a caller that does not ask."""
    body = chat_body(directive(events=7), stream=True, max_tokens=50)
    sent = body if options is None else {**body, "stream_options": options}
    direct = Api(module_standin.url).call("POST", CHAT, {**body, "model": GPT})
    through = world.post(CHAT, sent, app)
    assert without_ids(through.data) == without_ids(direct.data)
    assert b"[DONE]" in through.data
    assert b"prompt_tokens" not in through.data
    world.assert_equal(app, world.ledger.entries[1:])


def test_usage_that_was_asked_for_is_seen(module_standin: Running, world: World, app: App) -> None:
    body = chat_body(stream=True, max_tokens=50, stream_options={"include_usage": True})
    direct = Api(module_standin.url).call("POST", CHAT, {**body, "model": GPT})
    through = world.post(CHAT, body, app)
    assert without_ids(through.data) == without_ids(direct.data)
    assert b"prompt_tokens" in through.data


USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_all_but_the_usage_passes_byte_for_byte(end: bytes, size: int) -> None:
    """For any cuts and line ends."""
    before = [b'data: {"choices":[{"delta":{"content":"usage \xc3\x9f"}}],"usage":null}', b": ping"]
    after = [b"data: [DONE]"]
    expected = b"".join(one + end for one in (*before, *after)) + b"rest"
    stream = b"".join(one + end for one in (*before, USAGE, *after)) + b"rest"
    skimmed = SseUsage({}, hides_usage=True)
    passed = [skimmed.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
    assert b"".join([*passed, skimmed.rest()]) == expected
    used = skimmed.usage()
    assert used is not None
    assert (used.input_tokens, used.output_tokens) == (3, 4)


@pytest.mark.parametrize("size", [1, 13, 10_000])
def test_nothing_is_held_back_from_who_sees_everything(size: int) -> None:
    stream = USAGE + b"\n\ndata: [DONE]\n\nrest"
    skimmed = SseUsage({}, hides_usage=False)
    for at in range(0, len(stream), size):
        part = stream[at : at + size]
        assert skimmed.feed(part) == part
    assert skimmed.rest() == b""
    assert skimmed.usage() is not None


@pytest.mark.parametrize("hides", [False, True])
def test_an_event_without_end_is_passed_on(hides: bool) -> None:
    """It is not kept beyond a bound, and not a byte of it is lost."""
    skimmed, part = SseUsage({}, hides_usage=hides), b"x" * (1 << 20)
    passed = [skimmed.feed(part) for _ in range(9)]
    assert b"".join([*passed, skimmed.rest()]) == part * 9
    assert len(skimmed._buffer) <= EVENT_BYTES_MAX
    assert skimmed.feed(USAGE + b"\n\ndata: [DONE]\n\n").endswith(b"data: [DONE]\n\n")


BEGUN = b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}'
STOPS = (
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":50}}'
)


@pytest.mark.parametrize(
    ("events", "output"),
    [
        ([BEGUN], None),
        ([BEGUN, b'data: {"type":"ping"}'], None),
        ([BEGUN, b'data: {"type":"error","error":{"type":"overloaded_error"}}'], None),
        ([BEGUN, b'data: {"type":"message_delta","delta":{},"usage":{"output_tokens":7}}'], None),
        ([BEGUN, STOPS], 50),
        ([BEGUN, STOPS, b'event: message_stop\ndata: {"type":"message_stop"}'], 50),
        ([b'data: {"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'], None),
        (
            [b'data: {"choices":[{}],"usage":{"prompt_tokens":3,"completion_tokens":6}}',
             b"data: [DONE]"],
            6,
        ),
        ([USAGE], 4),
        ([b"data: [DONE]"], None),
        ([b'data: {"usage":[],"choices":[]}', b"data: [DONE]"], None),
    ],
)  # fmt: skip
def test_only_the_end_of_a_stream_says_what_it_used(
    events: list[bytes], output: int | None
) -> None:
    """What it says on its way is less than what is billed."""
    skimmed = SseUsage({}, hides_usage=False)
    skimmed.feed(b"".join(event + b"\n\n" for event in events))
    used = skimmed.usage()
    assert (None if used is None else used.output_tokens) == output


def test_an_openai_stream_arrives_event_by_event(scripted: ScriptedWorld) -> None:
    """Whole events, each with its chunk, also where usage is hidden."""
    events = [b'data: {"choices":[{"n":%d}]}\n\n' % number for number in range(5)]

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        cut = b"".join(events)
        parts = b"".join(chunk(cut[at : at + 5]) for at in range(0, len(cut), 5))
        peer.sendall(head + parts + chunk(USAGE + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")

    with scripted(answer) as (world, upstream, app):
        reply = world.post(CHAT, chat_body(stream=True), app)
        assert reply.data == b"".join(events) + b"data: [DONE]\n\n"
        (request,) = upstream.requests
        assert request.json["stream_options"] == {"include_usage": True}
    until(lambda: app.books().spent == 3 * 2 + 4 * 9, app.books)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("model", [None, "", 5, "nope"])
def test_refusals_are_in_the_words_of_the_dialect(
    world: World, app: App, path: str, model: Any
) -> None:
    reply = world.post(path, {**chat_body(), "model": model}, app)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert "model" in reply.json["error"]["message"]
    assert ("type" in reply.json) == (path == MESSAGES)


NO_CREDENTIALS: dict[str, dict[str, str]] = {
    "none": {},
    "a made-up bearer": {"authorization": "Bearer x"},
    "a made-up key": {"x-api-key": "sk-ant-x"},
    "a wrong pair": {"authorization": "Bearer org-1-app-2:pks_wrong"},
    "another scheme": {"authorization": "Basic eDp5"},
    "a signature of another account": {
        "authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/bedrock/aws4_request,"
        " SignedHeaders=host;x-amz-date;x-amz-security-token, Signature=00",
        "x-amz-date": "20260101T000000Z",
        "x-amz-security-token": "x",
    },
}


@pytest.mark.parametrize("headers", NO_CREDENTIALS.values(), ids=NO_CREDENTIALS)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/model/premium/converse"])
def test_a_caller_without_valid_credentials(
    world: World, path: str, headers: dict[str, str]
) -> None:
    """A 401 in OpenAI's and Anthropic's dialects, and AWS's 403 on AWS's paths."""
    reply = world.api.call("POST", f"/bedrock{path}", {}, headers=headers)
    if path in (CHAT, MESSAGES):
        assert (reply.status, reply.json["error"]["type"]) == (401, "authentication_error")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert ("type" in reply.json) == (path == MESSAGES)
    else:
        assert reply.status == 403
        assert "www-authenticate" not in reply.headers
    assert world.ledger.attempts == {}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("who", ["frozen", "organisation"])
def test_a_caller_that_is_known_and_not_allowed_is_a_403(
    world: World, app: App, path: str, who: str
) -> None:
    bearer = app.pair
    if who == "frozen":
        frozen = world.api.provision("PUT", f"{app.path}/freeze", {"reason": "a leaked key"})
        assert frozen.status in (200, 201)
    else:
        bearer = f"org-{app.org_id}:{app.org_secret}"
    headers = {"authorization": f"Bearer {bearer}"}
    reply = world.api.call("POST", f"/bedrock{path}", claude_body(model="premium"), headers=headers)
    assert (reply.status, reply.json["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    ("path", "kind", "served"),
    [
        ("/openai/v1/embeddings", "invalid_request_error", CHAT),
        ("/openai/v1/chat/completions/", "invalid_request_error", CHAT),
        ("/openai", "invalid_request_error", CHAT),
        ("/anthropic/v1/models", "not_found_error", MESSAGES),
        ("/anthropic/", "not_found_error", MESSAGES),
    ],
)
def test_an_unknown_path_is_named_in_the_words_of_the_dialect(
    world: World, path: str, kind: str, served: str, method: str
) -> None:
    """With the path that there is. It is not passed on."""
    reply = world.api.call(method, f"/bedrock{path}", {})
    assert (reply.status, reply.json["error"]["type"]) == (404, kind)
    assert reply.headers["x-amzn-errortype"] == "UnknownOperationException"
    assert f"unknown path /bedrock{path}: " in reply.json["error"]["message"]
    assert f"POST to /bedrock{served}" in reply.json["error"]["message"]
    assert world.ledger.attempts == {}


@pytest.mark.parametrize(("path", "kind"), [(CHAT, "code"), (MESSAGES, "type")])
def test_another_method_is_refused_in_the_words_of_the_dialect(
    world: World, path: str, kind: str
) -> None:
    reply = world.api.call("GET", f"/bedrock{path}")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"][kind]
    assert reply.json["error"]["message"] == f"wrong method for /bedrock{path}: use POST"


def test_anthropics_own_header_is_a_bearer(world: World, app: App) -> None:
    """Its SDK has a key there; a signature or a bearer goes before it."""
    body = claude_body(model="premium")
    reply = world.api.call("POST", f"/bedrock{MESSAGES}", body, headers={"x-api-key": app.pair})
    assert reply.status == 200, reply.data
    assert world.post(MESSAGES, body, app, **{"x-api-key": "another"}).status == 200
    world.assert_equal(app)


def test_auto_takes_a_model_that_speaks_the_dialect(world: World, app: App) -> None:
    assert world.post(CHAT, chat_body(model="auto"), app).status == 200
    assert world.post(MESSAGES, claude_body(model="auto"), app).status == 200
    assert [entry.model_id for entry in world.ledger.entries] == [
        GPT, BY_LABEL["premium"].model_id,
    ]  # fmt: skip
    world.assert_equal(app)


def test_several_answers_are_held_and_counted(world: World, app: App) -> None:
    """Four answers of fifty tokens can cost two hundred."""
    reply = world.post(CHAT, chat_body(n=4, max_completion_tokens=50), app)
    held = held_by(reply)
    assert held >= 200 * BY_LABEL["gpt"].output
    world.assert_equal(app)
