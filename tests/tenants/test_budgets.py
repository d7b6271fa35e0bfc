"""Budgets as settings: what is accepted, what is refused by name, and what the store keeps."""

from typing import Any

import pytest

from attribution import BY
from pricekeeper.errors import InvalidConfigError, UnreadableItemError
from pricekeeper.storage import Key, Set, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import (
    Budget,
    Client,
    Enforcement,
    QuotaEnforcement,
    Tenants,
    Window,
)
from pricekeeper.tenants.parsing import parse_app_settings
from pricekeeper.tenants.stored_settings import org_settings
from pricekeeper.values import ModelLabel, OrgId
from stores import stored
from tenants.conftest import APP, LABELS, app_body, app_refused, org, org_body, org_refused

MONTHLY = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 200_000_000}
FULL = {
    "name": "teams",
    "window": "HOUR",
    "limit_usd_micros": 0,
    "labels": ["standard", "premium"],
    "per_tag": "team",
    "enforcement": "SOFT",
    "alert_at_pct": [100, 50, 100, 80],
}
FULL_VALUE = Budget(
    "teams",
    Window.HOUR,
    0,
    (ModelLabel("standard"), ModelLabel("premium")),
    "team",
    Enforcement.SOFT,
    (50, 80, 100),
)


def refused(*budgets: Any, **changes: Any) -> dict[str, str]:
    """What is said of each field when an organisation with these budgets is refused."""
    return org_refused(budgets=list(budgets), **changes)


class TestParsing:
    def test_a_budget_has_the_defaults_of_the_contract(self) -> None:
        """Hard, on all labels, of everybody, and without alerts."""
        assert org(budgets=[MONTHLY]).budgets == (
            Budget("monthly", Window.MONTH, 200_000_000, (), None, Enforcement.HARD, ()),
        )

    def test_every_field_is_kept_and_alerts_rise(self) -> None:
        """An alert that is named twice is one."""
        assert org(budgets=[FULL], tag_keys=["team"]).budgets == (FULL_VALUE,)

    def test_null_is_the_same_as_not_given(self) -> None:
        """In a budget, too: so an answer can be put again."""
        nulls = dict.fromkeys(("labels", "per_tag", "enforcement", "alert_at_pct"))
        assert org(budgets=[{**MONTHLY, **nulls}]) == org(budgets=[MONTHLY])
        assert org(budgets=None, quota_enforcement=None) == org(budgets=[])
        assert org().quota_enforcement is QuotaEnforcement.ADVISORY

    def test_quotas_can_be_strict(self) -> None:
        """One of two words, of the organisation alone."""
        assert org(quota_enforcement="STRICT").quota_enforcement is QuotaEnforcement.STRICT
        for bad in ("HARD", "strict", True, ["STRICT"]):
            assert refused(quota_enforcement=bad) == {
                "quota_enforcement": "must be one of ADVISORY, STRICT"
            }
        assert app_refused(org(), quota_enforcement="STRICT") == {"quota_enforcement"}

    @pytest.mark.parametrize(
        ("field", "good"),
        [
            ("name", ["a", "0", "-", "x" * 32, "quota", "quotas-2", "my-quota-x"]),
            ("window", ["HOUR", "DAY", "WEEK", "MONTH"]),
            ("limit_usd_micros", [0, 10**15]),
            ("labels", [["economy"]]),
            ("enforcement", ["HARD", "SOFT"]),
            ("alert_at_pct", [[], [1, 200], list(range(1, 17))]),
        ],
    )
    def test_the_ends_of_every_range_are_inside(self, field: str, good: list[Any]) -> None:
        """What the contract allows is allowed to the last value."""
        for value in good:
            org(budgets=[{**MONTHLY, field: value}])

    @pytest.mark.parametrize(
        ("field", "bad"),
        [
            ("name", ["", "x" * 33, "Monthly", "a b", "a#b", "a\n", "quota-x", "\ud800", 5, None]),
            ("window", ["YEAR", "month", "", 1, None, ["DAY"]]),
            ("limit_usd_micros", [-1, 10**15 + 1, 1.0, "1", True, None]),
            ("labels", [[], "premium", ["premium"] * 65, {"premium": 1}]),
            ("per_tag", ["project", "", "a#b", "\ud800", 1, ["team"]]),
            ("enforcement", ["hard", "STRICT", True, 1]),
            ("alert_at_pct", [list(range(1, 18)), 80, "80", {"80": 1}]),
            ("colour", ["red"]),
        ],
    )
    def test_what_is_outside_is_refused_by_name(self, field: str, bad: list[Any]) -> None:
        """The second budget's field, and no other one is blamed."""
        for value in bad:
            other = {**MONTHLY, "name": "other", field: value}
            assert refused(MONTHLY, other, tag_keys=["team"]).keys() == {f"budgets[1].{field}"}, (
                value
            )

    @pytest.mark.parametrize("field", MONTHLY)
    def test_what_is_required_is_asked_for(self, field: str) -> None:
        """A budget without a limit would be none."""
        less = {name: value for name, value in MONTHLY.items() if name != field}
        assert refused(less).keys() == {f"budgets[0].{field}"}

    @pytest.mark.parametrize(
        ("budget", "fields"),
        [
            ({"labels": ["premium", "gold"]}, {"labels[1]"}),
            ({"labels": ["premium", "premium", 3]}, {"labels[1]", "labels[2]"}),
            ({"alert_at_pct": [0, 1, 201, 80.5]}, {f"alert_at_pct[{n}]" for n in (0, 2, 3)}),
            ({"window": "YEAR", "name": "", "x": 1}, {"window", "name", "x"}),
        ],
    )
    def test_a_bad_part_is_named_by_its_path(self, budget: Any, fields: set[str]) -> None:
        found = refused({**MONTHLY, **budget})
        assert found.keys() == {f"budgets[0].{field}" for field in fields}

    def test_a_list_of_budgets_has_sixteen_of_different_names(self) -> None:
        """Under its name the spend of each one is counted."""
        many = [{**MONTHLY, "name": f"b{n}"} for n in range(17)]
        assert len(org(budgets=many[:16]).budgets) == 16
        assert refused(*many) == {"budgets": "must be a list of at most 16 budgets"}
        assert refused(MONTHLY, many[0], MONTHLY) == {
            "budgets[2].name": "names monthly a second time"
        }
        not_lists: tuple[Any, ...] = ({}, "monthly", 1)
        for bad in not_lists:
            assert org_refused(budgets=bad).keys() == {"budgets"}
        for no_budget in ("monthly", 5, None, [MONTHLY]):
            (message,) = refused(no_budget).values()
            assert message.startswith("must be an object of name, window, limit_usd_micros, ")

    def test_an_unknown_label_tells_the_known_ones(self) -> None:
        with pytest.raises(InvalidConfigError) as refusal:
            org(budgets=[{**MONTHLY, "labels": ["gold"]}])
        assert refusal.value.details == {"valid_labels": ["economy", "premium", "standard"]}

    def test_a_tag_has_to_be_declared(self) -> None:
        """By the organisation in the same settings; the message tells those that are."""
        per_team = {**MONTHLY, "per_tag": "team"}
        field = "budgets[0].per_tag"
        assert refused(per_team, tag_keys=["project", "user"]) == {
            field: "must be one of the organisation's tag_keys: project, user"
        }
        assert refused(per_team) == {
            field: "must be one of the organisation's tag_keys: there are none yet"
        }
        assert refused(per_team, tag_keys="team").keys() == {"tag_keys"}
        assert refused(per_team, tag_keys=["team", "a#b"]).keys() == {"tag_keys[1]"}

    def test_an_apps_tag_is_its_organisations(self) -> None:
        """It has no tag keys of its own."""
        company = org(tag_keys=["team"])
        body = app_body(budgets=[FULL])
        assert parse_app_settings(body, LABELS, company).budgets == (FULL_VALUE,)
        assert app_refused(org(tag_keys=["project"]), budgets=[FULL]) == {"budgets[0].per_tag"}
        assert parse_app_settings(app_body(), LABELS, company).budgets is None
        assert parse_app_settings(app_body(budgets=[]), LABELS, company).budgets == ()


class TestStore:
    async def test_what_was_put_is_what_is_read(self, tenants: Tenants, org_id: OrgId) -> None:
        """Through the store and back, of an organisation and of an app."""
        settings = {"budgets": [MONTHLY, FULL], "quota_enforcement": "STRICT"}
        made = await tenants.put_org(org_id, org_body(**settings, tag_keys=["team"]), BY)
        assert made.policy.org_budgets == (*org(budgets=[MONTHLY]).budgets, FULL_VALUE)
        assert made.policy.quota_enforcement is QuotaEnforcement.STRICT
        assert await tenants.read_registered_policy(Client(org_id)) == made.policy
        app = await tenants.put_app(org_id, APP, app_body(budgets=[FULL]), BY)
        assert app.policy.budgets == (FULL_VALUE,)
        assert app.policy.org_budgets == made.policy.org_budgets
        assert await tenants.read_registered_policy(Client(org_id, APP)) == app.policy

    async def test_an_update_replaces_them(self, tenants: Tenants, org_id: OrgId) -> None:
        changed = org_body(budgets=[MONTHLY], quota_enforcement="STRICT")
        await tenants.put_org(org_id, changed, BY)
        await tenants.put_app(org_id, APP, app_body(budgets=[MONTHLY]), BY)
        app = await tenants.put_app(org_id, APP, app_body(), BY)
        assert (app.policy.budgets, len(app.policy.org_budgets)) == ((), 1)
        await tenants.put_org(org_id, org_body(), BY)
        read = await tenants.read_registered_policy(Client(org_id))
        assert (read.org_budgets, read.quota_enforcement) == ((), QuotaEnforcement.ADVISORY)

    async def test_a_tag_that_a_budget_needs_can_not_be_removed(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """Nothing is changed: the budget would count nothing from then on."""
        budgets = [{**MONTHLY, "per_tag": "team"}]
        made = await tenants.put_org(org_id, org_body(budgets=budgets, tag_keys=["team"]), BY)
        with pytest.raises(InvalidConfigError) as refusal:
            await tenants.put_org(org_id, org_body(budgets=budgets, tag_keys=["user"]), BY)
        assert [error.field for error in refusal.value.errors] == ["budgets[0].per_tag"]
        assert await tenants.read_registered_policy(Client(org_id)) == made.policy

    async def test_an_app_keeps_a_budget_whose_tag_is_removed(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """The organisation does not know of it; the app can be read, and put again without it."""
        await tenants.put_org(org_id, org_body(tag_keys=["team"]), BY)
        await tenants.put_app(org_id, APP, app_body(budgets=[FULL]), BY)
        await tenants.put_org(org_id, org_body(tag_keys=[]), BY)
        assert (await tenants.read_registered_policy(Client(org_id, APP))).budgets == (FULL_VALUE,)
        with pytest.raises(InvalidConfigError):
            await tenants.put_app(org_id, APP, app_body(budgets=[FULL]), BY)
        again = await tenants.put_app(org_id, APP, app_body(budgets=[MONTHLY]), BY)
        assert [budget.name for budget in again.policy.budgets] == ["monthly"]

    async def test_an_item_without_them_has_none(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        """As one that another program wrote by the schema document."""
        await tenants.put_org(org_id, org_body(), BY)
        item = await stored(store, CONFIG, Key(f"ORG#{org_id}", "ORG"))
        assert (item.pop("budgets"), item.pop("quota_enforcement")) == ([], "ADVISORY")
        read = org_settings(item)
        assert (read.budgets, read.quota_enforcement) == ((), QuotaEnforcement.ADVISORY)

    @pytest.mark.parametrize(
        "stored",
        [
            "monthly",
            None,
            [MONTHLY, MONTHLY],
            [{**MONTHLY, "name": f"b{n}"} for n in range(17)],
            [{**MONTHLY, "name": "a#b"}],
            [{**MONTHLY, "window": "YEAR"}],
            [{**MONTHLY, "limit_usd_micros": -1}],
            [{**MONTHLY, "alert_at_pct": [0]}],
            [{**MONTHLY, "per_tag": "a#b"}],
            [{"name": "monthly", "window": "DAY"}],
        ],
        ids=str,
    )
    async def test_budgets_that_make_no_sense_are_never_taken_for_none(
        self, tenants: Tenants, store: Store, org_id: OrgId, stored: Any
    ) -> None:
        """The organisation can't be read until it is put again."""
        await tenants.put_org(org_id, org_body(budgets=[MONTHLY]), BY)
        change = (Set("budgets", stored),)
        await store.update(Update(CONFIG, Key(f"ORG#{org_id}", "ORG"), change))
        with pytest.raises(UnreadableItemError, match="budgets"):
            await tenants.read_registered_policy(Client(org_id))
        await tenants.put_org(org_id, org_body(budgets=[MONTHLY]), BY)
        assert len((await tenants.read_registered_policy(Client(org_id))).org_budgets) == 1

    async def test_an_enforcement_that_makes_no_sense_is_never_taken_for_advice(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        await tenants.put_org(org_id, org_body(quota_enforcement="STRICT"), BY)
        change = (Set("quota_enforcement", "strict"),)
        await store.update(Update(CONFIG, Key(f"ORG#{org_id}", "ORG"), change))
        with pytest.raises(UnreadableItemError, match="quota_enforcement"):
            await tenants.read_registered_policy(Client(org_id))
