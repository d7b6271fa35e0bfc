"""What a platform engineer does: register, rotate, override, delete."""

import time
import uuid
from datetime import datetime

import pytest

from http_fixtures import FORCED, KEY, ORG, Api, Tenant, usage
from store_server import api, location, server

__all__ = ["api", "location", "server"]


def test_registering_answers_201_once_and_200_after(api: Api) -> None:
    """With a way to the secret the first time only, and the effective configuration."""
    path = f"/api/v1/orgs/{uuid.uuid4()}"
    made = api.provision("PUT", path, ORG)
    assert made.status == 201
    assert made.json["status"] == "created"
    assert made.json["secret_retrieval"].keys() == {"token", "expires_at"}
    assert made.json["configuration"]["tight_mode_threshold_pct"] == 95
    again = api.provision("PUT", path, {**ORG, "org_name": "Acme & Sons"})
    assert again.status == 200
    assert again.json["status"] == "updated"
    assert "secret_retrieval" not in again.json
    app = api.provision("PUT", f"{path}/apps/web", {"app_name": "Web", "session_limit": 2})
    assert app.status == 201
    assert app.json["configuration"]["session_limit"] == 2
    assert "session_limit" not in app.json["inherited_fields"]
    assert "quotas" in app.json["inherited_fields"]
    assert [one["app_id"] for one in api.provision("GET", f"{path}/apps").json["apps"]] == ["web"]
    listed = api.provision("GET", "/api/v1/orgs").json["orgs"]
    assert made.json["org_id"] in {one["org_id"] for one in listed}


def test_every_bad_field_is_named(api: Api) -> None:
    body = {
        **ORG,
        "timezone": "Mars/Olympus",
        "quota_scope": "TEAM",
        "model_ordering": ["premium", "unheard-of"],
        "quotas": {"premium": -1},
        "agg_shard_count": 9,
        "extra": 1,
    }
    reply = api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", body)
    assert (reply.status, reply.code) == (400, "INVALID_CONFIG")
    assert {error["field"] for error in reply.json["errors"]} >= {
        *("timezone", "quota_scope", "model_ordering[1]", "quotas.premium"),
        *("agg_shard_count", "extra"),
    }
    assert reply.json["details"]["valid_labels"] == ["economy", "premium", "standard"]


def test_the_shard_count_can_not_be_changed(api: Api, tenant: Tenant) -> None:
    """Counters live under it."""
    reply = api.provision("PUT", tenant.org, {**ORG, "agg_shard_count": 16})
    assert (reply.status, reply.code) == (409, "CONFLICT")


def test_a_secret_is_claimed_once(api: Api, tenant: Tenant) -> None:
    """Used, mistyped and unknown tokens are answered alike."""
    rotated = api.provision("POST", f"{tenant.app}/credentials/rotate", {"grace_period_hours": 24})
    assert rotated.status == 200
    assert rotated.json["grace_period_hours"] == 24
    token = {"token": rotated.json["secret_retrieval"]["token"]}
    claimed = api.call("POST", "/api/v1/credentials/claim", token)
    assert claimed.status == 200
    assert claimed.json.keys() == {"client_id", "client_secret", "old_secret_expires_at"}
    assert claimed.headers["cache-control"] == "no-store"
    refusals = [
        api.call("POST", "/api/v1/credentials/claim", {"token": text})
        for text in (token["token"], token["token"] + "x", "pkr_nonsense", "x")
    ]
    assert {reply.status for reply in refusals} == {404}
    bodies = {reply.data.replace(reply.json["request_id"].encode(), b"") for reply in refusals}
    assert len(bodies) == 1
    assert tenant.login()["token_type"] == "Bearer"
    tenant.secrets[tenant.client_id] = claimed.json["client_secret"]
    assert tenant.login()["token_type"] == "Bearer"


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
    claim = {"token": rotate.json["secret_retrieval"]["token"]}
    assert api.call("POST", "/api/v1/credentials/claim", claim).status == 200
    assert api.provision("GET", tenant.app).json["client_secret_created_at"] >= before


def test_an_override_lasts_until_it_is_cleared(api: Api, tenant: Tenant) -> None:
    """Set, seen in the selection, cleared."""
    path = f"{tenant.app}/model-override"
    put = api.provision("PUT", path, {"model_label": "economy"})
    assert put.status == 200
    chosen = tenant.select(FORCED)
    assert chosen.json["recommended_model"]["label"] == "economy"
    assert chosen.json["recommended_model"]["reason"] == "MANUAL_OVERRIDE"
    bad = api.provision("PUT", path, {"model_label": "unheard-of"})
    assert (bad.status, bad.code) == (400, "INVALID_MODEL_LABEL")
    assert api.provision("DELETE", path).status == 204
    chosen = tenant.select(FORCED)
    assert chosen.json["recommended_model"]["reason"] != "MANUAL_OVERRIDE"


def test_deleting_stops_tokens(api: Api) -> None:
    """At once on this instance; the resource is absent; a second deletion finds nothing."""
    tenant = Tenant(api).register()
    record = usage()
    assert tenant.record(record).status == 202
    assert api.provision("DELETE", tenant.app).status == 204
    refused = tenant.record()
    assert (refused.status, refused.code) == (401, "UNAUTHORIZED")
    assert api.provision("GET", tenant.app).code == "NOT_FOUND"
    assert api.provision("DELETE", tenant.app).code == "NOT_FOUND"
    assert api.provision("DELETE", tenant.org).status == 204
    refused = api.call("GET", f"{tenant.org}/aggregates/today", token=tenant.org_token)
    assert (refused.status, refused.code) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("key", [None, "", "wrong-key-wrong-key", KEY + "x", "é" * 16])
def test_provisioning_needs_its_key(api: Api, tenant: Tenant, key: str | None) -> None:
    headers = {} if key is None else {"x-api-key": key.encode().decode("latin-1")}
    reply = api.call("GET", tenant.org, token=tenant.org_token, headers=headers)
    assert (reply.status, reply.code) == (401, "UNAUTHORIZED")


def test_a_client_reads_its_own_settings(api: Api, tenant: Tenant) -> None:
    """As an administrator sees them, without a secret; the organisation also those of its apps."""
    org, app = f"{tenant.org}/settings", f"{tenant.app}/settings"
    assert (
        api.call("GET", org, token=tenant.org_token).json == api.provision("GET", tenant.org).json
    )
    own = api.call("GET", app, token=tenant.app_token).json
    assert (
        own
        == api.provision("GET", tenant.app).json
        == api.call("GET", app, token=tenant.org_token).json
    )
    assert "timezone" in own["configuration"]
    assert own["inherited_fields"]
    assert not [name for name in own if "secret" in name and not name.endswith("_created_at")]
    assert api.call("GET", org, token=tenant.app_token).status == 403
    other = Tenant(api).register()
    for path in (f"{other.org}/settings", f"{other.app}/settings"):
        assert api.call("GET", path, token=tenant.org_token).status == 404


def test_ids_are_checked_before_they_come_near_a_key(api: Api) -> None:
    """A hash sign, a traversal, an upper-case UUID."""
    for path in (
        "/api/v1/orgs/not-a-uuid",
        "/api/v1/orgs/550E8400-E29B-41D4-A716-446655440000",
        f"/api/v1/orgs/{uuid.uuid4()}/apps/a%23b",
        f"/api/v1/orgs/{uuid.uuid4()}/apps/{'x' * 65}",
        f"/api/v1/orgs/{uuid.uuid4()}/apps/%00",
    ):
        reply = api.provision("GET", path)
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
        claim = {"token": made.json["secret_retrieval"]["token"]}
        claimed = api.call("POST", "/api/v1/credentials/claim", claim).json
        after.secrets[claimed["client_id"]] = claimed["client_secret"]
        after.app_token = after.login()["access_token"]
    path = f"{after.app}/model-selection?force_check=true"
    chosen = api.call("GET", path, token=after.app_token).json
    assert chosen["recommended_model"]["reason"] == "NORMAL"
    assert chosen["quota_status"]["spend_usd_micros"] > 0


@pytest.mark.parametrize("app_id", [".", ".."])
def test_a_name_that_clients_take_out_of_a_path_is_no_name(
    api: Api, tenant: Tenant, app_id: str
) -> None:
    """Or ``apps/../credentials/rotate`` would rotate the organisation's secret."""
    reply = api.provision("PUT", f"{tenant.org}/apps/{app_id}", {"app_name": "Dots"})
    assert (reply.status, reply.json["errors"][0]["field"]) == (400, "app_id")
