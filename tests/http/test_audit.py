"""The audit trail over HTTP: every change has its entry, for all who may read it."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from http_fixtures import KEY, ORG, Api, Reply, Tenant, usage
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from serving import Server
from store_server import api, location, server
from tenant_matrix import BODIES, CHANNEL, path_of, without_id

__all__ = ["api", "location", "server"]

CHANGES = [
    operation
    for operation in ROUTES
    if operation.method != "GET" and (operation.role is not None or operation.name == "claimSecret")
]
"""What is opened by a key, and claims. What a client does for itself all day is no such change."""
ACTIONS = {
    "putOrg": "org.update",
    "patchOrg": "org.update",
    "deleteOrg": "org.delete",
    "putApp": "app.update",
    "patchApp": "app.update",
    "deleteApp": "app.delete",
    "issueProvisioningKey": "provisioning_key.issue",
    "withdrawProvisioningKey": "provisioning_key.withdraw",
    "claimSecret": "credentials.claim",
    "createAdminKey": "admin_key.create",
    "rotateAdminKey": "admin_key.rotate",
    "deleteAdminKey": "admin_key.delete",
    "voidUsage": "usage.void",
    "voidOrgAuthorization": "authorization.void",
    **{
        f"{verb}{kind}AlertChannel": f"alert_channel.{verb}"
        for kind in ("Org", "Deployment")
        for verb in ("put", "delete", "test")
    },
    **{
        f"{verb}{kind}{what}": action
        for kind in ("Org", "App")
        for verb, what, action in (
            ("rotate", "Credentials", "credentials.rotate"),
            ("revoke", "Credentials", "credentials.revoke"),
            ("put", "Override", "override.set"),
            ("delete", "Override", "override.clear"),
            ("end", "Sessions", "sessions.end_all"),
            ("end", "Session", "sessions.end"),
            ("freeze", "", "freeze"),
            ("unfreeze", "", "unfreeze"),
            ("reset", "Limits", "limits.reset"),
        )
    },
}


def entries(api: Api, query: str = "", key: str = KEY) -> list[dict[str, Any]]:
    """Every entry that the query asks for, page after page."""
    return api.pages(f"/api/v1/audit?{query}", "entries", key=key)


def entries_of(api: Api, org_id: str, query: str = "") -> list[dict[str, Any]]:
    return entries(api, f"org_id={org_id}{query}")


@pytest.fixture
def fresh(api: Api) -> Tenant:
    return Tenant(api).register()


def perform(tenant: Tenant, operation: Route, request_id: str) -> Reply:
    """Make the change that the operation is for, to something that there is."""
    api, body = tenant.api, BODIES.get(operation.name)
    known: dict[str, str] = {}
    if "{session_id}" in operation.path:
        whose = tenant.client_id if "{app_id}" in operation.path else f"org-{tenant.org_id}"
        known["session_id"] = tenant.login(whose)["session_id"]
    if "{key_id}" in operation.path:
        made = api.provision("POST", "/api/v1/admin-keys", BODIES["createAdminKey"])
        known["key_id"] = made.json["key_id"]
    if "{channel}" in operation.path:
        channel = operation.path.format(org_id=tenant.org_id, channel="ops").removesuffix("/test")
        assert api.provision("PUT", channel, CHANNEL).status in (200, 201)
    if operation.name == "voidUsage":
        sent = usage()
        assert tenant.record(sent).status < 300
        known["request_id"] = sent["request_id"]
    if operation.name == "voidOrgAuthorization":
        asked, path = BODIES["authorize"], f"{tenant.app}/authorizations"
        granted = api.call("POST", path, asked, token=tenant.app_token)
        known["authorization_id"] = granted.json["authorization_id"]
    if operation.name == "claimSecret":
        hours = {"grace_period_hours": 0}
        rotated = api.provision("POST", f"{tenant.app}/credentials/rotate", hours)
        body = {"token": rotated.json["secret_retrieval"]["token"]}
    path = path_of(operation, tenant.org_id, tenant.app_id, **known)
    headers = {"x-request-id": request_id}
    return api.call(operation.method, path, body, key=KEY, headers=headers)


def target_of(operation: Route, tenant: Tenant, done: Reply) -> str:
    """What an operation of that kind is done to."""
    if "admin-keys" in operation.path:
        named = done.json["key_id"] if done.data else ""
        return f"admin-key/{named}"
    if "{channel}" in operation.path:
        return "alert-channel/ops"
    if operation.name in ("voidUsage", "voidOrgAuthorization"):
        named = "request_id" if operation.name == "voidUsage" else "authorization_id"
        return f"{'usage' if named == 'request_id' else 'authorization'}/{done.json[named]}"
    of_app = "{app_id}" in operation.path or operation.name == "claimSecret"
    return tenant.client_id if of_app else f"org-{tenant.org_id}"


class TestEveryChange:
    @pytest.mark.parametrize("operation", CHANGES, ids=lambda operation: operation.name)
    def test_has_its_entry(self, api: Api, fresh: Tenant, operation: Route) -> None:
        """One, with the id of the request. A new operation has to be named above."""
        request_id = f"audited-{uuid.uuid4().hex[:12]}"
        done = perform(fresh, operation, request_id)
        assert done.status in (200, 201, 204), (operation.name, done.data)
        of_org = "{org_id}" in operation.path or operation.name == "claimSecret"
        chain = entries_of(api, fresh.org_id) if of_org else entries(api)
        (entry,) = [one for one in chain if one["request_id"] == request_id]
        assert entry["action"] == ACTIONS[operation.name]
        assert entry["target"].startswith(target_of(operation, fresh, done))
        assert entry["address"] == "127.0.0.1"
        assert entry.get("org_id") == (fresh.org_id if of_org else None)
        is_claim = operation.name == "claimSecret"
        assert entry["actor"].startswith("retrieval-token" if is_claim else "deployment-key/")
        assert entry.get("reason") == BODIES.get(operation.name, {}).get("reason")

    def test_creations_have_one_too(self, api: Api, fresh: Tenant) -> None:
        """From the very first: here, what registering a tenant takes."""
        made = [(one["seq"], one["action"]) for one in entries_of(api, fresh.org_id)]
        assert made == [
            (4, "credentials.claim"),
            (3, "app.create"),
            (2, "credentials.claim"),
            (1, "org.create"),
        ]

    def test_what_is_refused_has_none(self, api: Api, tenant: Tenant) -> None:
        """Nothing was changed; neither by an operation nor by a reason that is none."""
        before = entries_of(api, tenant.org_id)
        refused: list[tuple[str, str, Any, int]] = [
            ("PUT", "", {**ORG, "quotas": {"premium": -1}}, 400),
            ("PUT", "", {**ORG, "agg_shard_count": 64}, 409),
            ("PUT", "/freeze", {"reason": ""}, 400),
            ("PUT", "/apps/missing/freeze", {"reason": "why"}, 404),
            ("DELETE", "/apps/missing", None, 404),
            ("POST", "/credentials/rotate", {"grace_period_hours": 999}, 400),
            ("PUT", "/model-override", {"model_label": "gone"}, 400),
            ("DELETE", f"/sessions/000-{'A' * 22}", None, 404),
            *(
                ("PUT", f"/model-override?reason={reason}", {"model_label": "economy"}, 400)
                for reason in ("%20", "x" * 501, "a%0Ab", "a&reason=b")
            ),
        ]
        for method, rest, body, status in refused:
            assert api.provision(method, f"{tenant.org}{rest}", body).status == status
        assert entries_of(api, tenant.org_id) == before


class TestWhoRaisedThisQuota:
    def test_before_and_after_are_told(self, api: Api, fresh: Tenant) -> None:
        patch = {"quotas": {"premium": 9_000_000}, "session_limit": 7}
        done = api.provision("PATCH", fresh.org, patch)
        assert done.status == 200
        entry = entries_of(api, fresh.org_id, "&action=org.update")[0]
        assert entry["before"] == {"quotas": {"premium": 1_000_000}, "session_limit": 5}
        assert entry["after"] == {"quotas": {"premium": 9_000_000}, "session_limit": 7}
        assert entry["request_id"] == done.headers["x-request-id"]

    def test_what_a_deleted_client_had_is_told(self, api: Api, fresh: Tenant) -> None:
        assert api.provision("DELETE", fresh.org).status == 204
        assert api.provision("PUT", fresh.org, ORG).status == 201
        created, deleted = entries_of(api, fresh.org_id)[:2]
        assert (created["action"], deleted["action"]) == ("org.create", "org.delete")
        assert deleted["before"] == created["after"]
        assert created["after"]["quotas"] == ORG["quotas"]
        assert "after" not in deleted

    def test_what_is_too_large_is_told_by_its_hash(self, api: Api, fresh: Tenant) -> None:
        limit = {"capacity": 10, "refill_amount": 10, "refill_period_ms": 60_000}
        limits = {f"limit_{n}": limit for n in range(16)}
        labels = ("*", *ORG["model_ordering"])
        body = {"app_name": "Large", "rate_limits": dict.fromkeys(labels, limits)}
        assert api.provision("PUT", fresh.app, body).status == 200
        entry = entries_of(api, fresh.org_id)[0]
        assert entry["after"]["app_name"] == "Large"
        told = entry["after"]["rate_limits"]
        assert set(told) == {"left_out_bytes", "sha256"} or told == body["rate_limits"]
        assert len(json.dumps(entry["after"])) < 9_000


class TestWhoMayRead:
    @pytest.fixture
    def own_key(self, fresh: Tenant) -> str:
        return fresh.issue_key()

    def test_the_deployments_key_reads_everything(self, api: Api, fresh: Tenant) -> None:
        other = Tenant(api).register()
        assert api.provision("DELETE", other.org).status == 204
        read = api.provision("GET", "/api/v1/audit?limit=10").json["entries"]
        seen = [(one["org_id"], one["action"]) for one in read]
        assert seen[0] == (other.org_id, "org.delete")
        assert (fresh.org_id, "app.create") in seen
        assert [one["at"] for one in read] == sorted((one["at"] for one in read), reverse=True)

    @pytest.mark.parametrize("role", ["VIEWER", "ADMIN"])
    def test_an_admin_key_reads_the_chains_that_it_covers(
        self, api: Api, fresh: Tenant, role: str
    ) -> None:
        """Named or not; what concerns the whole deployment is for who covers all of it."""
        other, third = Tenant(api).register(), Tenant(api).register()
        covered = [fresh.org_id, other.org_id]
        body = {"name": "some", "role": role, "org_ids": covered}
        key = api.provision("POST", "/api/v1/admin-keys", body).json["key"]
        seen = entries(api, key=key)
        assert {one["org_id"] for one in seen} == set(covered)
        assert len(seen) == 8
        assert entries(api, f"org_id={other.org_id}", key=key) == entries_of(api, other.org_id)
        hidden = api.call("GET", f"/api/v1/audit?org_id={third.org_id}", key=key)
        assert (hidden.status, hidden.code) == (404, "NOT_FOUND")
        made = entries(api, "action=admin_key.create")[0]
        assert made["after"] == {**body, "org_ids": sorted(covered)}
        assert "org_id" not in made

    def test_a_key_for_one_organisation_is_in_its_chain(self, api: Api, fresh: Tenant) -> None:
        body = {"name": "one", "role": "OPERATOR", "org_ids": [fresh.org_id]}
        made = api.provision("POST", "/api/v1/admin-keys", body).json
        entry = entries(api, key=made["key"])[0]
        target = f"admin-key/{made['key_id']}"
        assert (entry["action"], entry["target"]) == ("admin_key.create", target)

    def test_an_organisations_key_reads_its_own_chain(
        self, api: Api, fresh: Tenant, own_key: str
    ) -> None:
        mine = entries_of(api, fresh.org_id)
        assert entries(api, key=own_key) == mine
        assert entries(api, f"org_id={fresh.org_id}", key=own_key) == mine
        assert entries(api, "action=org.create", key=own_key) == mine[-1:]

    def test_who_acted_with_an_organisations_key_is_found_by_its_issue(
        self, api: Api, fresh: Tenant
    ) -> None:
        """The entry of the issue has the fingerprint that the actor is named by, and no key."""
        for _ in range(2):
            issued = api.provision("POST", f"{fresh.org}/provisioning-key").json
            key = issued["provisioning_key"]
            frozen = api.call("PUT", f"{fresh.app}/freeze", {"reason": "a test"}, key=key)
            assert frozen.status == 200, frozen.data
            acted, told = entries_of(api, fresh.org_id)[:2]
            assert told["action"] == "provisioning_key.issue"
            assert acted["actor"] == f"org-key/{fresh.org_id}/{told['after']['fingerprint']}"
            assert key not in json.dumps(told)

    def test_another_organisation_does_not_exist(
        self, api: Api, fresh: Tenant, own_key: str, tenant: Tenant
    ) -> None:
        """Byte for byte as one that never was."""
        answers = [
            without_id(api.call("GET", f"/api/v1/audit?org_id={org_id}", key=own_key))
            for org_id in (tenant.org_id, str(uuid.uuid4()))
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] == 404
        del fresh

    def test_no_client_reads_it(self, api: Api, fresh: Tenant) -> None:
        for token in (fresh.app_token, fresh.org_token):
            read = api.call("GET", f"/api/v1/audit?org_id={fresh.org_id}", token=token)
            assert (read.status, read.code) == (401, "UNAUTHORIZED")
        assert entries_of(api, str(uuid.uuid4())) == []


class TestLists:
    def test_pages_and_filters(self, api: Api, fresh: Tenant) -> None:
        """A page has a next one as long as there is more, and what fits is found."""
        for number in range(6):
            reason = {"reason": f"reason {number}"}
            assert api.provision("PUT", f"{fresh.app}/freeze", reason).status == 200
        first = api.provision("GET", f"/api/v1/audit?org_id={fresh.org_id}&limit=4").json
        assert [one["seq"] for one in first["entries"]] == [10, 9, 8, 7]
        rest = f"/api/v1/audit?org_id={fresh.org_id}&limit=100&after={first['next']}"
        last = api.provision("GET", rest).json
        assert [one["seq"] for one in last["entries"]] == [6, 5, 4, 3, 2, 1]
        assert "next" not in last
        assert len(entries_of(api, fresh.org_id, "&action=freeze")) == 6
        assert len(entries_of(api, fresh.org_id, "&action=credentials")) == 2
        assert len(entries_of(api, fresh.org_id, "&actor=retrieval-token")) == 2
        assert len(entries_of(api, fresh.org_id, "&actor=deployment-key")) == 8
        assert entries_of(api, fresh.org_id, "&to=2020-01-01") == []
        assert entries_of(api, fresh.org_id, "&from=1960-01-01&to=1960-01-01") == []
        assert len(entries_of(api, fresh.org_id, "&from=2020-01-01")) == 10
        assert entries_of(api, fresh.org_id, "&from=2099-12-31T23:59:59Z") == []

    def test_what_can_not_be_understood_is_named(self, api: Api) -> None:
        queries = {
            "org_id": ["org_id=x", "org_id=1&org_id=2"],
            "actor": ["actor="],
            "action": [f"action={'x' * 300}"],
            "to": ["to=2026-13-01", "to=9999-12-31"],
            "limit": ["limit=0", "limit=101", "limit=x", "limit=0000000011000"],
            "after": ["after=x"],
            "from": [
                *("from=yesterday", "from=20260101", "from=1960-01-02&to=1960-01-01"),
                *("from=2026-01-02&to=2026-01-01T00:00:00Z", "from=2026-01-02&to=2026-01-01"),
                "from=2026-01-02&to=2026-01-02T00:00:00Z",
            ],
        }
        for field, query in ((field, one) for field, several in queries.items() for one in several):
            refused = api.provision("GET", f"/api/v1/audit?{query}")
            assert (refused.status, refused.code) == (400, "INVALID_REQUEST"), query
            assert [error["field"] for error in refused.json["errors"]] == [field]


def test_a_reason_is_in_the_entry(api: Api, fresh: Tenant) -> None:
    changes: list[tuple[str, str, Any]] = [
        ("PUT", "/model-override", {"model_label": "economy"}),
        ("DELETE", "/model-override", None),
        ("PATCH", "", {"app_name": "Renamed"}),
        ("POST", "/credentials/rotate", {"grace_period_hours": 0}),
        ("DELETE", "", None),
    ]
    for number, (method, tail, body) in enumerate(changes):
        path = f"{fresh.app}{tail}?reason=busy%20week%20{number}"
        assert api.provision(method, path, body).status in (200, 204)
        assert entries_of(api, fresh.org_id)[0]["reason"] == f"busy week {number}"


def texts(value: Any) -> Iterator[str]:
    """Every text in an answer."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if not isinstance(value, str):
            yield from texts(inner) if isinstance(inner, (dict, list, str)) else ()


def test_no_secret_is_in_any_entry(server: Server, api: Api, fresh: Tenant) -> None:
    handed_out = {KEY, *fresh.secrets.values(), fresh.app_token, fresh.org_token}
    for operation in CHANGES:
        tenant = Tenant(api).register()
        done = perform(tenant, operation, f"canary-{uuid.uuid4().hex[:8]}")
        assert done.status in (200, 201, 204)
        handed_out |= {*tenant.secrets.values(), tenant.app_token, tenant.org_token}
        if done.data:
            shown = [text for text in texts(done.json) if text.startswith("pk")]
            handed_out |= set(shown)
    kinds = {text[:4] for text in handed_out}
    assert {"pks_", "pkr_", "pkp_", "pka_"} <= kinds, kinds
    handed_out.add(CHANNEL["secret"])
    read = json.dumps(entries(api))
    assert fresh.org_id in read
    output = server.output()
    for secret in handed_out:
        for form in (secret, secret[4:40]):
            assert form not in read
            assert form not in output
