"""Denials over a socket: each listed with its why, to whom it concerns, combined and bounded."""

import uuid
from typing import Any

import pytest

from event_streams import Fleet, Tenant, fleet
from http_fixtures import KEY, METRICS_TOKEN
from in_loop_service import Reply
from pricekeeper.activity import denials

__all__ = ["fleet"]

QUOTAS = {"premium": 5_000, "standard": 5_000, "economy": 5_000}
STRICT: dict[str, Any] = {"quota_enforcement": "STRICT", "quotas": QUOTAS}
ASKED = {"model": "premium", "input_tokens": 9_000, "max_output_tokens": 900}
WRITTEN_MS = 1_500


async def deny(fleet: Fleet, tenant: Tenant, at: int = 0, **changes: Any) -> Reply:
    """Ask for more than the quota allows."""
    path = f"{tenant.app}/authorizations"
    reply = await fleet.call("POST", path, ASKED | changes, at=at, token=tenant.app_token)
    assert reply.status == 429, reply.json
    return reply


async def listed(fleet: Fleet, path: str, **how: Any) -> list[dict[str, Any]]:
    return await fleet.pages(path, "denials", **how)


async def test_a_denial_is_listed_as_its_caller_was_told_it(fleet: Fleet) -> None:
    tenant = await fleet.register(str(uuid.uuid4()), **STRICT)
    replies = [await deny(fleet, tenant, at=n % 2, tags={"team": "red"}) for n in range(5)]
    await fleet.pass_ms(WRITTEN_MS)
    for path in (f"{tenant.org}/denials", "/api/v1/denials"):
        (row,) = await listed(fleet, path, at=1, token=tenant.org_token)
        told = replies[0].json
        assert (row["org_id"], row["app_id"]) == (tenant.org_id, "web")
        assert (row["kind"], row["model"], row["count"]) == ("AUTHORIZATION", "premium", 5)
        assert row["code"] == told["code"] == "QUOTA_EXCEEDED"
        for name in ("detail", "denied_by", "considered"):
            assert row["example"][name] == told[name]
        assert row["example"]["client_id"] == f"org-{tenant.org_id}-app-web"
        assert row["example"]["tags"] == {"team": "red"}


async def test_every_kind_of_denial_is_listed(fleet: Fleet) -> None:
    tenant = await fleet.register(str(uuid.uuid4()), **STRICT)
    body = {"resource": "premium", "consume": {"rpm": 11}}
    acquired = await fleet.call(
        "POST", f"{tenant.app}/limits/acquire", body, token=tenant.app_token
    )
    for label in QUOTAS:
        await fleet.record(tenant, model_label=label, input_tokens=100_000, output_tokens=40_000)
    path = f"{tenant.app}/model-selection?force_check=true"
    selected = await fleet.call("GET", path, token=tenant.app_token)
    await fleet.call("PUT", f"{tenant.app}/freeze", {"reason": "leaked"}, key=KEY)
    await fleet.pass_ms(31_000, step_ms=1_000)  # until settings are read again
    frozen = await fleet.call("GET", path, token=tenant.app_token)
    await fleet.pass_ms(WRITTEN_MS)
    dry = ASKED | {"dry_run": True}
    await fleet.call("POST", f"{tenant.app}/authorizations", dry, token=tenant.app_token)
    await fleet.pass_ms(WRITTEN_MS)
    rows = await listed(fleet, f"{tenant.org}/denials", key=KEY)
    found = {(row["kind"], row["code"]): row for row in rows}
    assert found.keys() == {
        ("LIMITS", "RATE_LIMIT_EXCEEDED"),
        ("SELECTION", "QUOTA_EXCEEDED"),
        ("SELECTION", "FROZEN"),
    }
    for key, reply, names in (
        (("LIMITS", "RATE_LIMIT_EXCEEDED"), acquired, ("violations",)),
        (("SELECTION", "QUOTA_EXCEEDED"), selected, ("models", "retry_after")),
        (("SELECTION", "FROZEN"), frozen, ("reason", "frozen_at", "scope")),
    ):
        example = found[key]["example"]
        assert {n: example[n] for n in names} == {n: reply.json[n] for n in names}
        assert example["detail"] == reply.json["detail"]
    assert found["LIMITS", "RATE_LIMIT_EXCEEDED"]["model"] == "premium"
    assert found["SELECTION", "QUOTA_EXCEEDED"]["model"] == "auto"


async def test_minutes_are_rows_of_their_own_and_pages_follow_each_other(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest first, without gap or repetition, for one organisation and for all."""
    tenant, other = [await fleet.register(str(uuid.uuid4()), **STRICT) for _ in range(2)]
    for minute in range(4):
        for one in (tenant, other):
            await deny(fleet, one, at=minute % 2)
            await deny(fleet, one, at=1, model="economy", input_tokens=90_000)
        await fleet.pass_ms(WRITTEN_MS)
        await fleet.pass_ms(60_000, 60_000)
    await fleet.pass_ms(WRITTEN_MS)
    whole = await listed(fleet, f"{tenant.org}/denials", token=tenant.org_token)
    assert len(whole) == 8
    assert [row["first_at"] for row in whole] == sorted(
        (row["first_at"] for row in whole), reverse=True
    )
    everybody = await listed(fleet, "/api/v1/denials", key=KEY)
    assert len(everybody) == 16
    assert [row for row in everybody if row["org_id"] == tenant.org_id] == whole
    for name, count in (("PAGE_MAX", 3), ("HOURS_MAX", 1), ("ITEMS_MAX", 2)):
        monkeypatch.setattr(denials, name, count)
        assert await listed(fleet, f"{tenant.org}/denials", key=KEY) == whole
        assert await listed(fleet, "/api/v1/denials", key=KEY) == everybody


async def test_a_range_and_an_app_narrow_the_list(fleet: Fleet) -> None:
    """Dates are the organisation's."""
    tenant = await fleet.register(str(uuid.uuid4()), timezone="UTC", **STRICT)
    await deny(fleet, tenant)
    await fleet.pass_ms(WRITTEN_MS)
    path = f"{tenant.org}/denials"
    (row,) = await listed(fleet, path, key=KEY)
    day = row["first_at"][:10]
    assert await listed(fleet, f"{path}?from={day}&to={day}&app_id=web", key=KEY) == [row]
    assert await listed(fleet, f"{path}?app_id=batch", key=KEY) == []
    assert await listed(fleet, f"{path}?to=2020-01-01", key=KEY) == []
    for query in (
        "from=x",
        "to=2020-13-01",
        "app_id=a/b",
        "after=y",
        "from=2020-01-02&to=2020-01-01",
    ):
        reply = await fleet.call("GET", f"{path}?{query}", key=KEY)
        assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST"), query


async def test_nobody_sees_denials_of_another(fleet: Fleet) -> None:
    """An app its own, an organisation its apps', a key what it covers; others do not exist."""
    mine, other, third = [await fleet.register(str(uuid.uuid4()), **STRICT) for _ in range(3)]
    for tenant in (mine, other, third):
        await deny(fleet, tenant)
    body = {"resource": "premium", "consume": {"rpm": 11}}
    path = f"{mine.org}/apps/batch/limits/acquire"
    assert (await fleet.call("POST", path, body, token=mine.org_token)).status == 429
    await fleet.pass_ms(WRITTEN_MS)
    made = {"name": "mine", "role": "VIEWER", "org_ids": [mine.org_id]}
    viewer = (await fleet.call("POST", "/api/v1/admin-keys", made, key=KEY)).json["key"]
    both = made | {"name": "both", "org_ids": [mine.org_id, other.org_id]}
    two = (await fleet.call("POST", "/api/v1/admin-keys", both, key=KEY)).json["key"]

    async def seen(**how: str) -> set[tuple[str, str]]:
        rows = await listed(fleet, "/api/v1/denials", **how)
        return {(row["org_id"], row["app_id"]) for row in rows}

    own = {(mine.org_id, "web"), (mine.org_id, "batch")}
    assert await seen(token=mine.app_token) == {(mine.org_id, "web")}
    assert await seen(token=mine.org_token) == own
    assert await seen(key=viewer) == own
    assert await seen(key=two) == own | {(other.org_id, "web")}
    assert await seen(key=KEY) == own | {(other.org_id, "web"), (third.org_id, "web")}
    assert len(await listed(fleet, f"{mine.org}/denials?app_id=web", token=mine.app_token)) == 1
    assert (await fleet.call("GET", f"{mine.org}/denials", token=mine.app_token)).status == 403
    for how in ({"token": mine.org_token}, {"key": viewer}):
        absent = await fleet.call("GET", f"/api/v1/orgs/{uuid.uuid4()}/denials", **how)
        others = await fleet.call("GET", f"{other.org}/denials", **how)
        assert others.json | {"request_id": ""} == absent.json | {"request_id": ""}
        assert others.status == 404


async def test_denials_are_counted_by_name(fleet: Fleet) -> None:
    tenant = await fleet.register(str(uuid.uuid4()), org_name="Umbrella", **STRICT)
    for _ in range(3):
        await deny(fleet, tenant)
    text = await fleet.services[0].text("/metrics", METRICS_TOKEN)
    line = 'app="Web",kind="AUTHORIZATION",label="premium",org="Umbrella"'
    assert f"pricekeeper_denials_total{{{line}}} 3.0" in text
