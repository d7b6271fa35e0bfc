"""Authorizations from an app's side: asked for once, settled once, and a denial that explains."""

import json
from typing import Any

import pytest

from client.conftest import APP, APP_BODY, ORG_BODY, Acme
from client.money import COST_USD_MICROS, HELD_USD_MICROS
from client.scripted import LOST, USAGE, HastyClock, Reply, ScriptedService
from client.test_transport import TOKEN, keeper_of
from pricekeeper.client import Api, DeniedError, MissingError, RejectedError

MONTHLY = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 40_000}
GRANT: dict[str, Any] = {
    "authorization_id": "a",
    "status": "authorized",
    "model": {"label": "premium", "bedrock_model_id": "m", "reason": "NORMAL", "description": ""},
    "held_usd_micros": 1,
    "max_output_tokens": 1,
    "expires_at": "2026-01-23T15:30:45Z",
    "budgets": [],
    "limits": {},
    "considered": [],
}


@pytest.fixture(autouse=True)
async def a_budget(acme: Acme) -> None:
    """Two calls fit into the organisation's month, and not three; six in a minute."""
    async with acme.admin() as admin:
        await admin.put_org(acme.org_id, {**ORG_BODY, "budgets": [MONTHLY]})
        rpm = {"capacity": 6, "refill_amount": 1, "refill_period_ms": 86_400_000}
        await admin.put_app(acme.org_id, APP, {**APP_BODY, "rate_limits": {"*": {"rpm": rpm}}})


async def money(api: Api) -> tuple[int, int]:
    """Spent and held of the budget."""
    (month,) = (await api.budgets())["budgets"]
    return month["spent_usd_micros"], month["held_usd_micros"]


async def test_a_call_is_authorized_made_and_captured(api: Api) -> None:
    allowed = await api.authorize(1_000, 500)
    assert (allowed.label, allowed.reason) == ("premium", "NORMAL")
    assert "opus" in allowed.model_id
    assert (allowed.held_usd_micros, allowed.max_output_tokens) == (HELD_USD_MICROS, 500)
    assert await money(api) == (0, HELD_USD_MICROS)
    captured = await api.capture(allowed.id, 1_000, 100)
    assert (captured.duplicate, captured.cost_usd_micros) == (False, COST_USD_MICROS)
    assert (captured.held_usd_micros, captured.overrun_usd_micros) == (HELD_USD_MICROS, 0)
    assert captured.request_id == allowed.id
    assert (await api.capture(allowed.id, 1_000, 100)).duplicate
    assert await money(api) == (COST_USD_MICROS, 0)


async def test_a_denial_names_all_that_denies(api: Api) -> None:
    with pytest.raises(DeniedError) as denied:
        await api.authorize(1_000, 100_000, model="premium", consume={"rpm": 7})
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


async def test_too_fast_is_told_apart(api: Api) -> None:
    with pytest.raises(DeniedError) as denied:
        await api.authorize(1, 1, consume={"rpm": 7})
    assert (denied.value.by_speed, denied.value.code) == (True, "RATE_LIMIT_EXCEEDED")


async def test_what_was_not_used_is_given_back(api: Api) -> None:
    allowed = await api.authorize(1_000, 500)
    (listed,) = (await api.authorizations(status="open"))["authorizations"]
    assert listed["authorization_id"] == allowed.id
    await api.void(allowed.id, reason="never called")
    assert await money(api) == (0, 0)
    shown = await api.authorization(allowed.id)
    assert (shown["status"], shown["void_reason"]) == ("voided", "never called")


async def test_it_is_extended_and_shown(api: Api) -> None:
    allowed = await api.authorize(1_000, 500, hold_secs=60, tags={"team": "red"})
    await api.extend(allowed.id, 3_600)
    shown = await api.authorization(allowed.id)
    assert shown["expires_at"] > allowed.expires_at
    assert shown["tags"] == {"team": "red"}
    with pytest.raises(RejectedError):
        await api.extend(allowed.id, 1)
    with pytest.raises(MissingError):
        await api.authorization("7c9e6679-7425-40de-944b-e07fc1f90ae7")


async def test_several_are_captured_at_once(api: Api) -> None:
    allowed = await api.authorize(1_000, 500)
    tokens = {"input_tokens": 1_000, "output_tokens": 100}
    absent = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    done = await api.capture_many(
        [{"authorization_id": one, **tokens} for one in (allowed.id, absent)]
    )
    assert (done["captured"], done["failed"]) == (1, 1)


async def test_a_dry_run_holds_nothing(api: Api) -> None:
    tried = await api.authorize(1_000, 500, dry_run=True)
    assert tried.id == ""
    assert await money(api) == (0, 0)


async def test_a_lost_reply_is_asked_for_again_under_the_same_id() -> None:
    """A repeated request with the caller's id causes no second hold."""
    async with (
        ScriptedService(TOKEN, LOST, Reply(201, GRANT), Reply()) as service,
        keeper_of(service) as api,
    ):
        await api.authorize(1, 1)
    first, second = (json.loads(body) for line, _, body in service.seen if "authoriz" in line)
    assert first == second
    assert first["authorization_id"]


def total(mode: str) -> Reply:
    daily = {"cost_usd_micros": 1, "requests": 1, "quota_pct": 1, "mode": mode, "as_of": ""}
    return Reply(202, {**USAGE, "daily_total": daily})


def selection(mode: str) -> Reply:
    model = {**GRANT["model"], "burn_down_factor_permille": 1000}
    quota = {"scope": "APP", "mode": mode, "current_model": "premium", "quota_pct": 1}
    spent = {"spend_usd_micros": 1, "quota_usd_micros": 1}
    return Reply(
        200,
        {
            "recommended_model": model,
            "quota_status": {
                **quota,
                **spent,
                "sticky_fallback_active": False,
                "models_status": {},
            },
            "pricing": {},
            "client_guidance": {
                "check_frequency": "",
                "explanation": "",
                "cache_duration_secs": 300,
            },
            **dict.fromkeys(("checked_at", "org_day", "org_local_time", "resets_at"), ""),
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
    """The answer to a usage record says so, minutes before the selection expires.

    News is only what changed since the selection, and only for its label.
    """
    script = (TOKEN, selection(selected), total(told), selection(told), Reply())
    async with ScriptedService(*script) as service, keeper_of(service, HastyClock()) as api:
        first = await api.select()
        await api.record(label, 1, 1)
        assert (await api.select() is not first) is asks_again
