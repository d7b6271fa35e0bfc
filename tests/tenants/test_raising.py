"""What a change of settings raises: decided without a store."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution import BY
from pricekeeper.authority import Attribution, Authority, KeyKind, Role, of_org, only
from pricekeeper.errors import NotPermittedError
from pricekeeper.tenants import Budget
from pricekeeper.tenants.budget_rule import BudgetRule
from pricekeeper.tenants.configuration import (
    Enforcement,
    OrgSettings,
    QuotaEnforcement,
    QuotaScope,
    Window,
)
from pricekeeper.values import ModelLabel
from tenants.conftest import new_org_id

LABELS = tuple(map(ModelLabel, ("economy", "premium")))
LIMITS = st.integers(0, 3)
BUDGETS = st.builds(
    Budget,
    name=st.sampled_from(["monthly", "weekly"]),
    window=st.sampled_from([Window.DAY, Window.WEEK]),
    limit_usd_micros=LIMITS,
    labels=st.sampled_from([(), LABELS, LABELS[::-1], LABELS[:1]]),
    per_tag=st.sampled_from([None, "team"]),
    enforcement=st.sampled_from(Enforcement),
)
SETTINGS = st.builds(
    OrgSettings,
    org_name=st.just("Acme"),
    timezone=st.sampled_from(["UTC", "Europe/Berlin"]),
    quota_scope=st.sampled_from(QuotaScope),
    model_ordering=st.just(LABELS),
    quotas=st.fixed_dictionaries({}, optional=dict.fromkeys(LABELS, LIMITS)),
    tag_keys=st.just(("team",)),
    budgets=st.lists(BUDGETS, max_size=2, unique_by=lambda budget: budget.name).map(tuple),
    quota_enforcement=st.sampled_from(QuotaEnforcement),
)
ORG = new_org_id()
THEIRS = (of_org(ORG), Authority(KeyKind.ADMIN_KEY, Role.ADMIN, only(ORG)), None)


def denies(settings: OrgSettings) -> dict[Any, int]:
    """Every hard limit by what it counts; what has none is not there."""
    found: dict[Any, int] = {
        (one.name, one.window, frozenset(one.labels), one.per_tag): one.limit_usd_micros
        for one in settings.budgets
        if one.enforcement is Enforcement.HARD
    }
    kind = settings.quota_enforcement
    found |= {("quota", label): quota for label, quota in settings.quotas.items()}
    found |= {("strict",): 0} if kind is QuotaEnforcement.STRICT else {}
    return found | {("zone", settings.timezone): 0, ("scope", settings.quota_scope): 0}


def may(by: Attribution, before: OrgSettings | None, after: OrgSettings) -> bool:
    try:
        BudgetRule().require_kept(before, after, by)
    except NotPermittedError:
        return False
    return True


@given(before=SETTINGS, after=SETTINGS)
def test_what_they_may_change_holds_every_limit_that_held(
    before: OrgSettings, after: OrgSettings
) -> None:
    """The same limits, of the same accounts, none of them higher; further budgets are fine."""
    held, holds = denies(before), denies(after)
    is_kept = all(name in holds and holds[name] <= limit for name, limit in held.items())
    is_kept = is_kept and before.quotas.keys() == after.quotas.keys()
    for authority in THEIRS:
        assert may(replace(BY, authority=authority), before, after) == is_kept
    assert may(BY, before, after)


@pytest.mark.parametrize("authority", THEIRS)
def test_the_first_settings_are_set_above(authority: Authority | None) -> None:
    """So an organisation that was deleted does not come back with other budgets."""
    settings = OrgSettings("Acme", "UTC", QuotaScope.ORG, LABELS, dict.fromkeys(LABELS, 1))
    by = replace(BY, authority=authority)
    assert not may(by, None, settings)
    assert may(BY, None, settings)
    BudgetRule(orgs_set_budgets=True).require_kept(None, settings, by)
