"""Every operation that answers with a credential, asked by keys of every role, coverage and end.

No credential is greater than the one that asked for it. What counts as a credential is read from
the OpenAPI document: a new operation that answers with one fails here until it is in the matrix.
"""

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from http_fixtures import KEY, ORG, Api, Reply, Tenant
from pricekeeper.http.openapi import openapi
from pricekeeper.http.routes import ROUTES
from store_server import api, location, server

__all__ = ["api", "location", "server"]

KEYS = "/api/v1/admin-keys"
ROLES = ("VIEWER", "OPERATOR", "ADMIN")
COVERAGES = ("all", "mine", "other")
DAYS = {"a day": 1, "two days": 2, "endless": 10_000}
"""How long each kind of key lasts; the last one has no end."""
START = datetime.now(UTC)

LOOKS_SECRET = re.compile("(^|_)(keys?|secrets?|token|retrieval|password)(_|$)")
CREDENTIALS = {
    *("key", "provisioning_key", "secret_retrieval", "token", "client_secret", "access_token"),
    *("refresh_token", "SecretAccessKey", "Token"),
}
NO_CREDENTIALS = {
    *("key_id", "keys", "client_secret_created_at", "old_key_expires_at", "old_secret_expires_at"),
    *("secret_days", "secrets", "tag_keys", "token_endpoint", "token_type"),
    "token_endpoint_auth_methods_supported",
}
"""Names that look like a credential's: times, public keys, lists of keys without their texts."""


def properties(schema: Any, document: Any, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of everything that an answer of this schema can have in it."""
    if isinstance(schema, list):
        for one in schema:
            yield from properties(one, document, seen)
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        named = document["components"]["schemas"][reference.rpartition("/")[2]]
        yield from properties(named, document, seen | {reference})
    for name, value in schema.items():
        if name == "properties":
            yield from value
            yield from properties(list(value.values()), document, seen)
        elif name not in ("example", "examples", "description", "default"):
            yield from properties(value, document, seen)


def answered_names() -> dict[str, set[str]]:
    """For each operation, the names in its successful answers."""
    document = openapi(ROUTES)
    found: dict[str, set[str]] = {}
    for methods in document["paths"].values():
        for described in methods.values():
            good = [one for status, one in described["responses"].items() if status[0] == "2"]
            found[described["operationId"]] = set(properties(good, document))
    return found


NAMES = answered_names()
PRODUCERS = {name for name, found in NAMES.items() if found & CREDENTIALS}


@dataclass(frozen=True)
class Credential:
    """A key as this test sees it; of a client's secret only the coverage counts."""

    role: str
    coverage: str
    end: str

    def includes(self, wanted: "Credential") -> bool:
        """The rule itself, stated a second time and without the code under test."""
        return (
            ROLES.index(self.role) >= ROLES.index(wanted.role)
            and self.coverage in ("all", wanted.coverage)
            and DAYS[self.end] >= DAYS[wanted.end]
        )


ASKERS = [Credential(*one) for one in product(ROLES, COVERAGES, ("a day", "endless"))]
WANTED = [Credential(*one) for one in product(ROLES, COVERAGES, DAYS)]


def end_of(credential: Credential) -> str:
    """When it ends, the same for all that last as long."""
    return (START + timedelta(days=DAYS[credential.end])).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class World:
    """Two organisations, and a key of every kind."""

    api: Api
    mine: Tenant
    other: Tenant
    texts: dict[Any, str] = field(default_factory=dict)
    """The key that each asker shows."""

    def open(self) -> "World":
        for asker in ASKERS:
            self.texts[asker] = self.create(KEY, asker).json["key"]
        self.texts |= {"mine": self.mine.issue_key(), "other": self.other.issue_key()}
        return self

    def tenant(self, coverage: str) -> Tenant:
        return self.other if coverage == "other" else self.mine

    def create(self, by: str, wanted: Credential) -> Reply:
        body: dict[str, Any] = {"name": "a key", "role": wanted.role}
        if wanted.coverage != "all":
            body["org_ids"] = [self.tenant(wanted.coverage).org_id]
        if wanted.end != "endless":
            body["expires_at"] = end_of(wanted)
        return self.api.call("POST", KEYS, body, key=by)


@pytest.fixture(scope="module")
def world(api: Api, tenant: Tenant, other: Tenant) -> World:
    return World(api, tenant, other).open()


Cells = tuple[dict[Any, bool], dict[Any, bool]]
"""Which askers got a credential, and which should, by asker and request."""
Case = Callable[[World], Cells]


def is_given(reply: Reply) -> bool:
    """Whether it was given; a refusal has no credential in it."""
    if reply.status // 100 == 2:
        return True
    assert reply.status in (400, 403, 404), reply.data
    assert not re.search(rb"pk[aprs]_[A-Za-z0-9]{20}", reply.data)
    return False


def create_keys(world: World) -> Cells:
    found, rule = dict[Any, bool](), dict[Any, bool]()
    for asker, wanted in product(ASKERS, WANTED):
        reply = world.create(world.texts[asker], wanted)
        made = is_given(reply)
        # A key that does not say its end ends with its maker.
        ends = wanted.end if wanted.end != "endless" else asker.end
        rule[asker, wanted] = asker.role == "ADMIN" and asker.includes(
            Credential(wanted.role, wanted.coverage, ends)
        )
        found[asker, wanted] = made
        if made and asker.end != "endless":
            assert reply.json["expires_at"] <= end_of(asker)
    for org_key, wanted in product(("mine", "other"), WANTED):
        found[org_key, wanted] = is_given(world.create(world.texts[org_key], wanted))
        rule[org_key, wanted] = False
    return found, rule


def rotate_keys(world: World) -> Cells:
    found, rule = dict[Any, bool](), dict[Any, bool]()
    for wanted in WANTED:
        target = world.create(KEY, wanted).json
        path = f"{KEYS}/{target['key_id']}/rotate"
        for asker, text in world.texts.items():
            reply = world.api.call("POST", path, {"grace_period_hours": 0}, key=text)
            found[asker, wanted] = is_given(reply)
            rule[asker, wanted] = (
                isinstance(asker, Credential) and asker.role == "ADMIN" and asker.includes(wanted)
            )
            if found[asker, wanted]:
                target = reply.json
            still = world.api.call("GET", "/api/v1/me", key=target["key"])
            assert still.status == 200, (asker, wanted)
    return found, rule


def issue_provisioning_keys(world: World) -> Cells:
    found, rule = dict[Any, bool](), dict[Any, bool]()
    for asker, coverage in product([*ASKERS, "mine", "other"], ("mine", "other")):
        path = f"{world.tenant(coverage).org}/provisioning-key"
        reply = world.api.call("POST", path, key=world.texts[asker])
        found[asker, coverage] = is_given(reply)
        rule[asker, coverage] = isinstance(asker, Credential) and asker.includes(
            Credential("ADMIN", coverage, "endless")
        )
        if found[asker, coverage]:
            world.texts[coverage] = reply.json["provisioning_key"]
    return found, rule


def of_clients(method: str, path: Callable[[Tenant], str], body: Any, needed: str) -> Case:
    """An operation that answers with a retrieval token of a client."""

    def ask(world: World) -> Cells:
        found, rule = dict[Any, bool](), dict[Any, bool]()
        for (asker, text), coverage in product(world.texts.items(), ("mine", "other")):
            reply = world.api.call(method, path(world.tenant(coverage)), body, key=text)
            found[asker, coverage] = is_given(reply)
            # A client's secret has no end: the key's role and coverage decide.
            rule[asker, coverage] = (
                asker == coverage
                if isinstance(asker, str)
                else asker.includes(Credential(needed, coverage, "a day"))
            )
        return found, rule

    return ask


def create_orgs(world: World) -> Cells:
    """A new organisation is covered by the keys that cover all, and by no others."""
    found, rule = dict[Any, bool](), dict[Any, bool]()
    for asker, text in world.texts.items():
        reply = world.api.call("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG, key=text)
        found[asker] = is_given(reply)
        rule[asker] = isinstance(asker, Credential) and asker.includes(
            Credential("ADMIN", "all", "a day")
        )
    return found, rule


def never_by_key(method: str, path: str) -> Case:
    """An exchange: the credential is in the request itself, and no key replaces it."""

    def ask(world: World) -> Cells:
        found = {}
        body: Any = None if method == "GET" else {}
        for asker, text in {**world.texts, "deployment": KEY}.items():
            reply = world.api.call(method, path, body, key=text)
            assert reply.status in (400, 401), reply.data
            found[asker] = False
        return found, found

    return ask


GRACE = {"grace_period_hours": 1}
MATRIX: dict[str, Case] = {
    "createAdminKey": create_keys,
    "rotateAdminKey": rotate_keys,
    "issueProvisioningKey": issue_provisioning_keys,
    "rotateOrgCredentials": of_clients(
        "POST", lambda tenant: f"{tenant.org}/credentials/rotate", GRACE, "OPERATOR"
    ),
    "rotateAppCredentials": of_clients(
        "POST", lambda tenant: f"{tenant.app}/credentials/rotate", GRACE, "OPERATOR"
    ),
    "putOrg": create_orgs,
    "putApp": of_clients(
        "PUT",
        lambda tenant: f"{tenant.org}/apps/a-{uuid.uuid4().hex[:20]}",
        {"app_name": "New"},
        "ADMIN",
    ),
    "claimSecret": never_by_key("POST", "/api/v1/credentials/claim"),
    "issueToken": never_by_key("POST", "/auth/token"),
    "refreshToken": never_by_key("POST", "/auth/refresh"),
    "issueAwsCredentials": never_by_key("GET", "/auth/aws-credentials"),
}
SHOWS_SETTINGS = {
    *("patchOrg", "patchApp", "getOrg", "getApp", "listOrgs", "listApps"),
    *("getOrgSettings", "getAppSettings"),
}
"""They answer with the type that a creation does, and never with its credential."""


def test_every_operation_that_answers_with_a_credential_is_in_the_matrix() -> None:
    """Also every name in an answer that looks like a credential is known to be one, or not."""
    everything = set[str]().union(*NAMES.values())
    strange = {name for name in everything if LOOKS_SECRET.search(name)}
    assert MATRIX.keys() | SHOWS_SETTINGS == PRODUCERS
    assert strange <= CREDENTIALS | NO_CREDENTIALS


def test_showing_settings_shows_no_credential(tenant: Tenant) -> None:
    api, made = tenant.api, f"{tenant.org}/apps/a-{uuid.uuid4().hex[:20]}"
    assert "secret_retrieval" in api.provision("PUT", made, {"app_name": "New"}).json
    own = (tenant.org, made, f"{made}/settings", f"{tenant.org}/settings")
    answers = [
        api.provision("PUT", made, {"app_name": "Newer"}),
        *(api.provision("PATCH", path, {"session_limit": 7}) for path in (tenant.org, made)),
        *(api.provision("GET", path) for path in (*own, "/api/v1/orgs", f"{tenant.org}/apps")),
    ]
    for answer in answers:
        assert answer.status == 200
        assert b"secret_retrieval" not in answer.data


@pytest.mark.parametrize("name", MATRIX)
def test_no_credential_is_greater_than_the_one_that_asked(world: World, name: str) -> None:
    """Every kind of key asks for every kind of credential."""
    found, rule = MATRIX[name](world)
    greater = [one for one, given in found.items() if given and not rule[one]]
    assert not greater, f"{len(greater)} of {len(found)}"
    assert found == rule
