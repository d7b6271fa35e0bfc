"""Administrators of an organisation may lower a bound that was set from above, never raise it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import ORG, Api, Reply, Tenant, usage
from served import served
from serving import Server

BUDGET = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 1_000_000}
PER_TEAM = {"name": "per-team", "window": "DAY", "limit_usd_micros": 5_000, "per_tag": "team"}
NOTICE = {"name": "notice", "window": "DAY", "limit_usd_micros": 1_000, "enforcement": "SOFT"}
SETTINGS: dict[str, Any] = {
    **ORG,
    "quota_scope": "ORG",
    "quota_enforcement": "STRICT",
    "tag_keys": ["team"],
    "budgets": [BUDGET, PER_TEAM, NOTICE],
    "max_output_tokens_cap": 1_000,
}
QUOTAS: dict[str, int] = ORG["quotas"]
RAISED: dict[str, dict[str, Any]] = {
    "a limit": {"budgets": [{**BUDGET, "limit_usd_micros": 1_000_001}, PER_TEAM]},
    "no budget of that name": {"budgets": [PER_TEAM]},
    "no budgets": {"budgets": None},
    "another name": {"budgets": [{**BUDGET, "name": "yearly"}, PER_TEAM]},
    "a soft one": {"budgets": [{**BUDGET, "enforcement": "SOFT"}, PER_TEAM]},
    "a shorter window": {"budgets": [{**BUDGET, "window": "WEEK"}, PER_TEAM]},
    "for some labels": {"budgets": [{**BUDGET, "labels": ["premium"]}, PER_TEAM]},
    "for each tag value": {"budgets": [{**BUDGET, "per_tag": "team"}, PER_TEAM]},
    "for no tag": {"budgets": [BUDGET, {**PER_TEAM, "per_tag": None}]},
    "a quota": {"quotas": {**QUOTAS, "premium": QUOTAS["premium"] + 1}},
    "no quota": {"quotas": {"premium": 1, "standard": None, "economy": 1},
                 "model_ordering": ["premium", "economy"]},
    "advice only": {"quota_enforcement": "ADVISORY"},
    "no enforcement": {"quota_enforcement": None},
    "a quota for each app": {"quota_scope": "APP"},
    "another day": {"timezone": "Pacific/Kiritimati"},
}  # fmt: skip
KEPT: dict[str, dict[str, Any]] = {
    "a lower limit": {"budgets": [{**BUDGET, "limit_usd_micros": 999_999}, PER_TEAM, NOTICE]},
    "one more budget": {"budgets": [BUDGET, PER_TEAM, {**BUDGET, "name": "mine"}]},
    "no notice": {"budgets": [BUDGET, PER_TEAM]},
    "a louder one": {"budgets": [PER_TEAM, {**BUDGET, "alert_at_pct": [50]}]},
    "a lower quota": {"quotas": {**QUOTAS, "premium": 0}},
    "another order": {"model_ordering": ["economy", "premium"]},
    "a name": {"org_name": "Another"},
    "a longer answer": {"max_output_tokens_cap": 2_000},
    "an answer of any length": {"max_output_tokens_cap": None},
}


@dataclass
class Managed:
    """An organisation with budgets from above, and a key of its own administrators."""

    tenant: Tenant
    key: str

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        return self.tenant.api.call(method, path, body, key=self.key)

    def settings(self) -> Any:
        return self.tenant.api.provision("GET", self.tenant.org).json["configuration"]


def manage(api: Api, kind: str) -> Managed:
    tenant = Tenant(api).register()
    assert api.provision("PUT", tenant.org, SETTINGS).status == 200
    if kind == "own key":
        return Managed(tenant, tenant.issue_key())
    body = {"name": "an administrator", "role": kind, "org_ids": [tenant.org_id]}
    return Managed(tenant, api.provision("POST", "/api/v1/admin-keys", body).json["key"])


@pytest.fixture(scope="module")
def api(sqlite_server: Server) -> Api:
    """What is raised is decided before the store is asked, so one store is enough."""
    return Api(sqlite_server.url)


@pytest.fixture(scope="module", params=["own key", "ADMIN"])
def managed(api: Api, request: pytest.FixtureRequest) -> Managed:
    return manage(api, request.param)


@pytest.fixture
def restored(managed: Managed) -> Managed:
    tenant = managed.tenant
    assert tenant.api.provision("PUT", tenant.org, SETTINGS).status == 200
    return managed


def put_body(change: dict[str, Any]) -> dict[str, Any]:
    """The change as a PUT has it: a null in the quotas is not there."""
    body = {**SETTINGS, **change}
    body["quotas"] = {label: quota for label, quota in body["quotas"].items() if quota is not None}
    return body


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("name", RAISED)
def test_what_was_set_above_is_not_raised(restored: Managed, name: str, method: str) -> None:
    """Neither a hard budget nor a quota, by none of the ways in which settings change."""
    change, before = RAISED[name], restored.settings()
    body = change if method == "PATCH" else put_body(change)
    refused = restored.ask(method, restored.tenant.org, body)
    assert (refused.status, refused.code) == (403, "FORBIDDEN"), refused.data
    assert "PRICEKEEPER_ORG_ADMINS_SET_BUDGETS" in refused.json["detail"]
    assert any(field.split(".")[0] in refused.json["detail"] for field in change)
    assert restored.settings() == before
    done = restored.tenant.api.provision(method, restored.tenant.org, body)
    assert done.status == 200, done.data


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("name", KEPT)
def test_what_is_lower_is_theirs(restored: Managed, name: str, method: str) -> None:
    """So is all that concerns no money, and what is tighter than it was."""
    body = KEPT[name] if method == "PATCH" else put_body(KEPT[name])
    done = restored.ask(method, restored.tenant.org, body)
    assert done.status == 200, done.data


def test_their_apps_budgets_are_theirs(restored: Managed) -> None:
    """What an app may spend inside of the organisation's budgets; raised, lowered, and removed."""
    app = restored.tenant.app
    for budgets in ([BUDGET], [{**BUDGET, "limit_usd_micros": 2_000_000}], None):
        assert restored.ask("PATCH", app, {"budgets": budgets}).status == 200
    assert restored.ask("DELETE", app).status == 204
    assert restored.ask("PUT", app, {"app_name": "Web"}).status == 201


def test_an_organisation_that_was_deleted_is_not_made_again_with_more(api: Api) -> None:
    """A deletion ends its budgets, so only a key for all organisations creates one."""
    managed = manage(api, "ADMIN")
    assert managed.ask("DELETE", managed.tenant.org).status == 204
    again = managed.ask("PUT", managed.tenant.org, SETTINGS)
    assert (again.status, again.code) == (403, "FORBIDDEN")
    assert api.provision("PUT", managed.tenant.org, SETTINGS).status == 201


@pytest.mark.parametrize("kind", ["own key", "OPERATOR", "ADMIN"])
def test_a_freeze_from_above_is_kept(api: Api, kind: str) -> None:
    """It is not lifted, given another reason, or left behind by a deletion."""
    managed = manage(api, kind)
    for frozen in (managed.tenant.app, managed.tenant.org):
        path = f"{frozen}/freeze"
        assert api.provision("PUT", path, {"reason": "overspent"}).status == 200
        tries = [managed.ask("DELETE", path), managed.ask("PUT", path, {"reason": "mine"})]
        if kind != "OPERATOR":
            tries += [managed.ask("DELETE", one) for one in (managed.tenant.app, frozen)]
        for refused in tries:
            assert (refused.status, refused.code) == (403, "FORBIDDEN")
            assert "ask them to lift it" in refused.json["detail"]
        assert api.provision("DELETE", path).status == 204
        assert managed.ask("PUT", path, {"reason": "mine"}).status == 200
        assert managed.ask("DELETE", path).status == 204


def test_what_counts_against_a_budget_from_above_is_not_voided(api: Api) -> None:
    """A record that is voided gives its money back to the budget."""
    managed = manage(api, "OPERATOR")
    sent, tenant = usage(), managed.tenant
    assert tenant.record(sent).status == 202
    path, body = f"{tenant.org}/usage/{sent['request_id']}/void", {"reason": "mine"}
    refused = managed.ask("POST", path, body)
    assert (refused.status, refused.code) == (403, "FORBIDDEN")
    assert api.provision("POST", path, body).status == 200


def test_an_override_and_full_buckets_do_not_get_past_a_budget(api: Api) -> None:
    """Both are an OPERATOR's; what is spent stays bounded by the budget from above."""
    managed = manage(api, "OPERATOR")
    tenant = managed.tenant
    spent = {"budgets": [{**BUDGET, "limit_usd_micros": 0}], "quota_enforcement": "ADVISORY"}
    assert api.provision("PATCH", tenant.org, spent).status == 200
    override = managed.ask("PUT", f"{tenant.app}/model-override", {"model_label": "premium"})
    assert override.status == 200, override.data
    assert managed.ask("POST", f"{tenant.org}/limits/reset", {"reason": "mine"}).status == 200
    body = {"input_tokens": 1000, "max_output_tokens": 500}
    denied = tenant.ask("POST", "authorizations", body)
    assert denied.status == 429, denied.data
    assert b"monthly" in denied.data


def test_a_deployment_can_leave_budgets_to_its_organisations(tmp_path: Path) -> None:
    """Then their administrators raise and remove them. A freeze from above stays above."""
    with served(tmp_path, {"PRICEKEEPER_ORG_ADMINS_SET_BUDGETS": "1"}) as api:
        for kind in ("own key", "ADMIN"):
            managed = manage(api, kind)
            org = managed.tenant.org
            for change in RAISED.values():
                assert api.provision("PUT", org, SETTINGS).status == 200
                done = managed.ask("PATCH", org, change)
                assert done.status == 200, done.data
            assert api.provision("PUT", f"{org}/freeze", {"reason": "overspent"}).status == 200
            assert managed.ask("DELETE", f"{org}/freeze").status == 403
            assert api.provision("DELETE", f"{org}/freeze").status == 204
        assert managed.ask("DELETE", org).status == 204
        assert managed.ask("PUT", org, SETTINGS).status == 201
