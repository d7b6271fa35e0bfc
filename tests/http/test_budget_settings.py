"""Budgets of organisations and apps over a socket: put, shown, refused by name, described."""

import uuid
from typing import Any

import pytest

from http_fixtures import ORG, Api, Tenant

MONTHLY = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 200_000_000}
MONTHLY_SHOWN = {
    **MONTHLY,
    "labels": None,
    "per_tag": None,
    "enforcement": "HARD",
    "alert_at_pct": [],
}
PER_TEAM = {
    "name": "per-team",
    "window": "WEEK",
    "limit_usd_micros": 0,
    "labels": ["standard", "premium"],
    "per_tag": "team",
    "enforcement": "SOFT",
    "alert_at_pct": [50, 80],
}
SETTINGS = {**ORG, "tag_keys": ["team"], "budgets": [MONTHLY, PER_TEAM]}


@pytest.fixture
def org(api: Api) -> str:
    """The path of an organisation without budgets."""
    path = f"/api/v1/orgs/{uuid.uuid4()}"
    assert api.provision("PUT", path, {**ORG, "tag_keys": ["team"]}).status == 201
    return path


def configuration(api: Api, path: str) -> dict[str, Any]:
    found: dict[str, Any] = api.provision("GET", path).json["configuration"]
    return found


def test_what_was_put_is_shown_with_every_field(api: Api, org: str) -> None:
    """In the answer itself, alone and in lists, and all of it can be put again."""
    before = configuration(api, org)
    assert (before["budgets"], before["quota_enforcement"]) == ([], "ADVISORY")
    put = api.provision("PUT", org, {**SETTINGS, "quota_enforcement": "STRICT"})
    shown = put.json["configuration"]
    assert shown["budgets"] == [MONTHLY_SHOWN, PER_TEAM]
    assert shown["quota_enforcement"] == "STRICT"
    assert configuration(api, org) == shown
    again = api.provision("PUT", org, {"org_name": "Acme", **shown})
    assert (again.status, again.json["configuration"]) == (200, shown)


def test_an_app_shows_its_own_budgets(api: Api, org: str) -> None:
    api.provision("PUT", org, {**SETTINGS, "quota_enforcement": "STRICT"})
    path = f"{org}/apps/web"
    own = {**PER_TEAM, "name": "mine"}
    made = api.provision("PUT", path, {"app_name": "Web", "budgets": [own]})
    assert (made.status, made.json["configuration"]["budgets"]) == (201, [own])
    assert configuration(api, path) == made.json["configuration"]
    assert made.json["configuration"]["quota_enforcement"] == "STRICT"
    assert "budgets" not in made.json["inherited_fields"]
    (listed,) = api.provision("GET", f"{org}/apps").json["apps"]
    assert listed["configuration"]["budgets"] == [own]
    assert configuration(api, org)["budgets"] == [MONTHLY_SHOWN, PER_TEAM]
    without = api.provision("PUT", path, {"app_name": "Web"}).json
    assert without["configuration"]["budgets"] == configuration(api, path)["budgets"] == []
    assert "budgets" not in without["inherited_fields"]


REFUSED: dict[str, dict[str, Any]] = {
    "name": {"name": "quota-premium"},
    "window": {"window": "YEAR"},
    "limit_usd_micros": {"limit_usd_micros": 10**15 + 1},
    "labels[1]": {"labels": ["premium", "premium"]},
    "labels[0]": {"labels": ["gold"]},
    "per_tag": {"per_tag": "user"},
    "enforcement": {"enforcement": "NONE"},
    "alert_at_pct[1]": {"alert_at_pct": [80, 201]},
    "colour": {"colour": "red"},
}


def test_every_mistake_is_named_and_changes_nothing(api: Api, tenant: Tenant) -> None:
    """Of an organisation and of an app, all at once."""
    own = {"app_name": "Web", "budgets": [PER_TEAM]}
    bad = [{**MONTHLY, "name": f"b{number}", **one} for number, one in enumerate(REFUSED.values())]
    for path, body in ((tenant.org, SETTINGS), (tenant.app, own)):
        assert api.provision("PUT", path, body).status == 200
        before = api.provision("GET", path).json
        reply = api.provision("PUT", path, {**body, "session_limit": 9, "budgets": bad})
        assert (reply.status, reply.code) == (400, "INVALID_CONFIG")
        named = [f"budgets[{number}].{field}" for number, field in enumerate(REFUSED)]
        assert sorted(error["field"] for error in reply.json["errors"]) == named
        assert all(error["message"] for error in reply.json["errors"])
        for budgets, field in (
            ([{**MONTHLY, "name": f"b{n}"} for n in range(17)], "budgets"),
            ([MONTHLY, MONTHLY], "budgets[1].name"),
        ):
            reply = api.provision("PUT", path, {**body, "budgets": budgets})
            assert [error["field"] for error in reply.json["errors"]] == [field]
        assert api.provision("GET", path).json == before


def test_a_tag_that_a_budget_needs_can_not_be_removed(api: Api, org: str) -> None:
    """Whether the tags are others then, or none."""
    assert api.provision("PUT", org, SETTINGS).status == 200
    for tag_keys in ([], ["user"], None):
        reply = api.provision("PUT", org, {**SETTINGS, "tag_keys": tag_keys})
        assert [error["field"] for error in reply.json["errors"]] == ["budgets[1].per_tag"]
    assert configuration(api, org)["tag_keys"] == ["team"]


def test_the_document_describes_them(api: Api) -> None:
    """With every field and its values, for organisations and apps, in requests and answers."""
    schemas = api.call("GET", "/openapi.json").json["components"]["schemas"]
    budget = schemas["BudgetBody"]
    assert budget["required"] == list(MONTHLY)
    assert list(budget["properties"]) == list(PER_TEAM)
    assert budget["additionalProperties"] is False
    assert budget["properties"]["name"]["pattern"] == "^(?!quota-)[a-z0-9-]{1,32}$"
    for name in ("OrgBody", "AppBody", "Configuration"):
        assert "BudgetBody" in str(schemas[name]["properties"]["budgets"])
    assert "STRICT" in str(schemas["OrgBody"]["properties"]["quota_enforcement"])
    assert "quota_enforcement" not in schemas["AppBody"]["properties"]
