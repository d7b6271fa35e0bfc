"""Admin keys over HTTP, on each store: how one gets them, what they say, and how they end."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import KEY, Api, Reply, Tenant
from scraping import until
from served import served
from serving import Server
from tokens.conftest import MovableClock

KEYS = "/api/v1/admin-keys"


def create(api: Api, *, by: str = KEY, **body: Any) -> Reply:
    return api.call("POST", KEYS, {"name": "night shift", "role": "VIEWER", **body}, key=by)


def created(api: Api, *, by: str = KEY, **body: Any) -> Any:
    reply = create(api, by=by, **body)
    assert reply.status == 201, reply.data
    return reply.json


def listed(api: Api) -> dict[str, Any]:
    """Every key, by its id."""
    return {key["key_id"]: key for key in api.pages(f"{KEYS}?limit=100", "keys")}


def later(**by: int) -> str:
    return (datetime.now(UTC) + timedelta(**by)).strftime("%Y-%m-%dT%H:%M:%SZ")


class TestMaking:
    def test_it_is_shown_once_and_never_again(self, api: Api, tenant: Tenant) -> None:
        """In the answer that makes it; the list has everything else."""
        end = later(days=90)
        reply = create(api, role="OPERATOR", org_ids=[tenant.org_id], expires_at=end)
        assert reply.status == 201
        assert reply.headers["cache-control"] == "no-store"
        made = reply.json
        assert made["key"].startswith(f"pka_{made['key_id']}")
        assert (made["name"], made["role"]) == ("night shift", "OPERATOR")
        assert (made["org_ids"], made["expires_at"]) == ([tenant.org_id], end)
        everything = listed(api)
        assert made["key"] not in str(everything)
        assert "hash" not in str(everything)
        found = everything[made["key_id"]]
        assert found.pop("created_by").startswith("deployment-key/")
        shown = {name: value for name, value in made.items() if name != "key"}
        assert found == shown

    def test_it_says_who_made_it_and_when_it_was_used(self, api: Api) -> None:
        first = created(api, name="platform", role="ADMIN")
        second = created(api, by=first["key"])
        found = listed(api)
        assert found[second["key_id"]]["created_by"] == f"key/platform/{first['key_id']}"
        assert "last_used_at" in found[first["key_id"]]
        assert "last_used_at" not in found[second["key_id"]]

    def test_a_bad_field_is_named_and_nothing_is_made(self, api: Api) -> None:
        """An empty list of organisations is none, and never all."""
        no_org = str(uuid.UUID(int=0))
        mistakes: dict[str, list[Any]] = {
            "name": ["", " \t ", "a/b", "x" * 65, "pks_" + "0" * 49],
            "role": ["OWNER", "viewer"],
            "org_ids": [[], ["acme"], [no_org], [no_org] * 101],
            "expires_at": ["2020-01-01T00:00:00Z", "tomorrow"],
            "expires_in": [5],
        }
        there_before = listed(api)
        for field, values in mistakes.items():
            for value in values:
                refused = create(api, **{field: value})
                assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
                errors = refused.json["errors"]
                assert any(field in one["field"] or field in one["message"] for one in errors)
        assert listed(api) == there_before

    def test_an_organisation_that_is_not_covered_is_none_that_there_is(
        self, api: Api, tenant: Tenant, other: Tenant
    ) -> None:
        """A key of some organisations learns nothing of others by giving keys, and makes none."""
        mine = created(api, role="ADMIN", org_ids=[tenant.org_id])["key"]
        answers = []
        for org_id in (other.org_id, str(uuid.uuid4())):
            refused = create(api, by=mine, org_ids=[org_id])
            answers.append((refused.status, refused.json["detail"].replace(org_id, "")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 400
        without = create(api, by=mine)
        assert (without.status, without.code) == (403, "FORBIDDEN")
        assert "org_ids" in without.json["detail"]
        elsewhere = f"/api/v1/orgs/{uuid.uuid4()}"
        assert api.call("PUT", elsewhere, {"org_name": "Mine"}, key=mine).status == 404
        assert api.provision("GET", elsewhere).status == 404

    def test_a_key_that_expires_gives_none_that_lasts(self, api: Api, tenant: Tenant) -> None:
        """Nor does it take over an endless one."""
        owners, end = created(api, role="ADMIN"), later(days=1)
        mine = created(api, role="ADMIN", expires_at=end)
        path, body = f"{KEYS}/{owners['key_id']}/rotate", {"grace_period_hours": 0}
        taken = api.call("POST", path, body, key=mine["key"])
        assert end in taken.json["detail"]
        assert created(api, by=mine["key"])["expires_at"] == end
        longer = create(api, by=mine["key"], expires_at=later(days=2))
        issued = api.call("POST", f"{tenant.org}/provisioning-key", key=mine["key"])
        for refused in (taken, longer, issued):
            assert (refused.status, refused.code) == (403, "FORBIDDEN")
        assert api.call("GET", KEYS, key=owners["key"]).status == 200
        own = api.call("POST", f"{KEYS}/{mine['key_id']}/rotate", body, key=mine["key"])
        assert (own.status, own.json["expires_at"]) == (200, end)


class TestRotation:
    def test_both_texts_open_until_the_grace_ends(self, api: Api) -> None:
        """The name, the role and the id stay; the answer says when the old text ends."""
        made = created(api)
        path = f"{KEYS}/{made['key_id']}/rotate"
        rotated = api.provision("POST", path, {"grace_period_hours": 2})
        assert (rotated.status, rotated.headers["cache-control"]) == (200, "no-store")
        fresh = rotated.json
        for name in ("key_id", "name", "role"):
            assert fresh[name] == made[name]
        assert fresh["old_key_expires_at"]
        for key in (made["key"], fresh["key"]):
            assert api.call("GET", "/api/v1/orgs", key=key).status == 200
        again = api.provision("POST", path, {"grace_period_hours": 0}).json
        assert "old_key_expires_at" not in again
        opened = [
            api.call("GET", "/api/v1/orgs", key=key).status
            for key in (made["key"], fresh["key"], again["key"])
        ]
        assert opened == [401, 401, 200]

    def test_a_grace_has_bounds(self, api: Api) -> None:
        path = f"{KEYS}/{created(api)['key_id']}/rotate"
        for hours in (-1, 169, "1", None):
            assert api.provision("POST", path, {"grace_period_hours": hours}).status == 400


class TestMe:
    """What a credential may see, as its holder reads it."""

    def test_of_keys(self, api: Api, tenant: Tenant) -> None:
        """The deployment's, an organisation's own, and named ones."""
        made = created(api, role="OPERATOR", org_ids=[tenant.org_id], expires_at=later(days=1))
        own = tenant.issue_key()
        seen = {key: api.call("GET", "/api/v1/me", key=key).json for key in (KEY, own, made["key"])}
        assert seen[KEY] == {"kind": "DEPLOYMENT_KEY", "role": "ADMIN"}
        assert seen[own] == {"kind": "ORG_KEY", "role": "ADMIN", "org_ids": [tenant.org_id]}
        assert seen[made["key"]] == {
            "kind": "ADMIN_KEY",
            **{name: made[name] for name in ("role", "org_ids", "key_id", "name", "expires_at")},
        }

    def test_of_clients(self, api: Api, tenant: Tenant) -> None:
        """An organisation, and one of its apps."""
        app = api.call("GET", "/api/v1/me", token=tenant.app_token).json
        assert app.pop("scope")
        assert app == {
            "kind": "CLIENT",
            "org_ids": [tenant.org_id],
            "client_id": tenant.client_id,
            "app_id": tenant.app_id,
        }
        org = api.call("GET", "/api/v1/me", token=tenant.org_token).json
        assert (org["client_id"], "app_id" in org) == (f"org-{tenant.org_id}", False)
        assert api.call("GET", "/api/v1/me").status == 401


def test_what_it_did_is_written_down_with_its_name(api: Api, server: Server) -> None:
    tenant = Tenant(api).register()
    made = created(api, role="OPERATOR", org_ids=[tenant.org_id])
    reply = api.call("PUT", f"{tenant.app}/freeze", {"reason": "leaked"}, key=made["key"])
    assert reply.status == 200

    def actors() -> list[str]:
        lines = [json.loads(line) for line in server.output().splitlines() if line[:1] == "{"]
        request_id = reply.headers["x-request-id"]
        found = [line for line in lines if line["event"] == "audit"]
        return [line["actor"] for line in found if line["request_id"] == request_id]

    until(lambda: bool(actors()), server.output)
    assert actors() == [f"key/night shift/{made['key_id']}"]


@pytest.fixture
def guessed(tmp_path: Path) -> Iterator[Api]:
    """A server where few keys can be tried, and each has few requests."""
    with served(tmp_path, api_limits_per_minute={"failures": 2, "provisioning": 3}) as api:
        yield api


def test_guesses_are_counted_with_those_at_the_deployments_key(guessed: Api) -> None:
    """Once the address is barred, no key is compared, not even a right one."""
    made, gone = created(guessed, role="ADMIN"), created(guessed)
    assert guessed.call("DELETE", f"{KEYS}/{gone['key_id']}", key=made["key"]).status == 204
    wrong = [made["key"][:-1], gone["key"], f"{made['key'][:-1]}!"]
    told = [guessed.call("GET", KEYS, key=key).status for key in wrong]
    assert told == [401, 401, 429]
    for right in (made["key"], KEY):
        assert guessed.call("GET", KEYS, key=right).status == 429


def test_a_right_key_that_has_ended_is_no_guess(tmp_path: Path) -> None:
    clock = MovableClock()
    with served(tmp_path, clock=clock, api_limits_per_minute={"failures": 2}) as api:
        end = datetime.fromtimestamp(clock.now_ms() // 1000 + 60, UTC)
        expiring = created(api, expires_at=end.strftime("%Y-%m-%dT%H:%M:%SZ"))["key"]
        rotated = created(api)
        path = f"{KEYS}/{rotated['key_id']}/rotate"
        assert api.provision("POST", path, {"grace_period_hours": 1}).status == 200
        clock.pass_ms(3_600_000)
        for key in (expiring, rotated["key"]) * 3:
            assert api.call("GET", "/api/v1/orgs", key=key).status == 401
        assert api.provision("GET", "/api/v1/orgs").status == 200


def test_each_key_has_its_own_limit(guessed: Api) -> None:
    """One administrator's script does not use up what is another's."""
    first, second = (created(guessed, role="ADMIN") for _ in range(2))
    told = [guessed.call("GET", "/api/v1/orgs", key=first["key"]).status for _ in range(5)]
    assert told[0] == 200
    assert told[-1] == 429
    reply = guessed.call("GET", "/api/v1/orgs", key=second["key"])
    assert (reply.status, reply.headers["ratelimit-limit"]) == (200, "3")
