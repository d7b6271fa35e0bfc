"""An administrator sees spend: aggregates and limits open to provisioning keys, on each store."""

import uuid

import pytest

from http_fixtures import KEY, Api, Tenant, usage
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from pricekeeper.wire.operation import Access
from tenant_matrix import path_of, without_id

CLIENTS = (Access.APP, Access.ORG)
READABLE = [op for op in ROUTES if op.role is not None and op.access in CLIENTS]
REPORTS = [op for op in ROUTES if op.role is not None and op.access is Access.ANY_CLIENT]
"""Each decides by itself what its caller may see; its own tests hold that."""


@pytest.fixture(scope="module")
def own_key(tenant: Tenant) -> str:
    """The organisation's own provisioning key."""
    reply = tenant.api.provision("POST", f"{tenant.org}/provisioning-key")
    key: str = reply.json["provisioning_key"]
    return key


def test_what_a_key_may_read() -> None:
    """Aggregates, limits, budgets, authorizations, settings, flips: nothing that changes any."""
    assert {op.name for op in READABLE} == {
        *(f"{kind}Aggregates{what}" for kind in ("app", "org") for what in ("Today", "OnDay")),
        *("appAggregatesInRange", "orgAggregatesInRange", "listLimits"),
        *("listAuthorizations", "getAuthorization", "listAppBudgets", "listOrgBudgets"),
        *("getAppForecast", "getOrgForecast", "getAppSettings", "getOrgSettings"),
        *("listAppFlips", "listOrgFlips"),
    }
    assert {op.name for op in REPORTS} == {
        *("getSpend", "listUsage", "listAllBudgets", "listAlerts", "getMe"),
        *("streamEvents", "listDenials", "listAllDenials"),
    }
    assert {op.method for op in (*READABLE, *REPORTS)} == {"GET"}


@pytest.mark.parametrize("operation", READABLE, ids=lambda operation: operation.name)
def test_both_keys_see_what_the_client_sees(
    api: Api, tenant: Tenant, own_key: str, operation: Route
) -> None:
    """The deployment's and the organisation's own."""
    token = tenant.org_token if operation.access is Access.ORG else tenant.app_token
    body = {"input_tokens": 1, "max_output_tokens": 1}
    made = api.call("POST", f"{tenant.app}/authorizations", body, token=tenant.app_token).json
    known = {"authorization_id": made["authorization_id"]}
    path = path_of(operation, tenant.org_id, tenant.app_id, **known)
    theirs = api.call("GET", path, token=token)
    assert theirs.status == 200, theirs.data
    for key in (KEY, own_key):
        seen = api.call("GET", path, key=key)
        assert (seen.status, seen.json.keys()) == (200, theirs.json.keys())


def test_a_key_sees_the_dollars(api: Api, own_key: str, tenant: Tenant) -> None:
    record = usage(model_label="economy")
    path = f"{tenant.app}/usage"
    assert api.call("POST", path, record, token=tenant.app_token).status == 202
    mine = api.call("GET", f"{tenant.app}/aggregates/today", token=tenant.app_token).json
    for key in (KEY, own_key):
        seen = api.call("GET", f"{tenant.app}/aggregates/today", key=key).json
        assert seen["models"] == mine["models"]


@pytest.mark.parametrize("operation", READABLE, ids=lambda operation: operation.name)
def test_another_organisation_does_not_exist_for_a_key_of_one(
    api: Api, other: Tenant, own_key: str, operation: Route
) -> None:
    """There, there without that app, and never there: the same 404, byte for byte."""
    answers = [
        without_id(api.call("GET", path_of(operation, org_id, app_id), key=own_key))
        for org_id, app_id in (
            (other.org_id, other.app_id),
            (other.org_id, "absent"),
            (str(uuid.uuid4()), other.app_id),
        )
    ]
    assert answers[0][0] == 404
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("operation", READABLE, ids=lambda operation: operation.name)
def test_what_is_absent_is_absent_for_the_deployments_key(api: Api, operation: Route) -> None:
    """An organisation that never was."""
    path = path_of(operation, str(uuid.uuid4()), "web")
    assert api.call("GET", path, key=KEY).status == 404


@pytest.mark.parametrize("operation", READABLE, ids=lambda operation: operation.name)
def test_a_wrong_key_sees_nothing(api: Api, tenant: Tenant, operation: Route) -> None:
    """401, and the challenge names the kind of credentials that came."""
    path = path_of(operation, tenant.org_id, tenant.app_id)
    refused = api.call("GET", path, key="wrong-key-wrong-key-wrong-key")
    assert (refused.status, refused.code) == (401, "UNAUTHORIZED")
    assert refused.headers["www-authenticate"] == 'ApiKey realm="pricekeeper"'


def test_a_token_that_comes_with_a_key_decides(api: Api, tenant: Tenant, other: Tenant) -> None:
    """Who shows both is the client: a key does not widen what its token opens."""
    path = f"{other.org}/aggregates/today"
    assert api.call("GET", path, token=tenant.org_token, key=KEY).status == 404


@pytest.mark.parametrize(
    "operation",
    [op for op in ROUTES if op.access in CLIENTS and op.role is None],
    ids=lambda operation: operation.name,
)
def test_a_key_does_not_act_for_a_client(api: Api, tenant: Tenant, operation: Route) -> None:
    path = path_of(operation, tenant.org_id, tenant.app_id)
    assert api.call(operation.method, path, key=KEY).status == 401
