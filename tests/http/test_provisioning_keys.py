"""A provisioning key of one organisation, over HTTP: what it opens, and that nothing else is."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import KEY, ORG, Api, Reply, Tenant
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from pricekeeper.wire.operation import Access
from served import served
from store_server import api, location, server
from tenant_matrix import BODIES, path_of, without_id

__all__ = ["api", "location", "server"]

WITH_ROLE = [op for op in ROUTES if op.role is not None]
READABLE = [op for op in WITH_ROLE if op.access in (Access.APP, Access.ORG)]
"""What belongs to a client and opens to keys as well."""
OF_DEPLOYMENT = [op for op in ROUTES if op.access is Access.DEPLOYMENT]


@pytest.fixture(scope="module")
def key(tenant: Tenant) -> str:
    return tenant.issue_key()


def ask(api: Api, operation: Route, org_id: str, app_id: str, key: str) -> Reply:
    body: Any = BODIES.get(operation.name)
    return api.call(operation.method, path_of(operation, org_id, app_id), body, key=key)


def test_it_is_shown_once_and_never_again(api: Api, tenant: Tenant) -> None:
    """In the answer that makes it; no other answer has it, or its hash."""
    reply = api.provision("POST", f"{tenant.org}/provisioning-key")
    assert reply.json.keys() == {"org_id", "provisioning_key"}
    assert reply.headers["cache-control"] == "no-store"
    shown = reply.json["provisioning_key"]
    for method, path, body in (
        ("GET", tenant.org, None),
        ("PUT", tenant.org, ORG),
        ("GET", "/api/v1/orgs", None),
    ):
        told = api.provision(method, path, body).data.decode()
        assert shown not in told
        assert "hash" not in told


def test_it_provisions_its_organisation_and_its_apps(api: Api) -> None:
    """Everything that the deployment's key does there: settings, apps, secrets, overrides."""
    tenant = Tenant(api).register()
    key = tenant.issue_key()
    done = [
        api.call("GET", tenant.org, key=key),
        api.call("PUT", tenant.org, {**ORG, "org_name": "Its own"}, key=key),
        api.call("PUT", f"{tenant.org}/apps/new", {"app_name": "New"}, key=key),
        api.call("GET", f"{tenant.org}/apps", key=key),
        api.call("POST", f"{tenant.app}/credentials/rotate", {"grace_period_hours": 0}, key=key),
        api.call("PUT", f"{tenant.app}/model-override", {"model_label": "economy"}, key=key),
        api.call("DELETE", f"{tenant.app}/model-override", key=key),
        api.call("DELETE", f"{tenant.org}/apps/new", key=key),
    ]
    assert [reply.status for reply in done] == [200, 200, 201, 200, 200, 200, 204, 204]
    assert api.provision("GET", tenant.org).json["org_name"] == "Its own"


def test_what_a_key_may_read() -> None:
    """Aggregates, limits, budgets, authorizations, settings, flips: nothing that changes any."""
    assert {op.method for op in READABLE} == {"GET"}
    assert {op.name for op in READABLE} == {
        *(f"{kind}Aggregates{what}" for kind in ("app", "org") for what in ("Today", "OnDay")),
        *("appAggregatesInRange", "orgAggregatesInRange", "listLimits"),
        *("listAuthorizations", "getAuthorization", "listAppBudgets", "listOrgBudgets"),
        *("getAppForecast", "getOrgForecast", "getAppSettings", "getOrgSettings"),
        *("listAppFlips", "listOrgFlips"),
    }


@pytest.mark.parametrize("operation", READABLE, ids=lambda operation: operation.name)
def test_both_keys_see_what_the_client_sees(
    api: Api, tenant: Tenant, key: str, operation: Route
) -> None:
    """The deployment's and the organisation's own; dollars to the micro-dollar."""
    token = tenant.org_token if operation.access is Access.ORG else tenant.app_token
    tenant.record()
    made = tenant.ask("POST", "authorizations", {"input_tokens": 1, "max_output_tokens": 1}).json
    known = {"authorization_id": made["authorization_id"]}
    path = path_of(operation, tenant.org_id, tenant.app_id, **known)
    theirs = api.call("GET", path, token=token)
    assert theirs.status == 200, theirs.data
    for one in (KEY, key):
        seen = api.call("GET", path, key=one)
        assert (seen.status, seen.json.keys()) == (200, theirs.json.keys())
        assert seen.json.get("models") == theirs.json.get("models")


def test_a_token_that_comes_with_a_key_decides(api: Api, tenant: Tenant, other: Tenant) -> None:
    """Who shows both is the client: a key does not widen what its token opens."""
    path = f"{other.org}/aggregates/today"
    assert api.call("GET", path, token=tenant.org_token, key=KEY).status == 404


def test_of_all_organisations_it_sees_its_own(
    api: Api, tenant: Tenant, other: Tenant, key: str
) -> None:
    listed = api.call("GET", "/api/v1/orgs", key=key).json
    assert [org["org_id"] for org in listed["orgs"]] == [tenant.org_id]
    assert "next" not in listed
    for after, count in (("00000000-0000-4000-8000-000000000000", 1), (tenant.org_id, 0)):
        assert len(api.call("GET", f"/api/v1/orgs?after={after}", key=key).json["orgs"]) == count
    assert other.org_id in api.provision("GET", "/api/v1/orgs").data.decode()


@pytest.mark.parametrize(
    "operation",
    [op for op in WITH_ROLE if "{org_id}" in op.path and op.access is not Access.ANY_CLIENT],
    ids=lambda operation: operation.name,
)
def test_another_organisation_does_not_exist(
    api: Api, tenant: Tenant, other: Tenant, key: str, operation: Route
) -> None:
    """There, with a key of its own or not, and never there: the same 404, byte for byte."""
    other.issue_key()
    answers = [
        without_id(ask(api, operation, org_id, app_id, key))
        for org_id, app_id in (
            (other.org_id, other.app_id),
            (other.org_id, "absent"),
            (str(uuid.uuid4()), other.app_id),
        )
    ]
    assert answers[0][0] == 404
    assert all(answer == answers[0] for answer in answers)
    assert api.provision("GET", other.app).status == 200
    assert tenant.org_id


@pytest.mark.parametrize("operation", OF_DEPLOYMENT, ids=lambda operation: operation.name)
def test_it_does_not_make_keys(api: Api, tenant: Tenant, key: str, operation: Route) -> None:
    """That takes the deployment's own; otherwise who has one would have it for ever."""
    refused = ask(api, operation, tenant.org_id, tenant.app_id, key)
    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert refused.headers["www-authenticate"] == 'ApiKey realm="pricekeeper"'
    assert api.call("GET", tenant.org, key=key).status == 200


def test_it_stops_working_when_it_is_replaced_or_withdrawn(api: Api) -> None:
    tenant = Tenant(api).register()
    first, second = tenant.issue_key(), tenant.issue_key()
    assert api.call("GET", tenant.org, key=first).status == 401
    assert api.call("GET", tenant.org, key=second).status == 200
    for _ in range(2):
        assert api.provision("DELETE", f"{tenant.org}/provisioning-key").status == 204
        assert api.call("GET", tenant.org, key=second).status == 401


def test_who_does_not_exist_has_no_key(api: Api) -> None:
    path = f"/api/v1/orgs/{uuid.uuid4()}/provisioning-key"
    assert api.provision("POST", path).code == "NOT_FOUND"
    assert api.provision("DELETE", path).code == "NOT_FOUND"


def test_guesses_at_it_are_counted_with_those_at_the_deployments(tmp_path: Path) -> None:
    with served(tmp_path, api_limits_per_minute={"failures": 2}) as api:
        tenant = Tenant(api).register()
        key = tenant.issue_key()
        wrong = [api.call("GET", tenant.org, key=guess).status for guess in ("a", key[:-1], "b")]
        assert wrong == [401, 401, 429]
        for right in (key, KEY):
            assert api.call("GET", tenant.org, key=right).status == 429
