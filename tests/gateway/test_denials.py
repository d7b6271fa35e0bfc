"""Denials: a person can act on them, and no client that is known hammers because of them."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.attempts import bedrock_client
from gateway.conftest import MakeWorld
from gateway.world import App, World, claude_body, converse_body, directive
from http_fixtures import Reply
from pricekeeper.authorizations import Authorizations
from pricekeeper.errors import StoreUnavailableError

RPM = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 3_600_000}}}
PLAIN = converse_body(inferenceConfig={"maxTokens": 100})


def poor_app(world: World, limit_usd_micros: int = 1_000, **changes: Any) -> App:
    return App(world.api).register(limit_usd_micros, **changes)


def test_a_budget_without_room_is_a_400_that_a_person_can_act_on(world: World) -> None:
    """Whose budget, how much it needs and has, and when it resets; and no retry header."""
    app = poor_app(world)
    reply = world.post("/model/premium/converse", PLAIN, app)
    assert reply.status == 400
    assert reply.headers["x-amzn-errortype"] == "ServiceQuotaExceededException"
    assert not reply.headers.keys() & {"retry-after", "x-amz-retry-after"}
    told = reply.json["message"]
    found = re.search(
        r"organisation's budget all: this call may cost \$([\d.]+), \$0.001 left", told
    )
    assert found is not None, told
    assert float(found[1]) > 0.0025
    assert re.search(r"(in \d+ h \d+ min|whole budget)", told), told
    assert world.ledger.attempts == {}
    world.assert_equal(app)


def test_a_budget_that_others_hold_says_when_it_is_free(world: World) -> None:
    app = poor_app(world, 10_000)
    body = converse_body(directive(output_tokens=300), inferenceConfig={"maxTokens": 300})
    assert world.post("/model/premium/converse", body, app).status == 200
    reply = world.post("/model/premium/converse", body, app)
    assert reply.status == 400
    assert re.search(r"; resets in \d+ h \d+ min$", reply.json["message"])


@pytest.mark.parametrize("operation", ["converse", "converse_stream"])
def test_botocore_takes_a_spent_budget_for_final(world: World, operation: str) -> None:
    """One attempt, and its own exception for it."""
    app = poor_app(world)
    with bedrock_client(world, app) as client:
        with pytest.raises(client.exceptions.ServiceQuotaExceededException):
            getattr(client, operation)(modelId="premium", **PLAIN)
        assert client.attempts == 1
    assert world.ledger.attempts == {}


def test_too_fast_is_a_429_with_both_headers_and_at_most_30_seconds(world: World) -> None:
    app = App(world.api).register(rate_limits=RPM)
    assert world.post("/model/premium/converse", PLAIN, app).status == 200
    reply = world.post("/model/premium/converse", PLAIN, app)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (429, "ThrottlingException")
    assert reply.headers["retry-after"] == "30"
    assert reply.headers["x-amz-retry-after"] == "30000"
    assert "rpm" in reply.json["message"]
    world.assert_equal(app)


def test_a_short_wait_is_told_as_it_is(world: World) -> None:
    """In seconds, rounded up, and in milliseconds."""
    limits = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 4_000}}}
    app = App(world.api).register(rate_limits=limits)
    replies = [world.post("/model/premium/converse", PLAIN, app) for _ in range(2)]
    refused = replies[1]
    assert refused.status == 429
    wait_ms = int(refused.headers["x-amz-retry-after"])
    assert 0 < wait_ms <= 4_000
    assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)


def test_more_than_a_limit_ever_holds_is_no_429(world: World) -> None:
    """Waiting would not help, so it is a 400."""
    limits = {"*": {"tpm": {"capacity": 10, "refill_amount": 10, "refill_period_ms": 1_000}}}
    app = App(world.api).register(rate_limits=limits)
    reply = world.post("/model/premium/converse", PLAIN, app)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "ValidationException")
    assert "the limit never has that much" in reply.json["message"]


def test_botocore_repeats_too_fast_no_more_than_it_is_told_to(world: World) -> None:
    limits = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 300}}}
    app = App(world.api).register(rate_limits=limits)
    with bedrock_client(world, app) as client:
        for _ in range(2):
            client.converse(modelId="premium", **PLAIN)
        assert client.attempts <= 5
    world.assert_equal(app)


@pytest.mark.parametrize("scope", ["org", "path"])
def test_a_frozen_app_is_a_403_that_says_why(world: World, scope: str) -> None:
    """Final for every client; and lifted at once."""
    app = App(world.api).register()
    path = f"{getattr(app, scope)}/freeze"
    assert world.api.provision("PUT", path, {"reason": "a leaked key"}).status in (200, 201)
    with bedrock_client(world, app) as client:
        with pytest.raises(client.exceptions.AccessDeniedException, match="a leaked key"):
            client.converse(modelId="premium", **PLAIN)
        assert client.attempts == 1
        assert world.ledger.attempts == {}
        assert world.api.provision("DELETE", path).status in (200, 204)
        client.converse(modelId="premium", **PLAIN)
    world.assert_equal(app)


@pytest.mark.parametrize(
    ("path", "member"),
    [("/anthropic/v1/messages", "type"), ("/openai/v1/chat/completions", "code")],
)
def test_other_dialects_hear_it_in_their_own_words(world: World, path: str, member: str) -> None:
    app = poor_app(world, 10)
    model = "gpt" if "openai" in path else "premium"
    reply = world.post(path, claude_body(model=model), app)
    assert reply.status == 400
    error = reply.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error[member]
    assert "budget all" in error["message"]


def test_a_denial_takes_nothing(world: World) -> None:
    """A hundred of them leave a call that fits."""
    app = poor_app(world, 6_000)
    large = converse_body(inferenceConfig={"maxTokens": 1_000})

    def call(body: dict[str, Any]) -> Reply:
        return world.post("/model/premium/converse", body, app)

    assert {call(large).status for _ in range(20)} == {400}
    assert call(PLAIN).status == 200
    world.assert_equal(app)


def test_a_store_that_is_not_there_is_a_503(
    own_world: World, own_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent on, so the client may try again."""

    async def fail(*_: Any) -> None:
        raise StoreUnavailableError("it is not there")

    with monkeypatch.context() as patched:
        patched.setattr(Authorizations, "authorize", fail)
        reply = own_world.post("/model/premium/converse", PLAIN, own_app)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.headers["x-amzn-errortype"] == "ServiceUnavailableException"
    assert own_world.ledger.attempts == {}


def test_a_mistake_of_ours_is_told_without_details(
    own_world: World, own_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 500 before anything is held; afterwards not one that makes a client call again."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a detail")

    for where, status in (("plan_call", 500), ("body_to_send", 424)):
        with monkeypatch.context() as patched:
            patched.setattr(f"pricekeeper.gateway.relay.{where}", fail)
            reply = own_world.post("/model/premium/converse", PLAIN, own_app)
        assert reply.status == status
        assert b"detail" not in reply.data
    assert own_world.ledger.attempts == {}
    own_world.assert_unsettled(own_app)


def test_nobody_waits_for_an_answer_that_does_not_come(
    own_world: World, own_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the mistake can be told, as where the log's disk is full: the connection ends."""

    def fail(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pricekeeper.gateway.relay.plan_call", fail)
        patched.setattr("pricekeeper.gateway.relay.log", SimpleNamespace(exception=fail))
        with pytest.raises(ConnectionError):
            own_world.post("/model/premium/converse", PLAIN, own_app)
    assert own_world.converse(own_app).status == 200


def test_the_price_keeper_has_a_deadline(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that hangs is a 503, and nothing is held in the end."""
    world = make_world(request_deadline_ms=200)
    app = App(world.api).register()

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Authorizations, "authorize", hang)
        reply = world.post("/model/premium/converse", PLAIN, app)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert world.ledger.attempts == {}
    world.assert_equal(app)


def test_client_error_is_what_a_denial_is(world: World) -> None:
    """Programs that catch botocore's own root catch it."""
    app = poor_app(world)
    with bedrock_client(world, app) as client, pytest.raises(ClientError):
        client.converse(modelId="premium", **PLAIN)
