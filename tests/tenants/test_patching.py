"""Merge patches of settings: what they change, what they leave, and many of them at once."""

import asyncio
from typing import Any

import pytest

from attribution import BY
from faulty_store import (
    REPLY_LOST,
    REQUEST_LOST,
    Faults,
    FaultyStore,
    InterleavedClock,
    Interleaving,
    Overtaken,
)
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ConflictError,
    ContendedError,
    InvalidConfigError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from pricekeeper.storage import Key, Put, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, RateLimit, Saved, Tenants
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
from pricekeeper.tenants.stored_settings import patched_body, stated_body
from pricekeeper.values import OrgId
from stores import ShiftedClock
from tenants.conftest import APP, LABELS, app_body, new_org_id, org_body

RPM = {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60_000}
MONTHLY = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 200_000_000}
TEAMS = {
    "name": "teams",
    "window": "DAY",
    "limit_usd_micros": 1,
    "labels": ["premium"],
    "per_tag": "team",
    "enforcement": "SOFT",
    "alert_at_pct": [80, 100],
}
FULL = org_body(
    tag_keys=["team"],
    budgets=[MONTHLY, TEAMS],
    rate_limits={"*": {"rpm": RPM, "tpm": {**RPM, "capacity": 9}}, "premium": {"rpm": RPM}},
    quota_enforcement="STRICT",
    session_limit=9,
    sticky_fallback_enabled=False,
)


class TestTheBody:
    """Settings as the body that they were put with, and what a patch makes of it."""

    def test_what_is_stated_parses_to_the_same_settings(self) -> None:
        """For all settings, so a patch loses nothing."""
        org = parse_org_settings(FULL, LABELS)
        assert parse_org_settings(stated_body(org), LABELS) == org
        app = parse_app_settings(
            app_body(
                model_ordering=["standard"],
                quotas={"standard": 1},
                rate_limits={},
                budgets=[TEAMS],
                session_limit=3,
                tight_mode_threshold_pct=60,
                refresh_interval_normal_secs=5,
                refresh_interval_tight_secs=4,
            ),
            LABELS,
            org,
        )
        assert parse_app_settings(stated_body(app), LABELS, org) == app

    def test_what_an_app_inherits_is_not_stated(self) -> None:
        """An app that is put with its name alone states its name."""
        app = parse_app_settings(app_body(), LABELS, parse_org_settings(FULL, LABELS))
        assert stated_body(app) == app_body()

    @pytest.mark.parametrize(
        ("patch", "changed"),
        [
            ({}, {}),
            ({"session_limit": 3}, {"session_limit": 3}),
            ({"session_limit": None}, {"session_limit": None}),
            (
                {"quotas": {"premium": 7}},
                {"quotas": {"premium": 7, "standard": 5_000_000}},
            ),
            ({"quotas": {"premium": None}}, {"quotas": {"standard": 5_000_000}}),
            ({"quotas": {"economy": None}}, {}),
            ({"quotas": 5}, {"quotas": 5}),
            (
                {"rate_limits": {"*": {"rpm": {"capacity": 5}, "tpm": None}, "premium": None}},
                {"rate_limits": {"*": {"rpm": {**RPM, "capacity": 5}}}},
            ),
            (
                {"rate_limits": {"economy": {"rpm": {**RPM, "colour": None}}}},
                {
                    "rate_limits": {
                        "*": {"rpm": RPM, "tpm": {**RPM, "capacity": 9}},
                        "premium": {"rpm": RPM},
                        "economy": {"rpm": RPM},
                    }
                },
            ),
            ({"model_ordering": ["standard"]}, {"model_ordering": ["standard"]}),
            ({"budgets": [MONTHLY]}, {"budgets": [MONTHLY]}),
            ({"unheard_of": None}, {"unheard_of": None}),
        ],
    )
    def test_a_patch_is_merged_as_rfc_7396_says(
        self, patch: dict[str, Any], changed: dict[str, Any]
    ) -> None:
        """Objects are merged, lists and values replaced, null removes."""
        settings = parse_org_settings(FULL, LABELS)
        assert patched_body(settings, patch) == {**stated_body(settings), **changed}

    def test_what_is_nested_without_end_is_not_walked(self) -> None:
        """A body may be as deep as the parser lets it be, which is deeper than our stack."""
        deep: Any = 1
        for _ in range(100_000):
            deep = {"x": deep}
        body = patched_body(parse_org_settings(FULL, LABELS), {"rate_limits": deep})
        assert "x" in body["rate_limits"]
        while isinstance(deep, dict):  # taken apart by hand: Python's own way is a recursion
            deep = deep["x"]


class TestOnAStore:
    """Read, merge, and write on condition that nothing has changed."""

    async def test_only_what_is_named_changes(self, tenants: Tenants, org_id: OrgId) -> None:
        before = (await tenants.put_org(org_id, FULL, BY)).policy
        saved = await tenants.patch(
            Client(org_id), {"session_limit": None, "quotas": {"premium": 1}}, BY
        )
        assert not saved.created
        assert saved.policy == await tenants.read_registered_policy(Client(org_id))
        assert saved.policy.session_limit == 5
        assert saved.policy.quotas == {"premium": 1, "standard": 5_000_000}
        for name in ("org_budgets", "rate_limits", "tag_keys", "quota_enforcement", "timezone"):
            assert getattr(saved.policy, name) == getattr(before, name)
        assert saved.policy.token_generation == before.token_generation

    async def test_an_app_inherits_again(self, tenants: Tenants, org_id: OrgId) -> None:
        """Settings that it never stated stay inherited, also after later changes."""
        await tenants.put_org(org_id, FULL, BY)
        await tenants.put_app(org_id, APP, app_body(session_limit=2, rate_limits={}), BY)
        patch = {"session_limit": None, "tight_mode_threshold_pct": 60}
        policy = (await tenants.patch(Client(org_id, APP), patch, BY)).policy
        assert (policy.session_limit, policy.tight_mode_threshold_pct) == (9, 60)
        assert policy.rate_limits == {}
        assert "session_limit" in policy.inherited_fields
        await tenants.patch(
            Client(org_id), {"session_limit": 11, "tight_mode_threshold_pct": 70}, BY
        )
        policy = await tenants.read_registered_policy(Client(org_id, APP))
        assert (policy.session_limit, policy.tight_mode_threshold_pct) == (11, 60)

    async def test_the_first_limit_of_an_app_is_its_own(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """A patch goes over what the app states, so nothing of its organisation's is copied."""
        await tenants.put_org(org_id, FULL, BY)
        await tenants.put_app(org_id, APP, app_body(), BY)
        policy = (
            await tenants.patch(Client(org_id, APP), {"rate_limits": {"*": {"rpm": RPM}}}, BY)
        ).policy
        assert policy.rate_limits == {"*": {"rpm": RateLimit(60, 60, 60_000)}}
        with pytest.raises(InvalidConfigError) as refused:
            await tenants.patch(Client(org_id, APP), {"quotas": {"premium": 1}}, BY)
        assert [error.field for error in refused.value.errors] == ["quotas.standard"]

    async def test_nothing_changes_if_the_result_is_wrong(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """Every bad field is named, also one that was right before the patch."""
        await tenants.put_org(org_id, FULL, BY)
        before = await tenants.read_registered_policy(Client(org_id))
        patch: dict[str, Any] = {
            "org_name": None,
            "tag_keys": [],
            "quotas": {"standard": None},
            "timezone": None,
            "unheard_of": None,
            "rate_limits": {"premium": {"rpm": {"capacity": 0}}},
        }
        with pytest.raises(InvalidConfigError) as refused:
            await tenants.patch(Client(org_id), patch, BY)
        assert {error.field for error in refused.value.errors} == {
            *("org_name", "budgets[1].per_tag", "quotas.standard", "timezone"),
            *("unheard_of", "rate_limits.premium.rpm.capacity"),
        }
        assert await tenants.read_registered_policy(Client(org_id)) == before

    async def test_the_shard_count_stays(self, tenants: Tenants, org_id: OrgId) -> None:
        """Whether it is to be another one or to be removed."""
        await tenants.put_org(org_id, org_body(agg_shard_count=16), BY)
        with pytest.raises(ConflictError):
            await tenants.patch(Client(org_id), {"agg_shard_count": 8}, BY)
        for patch in ({"agg_shard_count": 16}, {"agg_shard_count": None}, {}):
            assert (await tenants.patch(Client(org_id), patch, BY)).policy.agg_shard_count == 16

    async def test_nobody_is_created(self, store: Store, tenants: Tenants, org_id: OrgId) -> None:
        """An organisation, an app, an app of an organisation of another life."""
        for client, body in ((Client(org_id), org_body()), (Client(org_id, APP), app_body())):
            with pytest.raises(NotFoundError):
                await tenants.patch(client, body, BY)
        await tenants.put_org(org_id, org_body(), BY)
        with pytest.raises(NotFoundError):
            await tenants.patch(Client(org_id, APP), app_body(), BY)
        assert await store.get(CONFIG, Key(f"ORG#{org_id}", "APP#api")) is None
        await tenants.put_app(org_id, APP, app_body(), BY)
        left = await store.get(CONFIG, Key(f"ORG#{org_id}", "APP#api"))
        await tenants.delete_org(org_id, BY)
        await tenants.put_org(org_id, org_body(), BY)
        assert left is not None
        await store.put(Put(CONFIG, left))
        with pytest.raises(NotFoundError):
            await tenants.patch(Client(org_id, APP), {"session_limit": 1}, BY)

    async def test_an_imported_organisation_can_be_patched(
        self, store: Store, tenants: Tenants, org_id: OrgId
    ) -> None:
        """With a number of shards that no body can have; from then on it is listed."""
        item = {"PK": f"ORG#{org_id}", "SK": "ORG", "agg_shard_count": 10, **org_body()}
        await store.put(Put(CONFIG, item))
        policy = (await tenants.patch(Client(org_id), {"session_limit": 3}, BY)).policy
        assert (policy.session_limit, policy.agg_shard_count) == (3, 10)
        assert await store.get(CONFIG, Key("ORGS", org_id)) is not None


NUMBERS = (
    *("tight_mode_threshold_pct", "refresh_interval_normal_secs"),
    *("refresh_interval_tight_secs", "session_limit"),
)


@pytest.mark.parametrize("kind", ["org", "app"])
async def test_patches_of_different_fields_at_once_all_hold(
    store: Store, clock: ShiftedClock, org_id: OrgId, kind: str
) -> None:
    """Each by an instance of its own, round after round: none is lost under another."""
    first = Tenants(store, clock, LABELS)
    await first.put_org(org_id, org_body(), BY)
    await first.put_app(org_id, APP, app_body(rate_limits={}), BY)
    client = Client(org_id, None if kind == "org" else APP)

    async def patch(change: dict[str, Any]) -> Saved:
        tenants = Tenants(store, clock, LABELS)
        return await tenants.patch(client, change, BY)

    for step in range(5):
        changes: list[dict[str, Any]] = [{name: 60 + step} for name in NUMBERS]
        limits = [f"limit_{number}" for number in range(4)]
        limit = {**RPM, "capacity": 10 + step}
        changes += [{"rate_limits": {"*": {name: limit}}} for name in limits]
        saved = await asyncio.gather(*map(patch, changes))
        for change, one in zip(changes, saved, strict=True):
            for name in change.keys() & set(NUMBERS):
                assert getattr(one.policy, name) == 60 + step
        policy = await first.read_registered_policy(client)
        assert [getattr(policy, name) for name in NUMBERS] == [60 + step] * len(NUMBERS)
        assert {name: policy.rate_limits["*"][name].capacity for name in limits} == dict.fromkeys(
            limits, 10 + step
        )


async def test_a_patch_that_never_gets_its_turn_says_so(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """It is not taken for done, as a PUT may be that another one has replaced."""
    sound = Tenants(store, clock, LABELS)
    await sound.put_org(org_id, org_body(), BY)

    change = {"tight_mode_threshold_pct": 60}
    late = Overtaken(store, lambda _: sound.patch(Client(org_id), change, BY))
    with pytest.raises(ContendedError):
        await Tenants(late, clock, LABELS).patch(Client(org_id), {"session_limit": 3}, BY)
    assert (await sound.read_registered_policy(Client(org_id))).session_limit == 5


async def test_a_lost_reply_is_harmless_to_repeat(
    store: Store, clock: ShiftedClock, org_id: OrgId
) -> None:
    """It is done, or said to be unknown; the same again is the same, beside others' changes."""
    sound = Tenants(store, clock, LABELS)
    await sound.put_org(org_id, org_body(rate_limits={"*": {"rpm": RPM, "tpm": RPM}}), BY)
    patch = {"session_limit": 7, "rate_limits": {"*": {"rpm": {"capacity": 5}, "tpm": None}}}
    for faults, outcome in ((REQUEST_LOST, OutcomeUnknownError), (REPLY_LOST, Saved)):
        turns = Interleaving(1)
        shaky = Tenants(FaultyStore(store, turns, faults), clock, LABELS)
        (told,) = await turns.run(shaky.patch(Client(org_id), patch, BY))
        assert isinstance(told, outcome)
    await sound.patch(Client(org_id), {"tight_mode_threshold_pct": 60}, BY)
    policy = (await sound.patch(Client(org_id), patch, BY)).policy
    assert (policy.session_limit, policy.tight_mode_threshold_pct) == (7, 60)
    assert policy.rate_limits == {"*": {"rpm": RateLimit(5, 60, 60_000)}}


async def test_whatever_is_lost_late_or_sent_twice_an_acknowledged_patch_holds(
    store: Store, seeds: range
) -> None:
    """Two instances, each with a field of its own, under every fault."""
    clock = ManualClock()
    faults = Faults(refused_pct=5, request_lost_pct=5, reply_lost_pct=10, late_pct=15)
    for seed in seeds:
        org_id, turns = new_org_id(), Interleaving(seed)
        shaky = FaultyStore(store, turns, faults)
        sound = Tenants(store, clock, LABELS)
        await sound.put_org(org_id, org_body(), BY)
        await sound.put_app(org_id, APP, app_body(), BY)

        async def patch(name: str, shaky: FaultyStore, org_id: OrgId, turns: Interleaving) -> None:
            tenants = Tenants(shaky, InterleavedClock(clock, turns, clock.advance_ms), LABELS)
            for value in range(60, 66):
                try:
                    saved = await tenants.patch(Client(org_id, APP), {name: value}, BY)
                except (OutcomeUnknownError, StoreUnavailableError):
                    continue
                assert getattr(saved.policy, name) == value
                fresh = Tenants(store, clock, LABELS)
                policy = await fresh.read_registered_policy(Client(org_id, APP))
                assert getattr(policy, name) == value

        works = [patch(name, shaky, org_id, turns) for name in NUMBERS[:2]]
        assert await turns.run(*works) == [None, None], seed
