"""Leases over the socket: what an app can do to its siblings, and what it learns."""

import uuid
from dataclasses import dataclass

import pytest

from http_fixtures import ORG, Api, Reply, Tenant

CAPACITY = 10
DEBT_MAX = 4 * CAPACITY
DAY_MS = 86_400_000
LIMIT = {"capacity": CAPACITY, "refill_amount": CAPACITY, "refill_period_ms": DAY_MS}
"""So slow that nothing refills while a test runs, however busy the machine is."""


@dataclass
class Apps:
    """Two apps of one organisation, each with the organisation's limits."""

    api: Api
    mine: Tenant
    sibling: Tenant

    def lease(self, app: Tenant, tokens: int) -> str:
        taken = app.acquire(tokens)
        assert taken.status == 200, taken.data
        lease_id: str = taken.json["lease_id"]
        return lease_id

    def adjust(
        self, app: Tenant, lease_id: str, tokens: int, adjustment_id: str | None = None
    ) -> Reply:
        body = {"adjustment_id": adjustment_id or str(uuid.uuid4()), "delta": {"rpm": tokens}}
        return app.ask("POST", f"leases/{lease_id}/adjust", body)

    def release(self, app: Tenant, lease_id: str) -> Reply:
        return app.ask("POST", f"leases/{lease_id}/release")

    def remaining(self, app: Tenant, whose: str = "resources") -> int:
        shown = app.ask("GET", "limits")
        assert shown.status == 200, shown.data
        left: int = shown.json[whose]["premium"]["rpm"]["remaining"]
        return left


def register_app(api: Api, org_id: str, app_id: str) -> Tenant:
    """Create one more app of an organisation, and log it in."""
    app = Tenant(api, org_id, app_id)
    made = api.provision("PUT", app.app, {"app_name": app_id})
    assert made.status == 201, made.data
    app.secrets[app.client_id] = api.claim(made).json["client_secret"]
    app.app_token = app.login()["access_token"]
    return app


@pytest.fixture
def apps(api: Api) -> Apps:
    mine = Tenant(api).register()
    api.provision("PUT", mine.org, {**ORG, "rate_limits": {"*": {"rpm": LIMIT}}})
    return Apps(api, mine, register_app(api, mine.org_id, "sibling"))


def test_an_adjustment_that_no_call_can_use_is_refused(apps: Apps) -> None:
    """It names the field and changes nothing, so the sibling does not notice."""
    lease_id = apps.lease(apps.mine, 1)
    for tokens in (10**12, 10**12, 1_000 * CAPACITY):
        refused = apps.adjust(apps.mine, lease_id, tokens)
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
        assert [one["field"] for one in refused.json["errors"]] == ["delta.rpm"]

    assert apps.remaining(apps.mine) == CAPACITY - 1
    assert apps.sibling.acquire(CAPACITY - 1).status == 200


def test_the_deepest_debt_lets_the_sibling_wait_for_five_capacities(apps: Apps) -> None:
    """However much the app says that it used, in one adjustment or in many; it is shown."""
    lease_id = apps.lease(apps.mine, 1)
    for _ in range(3):
        settled = apps.adjust(apps.mine, lease_id, 990 * CAPACITY)
        assert settled.status == 200
        assert settled.json["held"] == {"rpm": CAPACITY + DEBT_MAX}

    assert apps.remaining(apps.mine) == -DEBT_MAX
    assert apps.remaining(apps.sibling) == CAPACITY
    for app in (apps.mine, apps.sibling):
        assert apps.remaining(app, "org_resources") == -DEBT_MAX
    denied = apps.sibling.acquire(CAPACITY)
    assert denied.status == 429
    (violation,) = denied.json["violations"]
    assert (violation["scope"], violation["available"]) == ("ORG", -DEBT_MAX)
    assert 4 * DAY_MS < violation["retry_after_ms"] <= 5 * DAY_MS
    assert int(denied.headers["retry-after"]) <= 5 * DAY_MS // 1000
    assert apps.release(apps.mine, lease_id).status == 204
    assert apps.sibling.acquire(CAPACITY).status == 200


def test_a_denial_tells_the_apps_limit_from_the_organisations(apps: Apps) -> None:
    apps.lease(apps.mine, 9)
    denied = apps.mine.acquire(5)

    assert (denied.status, denied.code) == (429, "RATE_LIMIT_EXCEEDED")
    assert [one["scope"] for one in denied.json["violations"]] == ["APP", "ORG"]
    assert denied.json["violations"][0].keys() == {
        *("scope", "limit", "requested", "available", "retry_after_ms"),
    }
    assert f"{apps.mine.client_id} premium" in denied.json["detail"]
    assert f"org-{apps.mine.org_id} premium" in denied.json["detail"]
    theirs = apps.sibling.acquire(5)
    assert [one["scope"] for one in theirs.json["violations"]] == ["ORG"]


def test_an_adjustment_under_a_known_id_by_another_amount_is_a_conflict(apps: Apps) -> None:
    """The same again is the same answer; another delta is refused and changes nothing."""
    lease_id, same = apps.lease(apps.mine, 2), str(uuid.uuid4())
    for _ in range(2):
        settled = apps.adjust(apps.mine, lease_id, 3, same)
        assert (settled.status, settled.json) == (200, {"lease_id": lease_id, "held": {"rpm": 5}})
    for tokens in (4, -3):
        refused = apps.adjust(apps.mine, lease_id, tokens, same)
        assert (refused.status, refused.code) == (409, "CONFLICT")
        assert [one["field"] for one in refused.json["errors"]] == ["adjustment_id"]

    assert apps.remaining(apps.mine) == CAPACITY - 5


def test_buckets_and_leases_end_with_the_organisation(apps: Apps) -> None:
    """Created again under the same id it starts with full buckets; old leases can't touch them."""
    lease_id = apps.lease(apps.mine, 1)
    renamed = {**ORG, "org_name": "Renamed", "rate_limits": {"*": {"rpm": LIMIT}}}
    assert apps.api.provision("PUT", apps.mine.org, renamed).status == 200
    assert apps.remaining(apps.mine) == CAPACITY - 1
    apps.adjust(apps.mine, lease_id, 99 * CAPACITY)
    assert apps.mine.acquire().status == 429
    assert apps.api.provision("DELETE", apps.mine.org).status == 204
    again = Tenant(apps.api, apps.mine.org_id).register()
    assert apps.remaining(again) == CAPACITY
    assert apps.adjust(again, lease_id, 5).code == "NOT_FOUND"
    assert apps.release(again, lease_id).code == "NOT_FOUND"
    assert apps.remaining(again) == CAPACITY
    taken = again.acquire(CAPACITY, lease_id=lease_id)
    assert (taken.status, taken.json["lease_id"]) == (200, lease_id)


def test_an_apps_buckets_end_with_the_app_alone(apps: Apps) -> None:
    """What its organisation owes stays owed: the organisation lives on."""
    lease_id = apps.lease(apps.mine, 4)
    assert apps.api.provision("DELETE", apps.mine.app).status == 204
    again = register_app(apps.api, apps.mine.org_id, apps.mine.app_id)
    assert apps.remaining(again) == CAPACITY
    assert apps.release(again, lease_id).code == "NOT_FOUND"
    assert [one["scope"] for one in again.acquire(7).json["violations"]] == ["ORG"]
    assert again.acquire(6).status == 200
