"""An organisation acts for an app that is not registered, where they share its quotas."""

import uuid

import pytest

from http_fixtures import ORG, Api, Tenant, usage

SHARED = {**ORG, "quota_scope": "ORG"}


@pytest.fixture(scope="module")
def shared(api: Api) -> Tenant:
    """A tenant whose apps spend from its organisation's quotas."""
    tenant = Tenant(api).register()
    assert api.provision("PUT", tenant.org, SHARED).status == 200
    return tenant


def test_the_organisations_token_does_everything_for_it(api: Api, shared: Tenant) -> None:
    """Choose, take, settle, record and read, with the organisation's settings throughout."""
    token, app = shared.org_token, f"{shared.org}/apps/nightly"
    chosen = api.call("GET", f"{app}/model-selection", token=token)
    assert chosen.json["recommended_model"]["label"] == "premium"
    assert chosen.json["quota_status"]["scope"] == "ORG"
    lease = {"resource": "premium", "consume": {"rpm": 2}}
    taken = api.call("POST", f"{app}/limits/acquire", lease, token=token)
    assert taken.status == 200, taken.data
    assert taken.json["limits"]["rpm"]["capacity"] == 10
    path = f"{app}/leases/{taken.json['lease_id']}"
    settle = {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": -1}}
    assert api.call("POST", f"{path}/adjust", settle, token=token).status == 200
    assert api.call("POST", f"{path}/release", token=token).status == 204
    assert api.call("POST", f"{app}/usage", usage(), token=token).json["status"] == "accepted"
    batch = {"requests": [usage(), usage()]}
    assert api.call("POST", f"{app}/usage/batch", batch, token=token).json["accepted"] == 2
    assert api.call("GET", f"{app}/limits", token=token).status == 200
    assert api.call("GET", f"{app}/aggregates/today", token=token).json["app_id"] == "nightly"


def test_what_it_spends_is_its_organisations(api: Api) -> None:
    tenant = Tenant(api).register()
    assert api.provision("PUT", tenant.org, SHARED).status == 200
    body = usage(input_tokens=0, output_tokens=0)
    for name in ("a", "b", "c", "web"):
        dear = {**body, "request_id": str(uuid.uuid4()), "output_tokens": 30_000}
        path = f"{tenant.org}/apps/{name}/usage"
        assert api.call("POST", path, dear, token=tenant.org_token).status == 202
    path = "model-selection?force_check=true"
    chosen = [
        api.call("GET", f"{tenant.org}/apps/{name}/{path}", token=tenant.org_token).json
        for name in ("a", "web", "never-seen")
    ]
    spent = {answer["quota_status"]["models_status"]["premium"]["spend_usd_micros"]
             for answer in chosen}  # fmt: skip
    assert len(spent) == 1
    assert spent.pop() > ORG["quotas"]["premium"]
    assert {answer["recommended_model"]["label"] for answer in chosen} == {"standard"}


def test_nobody_else_acts_for_it(api: Api, shared: Tenant, other: Tenant) -> None:
    """Not another app of the organisation, not another organisation, and it has no secret."""
    path = f"{shared.org}/apps/nightly/limits"
    for token in (shared.app_token, other.org_token, other.app_token):
        assert api.call("GET", path, token=token).code == "NOT_FOUND"
    secret = shared.secrets[f"org-{shared.org_id}"]
    login = shared.credentials(secret, client_id=f"org-{shared.org_id}-app-nightly")
    assert api.call("POST", "/auth/token", login).status == 401


def test_it_is_not_there_for_who_provisions(api: Api, shared: Tenant) -> None:
    """There is nothing to read, to delete or to override: it has to be registered for that."""
    path = f"{shared.org}/apps/nightly"
    for method, rest, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("PUT", "/model-override", {"model_label": "economy"}),
        ("POST", "/credentials/rotate", {"grace_period_hours": 0}),
    ):
        assert api.provision(method, f"{path}{rest}", body).code == "NOT_FOUND"


def test_under_app_scope_it_does_not_exist(api: Api, tenant: Tenant) -> None:
    """Each made-up name would have quotas of its own."""
    for rest in ("/limits", "/model-selection", "/aggregates/today"):
        path = f"{tenant.org}/apps/nightly{rest}"
        assert api.call("GET", path, token=tenant.org_token).code == "NOT_FOUND"
    path = f"{tenant.org}/apps/nightly/usage"
    assert api.call("POST", path, usage(), token=tenant.org_token).code == "NOT_FOUND"


def test_a_deleted_apps_tokens_stay_dead(api: Api) -> None:
    tenant = Tenant(api).register()
    assert api.provision("PUT", tenant.org, SHARED).status == 200
    path = f"{tenant.app}/limits"
    assert api.call("GET", path, token=tenant.app_token).status == 200
    assert api.provision("DELETE", tenant.app).status == 204
    assert api.call("GET", path, token=tenant.org_token).status == 200
    assert api.call("GET", path, token=tenant.app_token).status == 401
    assert api.provision("PUT", tenant.app, {"app_name": "Again"}).status == 201
    assert api.call("GET", path, token=tenant.org_token).status == 200
    assert api.call("GET", path, token=tenant.app_token).status == 401
