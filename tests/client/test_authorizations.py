"""Authorizations from an app's side: asked for once, settled once, and a denial that explains."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from client.conftest import APP, APP_BODY, ORG_BODY, Acme
from client.scripted import LOST, HastyClock, Reply, ScriptedService
from client.test_transport import TOKEN, keeper_of
from pricekeeper.client import Api, DeniedError, MissingError, RejectedError
from pricekeeper.errors import InvalidValueError

WORST_USD_MICROS = (1_000 * 4_400_000 + 500 * 22_000_000) // 1_000_000
COST_USD_MICROS = (1_000 * 4_400_000 + 100 * 22_000_000) // 1_000_000
REPLY: dict[str, Any] = {"usage": {"inputTokens": 1_000, "outputTokens": 100, "totalTokens": 1_100}}
MONTHLY = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 40_000}
GRANT = {
    "authorization_id": "a",
    "model": {"label": "premium", "bedrock_model_id": "m", "reason": "NORMAL", "description": ""},
    "held_usd_micros": 1,
    "max_output_tokens": 1,
    "expires_at": "2026-01-23T15:30:45Z",
}


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    """Two calls fit into the organisation's month, and not three; six in a minute."""
    async with acme.admin() as admin:
        await admin.put_org(acme.org_id, {**ORG_BODY, "budgets": [MONTHLY]})
        rpm = {"capacity": 6, "refill_amount": 1, "refill_period_ms": 86_400_000}
        await admin.put_app(acme.org_id, APP, {**APP_BODY, "rate_limits": {"*": {"rpm": rpm}}})


async def money(keeper: Api) -> tuple[int, int]:
    """What was spent of the budget, and what is held."""
    (month,) = (await keeper.budgets())["budgets"]
    return month["spent_usd_micros"], month["held_usd_micros"]


async def test_a_call_is_authorized_made_and_captured(keeper: Api) -> None:
    """The whole of it in one block."""
    async with await keeper.authorize(1_000, 500) as allowed:
        assert (allowed.label, allowed.reason) == ("premium", "NORMAL")
        assert "opus" in allowed.model_id
        assert (allowed.held_usd_micros, allowed.max_output_tokens) == (WORST_USD_MICROS, 500)
        assert await money(keeper) == (0, WORST_USD_MICROS)
        captured = await allowed.used(REPLY)
    assert (captured.duplicate, captured.cost_usd_micros) == (False, COST_USD_MICROS)
    assert (captured.held_usd_micros, captured.overrun_usd_micros) == (WORST_USD_MICROS, 0)
    assert captured.request_id == allowed.id
    assert (await allowed.used(REPLY)).duplicate
    assert await money(keeper) == (COST_USD_MICROS, 0)


async def test_a_denial_names_all_that_denies(keeper: Api) -> None:
    """As values, to act on."""
    with pytest.raises(DeniedError) as denied:
        await keeper.authorize(1_000, 100_000, model="premium", consume={"rpm": 7})
    error = denied.value
    assert (error.status, error.code, error.by_speed) == (429, "QUOTA_EXCEEDED", False)
    by = {one.kind: one for one in error.denied_by}
    assert by.keys() == {"BUDGET", "LIMIT"}
    budget, limit = by["BUDGET"], by["LIMIT"]
    assert (budget.name, budget.scope, budget.label) == ("monthly", "ORG", None)
    assert (budget.needed, budget.remaining, budget.never) == (2_204_400, 40_000, True)
    assert (limit.name, limit.scope, limit.label) == ("rpm", "APP", "premium")
    assert (limit.needed, limit.remaining) == (7, 6)
    assert [one["label"] for one in error.considered] == ["premium"]
    assert error.retry_after_secs == 86_400
    assert "monthly" in str(error)


async def test_too_fast_is_told_apart(keeper: Api) -> None:
    """It is worth a try later, if not in this minute."""
    with pytest.raises(DeniedError) as denied:
        await keeper.authorize(1, 1, consume={"rpm": 7})
    assert (denied.value.by_speed, denied.value.code) == (True, "RATE_LIMIT_EXCEEDED")


class TestLeaving:
    async def test_a_call_that_bedrock_refused_is_given_back(self, keeper: Api) -> None:
        """Nothing was used, so nothing stays held."""
        about: Any = {
            "Error": {"Code": "ThrottlingException", "Message": "slow down"},
            "ResponseMetadata": {"HTTPStatusCode": 429, "RetryAttempts": 0},
        }
        allowed = await keeper.authorize(1_000, 500)
        with pytest.raises(ClientError):
            async with allowed:
                raise ClientError(about, "Converse")
        assert await money(keeper) == (0, 0)
        assert allowed.id is not None
        shown = await keeper.authorization(allowed.id)
        assert (shown["status"], shown["void_reason"]) == ("voided", "Bedrock refused the call")

    async def test_after_any_other_failure_it_stays_held(self, keeper: Api) -> None:
        """Nobody knows what is billed; it can be captured or voided by whoever finds out."""
        allowed = await keeper.authorize(1_000, 500)
        with pytest.raises(KeyError):
            async with allowed:
                raise KeyError("ours")
        assert await money(keeper) == (0, WORST_USD_MICROS)
        (listed,) = (await keeper.authorizations(status="open"))["authorizations"]
        assert listed["authorization_id"] == allowed.id
        await allowed.void()
        assert await money(keeper) == (0, 0)


async def test_it_is_extended_and_shown(keeper: Api) -> None:
    """For as long as a slow call takes."""
    allowed = await keeper.authorize(1_000, 500, hold_secs=60, tags={"team": "red"})
    await allowed.extend(3_600)
    assert allowed.id is not None
    shown = await keeper.authorization(allowed.id)
    assert shown["expires_at"] > allowed.expires_at
    assert shown["tags"] == {"team": "red"}
    with pytest.raises(RejectedError):
        await allowed.extend(1)
    with pytest.raises(MissingError):
        await keeper.authorization("7c9e6679-7425-40de-944b-e07fc1f90ae7")


async def test_several_are_captured_at_once(keeper: Api) -> None:
    """Each is judged by itself."""
    allowed = await keeper.authorize(1_000, 500)
    tokens = {"input_tokens": 1_000, "output_tokens": 100}
    absent = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    done = await keeper.capture_many(
        [{"authorization_id": one, **tokens} for one in (allowed.id, absent)]
    )
    assert (done["captured"], done["failed"]) == (1, 1)


async def test_a_dry_run_can_not_be_settled(keeper: Api) -> None:
    """It holds nothing."""
    tried = await keeper.authorize(1_000, 500, dry_run=True)
    assert tried.id is None
    assert await money(keeper) == (0, 0)
    with pytest.raises(InvalidValueError, match="only tried"):
        await tried.void()


async def test_a_lost_reply_is_asked_for_again_under_the_same_id() -> None:
    """Whoever made up the id can repeat the request without a second hold."""
    async with (
        ScriptedService(TOKEN, LOST, Reply(201, GRANT), Reply()) as service,
        keeper_of(service) as keeper,
    ):
        await keeper.authorize(1, 1)
    first, second = (json.loads(body) for line, _, body in service.seen if "authoriz" in line)
    assert first == second
    assert first["authorization_id"]


def total(mode: str) -> Reply:
    body = {
        "request_id": "r",
        "status": "accepted",
        "cost_usd_micros": 1,
        "org_day": "20260123",
        "daily_total": {"mode": mode},
    }
    return Reply(202, body)


def selection(mode: str) -> Reply:
    return Reply(
        200,
        {
            "recommended_model": {"label": "premium", "bedrock_model_id": "m", "reason": "NORMAL"},
            "client_guidance": {"explanation": "", "cache_duration_secs": 300},
            "quota_status": {"mode": mode},
        },
    )


@pytest.mark.parametrize(
    ("selected", "told", "label", "asks_again"),
    [
        ("NORMAL", "NORMAL", "premium", False),
        ("NORMAL", "TIGHT", "premium", True),
        ("NORMAL", "EXCEEDED", "premium", True),
        ("TIGHT", "TIGHT", "premium", False),
        ("TIGHT", "EXCEEDED", "premium", True),
        ("NORMAL", "EXCEEDED", "standard", False),
    ],
)
async def test_a_selection_is_forgotten_when_its_quota_gets_tight(
    selected: str, told: str, label: str, *, asks_again: bool
) -> None:
    """The answer to a usage record says so, minutes before the selection's time is over.

    What was known when it was made is no news, and another label's quota is none of its business.
    """
    script = (TOKEN, selection(selected), total(told), selection(told), Reply())
    async with ScriptedService(*script) as service, keeper_of(service, HastyClock()) as keeper:
        first = await keeper.select()
        await keeper.record(label, 1, 1)
        assert (await keeper.select() is not first) is asks_again
