"""Every operation by every role, in organisations that the key covers and in others.

The matrix is made from the OpenAPI document, so a new operation is in it without being asked.
"""

import json
import re
import uuid
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import msgspec
import pytest

from http_fixtures import Api, Reply, Tenant
from pricekeeper.authority import Role
from pricekeeper.http.openapi import openapi
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from pricekeeper.wire.operation import Access, Operation
from store_server import api, location, server
from tenant_matrix import BODIES, path_of, without_id

__all__ = ["api", "location", "server"]

ROLES = ("VIEWER", "OPERATOR", "ADMIN")
REACHES = ("all", "covered", "uncovered")
DOCUMENT = openapi(ROUTES)
BY_NAME = {operation.name: operation for operation in ROUTES}
DONE, NOT_THERE, FORBIDDEN = 2, 404, 403
ENDS = re.compile("delete(Org|App)$|revoke")
"""What leaves a client that others can't be tried with."""


def needed_role(operation_id: str) -> str | None:
    """What the document says: beside a key is the role that it needs."""
    for methods in DOCUMENT["paths"].values():
        for described in methods.values():
            if described["operationId"] == operation_id:
                named = [
                    one["provisioningKey"]
                    for one in described["security"]
                    if "provisioningKey" in one
                ]
                assert len(named) <= 1
                assert all(len(roles) == 1 and roles[0] in ROLES for roles in named)
                return named[0][0] if named else None
    raise AssertionError(f"{operation_id} is not in the document")


BY_KEY = [name for name in BY_NAME if needed_role(name) is not None]
OF_ORGS = [name for name in BY_KEY if "{org_id}" in BY_NAME[name].path]
NOT_BY_KEY = [name for name in BY_NAME if name not in BY_KEY]


def stated_role(operation: Route) -> str:
    """The rule in a sentence: VIEWER reads, ADMIN provisions and manages keys, OPERATOR the rest.

    Which keys there are is part of managing them.
    """
    if "/admin-keys" in operation.path or operation.path.endswith("/provisioning-key"):
        return "ADMIN"
    if operation.method == "GET":
        return "VIEWER"
    provisions = operation.path.endswith(("/orgs/{org_id}", "/apps/{app_id}", "/{channel}"))
    return "ADMIN" if provisions else "OPERATOR"


@dataclass
class World:
    """Organisations, and a key of each role for all of them, for some, and for others."""

    api: Api
    covered: Tenant
    uncovered: Tenant
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    ending: list[Tenant] = field(default_factory=list)
    """Covered, too: those that are ended, each by one request."""

    def open(self) -> "World":
        self.ending = [Tenant(self.api).register() for _ in range(12)]
        mine = [one.org_id for one in (self.covered, *self.ending)]
        for role, reach in product(ROLES, REACHES):
            self.keys[role, reach] = self.make_key(role, reach, mine)["key"]
        return self

    def make_key(self, role: str, reach: str, org_ids: list[str]) -> Any:
        body: dict[str, Any] = {"name": f"{role} of {reach}", "role": role}
        if reach != "all":
            body["org_ids"] = org_ids
        made = self.api.provision("POST", "/api/v1/admin-keys", body)
        assert made.status == 201, made.data
        return made.json

    def request(self, operation: Route, role: str, reach: str, *, is_done: bool) -> Reply:
        """Ask for the operation, about something that there is."""
        of_org = "{org_id}" in operation.path
        tenant = self.uncovered if of_org and reach == "uncovered" else self.covered
        if is_done and ENDS.match(operation.name):
            tenant = self.ending.pop()
        body, known = BODIES.get(operation.name), dict[str, str]()
        if operation.name == "createAdminKey" and reach != "all":
            body = {**BODIES[operation.name], "org_ids": [tenant.org_id]}
        if "{key_id}" in operation.path:
            org_id = self.uncovered.org_id if reach == "uncovered" else self.covered.org_id
            known["key_id"] = self.make_key("VIEWER", reach, [org_id])["key_id"]
        if "{session_id}" in operation.path:
            client_id = tenant.client_id if "{app_id}" in operation.path else f"org-{tenant.org_id}"
            known["session_id"] = tenant.login(client_id)["session_id"]
        if "{channel}" in operation.path:
            put = BY_NAME["putOrgAlertChannel" if of_org else "putDeploymentAlertChannel"]
            there = path_of(put, tenant.org_id, tenant.app_id)
            assert self.api.provision("PUT", there, BODIES[put.name]).status in (200, 201)
        if "{authorization_id}" in operation.path:
            known["authorization_id"] = authorize(tenant)
        if "{request_id}" in operation.path:
            tenant.app_token = tenant.login()["access_token"]
            known["request_id"] = tenant.record().json["request_id"]
        path = path_of(operation, tenant.org_id, tenant.app_id, **known)
        if operation.name.startswith("freeze"):  # a key for some keeps what one for all has frozen
            assert self.api.provision("DELETE", path).status in (204, 404)
        # A stream does not end; HEAD is admitted as GET is, and answered at once.
        method = "HEAD" if operation.name == "streamEvents" else operation.method
        return self.api.call(method, path, body, key=self.keys[role, reach])


def authorize(tenant: Tenant) -> str:
    tenant.app_token = tenant.login()["access_token"]
    made = tenant.ask("POST", "authorizations", {"input_tokens": 1, "max_output_tokens": 1})
    assert made.status == 201, made.data
    authorization_id: str = made.json["authorization_id"]
    return authorization_id


@pytest.fixture(scope="module")
def world(api: Api, tenant: Tenant, other: Tenant) -> World:
    return World(api, tenant, other).open()


def is_of_deployment(operation: Route) -> bool:
    """Whether a key for some organisations is not for it.

    It is about the deployment itself, or gives money back to budgets that were set above the key.
    """
    return operation.path.startswith("/api/v1/alert-channels") or operation.name == "voidUsage"


def expected(operation: Route, needed: str, role: str, reach: str) -> int:
    """What a cell has to be. An organisation that is not covered comes before the role."""
    allowed = ROLES.index(role) >= ROLES.index(needed)
    if reach == "uncovered" and "{org_id}" in operation.path:
        return NOT_THERE
    if not allowed or (reach != "all" and is_of_deployment(operation)):
        return FORBIDDEN
    if reach == "uncovered" and "{key_id}" in operation.path:
        return NOT_THERE
    return DONE


def test_the_document_is_the_one_that_is_served(api: Api) -> None:
    assert api.call("GET", "/openapi.json").json == json.loads(msgspec.json.encode(DOCUMENT))


def test_the_role_that_an_operation_declares_is_the_one_of_the_rule() -> None:
    """A new operation has to fit, or the rule has to be changed on purpose."""
    for name in BY_KEY:
        assert needed_role(name) == stated_role(BY_NAME[name]), name


def test_an_operation_that_only_keys_open_has_to_declare_a_role() -> None:
    """Else it can't even be made; nor can one declare a role that no key ever shows."""
    for access in (Access.PROVISIONING, Access.DEPLOYMENT):
        with pytest.raises(TypeError, match="state the role"):
            Operation("x", "GET", "/x", dict, access, "")
    for access in (Access.PUBLIC, Access.METRICS):
        with pytest.raises(TypeError, match="state the role"):
            Operation("x", "GET", "/x", dict, access, "", role=Role.VIEWER)


@pytest.mark.parametrize("name", BY_KEY)
def test_each_cell_is_what_the_rule_says(world: World, name: str) -> None:
    """Done, forbidden with the role that it needs, or not there."""
    operation, needed = BY_NAME[name], needed_role(name) or ""
    found, wanted = {}, {}
    for role, reach in product(ROLES, REACHES):
        wanted[role, reach] = expected(operation, needed, role, reach)
        reply = world.request(operation, role, reach, is_done=wanted[role, reach] == DONE)
        found[role, reach] = DONE if reply.status // 100 == DONE else reply.status
        if reply.status == FORBIDDEN:
            assert reply.code == "FORBIDDEN"
            is_low = ROLES.index(role) < ROLES.index(needed)
            why = f"the role {needed}" if is_low else "a key for all organisations"
            assert why in reply.json["detail"]
            assert reply.headers["www-authenticate"] == 'ApiKey realm="pricekeeper"'
    assert found == wanted


@pytest.mark.parametrize("name", OF_ORGS)
def test_an_organisation_that_is_not_covered_does_not_exist(world: World, name: str) -> None:
    """There, there without that app, and never there: the same 404 for every role."""
    operation, answers = BY_NAME[name], []
    for role in ROLES:
        for org_id, app_id in (
            (world.uncovered.org_id, world.uncovered.app_id),
            (world.uncovered.org_id, "absent"),
            (str(uuid.uuid4()), world.uncovered.app_id),
        ):
            path, body = path_of(operation, org_id, app_id), BODIES.get(name)
            key = world.keys[role, "covered"]
            answers.append(without_id(world.api.call(operation.method, path, body, key=key)))
    assert answers[0][0] == NOT_THERE
    assert all(answer == answers[0] for answer in answers)
    assert world.api.provision("GET", world.uncovered.app).status == 200


@pytest.mark.parametrize(
    "name", [name for name in NOT_BY_KEY if BY_NAME[name].access is not Access.PUBLIC]
)
def test_what_no_key_opens_is_not_opened_by_an_admins(world: World, name: str) -> None:
    """What an app does, only the app does; metrics have a token of their own."""
    operation = BY_NAME[name]
    path = path_of(operation, world.covered.org_id, world.covered.app_id)
    reply = world.api.call(operation.method, path, BODIES.get(name), key=world.keys["ADMIN", "all"])
    assert reply.status == 401


class TestLists:
    """What belongs to several organisations shows exactly those that the key covers."""

    def test_organisations(self, world: World) -> None:
        """Page by page; the deleted ones of those that a key names are left out."""
        for role in ROLES:
            key = world.keys[role, "covered"]
            page = world.api.pages("/api/v1/orgs?limit=2", "orgs", key=key)
            found = [org["org_id"] for org in page]
            assert found == sorted(found)
            assert world.covered.org_id in found
            assert world.uncovered.org_id not in found
            everybody = world.api.pages("/api/v1/orgs", "orgs", key=world.keys[role, "all"])
            listed = {org["org_id"] for org in everybody}
            assert listed >= {*found, world.uncovered.org_id}

    def test_spend(self, world: World) -> None:
        for tenant in (world.covered, world.uncovered):
            authorize(tenant)  # what is held is seen at once
        day = world.api.provision("GET", f"{world.covered.app}/aggregates/today").json["date"]
        path = f"/api/v1/spend?from={day}&to={day}&group_by=org"

        def spend(key: str) -> dict[str, int]:
            reply = world.api.call("GET", path, key=key)
            assert reply.status == 200, reply.data
            rows = {row["org"]: row["held_usd_micros"] for row in reply.json["rows"]}
            assert all(rows.values())
            assert reply.json["total"]["held_usd_micros"] <= sum(rows.values())
            return rows

        of_all = spend(world.keys["VIEWER", "all"])
        assert of_all.keys() >= {world.covered.org_id, world.uncovered.org_id}
        of_some = spend(world.keys["VIEWER", "covered"])
        assert of_some == {
            org_id: held for org_id, held in of_all.items() if org_id != world.uncovered.org_id
        }
        only = world.make_key("VIEWER", "covered", [world.uncovered.org_id])["key"]
        assert spend(only).keys() == {world.uncovered.org_id}

    def test_keys(self, world: World) -> None:
        """Those that cover nothing which the asking one does not."""
        beyond = world.make_key("VIEWER", "some", [world.covered.org_id, world.uncovered.org_id])
        within = world.make_key("VIEWER", "some", [world.covered.org_id])

        def listed(key: str) -> set[str]:
            pages = world.api.pages("/api/v1/admin-keys?limit=3", "keys", key=key)
            return {one["key_id"] for one in pages}

        of_some = listed(world.keys["ADMIN", "covered"])
        assert within["key_id"] in of_some
        assert beyond["key_id"] not in of_some
        assert listed(world.keys["ADMIN", "all"]) > {*of_some, beyond["key_id"]}
