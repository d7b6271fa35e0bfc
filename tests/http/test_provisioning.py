"""What a platform engineer does: register, rotate, override, delete."""

import time
import uuid
from datetime import datetime
from typing import Any

import pytest

from http_fixtures import CLAIM, FORCED, KEY, ORG, Api, Tenant
from store_server import api, location, server
from tenant_matrix import without_id

__all__ = ["api", "location", "server"]


def test_registering_answers_201_once_and_200_after(api: Api) -> None:
    """With a way to the secret the first time only, and the effective configuration."""
    path = f"/api/v1/orgs/{uuid.uuid4()}"
    made = api.provision("PUT", path, ORG)
    assert (made.status, made.json["status"]) == (201, "created")
    assert made.json["secret_retrieval"].keys() == {"token", "expires_at"}
    assert made.json["configuration"]["tight_mode_threshold_pct"] == 95
    again = api.provision("PUT", path, {**ORG, "org_name": "Acme & Sons"})
    assert (again.status, again.json["status"]) == (200, "updated")
    assert "secret_retrieval" not in again.json
    app = api.provision("PUT", f"{path}/apps/web", {"app_name": "Web", "session_limit": 2})
    assert (app.status, app.json["configuration"]["session_limit"]) == (201, 2)
    assert "session_limit" not in app.json["inherited_fields"]
    assert "quotas" in app.json["inherited_fields"]
    assert [one["app_id"] for one in api.pages(f"{path}/apps", "apps")] == ["web"]
    assert made.json["org_id"] in {one["org_id"] for one in api.pages("/api/v1/orgs", "orgs")}
    conflict = api.provision("PUT", path, {**ORG, "agg_shard_count": 16})
    assert (conflict.status, conflict.code) == (409, "CONFLICT")  # counters live under it


def test_a_secret_is_claimed_once(api: Api, tenant: Tenant) -> None:
    """Used, mistyped and unknown tokens are answered alike."""
    rotated = api.provision("POST", f"{tenant.app}/credentials/rotate", {"grace_period_hours": 24})
    assert (rotated.status, rotated.json["grace_period_hours"]) == (200, 24)
    claimed = api.claim(rotated)
    assert claimed.status == 200
    assert claimed.json.keys() == {"client_id", "client_secret", "old_secret_expires_at"}
    assert claimed.headers["cache-control"] == "no-store"
    token = rotated.json["secret_retrieval"]["token"]
    answers = [
        without_id(api.call("POST", CLAIM, {"token": text}))
        for text in (token, token + "x", "pkr_nonsense", "x")
    ]
    assert answers[0][0] == 404
    assert all(answer == answers[0] for answer in answers)
    for secret in ("", claimed.json["client_secret"]):
        assert tenant.try_login(secret).status == 200


def test_the_age_of_a_secret_is_told(api: Api) -> None:
    """From its claim on, of an organisation and of an app, alone and in lists."""
    tenant = Tenant(api)
    made = api.provision("PUT", tenant.org, ORG)
    assert "client_secret_created_at" not in made.json
    tenant = Tenant(api).register()
    for path, name in ((tenant.org, "orgs"), (tenant.app, "apps")):
        told = api.provision("GET", path).json["client_secret_created_at"]
        assert datetime.fromisoformat(told).tzinfo is not None
        assert abs(datetime.fromisoformat(told).timestamp() - time.time()) < 600
        body = ORG if name == "orgs" else {"app_name": "Web"}
        assert api.provision("PUT", path, body).json["client_secret_created_at"] == told
        listed = api.provision("GET", path.rpartition("/")[0]).json[name]
        ids = {one["client_id"]: one.get("client_secret_created_at") for one in listed}
        assert told in ids.values()
    rotate = api.provision("POST", f"{tenant.app}/credentials/rotate", {"grace_period_hours": 1})
    before = api.provision("GET", tenant.app).json["client_secret_created_at"]
    assert before  # until the new one is claimed, the old one is the present one
    assert api.claim(rotate).status == 200
    assert api.provision("GET", tenant.app).json["client_secret_created_at"] >= before


def test_an_override_lasts_until_it_is_cleared(api: Api, tenant: Tenant) -> None:
    """Set, seen in the selection, cleared."""
    path = f"{tenant.app}/model-override"
    assert api.provision("PUT", path, {"model_label": "economy"}).status == 200
    chosen = tenant.select(FORCED).json["recommended_model"]
    assert (chosen["label"], chosen["reason"]) == ("economy", "MANUAL_OVERRIDE")
    bad = api.provision("PUT", path, {"model_label": "unheard-of"})
    assert (bad.status, bad.code) == (400, "INVALID_MODEL_LABEL")
    assert api.provision("DELETE", path).status == 204
    assert tenant.select(FORCED).json["recommended_model"]["reason"] != "MANUAL_OVERRIDE"


def test_deleting_stops_tokens(api: Api) -> None:
    """At once on this instance; the resource is absent; a second deletion finds nothing."""
    tenant = Tenant(api).register()
    assert tenant.record().status == 202
    assert api.provision("DELETE", tenant.app).status == 204
    refused = tenant.record()
    assert (refused.status, refused.code) == (401, "UNAUTHORIZED")
    assert api.provision("GET", tenant.app).code == "NOT_FOUND"
    assert api.provision("DELETE", tenant.app).code == "NOT_FOUND"
    assert api.provision("DELETE", tenant.org).status == 204
    refused = api.call("GET", f"{tenant.org}/aggregates/today", token=tenant.org_token)
    assert (refused.status, refused.code) == (401, "UNAUTHORIZED")


def test_provisioning_needs_its_key(api: Api, tenant: Tenant) -> None:
    for key in (None, "", "wrong-key-wrong-key", KEY + "x", "é" * 16):
        headers = {} if key is None else {"x-api-key": key.encode().decode("latin-1")}
        reply = api.call("GET", tenant.org, token=tenant.org_token, headers=headers)
        assert (reply.status, reply.code) == (401, "UNAUTHORIZED")


def test_a_client_reads_its_own_settings(api: Api, tenant: Tenant) -> None:
    """As an administrator sees them, without a secret; the organisation also those of its apps."""
    org, app = f"{tenant.org}/settings", f"{tenant.app}/settings"

    def read(path: str, token: str) -> Any:
        return api.call("GET", path, token=token).json

    assert read(org, tenant.org_token) == api.provision("GET", tenant.org).json
    own = read(app, tenant.app_token)
    assert own == api.provision("GET", tenant.app).json == read(app, tenant.org_token)
    assert "timezone" in own["configuration"]
    assert own["inherited_fields"]
    assert not [name for name in own if "secret" in name and not name.endswith("_created_at")]
    assert api.call("GET", org, token=tenant.app_token).status == 403


def test_ids_are_checked_before_they_come_near_a_key(api: Api, tenant: Tenant) -> None:
    """A hash sign, a traversal, an upper-case UUID.

    Or ``apps/../credentials/rotate`` would rotate the organisation's secret.
    """
    for path in (
        "/api/v1/orgs/not-a-uuid",
        "/api/v1/orgs/550E8400-E29B-41D4-A716-446655440000",
        *(f"{tenant.org}/apps/{bad}" for bad in ("a%23b", "x" * 65, "%00", ".", "..")),
    ):
        reply = api.provision("PUT", path, ORG)
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("whole", [True, False], ids=["organisation", "app"])
def test_who_is_created_again_begins_without_an_override(api: Api, *, whole: bool) -> None:
    before = Tenant(api).register()
    before.record()
    for place in (before.org, before.app):
        body = {"model_label": "economy"}
        assert api.provision("PUT", f"{place}/model-override", body).status == 200
    if not whole:
        assert api.provision("DELETE", f"{before.org}/model-override").status == 204
    assert api.provision("DELETE", before.org if whole else before.app).status == 204

    after = Tenant(api, before.org_id)
    if whole:
        after.register()
    else:
        made = api.provision("PUT", after.app, {"app_name": "Web"})
        after.secrets[after.client_id] = api.claim(made).json["client_secret"]
        after.app_token = after.login()["access_token"]
    chosen = after.select(FORCED).json
    assert chosen["recommended_model"]["reason"] == "NORMAL"
    assert chosen["quota_status"]["spend_usd_micros"] > 0
