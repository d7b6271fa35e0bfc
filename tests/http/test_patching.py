"""Settings changed by JSON merge patches, over a socket and on both stores."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from http_fixtures import KEY, ORG, Api, Reply, Tenant
from pricekeeper.http.edge import MERGE_PATCH
from pricekeeper.http.openapi import openapi
from pricekeeper.http.routes import ROUTES
from pricekeeper.values import settings_tag

MONTHLY = {
    "name": "monthly",
    "window": "MONTH",
    "limit_usd_micros": 200_000_000,
    "labels": None,
    "per_tag": None,
    "enforcement": "HARD",
    "alert_at_pct": [],
}
DAILY = {**MONTHLY, "name": "daily", "window": "DAY"}
TPM = {"capacity": 9_000, "refill_amount": 9_000, "refill_period_ms": 60_000}
RPM = ORG["rate_limits"]["*"]["rpm"]


@pytest.fixture
def fresh(api: Api) -> Tenant:
    """An organisation with an app for one test."""
    return Tenant(api).register()


def patch(tenant: Tenant, path: str, body: Any, kind: str = MERGE_PATCH) -> Reply:
    return tenant.api.call("PATCH", path, body, key=KEY, headers={"content-type": kind})


def changed(tenant: Tenant, path: str, body: Any) -> Any:
    """The configuration after a patch that has to work."""
    reply = patch(tenant, path, body)
    assert (reply.status, reply.json["status"]) == (200, "updated"), reply.data
    assert "secret_retrieval" not in reply.json
    shown = {**reply.json}
    del shown["status"]
    assert tenant.api.provision("GET", path).json == shown
    return reply.json["configuration"]


def test_only_what_is_named_changes(fresh: Tenant) -> None:
    """Objects are merged, lists are replaced, null restores a default."""
    before = fresh.api.provision("GET", fresh.org).json["configuration"]
    body = {
        "quotas": {"premium": 2_000_000},
        "rate_limits": {"*": {"tpm": TPM}},
        "budgets": [MONTHLY, DAILY],
        "session_limit": 7,
    }
    after = changed(fresh, fresh.org, body)
    assert after == {
        **before,
        "quotas": {**before["quotas"], "premium": 2_000_000},
        "rate_limits": {"*": {"rpm": RPM, "tpm": TPM}},
        "budgets": [MONTHLY, DAILY],
        "session_limit": 7,
    }
    body = {
        "rate_limits": {"*": {"tpm": None, "rpm": {"capacity": 11}}},
        "budgets": [DAILY],
        "session_limit": None,
    }
    last = changed(fresh, fresh.org, body)
    assert last == {
        **after,
        "rate_limits": {"*": {"rpm": {**RPM, "capacity": 11}}},
        "budgets": [DAILY],
        "session_limit": 5,
    }
    assert changed(fresh, fresh.org, {}) == last
    renamed = patch(fresh, fresh.org, {"org_name": " Acme & Sons "})
    assert renamed.json["org_name"] == "Acme & Sons"


def test_an_app_states_and_inherits_again(fresh: Tenant) -> None:
    """The patch goes over what the app states, and what it inherits stays inherited."""
    stated = patch(fresh, fresh.app, {"session_limit": 2, "budgets": [DAILY]}).json
    assert stated["configuration"]["session_limit"] == 2
    assert {"session_limit"} & set(stated["inherited_fields"]) == set()
    assert {"quotas", "rate_limits", "model_ordering"} <= set(stated["inherited_fields"])
    changed(fresh, fresh.org, {"session_limit": 9, "quotas": {"premium": 3}})
    settings = fresh.api.provision("GET", fresh.app).json["configuration"]
    assert (settings["session_limit"], settings["quotas"]["premium"]) == (2, 3)
    settings = changed(fresh, fresh.app, {"session_limit": None, "budgets": None})
    assert (settings["session_limit"], settings["budgets"]) == (9, [])


def test_every_bad_field_of_the_result_is_named_and_nothing_changes(fresh: Tenant) -> None:
    """A required field can't be removed, nor can what another setting needs."""
    changed(fresh, fresh.org, {"tag_keys": ["team"], "budgets": [{**MONTHLY, "per_tag": "team"}]})
    required = ("org_name", "timezone", "quota_scope", "model_ordering", "tag_keys", "extra")
    body: dict[str, Any] = {
        **dict.fromkeys(required),
        "session_limit": 9,
        "tight_mode_threshold_pct": "60",
        "quotas": {"premium": -1, "standard": None},
        "agg_shard_count": 9,
        "rate_limits": {"premium": {"rpm": {"capacity": 1}}},
    }
    bad: list[tuple[str, dict[str, Any], set[str]]] = [
        (fresh.org, body, {
            *("org_name", "timezone", "quota_scope", "model_ordering", "budgets[0].per_tag"),
            *("extra", "tight_mode_threshold_pct", "quotas.premium", "agg_shard_count"),
            *("rate_limits.premium.rpm.refill_amount", "rate_limits.premium.rpm.refill_period_ms"),
        }),
        (fresh.org, {"quotas": None}, {"quotas"}),
        (fresh.org, {"quotas": {"standard": None}}, {"quotas.standard"}),
        (fresh.app, {"app_name": None, "timezone": None, "session_limit": 0},
         {"app_name", "timezone", "session_limit"}),
    ]  # fmt: skip
    for path, body, fields in bad:
        before = fresh.api.provision("GET", path).json
        reply = patch(fresh, path, body)
        assert (reply.status, reply.code) == (400, "INVALID_CONFIG")
        assert {error["field"] for error in reply.json["errors"]} == fields
        assert fresh.api.provision("GET", path).json == before
    reply = patch(fresh, fresh.org, {"model_ordering": ["gold"]})
    assert reply.json["details"]["valid_labels"] == ["economy", "premium", "standard"]


def test_a_patch_never_creates_and_keeps_the_number_of_shards(fresh: Tenant) -> None:
    """Counters live under that number."""
    for path, body in (
        (f"/api/v1/orgs/{uuid.uuid4()}", ORG),
        (f"{fresh.org}/apps/absent", {"app_name": "Absent"}),
        (f"/api/v1/orgs/{uuid.uuid4()}/apps/absent", {"app_name": "Absent"}),
    ):
        reply = patch(fresh, path, body)
        assert (reply.status, reply.code) == (404, "NOT_FOUND")
        assert fresh.api.provision("GET", path).status == 404
    reply = patch(fresh, fresh.org, {"agg_shard_count": 16, "session_limit": 9})
    assert (reply.status, reply.code) == (409, "CONFLICT")
    assert changed(fresh, fresh.org, {"agg_shard_count": 8})["session_limit"] == 5


def test_a_patch_may_say_that_it_is_json_and_no_other_thing(fresh: Tenant) -> None:
    """A JSON patch (RFC 6902) is another thing."""
    for path in (fresh.org, fresh.app):
        for kind in ("application/json", f"{MERGE_PATCH}; charset=utf-8"):
            assert patch(fresh, path, {"session_limit": 3}, kind).status == 200
        for kind in ("application/json-patch+json", "text/plain"):
            reply = patch(fresh, path, {"session_limit": 3}, kind)
            assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
            assert MERGE_PATCH in reply.json["detail"]


def test_credentials_stay(fresh: Tenant) -> None:
    patch(fresh, fresh.org, {"org_name": "Other"})
    patch(fresh, fresh.app, {"app_name": "Other"})
    assert fresh.select().status == 200
    assert fresh.login()["token_type"] == "Bearer"
    fresh.api.provision("PUT", f"{fresh.app}/freeze", {"reason": "leaked"})
    assert patch(fresh, fresh.app, {"app_name": "Web"}).json["frozen"]["reason"] == "leaked"


def test_an_organisations_own_key_patches_what_it_may_put(fresh: Tenant, tenant: Tenant) -> None:
    """Itself and its apps; another organisation is absent to it."""
    key = fresh.issue_key()
    for path in (fresh.org, fresh.app):
        assert fresh.api.call("PATCH", path, {"session_limit": 3}, key=key).status == 200
    assert fresh.api.call("PATCH", tenant.org, {"session_limit": 3}, key=key).status == 404
    others: tuple[dict[str, Any], ...] = ({}, {"key": KEY + "x"}, {"token": fresh.org_token})
    for credentials in others:
        reply = fresh.api.call("PATCH", fresh.org, {"session_limit": 4}, **credentials)
        assert (reply.status, reply.code) == (401, "UNAUTHORIZED")
    assert fresh.api.provision("GET", fresh.org).json["configuration"]["session_limit"] == 3


def test_patches_at_once_all_hold(fresh: Tenant) -> None:
    """Each on a connection of its own, of another field or of another limit."""
    numbers = {"session_limit": 11, "tight_mode_threshold_pct": 61}
    numbers |= {"refresh_interval_normal_secs": 62, "refresh_interval_tight_secs": 63}
    limits = {f"limit_{number}": TPM for number in range(6)}
    bodies: list[dict[str, Any]] = [{name: value} for name, value in numbers.items()]
    bodies += [{"rate_limits": {"*": {name: limit}}} for name, limit in limits.items()]
    for path in (fresh.org, fresh.app):
        with ThreadPoolExecutor(len(bodies)) as pool:
            replies = list(pool.map(lambda body, path=path: patch(fresh, path, body), bodies))
        assert [reply.status for reply in replies] == [200] * len(bodies)
        settings = fresh.api.provision("GET", path).json["configuration"]
        assert {name: settings[name] for name in numbers} == numbers
        assert settings["rate_limits"]["*"].items() >= limits.items()


@pytest.mark.parametrize("name", ["OrgPatch", "AppPatch"])
def test_the_document_says_what_can_be_removed(name: str) -> None:
    document = openapi(ROUTES)
    schemas = document["components"]["schemas"]
    body, patched = schemas[name.replace("Patch", "Body")], schemas[name]
    assert patched["properties"].keys() == body["properties"].keys()
    assert not patched.get("required")
    required = {
        field
        for field, schema in patched["properties"].items()
        if {"type": "null"} not in schema.get("anyOf", ())
    }
    assert required == set(body["required"])
    path = "/api/v1/orgs/{org_id}" + ("" if name == "OrgPatch" else "/apps/{app_id}")
    content = document["paths"][path]["patch"]["requestBody"]["content"]
    assert set(content) == {MERGE_PATCH, "application/json"}


@pytest.mark.parametrize("of_app", [False, True])
def test_a_patch_for_settings_that_have_changed_is_refused(fresh: Tenant, *, of_app: bool) -> None:
    path = fresh.app if of_app else fresh.org

    def send(limit: int, tag: str) -> Reply:
        headers = {"content-type": MERGE_PATCH, "if-match": tag}
        body = {"session_limit": limit}
        return fresh.api.call("PATCH", path, body, key=KEY, headers=headers)

    read = fresh.api.provision("GET", path)
    tag = read.headers["etag"]
    assert tag == f'"{settings_tag(read.json)}"'
    first = send(7, f'"another", {tag}')
    assert (first.status, first.headers["etag"] != tag) == (200, True)
    refused = send(8, tag)
    assert (refused.status, refused.json["code"]) == (409, "CONFLICT")
    assert fresh.api.provision("GET", path).headers["etag"] == first.headers["etag"]
    assert [send(9, one).status for one in (first.headers["etag"], "*")] == [200, 200]
