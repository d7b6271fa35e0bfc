"""Inheritance: what holds for an app, given its own settings and its organisation's."""

from dataclasses import replace
from typing import Any

from pricekeeper.tenants import (
    AppSettings,
    Budget,
    Client,
    Life,
    OrgSettings,
    Policy,
    QuotaEnforcement,
    RateLimit,
    Window,
)
from pricekeeper.tenants.parsing import parse_org_settings
from pricekeeper.tenants.policy import app_policy, org_policy, unregistered_policy
from pricekeeper.values import AppId, ModelLabel, OrgId
from tenants.conftest import LABELS, org_body

ORG = Client(OrgId("550e8400-e29b-41d4-a716-446655440000"))
APP = Client(ORG.org_id, AppId("api"))
ORG_LIFE = Life("o", 1, 100, 200, "og", 1)
APP_LIFE = Life("a", 1, 150, 160, "ag", 2)
PREMIUM, STANDARD, ECONOMY = map(ModelLabel, ("premium", "standard", "economy"))
ALL_INHERITED = (
    "model_ordering",
    "quotas",
    "tight_mode_threshold_pct",
    "refresh_interval_normal_secs",
    "refresh_interval_tight_secs",
    "session_limit",
    "rate_limits",
    "max_output_tokens_cap",
)


def org(**changes: Any) -> OrgSettings:
    return parse_org_settings(org_body(**changes), LABELS)


def of_app(org: OrgSettings, **own: Any) -> Policy:
    return app_policy(APP, org, ORG_LIFE, AppSettings("API", **own), APP_LIFE)


def test_an_organisation_has_its_own_settings() -> None:
    policy = org_policy(ORG, org(session_limit=9), ORG_LIFE)
    assert (policy.session_limit, policy.inherited_fields, policy.app_name) == (9, (), None)
    assert (policy.org_id, policy.app_id) == (ORG.org_id, None)
    assert (policy.created_at_epoch, policy.token_generation) == (100, "og")


def test_an_app_without_settings_inherits_everything() -> None:
    policy = of_app(org(session_limit=9))
    assert policy.session_limit == 9
    assert policy.quotas == {PREMIUM: 10_000_000, STANDARD: 5_000_000}
    assert policy.inherited_fields == ALL_INHERITED


def test_each_field_is_overridden_by_itself() -> None:
    """The one that is set is the app's, all others stay the organisation's."""
    limits = {"*": {"rpm": RateLimit(1, 1, 1)}}
    own = {
        "model_ordering": (STANDARD,),
        "quotas": {PREMIUM: 1, STANDARD: 2},
        "tight_mode_threshold_pct": 60,
        "refresh_interval_normal_secs": 10,
        "refresh_interval_tight_secs": 5,
        "session_limit": 2,
        "rate_limits": limits,
        "max_output_tokens_cap": 500,
    }
    for name, value in own.items():
        policy = of_app(org(), **{name: value})
        assert getattr(policy, name) == value
        assert policy.inherited_fields == tuple(f for f in ALL_INHERITED if f != name)
    assert of_app(org(), **own).inherited_fields == ()


def test_the_identity_and_standing_are_the_apps_own() -> None:
    """Ending the organisation's tokens does not end the app's."""
    policy = of_app(org())
    assert policy.client_id == APP.client_id
    assert (policy.token_generation, policy.tokens_valid_from_epoch_ms) == ("ag", 2)
    assert (policy.created_at_epoch, policy.updated_at_epoch) == (150, 200)


def test_under_org_scope_the_orgs_quotas_are_in_force() -> None:
    """All apps spend from one purse; an app's own quotas wait for another scope."""
    own = {PREMIUM: 1, STANDARD: 1}
    policy = of_app(org(quota_scope="ORG"), quotas=own)
    assert policy.quotas == {PREMIUM: 10_000_000, STANDARD: 5_000_000}
    assert "quotas" in policy.inherited_fields
    assert of_app(org(quota_scope="APP"), quotas=own).quotas == own


def test_the_scope_names_whose_spend_counts() -> None:
    """The organisation's under ORG scope, the app's under APP scope."""
    shared, separate = f"ORG#{ORG.org_id}", f"ORG#{ORG.org_id}#APP#api"
    assert of_app(org(quota_scope="ORG")).scope_key == shared
    assert of_app(org(quota_scope="APP")).scope_key == separate
    assert org_policy(ORG, org(quota_scope="APP"), ORG_LIFE).scope_key == shared


def test_a_later_change_of_the_org_never_leaves_a_label_without_quota() -> None:
    """The organisation's quota steps in, and zero where it has none: never no limit at all."""
    later = org(model_ordering=["premium", "economy"], quotas={"premium": 7, "economy": 8})
    assert of_app(later, quotas={PREMIUM: 1}).quotas == {PREMIUM: 1, ECONOMY: 8}
    assert of_app(later, model_ordering=(STANDARD, PREMIUM)).quotas[STANDARD] == 0


def test_the_orgs_own_rate_limits_stay_visible() -> None:
    """A limiter debits the organisation's bucket beside the app's."""
    limit = {"capacity": 1, "refill_amount": 1, "refill_period_ms": 1}
    policy = of_app(org(rate_limits={"*": {"rpm": limit}}), rate_limits={})
    assert policy.rate_limits == {}
    assert policy.org_rate_limits == {"*": {"rpm": RateLimit(1, 1, 1)}}


def test_the_budgets_of_an_app_and_of_its_organisation_are_two_lists() -> None:
    """Both hold, so neither is inherited, nor in the other's place."""
    shared, own = Budget("month", Window.MONTH, 9), Budget("day", Window.DAY, 1)
    company = replace(org(quota_scope="ORG"), budgets=(shared,))
    of_org, with_own = org_policy(ORG, company, ORG_LIFE), of_app(company, budgets=(own,))
    unregistered = unregistered_policy(APP, company, ORG_LIFE)
    assert unregistered is not None
    assert (with_own.budgets, with_own.org_budgets) == ((own,), (shared,))
    for policy in (of_org, of_app(company), of_app(company, budgets=()), unregistered):
        assert (policy.budgets, policy.org_budgets) == ((), (shared,))
    assert with_own.inherited_fields == ALL_INHERITED


def test_how_quotas_are_enforced_is_the_organisations() -> None:
    """For itself and for each of its apps; they advise unless it says otherwise."""
    assert of_app(org()).quota_enforcement is QuotaEnforcement.ADVISORY
    strict = replace(org(), quota_enforcement=QuotaEnforcement.STRICT)
    assert of_app(strict).quota_enforcement is QuotaEnforcement.STRICT
    assert org_policy(ORG, strict, ORG_LIFE).quota_enforcement is QuotaEnforcement.STRICT


def test_buckets_are_named_after_the_life() -> None:
    """Of the client itself and of its organisation; an imported client's life has no name."""
    policy = of_app(org())
    assert policy.bucket_entity == f"{APP.client_id}@a"
    assert policy.org_bucket_entity == f"{ORG.client_id}@o"
    of_org = org_policy(ORG, org(), ORG_LIFE)
    assert of_org.bucket_entity == of_org.org_bucket_entity == policy.org_bucket_entity
    imported = org_policy(ORG, org(), Life("", 0, 0, 0, "", 0))
    assert imported.bucket_entity == ORG.client_id
