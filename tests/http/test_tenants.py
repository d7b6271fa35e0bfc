"""Tenants never see each other: another's resource and an absent one answer byte for byte alike.

The matrix is generated from the operations themselves, so a new one is in it without being asked.
"""

import uuid
from typing import Any

import pytest

from http_fixtures import KEY, ORG, Api, Tenant
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from pricekeeper.wire.operation import BY_KEY, Access
from tenant_matrix import BODIES, path_of, without_id

OF_TENANTS = [op for op in ROUTES if op.access in (Access.APP, Access.ORG)]
PROVISIONED = [op for op in ROUTES if op.role is not None and "{org_id}" in op.path]
Answer = tuple[int, dict[str, str], bytes]


def answered(api: Api, operation: Route, org_id: str, app_id: str, **how: Any) -> Answer:
    path, body = path_of(operation, org_id, app_id), BODIES.get(operation.name)
    return without_id(api.call(operation.method, path, body, **how))


def assert_absent(answers: list[Answer]) -> None:
    """Each is the same 404."""
    assert answers[0][0] == 404
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("operation", OF_TENANTS, ids=lambda operation: operation.name)
def test_another_tenant_does_not_exist(
    api: Api, tenant: Tenant, other: Tenant, operation: Route
) -> None:
    """Another organisation, a sibling app, and ones that never were."""
    api.provision("PUT", f"{tenant.org}/apps/sibling", {"app_name": "Sibling"})
    elsewhere = [
        (other.org_id, other.app_id),
        (str(uuid.uuid4()), other.app_id),
        (other.org_id, "absent"),
    ]
    siblings = [(tenant.org_id, "sibling"), (tenant.org_id, "absent")]
    for token, places in (
        (tenant.app_token, [*elsewhere, *(siblings if "{app_id}" in operation.path else ())]),
        (tenant.org_token, elsewhere),
    ):
        assert_absent([answered(api, operation, *place, token=token) for place in places])


@pytest.fixture(scope="module")
def gone(api: Api) -> Tenant:
    """An organisation that was deleted."""
    made = Tenant(api)
    assert api.provision("PUT", made.org, ORG).status == 201
    assert api.provision("DELETE", made.org).status == 204
    return made


@pytest.mark.parametrize(
    "operation", [op for op in PROVISIONED if op.name != "putOrg"], ids=lambda op: op.name
)
def test_a_deleted_resource_is_an_absent_one(api: Api, gone: Tenant, operation: Route) -> None:
    places = [(gone.org_id, "web"), (str(uuid.uuid4()), "web")]
    assert_absent([answered(api, operation, *place, key=KEY) for place in places])


def test_another_s_session_does_not_exist(api: Api, tenant: Tenant, other: Tenant) -> None:
    theirs = other.login()["session_id"]
    assert_absent(
        [
            without_id(api.call("DELETE", f"/auth/sessions/{name}", token=tenant.app_token))
            for name in (theirs, "000-AAAAAAAAAAAAAAAAAAAAAA", "x")
        ]
    )


def test_an_app_does_not_read_what_is_its_organisations(api: Api, tenant: Tenant) -> None:
    reply = api.call("GET", f"{tenant.org}/aggregates/today", token=tenant.app_token)
    assert (reply.status, reply.code) == (403, "FORBIDDEN")


@pytest.mark.parametrize(
    "operation",
    [op for op in ROUTES if op.access is not Access.PUBLIC],
    ids=lambda operation: operation.name,
)
def test_nothing_works_without_credentials(api: Api, tenant: Tenant, operation: Route) -> None:
    """No token, a garbled one, a token of another kind: the same 401.

    But for the challenge, which says of a token that came that it is not valid.
    """
    path = path_of(operation, tenant.org_id, tenant.app_id)
    body = BODIES.get(operation.name)

    def refused(headers: dict[str, str]) -> tuple[int, str, bytes]:
        status, told, data = without_id(api.call(operation.method, path, body, headers=headers))
        challenge = told.pop("www-authenticate")
        assert told == others
        return status, challenge, data

    _, others, data = without_id(api.call(operation.method, path, body))
    challenge = others.pop("www-authenticate")
    wrong = [f"Bearer {token}" for token in ("nonsense", f"{tenant.app_token[:-4]}AAAA")]
    with_key = operation.access in BY_KEY
    assert challenge == ("ApiKey" if with_key else "Bearer") + ' realm="pricekeeper"'
    assert refused({"authorization": "Basic eDp5"}) == (401, challenge, data)
    by_key = 'ApiKey realm="pricekeeper"' if operation.role is not None else challenge
    assert refused({"x-api-key": "wrong-key-wrong-key"}) == (401, by_key, data)
    told = challenge if with_key else f'{challenge}, error="invalid_token"'
    for header in wrong:
        assert refused({"authorization": header}) == (401, told, data)
