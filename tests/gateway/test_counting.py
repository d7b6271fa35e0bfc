"""Where the deployment file says so, Bedrock counts a prompt before something is held for it."""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.agents import agent_body
from gateway.conftest import ScriptedWorld
from gateway.models import BY_LABEL, write_deployment
from gateway.wire import Answer, Received, Upstream, hang_up, running_upstream, sending, whole
from gateway.world import App, World, claude_body, converse_body, directive, held_by, running_world
from pricekeeper.bedrock.shapes import IMAGE_TOKENS
from pricekeeper.gateway import counting
from pricekeeper.gateway.counting import AT_ONCE_MAX, COUNTED_BYTES_MAX, COUNTED_FROM_TOKENS
from pricekeeper.standin import running
from scraping import until

COUNTED = ("premium", "economy", "profile", "gpt")
TEXT = "why is the sky blue? " * 1_000
TOKENS = 5_432
OUTPUT = 100
CONFIG = {"inferenceConfig": {"maxTokens": OUTPUT}}
USAGE = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12}


@pytest.fixture(scope="module")
def module_counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("counting")
    path = write_deployment(tmp_path_factory.mktemp("models"), COUNTED)
    with (
        running() as standin,
        running_world(folder, standin.url, standin.ledger, config_path=path) as world,
    ):
        yield world


@pytest.fixture
def world(module_counting: World) -> World:
    """A world whose deployment has models that are counted, and others."""
    module_counting.ledger.clear()
    return module_counting


def text_of(tokens: int) -> str:
    """A long text of so many tokens, fewer than its bytes."""
    return TEXT + directive(input_tokens=tokens)


def held_for(label: str, tokens: int, output: int = OUTPUT) -> int:
    return tokens * BY_LABEL[label].input + output * BY_LABEL[label].output


@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
@pytest.mark.parametrize("model", ["premium", "us.anthropic.claude-opus-5-5", "profile"])
def test_what_is_held_is_what_bedrock_counts(world: World, model: str, operation: str) -> None:
    """The foundation model counts, for any name in the call."""
    app, label = App(world.api).register(), "profile" if model == "profile" else "premium"
    reply = world.post(f"/model/{model}/{operation}", converse_body(text_of(TOKENS), **CONFIG), app)
    assert reply.status == 200
    assert held_by(reply) == held_for(label, TOKENS)
    assert world.ledger.attempts["CountTokens"] == 1
    world.assert_equal(app)


@pytest.mark.parametrize("operation", ["invoke", "invoke-with-response-stream"])
def test_the_body_of_an_invoke_is_counted_as_it_is(world: World, operation: str) -> None:
    app = App(world.api).register()
    reply = world.post(f"/model/premium/{operation}", claude_body(text_of(TOKENS)), app)
    assert held_by(reply) == held_for("premium", TOKENS)
    world.assert_equal(app)


def test_a_call_fits_that_its_bytes_would_not(world: World) -> None:
    """Its bytes come to four times what it costs; the model that is not counted denies it."""
    app = App(world.api).register(limit_usd_micros=2 * TOKENS * 5)
    body = converse_body(text_of(TOKENS), **CONFIG)
    assert world.post("/model/standard/converse", body, app).status == 400
    assert world.post("/model/premium/converse", body, app).status == 200
    world.assert_equal(app)


def test_of_several_models_all_are_asked(world: World) -> None:
    """A call that may go to any of some models is held at the most of what they count."""
    ordering = ["premium", "economy", "profile"]
    app = App(world.api).register(model_ordering=ordering, quotas=dict.fromkeys(ordering, 10**9))
    reply = world.converse(app, "auto", text_of(TOKENS), **CONFIG)
    assert held_by(reply) == held_for("premium", TOKENS)
    assert world.ledger.attempts["CountTokens"] == len(ordering)


@pytest.mark.parametrize(
    ("model", "text"),
    [("auto", TEXT), ("standard", TEXT), ("premium", "a" * (COUNTED_FROM_TOKENS - 200))],
    ids=["one may go uncounted", "not counted", "short"],
)
def test_else_the_bytes_bound_it(world: World, model: str, text: str) -> None:
    app = App(world.api).register()
    reply = world.converse(app, model, text, **CONFIG)
    assert held_by(reply) > held_for(reply.headers["x-pricekeeper-model-label"], len(text))
    assert "CountTokens" not in world.ledger.attempts
    world.assert_equal(app)


def test_a_body_that_takes_long_to_encode_is_not_counted(world: World) -> None:
    """The event loop would stand still for all other calls; the bytes bound it."""
    app = App(world.api).register()
    reply = world.converse(app, "premium", "a" * COUNTED_BYTES_MAX, **CONFIG)
    assert reply.status == 200
    assert "CountTokens" not in world.ledger.attempts
    world.assert_equal(app)


def test_what_a_model_reads_beyond_its_prompt_is_not_counted(world: World) -> None:
    """The findings of a tool that runs at Bedrock are unknown before."""
    app = App(world.api).register()
    tools = {"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}}
    reply = world.converse(app, "premium", text_of(TOKENS), **CONFIG, **tools)
    assert reply.status == 200
    assert held_by(reply) > held_for("premium", 1_000_000)
    assert "CountTokens" not in world.ledger.attempts
    world.assert_equal(app)


def test_who_is_frozen_has_nothing_counted(world: World) -> None:
    app = App(world.api).register()
    frozen = world.api.provision("PUT", f"{app.path}/freeze", {"reason": "it runs wild"})
    assert frozen.status == 200, frozen.data
    assert world.converse(app, "premium", TEXT).status == 403
    assert world.ledger.attempts == {}


IN_THE_BODY = [
    ("/anthropic/v1/messages", claude_body(text_of(TOKENS), model="premium")),
    ("/anthropic/v1/messages", agent_body(text_of(TOKENS), max_tokens=OUTPUT)),
    (
        "/openai/v1/chat/completions",
        {
            "model": "gpt",
            "messages": [{"role": "user", "content": text_of(TOKENS)}],
            "max_tokens": OUTPUT,
        },
    ),
]
"""Calls whose body names the model."""


@pytest.mark.parametrize(("path", "body"), IN_THE_BODY)
@pytest.mark.parametrize("streams", [False, True])
def test_bodies_that_name_their_model_are_counted_too(
    world: World, path: str, body: dict[str, Any], streams: bool
) -> None:
    """Uncounted members are held by their bytes, and the bill is below that."""
    app = App(world.api).register()
    reply = world.post(path, {**body, "stream": streams}, app)
    assert reply.status == 200, reply.data
    label = reply.headers["x-pricekeeper-model-label"]
    assert world.ledger.attempts["CountTokens"] == 1
    price = BY_LABEL[label]
    dearest = price.cache_write_5m if "system" in body else price.input
    counted = TOKENS * dearest + OUTPUT * price.output
    held = held_by(reply)
    assert counted <= held <= counted + 200 * dearest
    assert world.assert_equal(app) <= held


@pytest.mark.parametrize(
    "path", ["/anthropic/v1/messages", "/openai/v1/chat/completions"], ids=["claude", "openai"]
)
def test_a_body_of_another_family_is_not_counted(world: World, path: str) -> None:
    """Nothing says what CountTokens of that model makes of it."""
    app = App(world.api).register()
    model = "gpt" if "anthropic" in path else "premium"
    world.post(path, claude_body(TEXT, model=model), app)
    assert "CountTokens" not in world.ledger.attempts


def test_a_picture_at_an_address_is_held_for_by_its_bound(world: World) -> None:
    """It is not in the request, so CountTokens may have seen nothing but its address."""
    app = App(world.api).register()
    for kind in ({"type": "url", "url": "https://a.example/b"}, {"type": "file", "file_id": "f"}):
        picture = {"type": "image", "source": kind}
        said = [{"type": "text", "text": text_of(TOKENS)}, picture]
        body = claude_body(model="premium", messages=[{"role": "user", "content": said}])
        reply = world.post("/anthropic/v1/messages", body, app)
        held = held_by(reply)
        assert held > held_for("premium", IMAGE_TOKENS + len(TEXT))
    assert "CountTokens" not in world.ledger.attempts
    world.assert_equal(app)


def test_a_count_that_bedrock_throttles_is_done_without(world: World) -> None:
    """The call itself is made, at the bound from its bytes."""
    app = App(world.api).register()
    text = TEXT + directive(fate="ThrottlingException", fate_times=1, output_tokens=3)
    reply = world.converse(app, "premium", text, **CONFIG)
    assert reply.status == 200
    assert held_by(reply) > held_for("premium", len(TEXT))
    world.assert_equal(app)


@pytest.fixture(scope="module")
def module_scripted_counting(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[World, Upstream]]:
    folder = tmp_path_factory.mktemp("scripted")
    path = write_deployment(tmp_path_factory.mktemp("models"), COUNTED)
    with (
        running_upstream(lambda _, peer, __: hang_up(peer)) as upstream,
        running_world(folder, upstream.url, config_path=path) as world,
    ):
        yield world, upstream


@pytest.fixture
def counted_by(module_scripted_counting: tuple[World, Upstream]) -> ScriptedWorld:
    """A world and an app whose upstream counts prompts as a test says."""
    world, upstream = module_scripted_counting

    @contextmanager
    def use(count: Answer = NINETY_NINE) -> Iterator[tuple[World, Upstream, App]]:
        upstream.begin(counts_with(count))
        try:
            yield world, upstream, App(world.api).register()
        finally:
            upstream.end()

    return use


def counts_with(count: Answer) -> Answer:
    """An upstream that answers calls, and counts as that says."""

    def answer(upstream: Upstream, peer: socket.socket, received: Received) -> None:
        if received.path.endswith("/count-tokens"):
            count(upstream, peer, received)
        else:
            peer.sendall(whole(json.dumps({"usage": USAGE}).encode()))

    return answer


NINETY_NINE = sending(whole(b'{"inputTokens": 99}'))
BAD = {
    "refused": sending(whole(b'{"inputTokens": 99}', status="400 Bad Request")),
    "no object": sending(whole(b"12")),
    "no count": sending(whole(b"{}")),
    "zero": sending(whole(b'{"inputTokens": 0}')),
    "a text": sending(whole(b'{"inputTokens": "12"}')),
    "hangs up": lambda _, peer, __: hang_up(peer),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_count_is_none(counted_by: ScriptedWorld, bad: str) -> None:
    with counted_by(BAD[bad]) as (world, _, app):
        reply = world.converse(app, "premium", TEXT, **CONFIG)
    assert reply.status == 200
    assert held_by(reply) > held_for("premium", len(TEXT))


def test_what_is_asked_is_the_prompt_alone(counted_by: ScriptedWorld) -> None:
    """What CountTokens does not know is left out of it, and an ``invoke`` is sent whole."""
    system = [{"text": "be kind"}]
    body = converse_body(TEXT, system=system, requestMetadata={"team": "search"}, **CONFIG)
    invoked = claude_body(TEXT)
    del invoked["max_tokens"]
    with counted_by() as (world, upstream, app):
        assert world.post("/model/premium/converse", body, app).status == 200
        assert world.post("/model/premium/invoke", invoked, app).status == 200
    asked = [one for one in upstream.requests if one.path.endswith("/count-tokens")]
    assert [one.path for one in asked] == ["/model/anthropic.claude-opus-5-5/count-tokens"] * 2
    prompt = {"messages": body["messages"], "system": system}
    assert asked[0].json == {"input": {"converse": prompt}}
    sent = json.loads(base64.b64decode(asked[1].json["input"]["invokeModel"]["body"]))
    assert sent == {**invoked, "max_tokens": 4_096}


def counted_body(upstream: Upstream) -> Any:
    """What CountTokens was asked about, as InvokeModel has it."""
    (asked,) = [one for one in upstream.requests if one.path.endswith("/count-tokens")]
    return json.loads(base64.b64decode(asked.json["input"]["invokeModel"]["body"]))


def test_a_message_is_counted_as_invoke_model_has_it(counted_by: ScriptedWorld) -> None:
    """With the version, and with the betas of the header: they may add to a prompt."""
    body = agent_body(max_tokens=OUTPUT, anthropic_beta=["c"])
    path, headers = "/anthropic/v1/messages", {"anthropic-beta": "a, b"}
    with counted_by() as (world, upstream, app):
        assert world.post(path, body, app, **headers).status == 200
    left = ("model", "stream", "metadata")
    assert counted_body(upstream) == {
        **{name: value for name, value in body.items() if name not in left},
        "anthropic_version": "bedrock-2023-05-31",
        "anthropic_beta": ["a", "b", "c"],
    }


def test_a_chat_is_counted_as_invoke_model_has_it(counted_by: ScriptedWorld) -> None:
    chat = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0.5}
    body = {**chat, "model": "gpt", "stream": True, "user": "u", "stream_options": {}}
    with counted_by() as (world, upstream, app):
        assert world.post("/openai/v1/chat/completions", body, app).status == 200
    assert counted_body(upstream) == {**chat, "max_completion_tokens": 4_096}


@pytest.mark.parametrize(("path", "body"), IN_THE_BODY)
def test_a_model_that_bedrock_does_not_count_is_held_for_by_its_bytes(
    counted_by: ScriptedWorld, path: str, body: dict[str, Any]
) -> None:
    with counted_by(BAD["refused"]) as (world, _, app):
        reply = world.post(path, body, app)
    assert reply.status == 200
    assert held_by(reply) > held_for(reply.headers["x-pricekeeper-model-label"], len(TEXT))


OUTPUT_CONFIG = {
    "textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": TEXT}}}
}


def test_what_was_not_counted_is_held_for_by_its_bytes(counted_by: ScriptedWorld) -> None:
    """It is sent on all the same, and CountTokens was not asked about it."""
    with counted_by() as (world, upstream, app):
        reply = world.converse(app, "premium", TEXT, **CONFIG, outputConfig=OUTPUT_CONFIG)
    assert reply.status == 200
    text_tokens = len(TEXT)
    assert held_for("premium", 99 + text_tokens) < held_by(reply)
    assert held_by(reply) < held_for("premium", 2 * text_tokens)
    assert upstream.requests[-1].json["outputConfig"] == OUTPUT_CONFIG


def say_nothing(upstream: Upstream, _: socket.socket, __: Received) -> None:
    upstream.over.wait(20)


def test_a_count_takes_nothing_of_the_time_that_a_call_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is not counted in time continues."""
    monkeypatch.setattr(counting, "SECS_MAX", 1.5)
    path = write_deployment(tmp_path, COUNTED)
    with (
        running_upstream(counts_with(say_nothing)) as upstream,
        running_world(
            tmp_path / "world", upstream.url, config_path=path, request_deadline_ms=1_000
        ) as world,
    ):
        app = App(world.api).register()
        assert world.converse(app, "premium", TEXT, **CONFIG).status == 200
        upstream.over.set()


def test_nobody_waits_long_for_a_count(
    counted_by: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "SECS_MAX", 0.1)
    with counted_by(say_nothing) as (world, _, app):
        assert held_by(world.converse(app, "premium", TEXT, **CONFIG)) > 5 * len(TEXT)


def test_one_app_has_only_so_many_counted_at_once(counted_by: ScriptedWorld) -> None:
    """What is beyond goes without; another app has its own share."""
    waiting = threading.Event()

    def count(_: Upstream, peer: socket.socket, __: Received) -> None:
        waiting.wait(20)
        peer.sendall(whole(b'{"inputTokens": 99}'))

    def asked() -> int:
        return sum(one.path.endswith("/count-tokens") for one in upstream.requests)

    with counted_by(count) as (world, upstream, busy), ThreadPoolExecutor(AT_ONCE_MAX + 1) as pool:
        other = App(world.api).register()
        try:
            for _ in range(AT_ONCE_MAX):
                pool.submit(world.converse, busy, "premium", TEXT)
            until(lambda: asked() == AT_ONCE_MAX)
            beyond = world.converse(busy, "premium", TEXT, **CONFIG)
            assert held_by(beyond) > 5 * len(TEXT)
            assert asked() == AT_ONCE_MAX
            pool.submit(world.converse, other, "premium", TEXT)
            until(lambda: asked() == AT_ONCE_MAX + 1)
        finally:
            waiting.set()
        pool.shutdown()
        again = world.converse(busy, "premium", TEXT, **CONFIG)
        assert held_by(again) == held_for("premium", 99)
