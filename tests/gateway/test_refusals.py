"""Which answers of the upstream prove that no model has run, alike on every path."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.conftest import ScriptedWorld
from gateway.models import BY_LABEL
from gateway.test_dialects import chat_body
from gateway.wire import CHUNKED, Answer, chunk, sending, whole
from gateway.world import Books, claude_body, converse_body
from pricekeeper.standin.endpoint import event_frame, exception_frame
from scraping import until

CONVERSE = "/model/premium/converse"
MESSAGES = "/anthropic/v1/messages"
CHAT = "/openai/v1/chat/completions"
BODIES: dict[str, Callable[..., dict[str, Any]]] = {
    CONVERSE: converse_body,
    MESSAGES: lambda **more: claude_body(model="premium", **more),
    CHAT: lambda **more: chat_body(**{"max_tokens": 100, **more}),
}
AWS_BODY = b'{"message":"Too many requests, please wait before trying again."}'
ANTHROPIC_BODY = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
OPENAI_BODY = b'{"error":{"message":"slow down","type":"rate_limit_exceeded","param":null}}'
TWO_USD_MICROS = 2_000_000


def named(code: str) -> str:
    return f"x-amzn-ErrorType: {code}"


Shape = tuple[str, tuple[str, ...], bytes]
FREE: dict[str, Shape] = {
    "aws header and body": ("429 X", (named("ThrottlingException"),), AWS_BODY),
    "aws header with more": (
        "503 X",
        (named("com.amazon#ServiceUnavailableException:http://internal.amazon.com/"),),
        AWS_BODY,
    ),
    "aws header, empty": ("500 X", (named("InternalServerException"),), b""),
    "aws name in the body": ("500 X", (), b'{"__type":"x#InternalServerException","message":"x"}'),
    "aws code in the body": ("500 X", (), b'{"code":"InternalServerException","message":"x"}'),
    "any aws service": ("500 X", (named("InternalFailure"),), b"{}"),
    "anthropic": ("429 X", (), ANTHROPIC_BODY),
    "openai": ("429 X", (), OPENAI_BODY),
    "nothing but a body": ("429 X", (), AWS_BODY),
    "empty": ("429 X", (), b""),
    "bad request": ("400 X", (), b"null"),
    "a proxy's": ("403 X", ("content-type: text/html",), b"<html>Forbidden</html>"),
    "not found": ("404 X", (), b'{"message":"no"}'),
    "model timeout": ("408 X", (named("ModelTimeoutException"),), AWS_BODY),
    "model error": ("424 X", (named("ModelErrorException"),), AWS_BODY),
    "no usage": ("429 X", (), b'{"error":{"message":"no","usage":null},"usage":{}}'),
    "redirect": ("307 X", ("location: http://127.0.0.1:1/",), b""),
}
"""No model has run."""
FREE_IN_DIALECT: dict[str, Shape] = {
    "anthropic 529": ("529 X", (), ANTHROPIC_BODY),
    "anthropic 500": (
        "500 X",
        (),
        b'{"type":"error","error":{"type":"api_error","message":"Internal"}}',
    ),
    "openai 503": ("503 X", (), b'{"error":{"message":"down","type":"server_error"}}'),
}
"""OpenAI's and Anthropic's form has an error object, and a server in between has none."""
UNKNOWN: dict[str, Shape] = {
    "an unnamed error": ("500 X", (), b"oops"),
    "an unknown status": ("599 X", (), b"oops"),
    "bad gateway": ("502 X", ("content-type: text/html",), b"<html>Bad Gateway</html>"),
    "gateway timeout": ("504 X", (), b""),
    "api gateway's timeout": (
        "504 X",
        (named("InternalServerErrorException"),),
        b'{"message": "Endpoint request timed out"}',
    ),
    "json of a proxy": ("503 X", (), b'{"error":"upstream connect error"}'),
    "a proxy's timeout": ("408 X", (), b"stream timeout"),
    "an unnamed model error": ("424 X", (), b""),
    "after output": ("424 X", (named("ModelStreamErrorException"),), AWS_BODY),
    "see other": ("303 X", ("location: /result",), b""),
    "usage that is not whole": ("400 X", (), b'{"error":{"message":"x"},"usage":{"tokens":5}}'),
    "usage in a header": ("400 X", ("x-amzn-bedrock-input-token-count: 7",), AWS_BODY),
}
"""A model may have run."""


def answering(shape: Shape) -> Answer:
    status, headers, body = shape
    return sending(whole(body, *headers, status=status))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("shape", FREE.values(), ids=FREE)
def test_a_refusal_is_given_back_and_passed_on(
    scripted: ScriptedWorld, path: str, shape: Shape
) -> None:
    """With the upstream's own status and body."""
    assert_refused(scripted, path, shape)


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize("shape", FREE_IN_DIALECT.values(), ids=FREE_IN_DIALECT)
def test_a_dialect_names_its_errors_by_an_object(
    scripted: ScriptedWorld, path: str, shape: Shape
) -> None:
    """So does Bedrock where it speaks that dialect."""
    assert_refused(scripted, path, shape)


def assert_refused(scripted: ScriptedWorld, path: str, shape: Shape) -> None:
    with scripted(answering(shape)) as (world, upstream, app):
        reply = world.post(path, BODIES[path](), app)
        assert len(upstream.requests) == 1
    assert (f"{reply.status} X", reply.data) == (shape[0], shape[2])
    assert "location" not in reply.headers  # SDKs would follow it with the app's key
    until(lambda: app.books() == Books(0, 0, 0), app.books)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("shape", UNKNOWN.values(), ids=UNKNOWN)
def test_what_may_have_run_stays_charged(scripted: ScriptedWorld, path: str, shape: Shape) -> None:
    """As a lost reply, which no client repeats."""
    with scripted(answering(shape)) as (world, upstream, app):
        reply = world.post(path, BODIES[path](), app)
        assert len(upstream.requests) == 1
    assert reply.status == 424
    assert b"charged" in reply.data
    world.assert_unsettled(app)


def test_an_error_object_proves_nothing_where_bedrock_has_none(scripted: ScriptedWorld) -> None:
    """On AWS's paths it is the word of a server in between."""
    with scripted(answering(FREE_IN_DIALECT["openai 503"])) as (world, _, app):
        assert world.post(CONVERSE, converse_body(), app).status == 424
    world.assert_unsettled(app)


USED = {
    CONVERSE: {"usage": {"inputTokens": 7, "outputTokens": 3}},
    MESSAGES: {"type": "error", "error": {"message": "x", "usage": {"input_tokens": 7,
                                                                   "output_tokens": 3}}},
    CHAT: {"error": {"message": "x"}, "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", ["400 X", "424 X", "500 X", "504 X"])
def test_an_error_that_says_what_it_used_is_counted(
    scripted: ScriptedWorld, path: str, status: str
) -> None:
    """Also if Bedrock names the error: the usage is the better evidence."""
    body = json.dumps(USED[path]).encode()
    shape = (status, (named("InternalServerException"),), body)
    with scripted(answering(shape)) as (world, _, app):
        reply = world.post(path, BODIES[path](), app)
    assert (f"{reply.status} X", reply.data) == (status, body)
    model = BY_LABEL["gpt" if path == CHAT else "premium"]
    cost = 7 * model.input + 3 * model.output
    assert reply.headers["x-pricekeeper-cost-usd-micros"] == str(cost)
    until(lambda: app.books() == Books(cost, 0, 0), app.books)


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
@pytest.mark.parametrize("shape", ["aws header and body", "nothing but a body", "empty"])
def test_throttling_does_not_eat_a_budget(scripted: ScriptedWorld, path: str, shape: str) -> None:
    """22 refused calls, each holding most of the budget, release it."""
    label = "gpt" if path == CHAT else "premium"
    tokens = TWO_USD_MICROS * 9 // 10 // BY_LABEL[label].output
    with scripted(answering(FREE[shape]), limit_usd_micros=TWO_USD_MICROS) as (
        world,
        upstream,
        app,
    ):
        for _ in range(22):
            assert world.post(path, BODIES[path](max_tokens=tokens), app).status == 429
        assert len(upstream.requests) == 22
    until(lambda: app.books() == Books(0, 0, 0), app.books)


STREAMS: dict[str, Callable[[], dict[str, Any]]] = {
    "/model/premium/converse-stream": converse_body,
    "/model/premium/invoke-with-response-stream": claude_body,
    MESSAGES: lambda: claude_body(model="premium", stream=True),
    CHAT: lambda: chat_body(stream=True),
}
SSE_ERROR = b"event: error\ndata: " + ANTHROPIC_BODY + b"\n\n"
SSE_PING = b'event: ping\ndata: {"type": "ping"}\n\n: alive\n\n'
SSE_BEGUN = (
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
)
SSE_DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
REFUSED_STREAMS = {
    "/model/premium/converse-stream": [exception_frame("throttlingException", AWS_BODY)],
    "/model/premium/invoke-with-response-stream": [
        exception_frame("serviceUnavailableException", AWS_BODY)
    ],
    MESSAGES: [SSE_ERROR, SSE_PING + SSE_ERROR],
    CHAT: [
        b"data: " + OPENAI_BODY + b"\n\ndata: [DONE]\n\n",
        b'data: {"__type":"ThrottlingException","message":"slow down"}\n\n',
    ],
}
BEGUN_STREAMS = {
    "/model/premium/converse-stream": [
        event_frame("messageStart", b'{"role":"assistant"}')
        + exception_frame("throttlingException", b"{}"),
        exception_frame("modelStreamErrorException", b"{}"),
        b"",
    ],
    "/model/premium/invoke-with-response-stream": [
        event_frame("chunk", b'{"bytes":"e30="}') + exception_frame("throttlingException", b"{}")
    ],
    MESSAGES: [SSE_BEGUN + SSE_ERROR, SSE_ERROR + SSE_BEGUN, SSE_PING],
    CHAT: [
        SSE_DELTA + b"data: " + OPENAI_BODY + b"\n\n",
        b'data: {"error":{"message":"x"},"usage":{"total":3}}\n\n',
        b"data: no JSON\n\n" + SSE_ERROR,
        b"data: [DONE]\n\n",
    ],
}


def streaming(data: bytes) -> Answer:
    return sending(CHUNKED + (chunk(data) if data else b"") + b"0\r\n\r\n")


def each(streams: dict[str, list[bytes]]) -> list[tuple[str, bytes]]:
    return [(path, data) for path, datas in streams.items() for data in datas]


@pytest.mark.parametrize(("path", "data"), each(REFUSED_STREAMS))
def test_a_stream_that_begins_with_an_error_is_given_back(
    scripted: ScriptedWorld, path: str, data: bytes
) -> None:
    """There was no output before it. The caller gets the same bytes."""
    with scripted(streaming(data)) as (world, _, app):
        reply = world.post(path, STREAMS[path](), app)
    assert (reply.status, reply.data) == (200, data)
    until(lambda: app.books() == Books(0, 0, 0), app.books)


@pytest.mark.parametrize(("path", "data"), each(BEGUN_STREAMS))
def test_an_error_after_output_leaves_a_stream_charged(
    scripted: ScriptedWorld, path: str, data: bytes
) -> None:
    with scripted(streaming(data)) as (world, _, app):
        reply = world.post(path, STREAMS[path](), app)
    assert (reply.status, reply.data) == (200, data)
    world.assert_unsettled(app)
