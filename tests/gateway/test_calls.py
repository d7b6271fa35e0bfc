"""Calls of every form: the right model, the right bytes, and books that equal the bill."""

import re
from typing import Any

import pytest

from gateway.models import ARN, BY_LABEL, OTHER_ARN
from gateway.wire import Caller, Parsed
from gateway.world import App, World, claude_body, converse_body, directive, held_by
from pricekeeper.bedrock import judge

CLAUDE = BY_LABEL["premium"].model_id
CACHED = {"cache_read": 11, "cache_write_5m": 7, "cache_write_1h": 5}


def used_model(world: World) -> str:
    (entry,) = world.ledger.entries
    return entry.model_id


@pytest.mark.parametrize(
    ("asked", "called"),
    [
        ("auto", CLAUDE),
        ("premium", CLAUDE),
        ("economy", BY_LABEL["economy"].model_id),
        ("us.anthropic.claude-opus-5-5", CLAUDE),
        ("anthropic.claude-opus-5-5", "anthropic.claude-opus-5-5"),
        ("eu.anthropic.claude-opus-5-5", "eu.anthropic.claude-opus-5-5"),
        ("us.amazon.nova-pro-v1%3A0", "us.amazon.nova-pro-v1:0"),
        ("us.amazon.nova-pro-v1:0", "us.amazon.nova-pro-v1:0"),
        (ARN.replace("/", "%2F").replace(":", "%3A"), ARN),
        (ARN, ARN),
        (OTHER_ARN.replace("/", "%2F"), OTHER_ARN),
        (
            "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-5-5",
            "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-5-5",
        ),
    ],
)
def test_a_model_is_found_by_whatever_names_it(
    world: World, app: App, asked: str, called: str
) -> None:
    """The path is read raw; a known id is sent in its own spelling."""
    reply = world.converse(app, asked)
    assert reply.status == 200, reply.data
    assert used_model(world) == called
    world.assert_equal(app)


@pytest.mark.parametrize(
    "asked", ["nope", "anthropic.claude-9", "global.anthropic.claude-opus-5-5", "%FF", "a%2Fb",
              "arn:aws:bedrock:us-east-1:1:application-inference-profile/unknown"],
)  # fmt: skip
@pytest.mark.parametrize("operation", ["converse", "invoke", "count-tokens"])
def test_an_unknown_model_is_a_validation_exception(
    world: World, app: App, asked: str, operation: str
) -> None:
    """It says which there are, and nothing reaches the upstream."""
    reply = world.post(f"/model/{asked}/{operation}", claude_body(), app)
    assert reply.status == 400
    assert reply.headers["x-amzn-errortype"] == "ValidationException"
    assert "premium" in reply.json["message"]
    assert world.ledger.attempts == {}
    world.assert_equal(app)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/model", "/model/premium", "/model//converse", "/model/premium/unknown",
     "/openai/v1/models", "/anthropic/v1", "/model/premium/converse/", "/async-invoke"],
)  # fmt: skip
def test_another_path_is_not_found(world: World, app: App, path: str) -> None:
    reply = world.api.call(
        "POST", f"/bedrock{path or '/'}", {}, headers={"authorization": f"Bearer {app.pair}"}
    )
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (404, "UnknownOperationException")
    assert f"unknown path /bedrock{path or '/'}: send POST to /bedrock/" in reply.data.decode()
    assert world.ledger.attempts == {}


@pytest.mark.parametrize("prefix", ["", "openai/", "anthropic/"])
def test_an_unknown_path_is_shown_bounded_and_inert(world: World, prefix: str) -> None:
    """It is text of the caller's: no controls, no quotes, no markup, no other script."""
    raw = f"/bedrock/{prefix}".encode() + b"<a'\">%1b[2J`$(x)%e2%80%ae" + b"x" * 5_000
    with Caller(world) as caller:
        caller.socket.sendall(b"POST " + raw + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        (body,) = Parsed(caller.read_all()).bodies
    assert b"unknown path" in body
    shown = body.decode().partition("unknown path ")[2].partition(": send POST")[0]
    assert re.fullmatch(r"[\w/%:.~-]+", shown, re.ASCII), shown
    assert shown.endswith("...")
    assert len(body) < 800


def test_an_unknown_path_of_awss_names_all_that_there_is(world: World) -> None:
    reply = world.api.call("POST", "/bedrock/async-invoke", {})
    served = ["/bedrock/model/{modelId}/", "converse-stream", "invoke-with-response-stream"]
    served += ["count-tokens", "/openai/v1/chat/completions", "/anthropic/v1/messages"]
    assert [one for one in served if one not in reply.json["message"]] == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_another_method_is_refused(world: World, app: App, method: str) -> None:
    reply = world.api.call(
        method, "/bedrock/model/premium/converse", headers={"authorization": f"Bearer {app.pair}"}
    )
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert world.ledger.attempts == {}


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"[]", b"null", b"{", b'{"a":1}x', b"\xff", b'\xef\xbb\xbf{"a":1}',
     b'{"a":' * 20_000 + b"1" + b"}" * 20_000, b'{"a":NaN}', b'{"a":"\\ud800"}',
     b'{"messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}", b'{"a":' + b"9" * 5_000 + b"}"],
    ids=range(13),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/model/premium/converse", "/anthropic/v1/messages"])
def test_a_body_that_is_no_json_object_is_refused(
    world: World, app: App, path: str, body: bytes
) -> None:
    """Bad input is a 400, never a 500, in the caller's dialect."""
    reply = world.post(path, body, app)
    assert reply.status == 400, reply.data
    if "anthropic" in path:
        assert reply.json["error"]["type"] == "invalid_request_error"
    else:
        assert reply.headers["x-amzn-errortype"] == "ValidationException"
    assert world.ledger.attempts == {}
    world.assert_equal(app)


def test_the_headers_say_what_was_held_and_what_it_cost(world: World, app: App) -> None:
    """The bound is a token for each byte and more; the cost is what the stand-in billed."""
    reply = world.converse(app, "premium", directive(output_tokens=9), inferenceConfig={
        "maxTokens": 10})  # fmt: skip
    cost = world.assert_equal(app)
    assert int(reply.headers["x-pricekeeper-cost-usd-micros"]) == cost
    held = held_by(reply)
    bounds = judge(converse_body(directive(output_tokens=9)), None).bounds
    assert held == bounds.input_tokens * 5 + 10 * 25
    assert reply.headers["x-pricekeeper-model-label"] == "premium"
    (record,) = app.usage()
    assert reply.headers["x-pricekeeper-authorization-id"] == record["request_id"]


@pytest.mark.parametrize("label", list(BY_LABEL))
@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
def test_converse_is_counted_for_every_model(
    world: World, app: App, label: str, operation: str
) -> None:
    """Cached tokens too, whether the model reports them as a part of its input or not."""
    body = converse_body(directive(input_tokens=50, output_tokens=20, **CACHED))
    reply = world.post(f"/model/{label}/{operation}", body, app)
    assert reply.status == 200
    assert world.assert_equal(app) > 0
    (record,) = app.usage()
    assert record["model_label"] == label


INVOKED: dict[str, dict[str, Any]] = {
    "premium": claude_body(directive(output_tokens=20, **CACHED)),
    "nova": {
        "schemaVersion": "messages-v1",
        "messages": converse_body(directive(output_tokens=20))["messages"],
        "inferenceConfig": {"maxTokens": 30},
    },
    "llama": {"prompt": directive(output_tokens=20), "max_gen_len": 30},
    "mistral": {"prompt": directive(output_tokens=20), "max_tokens": 30},
    "gpt": {
        "messages": [{"role": "user", "content": directive(output_tokens=20)}],
        "max_completion_tokens": 30,
    },
}


@pytest.mark.parametrize("label", list(INVOKED))
@pytest.mark.parametrize("operation", ["invoke", "invoke-with-response-stream"])
def test_invoke_is_counted_for_every_family(
    world: World, app: App, label: str, operation: str
) -> None:
    reply = world.post(f"/model/{label}/{operation}", INVOKED[label], app)
    assert reply.status == 200, reply.data
    assert world.assert_equal(app) > 0


def test_count_tokens_is_free_and_passed_on(world: World, app: App) -> None:
    """By label, too; nothing is held for it."""
    body = {"input": {"converse": converse_body("four tokens text")}}
    for model in ("premium", "auto", CLAUDE):
        reply = world.post(f"/model/{model}/count-tokens", body, app)
        assert (reply.status, reply.json) == (200, {"inputTokens": 4})
        assert not [name for name in reply.headers if name.startswith("x-pricekeeper")]
    assert world.ledger.billed_calls == 0
    assert world.assert_equal(app) == 0


def test_tools_with_any_json_schema_are_measured(world: World, app: App) -> None:
    """A schema has lists and objects under names that mean something elsewhere."""
    schema = {
        "type": ["object", "null"],
        "properties": {"type": {"type": "string"}, "image": {"type": ["string"]}, "document": {}},
    }
    tool = {"toolSpec": {"name": "t", "description": "d", "inputSchema": {"json": schema}}}
    reply = world.converse(app, toolConfig={"tools": [tool]})
    assert reply.status == 200, reply.data
    world.assert_equal(app)
