"""Bodies that ask for more than they seem to, against an upstream that reads all of it.

The upstream bills the most that Bedrock would for what has reached it, by the tests' own reading.
"""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bedrock.billed import billed
from gateway.conftest import ScriptedWorld
from gateway.models import model_of
from gateway.wire import Received, Upstream, whole
from gateway.world import App, World, claude_body, converse_body, held_by
from http_fixtures import Reply
from scraping import until

LIMIT_USD_MICROS = 300_000
AT_ONCE = 7
WINDOW_TOKENS = 10_000_000
"""Of all models of the deployment."""
S3 = {"s3Location": {"uri": "s3://bucket/key"}}
LONG = "context-20m-2027-01-01"
"""A window that is longer than the deployment file says."""
CONVERSE, INVOKE = "/model/premium/converse", "/model/premium/invoke"
CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"


def document(**source: Any) -> dict[str, Any]:
    block = {"document": {"name": "d", "format": "csv", "source": source}}
    return {"messages": [{"role": "user", "content": [block]}]}


def audio() -> dict[str, Any]:
    block = {"audio": {"format": "flac", "source": {"bytes": "eA=="}}}
    return {"messages": [{"role": "user", "content": [block]}]}


ATTACKS: list[tuple[str, Any, dict[str, str]]] = [
    (CONVERSE, converse_body(), {}),
    (CONVERSE, document(**S3), {}),
    (CONVERSE, document(**S3, text=None), {}),
    (CONVERSE, document(**S3, content=[]), {}),
    (CONVERSE, document(text="a. " * 10_000), {}),
    (CONVERSE, converse_body("\ufdfa" * 8_000), {}),
    (CONVERSE, audio(), {}),
    (CONVERSE, converse_body(additionalModelRequestFields={"n": 400}), {}),
    (CONVERSE, converse_body(additionalModelRequestFields={"max_new_tokens": 10**6}), {}),
    (CONVERSE, converse_body(additionalModelRequestFields={"anthropic_beta": [LONG]}), {}),
    (INVOKE, claude_body("x" * 50_000, anthropic_beta=[LONG]), {}),
    (INVOKE, claude_body(context_management={"edits": [{"type": "compact_20260112"}]}), {}),
    (INVOKE, claude_body(Max_Tokens=10**6), {}),
    (INVOKE, claude_body(thinking={"type": "enabled", "budget_tokens": 10**6},
                         anthropic_beta=["interleaved-thinking-2025-05-14"]), {}),
    (MESSAGES, claude_body(model="premium"), {"anthropic-beta": LONG}),
    (CHAT, {"model": "gpt", "messages": [{"role": "user", "content": "x"}], "n": 9_000}, {}),
    (CHAT, {"model": "gpt", "messages": [{"role": "user", "content": "x"}], "N": 9_000}, {}),
    (CHAT, {"model": "gpt", "messages": [{"role": "user", "content": "x"}],
            "num_return_sequences": 9_000}, {}),
]  # fmt: skip


def bill_of(request: Received) -> tuple[int, int, int]:
    """The tokens of a request as it has arrived, and what they cost in micro-dollars."""
    family: str | None = "anthropic"
    if "chat/completions" in request.path:
        family, model_id = "openai", request.json["model"]
    elif "/model/" in request.path:
        family = None if "converse" in request.path else "anthropic"
        model_id = request.path.split("/")[2].replace("%3A", ":")
    else:
        model_id = request.json["model"]
    bill = billed(family, request.body, request.headers)
    if bill is None:
        return 0, 0, 0
    window = 20_000_000 if LONG in str(request.json) + str(request.headers) else WINDOW_TOKENS
    tokens = window if bill.window else min(bill.tokens, window)
    model = model_of(model_id)
    return tokens, bill.output, tokens * model.input + bill.output * model.output


def usage_in_words(request: Received, tokens: int, output: int) -> bytes:
    """The answer of the family, with its usage."""
    names = ("input_tokens", "output_tokens")
    if "converse" in request.path:
        names = ("inputTokens", "outputTokens")
    elif "chat" in request.path:
        names = ("prompt_tokens", "completion_tokens")
    return json.dumps({"usage": dict(zip(names, (tokens, output), strict=True))}).encode()


def attack(world: World, app: App, path: str, body: Any, headers: dict[str, str]) -> list[Reply]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        calls = [pool.submit(world.post, path, body, app, **headers) for _ in range(AT_ONCE)]
        return [call.result() for call in calls]


@pytest.mark.parametrize(("path", "body", "headers"), ATTACKS, ids=range(len(ATTACKS)))
def test_seven_calls_at_once_never_spend_more_than_the_budget(
    scripted: ScriptedWorld, path: str, body: Any, headers: dict[str, str]
) -> None:
    """Each granted call has at least its bill held, and the books equal the bill."""

    def answer(_: Upstream, peer: socket.socket, request: Received) -> None:
        tokens, output, _cost = bill_of(request)
        peer.sendall(whole(usage_in_words(request, tokens, output)))

    with scripted(answer, limit_usd_micros=LIMIT_USD_MICROS) as (world, upstream, app):
        replies = attack(world, app, path, body, headers)
        assert {reply.status for reply in replies} <= {200, 400}
        costs = sorted(bill_of(request)[2] for request in upstream.requests)
        assert sum(costs) <= LIMIT_USD_MICROS
        held = sorted(held_by(reply) for reply in replies if reply.status == 200)
        assert all(hold >= cost for hold, cost in zip(held, costs, strict=True))
        until(lambda: app.books().spent == sum(costs), app.books)


def test_a_longer_window_than_the_file_has_is_refused_by_its_name(scripted: ScriptedWorld) -> None:
    """The message says what to add to the deployment file."""

    def answer(_: Upstream, peer: socket.socket, request: Received) -> None:
        peer.sendall(whole(usage_in_words(request, 1, 1)))

    with scripted(answer) as (world, upstream, app):
        reply = world.post(INVOKE, claude_body(anthropic_beta=[LONG]), app)
        assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "ValidationException")
        assert "models.premium.context_window_tokens" in reply.json["message"]
        fitting = claude_body(anthropic_beta=["context-1m-2025-08-07"])
        assert world.post(INVOKE, fitting, app).status == 200
        assert len(upstream.requests) == 1
