"""The history of flips over a socket: labels given up or set by hand, with time, reason and end."""

import asyncio
import uuid
from typing import Any

import pytest

from event_streams import Fleet, Tenant, fleet
from http_fixtures import KEY, ORG
from pricekeeper.selection import history
from pricekeeper.usecases import activity as flips

__all__ = ["fleet"]

TINY = {"quotas": {"premium": 5_000, "standard": 5_000, "economy": 900_000}, "timezone": "UTC"}
DAY_MS = 86_400_000


async def spend(fleet: Fleet, tenant: Tenant, label: str, at: int = 0, app: str = "web") -> None:
    """Spend a label's quota, and let it be noticed."""
    await fleet.record(tenant, at, app, model_label=label, output_tokens=4_000)
    path = f"{tenant.org}/apps/{app}/model-selection?force_check=true"
    token = tenant.app_token if app == "web" else tenant.org_token
    await fleet.call("GET", path, at=at, token=token)


async def listed(fleet: Fleet, path: str, **how: Any) -> list[dict[str, Any]]:
    return await fleet.pages(f"{path}/flips", "flips", **how)


def short(row: dict[str, Any]) -> tuple[str | None, str, str | None, str | None]:
    return row["app_id"], row["reason"], row["from_label"], row["to_label"]


async def test_a_day_of_an_app_as_a_timeline(fleet: Fleet) -> None:
    """By quota and by hand, from any instance, the newest first."""
    tenant = await fleet.register(str(uuid.uuid4()), **TINY)
    await spend(fleet, tenant, "premium", at=1)
    await fleet.pass_ms(2_000)
    await spend(fleet, tenant, "standard")
    await fleet.pass_ms(1_000)
    override = f"{tenant.app}/model-override"
    await fleet.call("PUT", override, {"model_label": "premium"}, at=1, key=KEY)
    await fleet.pass_ms(1_000)
    await fleet.call("DELETE", override, key=KEY)
    rows = await listed(fleet, tenant.app, token=tenant.app_token)
    assert [short(row) for row in rows] == [
        ("web", "OVERRIDE_CLEARED", "premium", None),
        ("web", "MANUAL_OVERRIDE", None, "premium"),
        ("web", "QUOTA_EXCEEDED", "standard", "economy"),
        ("web", "QUOTA_EXCEEDED", "premium", "standard"),
    ]
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)
    (given_up,) = rows[3]["given_up"]
    assert given_up["label"] == "premium"
    assert given_up["spend_usd_micros"] >= given_up["quota_usd_micros"] == 5_000
    assert {row["until"][11:] for row in rows} == {"00:00:00Z"}
    assert await listed(fleet, tenant.org, token=tenant.org_token) == rows
    assert await listed(fleet, tenant.app, at=1, key=KEY) == rows


async def test_what_concerns_all_apps_is_in_the_history_of_each(fleet: Fleet) -> None:
    """An override of the organisation, and a quota that its apps share."""
    tenant = await fleet.register(str(uuid.uuid4()), quota_scope="ORG", **TINY)
    await spend(fleet, tenant, "premium")
    await fleet.pass_ms(1_000)
    body = {"model_label": "economy"}
    await fleet.call("PUT", f"{tenant.org}/model-override", body, key=KEY)
    await fleet.pass_ms(1_000)
    await fleet.call("PUT", f"{tenant.org}/apps/batch/model-override", body, key=KEY)
    shared = [
        (None, "MANUAL_OVERRIDE", None, "economy"),
        (None, "QUOTA_EXCEEDED", "premium", "standard"),
    ]
    batch = ("batch", "MANUAL_OVERRIDE", None, "economy")
    assert [short(row) for row in await listed(fleet, tenant.app, key=KEY)] == shared
    rows = await listed(fleet, f"{tenant.org}/apps/batch", key=KEY)
    assert [short(row) for row in rows] == [batch, *shared]
    assert [short(row) for row in await listed(fleet, tenant.org, key=KEY)] == [batch, *shared]


async def test_days_are_kept_for_five_weeks_and_paged(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest day first, without gap or repetition; what is older is gone."""
    tenant = await fleet.register(str(uuid.uuid4()), **TINY)
    for _ in range(4):
        for app in ("web", "batch"):
            path = f"{tenant.org}/apps/{app}/model-override"
            await fleet.call("PUT", path, {"model_label": "economy"}, key=KEY)
        fleet.clock.advance_ms(DAY_MS)
    whole = await listed(fleet, tenant.org, key=KEY)
    own = await listed(fleet, tenant.app, key=KEY)
    assert (len(whole), len(own)) == (8, 4)
    assert [row for row in whole if row["app_id"] == "web"] == own
    for module, name, count in (
        (history, "PAGE_MAX", 2),
        (history, "DAY_MAX", 1),
        (flips, "FLIPS_MAX", 1),
    ):
        monkeypatch.setattr(module, name, count)
        assert "next" in (await fleet.call("GET", f"{tenant.org}/flips", key=KEY)).json
        assert await listed(fleet, tenant.org, key=KEY) == whole
        assert await listed(fleet, tenant.app, key=KEY) == own
    first, last = own[-1]["at"][:10], own[0]["at"][:10]
    reply = await fleet.call("GET", f"{tenant.app}/flips?from={first}&to={first}", key=KEY)
    assert reply.json["flips"] == own[-1:]
    fleet.clock.advance_ms(33 * DAY_MS)
    left = await listed(fleet, tenant.app, key=KEY)
    assert {row["at"][:10] for row in left} <= {last, own[1]["at"][:10]}
    assert left


async def test_nobody_sees_flips_of_another(fleet: Fleet) -> None:
    """And an app does not see its organisation's list."""
    mine, other = [await fleet.register(str(uuid.uuid4()), **TINY) for _ in range(2)]
    await spend(fleet, other, "premium")
    for path in (other.org, other.app, f"{mine.org}/apps/none"):
        for token in (mine.org_token, mine.app_token):
            reply = await fleet.call("GET", f"{path}/flips", token=token)
            assert reply.status == 404, (path, reply.json)
    assert (await fleet.call("GET", f"{mine.org}/flips", token=mine.app_token)).status == 403
    assert (await fleet.call("GET", f"{mine.org}/flips")).status == 401
    reply = await fleet.call("GET", f"{mine.org}/flips?after=x", token=mine.org_token)
    assert (reply.status, reply.json["errors"][0]["field"]) == (400, "after")


async def test_a_label_that_comes_back_is_in_the_timeline_once(fleet: Fleet) -> None:
    """Its quota is raised, lowered, raised again and spent: one instance reports each flip."""
    tenant = await fleet.register(str(uuid.uuid4()), **TINY)
    await spend(fleet, tenant, "premium")

    async def set_quota(usd_micros: int) -> None:
        """Change the quota, and let both instances notice that, at the same moment."""
        await fleet.pass_ms(1_000)
        quotas = {**ORG["quotas"], "premium": usd_micros}
        reply = await fleet.call("PUT", tenant.org, {**ORG, **TINY, "quotas": quotas}, key=KEY)
        assert reply.status == 200, reply.json
        for _ in range(2):  # with old settings at one of them, then with the new ones at both
            path = f"{tenant.app}/model-selection?force_check=true"
            asked = [fleet.call("GET", path, at=at, token=tenant.app_token) for at in (0, 1)]
            await asyncio.gather(*asked)
            fleet.clock.advance_ms(31_000)

    for usd_micros in (900_000, 5_000, 950_000):
        await set_quota(usd_micros)
    await fleet.record(tenant, 1, "web", model_label="premium", output_tokens=50_000)
    await set_quota(960_000)
    rows = await listed(fleet, tenant.app, token=tenant.app_token)
    assert [short(row) for row in reversed(rows)] == [
        ("web", "QUOTA_EXCEEDED", "premium", "standard"),
        ("web", "QUOTA_RAISED", "standard", "premium"),
        ("web", "QUOTA_EXCEEDED", "premium", "standard"),
        ("web", "QUOTA_RAISED", "standard", "premium"),
        ("web", "QUOTA_EXCEEDED", "premium", "standard"),
    ]
    assert [len(row["given_up"]) for row in rows] == [1, 0, 1, 0, 1]
    assert await listed(fleet, tenant.org, at=1, token=tenant.org_token) == rows


async def test_a_void_does_not_end_a_fallback_but_what_is_shown_is_really_spent(
    fleet: Fleet,
) -> None:
    """A label that was given up stays so until midnight or a higher quota, and the text says so."""
    quotas = {"premium": 5_000, "standard": 5_000, "economy": 900}
    tenant = await fleet.register(str(uuid.uuid4()), quotas=quotas, timezone="UTC")
    body = await fleet.record(tenant, output_tokens=4_000)
    path = f"{tenant.app}/model-selection?force_check=true"
    found = (await fleet.call("GET", path, token=tenant.app_token)).json
    assert found["recommended_model"]["reason"] == "QUOTA_EXCEEDED"
    why = {"reason": "a load test by mistake"}
    void = f"{tenant.org}/usage/{body['request_id']}/void"
    assert (await fleet.call("POST", void, why, key=KEY)).status == 200
    await fleet.pass_ms(2_000)
    found = (await fleet.call("GET", path, at=1, token=tenant.app_token)).json
    model = found["recommended_model"]
    assert (model["label"], model["reason"]) == ("standard", "STICKY_FALLBACK")
    assert found["quota_status"]["sticky_fallback_active"] is True
    assert found["quota_status"]["models_status"]["premium"] == {
        "spend_usd_micros": 0,
        "quota_usd_micros": 5_000,
        "quota_pct": 0.0,
        "status": "NORMAL",
    }
    told = "premium was given up earlier today, until midnight or a higher quota: 0.00 % of its "
    assert found["client_guidance"]["explanation"].startswith(told)
    assert len(await listed(fleet, tenant.app, token=tenant.app_token)) == 1
    for label in ("standard", "economy"):
        await spend(fleet, tenant, label)
        await fleet.pass_ms(2_000)
    call = {"model": "auto", "input_tokens": 1, "max_output_tokens": 1}
    denied = await fleet.call("POST", f"{tenant.app}/authorizations", call, token=tenant.app_token)
    (quota,) = denied.json["denied_by"]
    assert (quota["name"], quota["needed"], quota["remaining"]) == ("quota-premium", 1, 0)
