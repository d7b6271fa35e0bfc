"""`max_output_tokens_cap` lowers the longest answer that a call states, and so what is held."""

import json
from typing import Any

import pytest

from gateway.agents import THINKING_TOKENS, agent_body, thinking
from gateway.conftest import ScriptedWorld, SentOn
from gateway.models import BY_LABEL
from gateway.world import App, World, claude_body, converse_body, directive
from http_fixtures import KEY

CAP = 50
LONG = 4_000
HEADER = "x-pricekeeper-max-output-tokens"
TALKATIVE = directive(output_tokens=LONG)
_CHAT = [{"role": "user", "content": TALKATIVE}]
CALLS = [
    ("/model/premium/converse", converse_body(TALKATIVE, inferenceConfig={"maxTokens": LONG})),
    ("/model/nova/converse-stream", converse_body(TALKATIVE, inferenceConfig={"maxTokens": LONG})),
    ("/model/premium/invoke", claude_body(TALKATIVE, max_tokens=LONG)),
    ("/model/premium/invoke-with-response-stream", claude_body(TALKATIVE, max_tokens=LONG)),
    ("/model/llama/invoke", {"prompt": TALKATIVE, "max_gen_len": LONG}),
    ("/model/mistral/invoke", {"prompt": TALKATIVE, "max_tokens": LONG}),
    ("/model/gpt/invoke", {"messages": _CHAT, "max_completion_tokens": LONG}),
    ("/openai/v1/chat/completions", {"model": "gpt", "messages": _CHAT, "max_tokens": LONG}),
    ("/anthropic/v1/messages", claude_body(TALKATIVE, model="premium", max_tokens=LONG)),
    ("/anthropic/v1/messages", agent_body(TALKATIVE, prompt_bytes=60_000)),
    ("/model/premium/converse", converse_body(TALKATIVE)),
]


def change(world: World, path: str, **settings: Any) -> None:
    headers = {"content-type": "application/merge-patch+json"}
    reply = world.api.call("PATCH", path, settings, key=KEY, headers=headers)
    assert reply.status == 200, reply.data


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_bedrock_stops_at_the_cap(world: World, path: str, body: dict[str, Any]) -> None:
    """Under the name that each model family reads; the header tells the caller."""
    app = App(world.api).register(max_output_tokens_cap=CAP)
    reply = world.post(path, body, app)
    assert reply.status == 200, reply.data
    assert reply.headers[HEADER] == str(CAP)
    (entry,) = world.ledger.entries
    assert entry.tokens.output_tokens == CAP
    world.assert_equal(app)


@pytest.mark.parametrize("stated", [CAP, 7])
def test_an_answer_within_the_cap_is_as_stated(world: World, stated: int) -> None:
    app = App(world.api).register(max_output_tokens_cap=CAP)
    reply = world.converse(app, text=TALKATIVE, inferenceConfig={"maxTokens": stated})
    assert reply.headers[HEADER] == str(stated)
    assert world.ledger.totals.output_tokens == stated
    world.assert_equal(app)


def test_an_app_overrides_the_cap_of_its_organisation(world: World) -> None:
    """Upwards, too; without a cap of its own it inherits the organisation's again."""
    app = App(world.api).register(max_output_tokens_cap=CAP)

    def longest() -> str:
        config = {"maxTokens": LONG}
        return world.converse(app, text=TALKATIVE, inferenceConfig=config).headers[HEADER]

    assert longest() == str(CAP)
    change(world, app.path, max_output_tokens_cap=2 * CAP)
    assert longest() == str(2 * CAP)
    change(world, app.path, max_output_tokens_cap=None)
    assert longest() == str(CAP)
    change(world, app.org, max_output_tokens_cap=None)
    assert longest() == str(LONG)
    world.assert_equal(app)


THINKING = [
    ("/anthropic/v1/messages", claude_body(model="premium", max_tokens=LONG)),
    ("/anthropic/v1/messages", agent_body(max_tokens=LONG)),
    ("/model/premium/invoke", claude_body(max_tokens=LONG)),
    ("/model/premium/converse", converse_body(inferenceConfig={"maxTokens": LONG})),
]


@pytest.mark.parametrize(("path", "body"), THINKING)
@pytest.mark.parametrize(("budget", "longest"), [(CAP - 1, CAP), (CAP, CAP + 1), (70, 71)])
def test_the_answer_stays_longer_than_the_thinking(
    sent_on: SentOn, path: str, body: dict[str, Any], budget: int, longest: int
) -> None:
    """Claude refuses `max_tokens` that is not above `thinking.budget_tokens`."""
    is_converse = path.endswith("converse")
    more = {"thinking": thinking(budget)}
    more = {"additionalModelRequestFields": more} if is_converse else more
    reply, sent = sent_on(path, {**body, **more}, max_output_tokens_cap=CAP)
    written = sent["inferenceConfig"]["maxTokens"] if is_converse else sent["max_tokens"]
    assert written == longest
    assert reply.headers[HEADER] == str(longest)
    thought = sent["additionalModelRequestFields"] if is_converse else sent
    assert thought["thinking"] == thinking(budget)


def test_a_length_that_is_not_stated_leaves_room_to_think(sent_on: SentOn) -> None:
    body = converse_body(additionalModelRequestFields={"thinking": thinking()})
    reply, sent = sent_on("/model/premium/converse", body)
    assert sent["inferenceConfig"]["maxTokens"] == THINKING_TOKENS + 1
    assert reply.headers[HEADER] == str(THINKING_TOKENS + 1)


@pytest.mark.parametrize("budget", [LONG, 10**30, -1, 0, True, "50", {}])
def test_a_thinking_budget_that_no_answer_has_room_for_is_refused(
    scripted: ScriptedWorld, budget: Any
) -> None:
    """With interleaved thinking it may be above the longest answer, and then nothing bounds it."""
    body = claude_body("hello", max_tokens=LONG, thinking={"budget_tokens": budget})
    with scripted(lambda _, __, ___: None, max_output_tokens_cap=CAP) as (world, upstream, app):
        reply = world.post("/model/premium/invoke", body, app)
    assert (reply.status, upstream.requests) == (400, [])
    assert "thinking.budget_tokens" in reply.json["message"]


def test_several_answers_share_the_cap(sent_on: SentOn) -> None:
    body = {"model": "gpt", "messages": _CHAT, "n": 4, "max_completion_tokens": LONG}
    path = "/openai/v1/chat/completions"
    reply, sent = sent_on(path, body, max_output_tokens_cap=CAP)
    assert sent["max_completion_tokens"] == CAP // 4
    assert reply.headers[HEADER] == str(CAP)
    _, sent = sent_on(path, body, max_output_tokens_cap=1)
    assert sent["max_completion_tokens"] == 1


def test_less_is_held_for_it(world: World) -> None:
    """A budget that denies the stated length has room for the cap."""
    price = BY_LABEL["premium"]
    limit = 2 * len(json.dumps(agent_body())) * price.cache_write_5m
    app = App(world.api).register(limit_usd_micros=limit)
    body = agent_body(max_tokens=limit // price.output)
    assert world.post("/anthropic/v1/messages", body, app).status == 400
    change(world, app.org, max_output_tokens_cap=8_192)
    assert world.post("/anthropic/v1/messages", body, app).status == 200
    world.assert_equal(app)
