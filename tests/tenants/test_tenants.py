"""Organisations and apps in a store: created, changed, listed, deleted, and what it costs."""

import asyncio

import pytest

from attribution import BY
from pricekeeper.errors import (
    ConflictError,
    InvalidConfigError,
    InvalidValueError,
    NotFoundError,
)
from pricekeeper.storage import Key, Put, Set, Store, Update
from pricekeeper.storage.tables import CONFIG, SECRET_RETRIEVAL_TOKENS
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Enrolment, Policy, Tenants
from pricekeeper.values import AppId, OrgId
from stores import ShiftedClock, stored
from tenants.conftest import APP, LABELS, app_body, new_org_id, org_body

LIMITS = {"*": {"rpm": {"capacity": 10, "refill_amount": 5, "refill_period_ms": 1000}}}


async def all_orgs(tenants: Tenants, limit: int) -> list[OrgId]:
    found, after = list[OrgId](), None
    while True:
        page = await tenants.list_orgs(after, limit)
        assert len(page.policies) <= limit
        found += [policy.org_id for policy in page.policies]
        if (after := page.after) is None:
            return found


async def put_both(tenants: Tenants, org_id: OrgId) -> None:
    await tenants.put_org(org_id, org_body(), BY)
    await tenants.put_app(org_id, APP, app_body(), BY)


async def test_an_organisation_that_is_deleted_while_all_are_read_is_passed_over(
    tenants: Tenants,
) -> None:
    """The others are read nevertheless."""
    ids = sorted(new_org_id() for _ in range(2))
    for org_id in ids:
        await put_both(tenants, org_id)
    read = list[Client]()
    async for policy in tenants.read_all():
        read.append(policy.client)
        if policy.client == Client(ids[0]):
            await tenants.delete_org(ids[0], BY)
    own = [client for client in read if client.org_id in ids]
    assert own == [Client(ids[0]), Client(ids[1]), Client(ids[1], APP)]


class TestPut:
    async def test_creating_and_updating_are_told_apart(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """Created once, updated ever after; the answer is what holds then."""
        created = await tenants.put_org(org_id, org_body(rate_limits=LIMITS), BY)
        updated = await tenants.put_org(org_id, org_body(org_name="Other"), BY)
        assert (created.created, updated.created) == (True, False)
        assert (created.policy.org_name, updated.policy.org_name) == ("Sample", "Other")
        assert updated.policy == await tenants.read_registered_policy(Client(org_id))

    async def test_what_was_put_is_what_is_read(self, tenants: Tenants, org_id: OrgId) -> None:
        """Through the store and back, to the last field."""
        body = org_body(rate_limits=LIMITS, agg_shard_count=16, tag_keys=["team", "feature"])
        created = await tenants.put_org(org_id, body, BY)
        assert created.policy.tag_keys == ("team", "feature")
        assert await tenants.read_registered_policy(Client(org_id)) == created.policy
        own = {"quotas": {"premium": 1, "standard": 2}, "rate_limits": LIMITS, "session_limit": 1}
        app = await tenants.put_app(org_id, APP, app_body(**own, model_ordering=["standard"]), BY)
        assert await tenants.read_registered_policy(Client(org_id, APP)) == app.policy

    async def test_a_setting_without_a_default_can_be_removed(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        """An organisation's and an app's; items from before it existed have none."""
        cap = {"max_output_tokens_cap": 500}
        await tenants.put_org(org_id, org_body(**cap), BY)
        await tenants.put_app(org_id, APP, app_body(max_output_tokens_cap=900), BY)

        async def caps() -> list[int | None]:
            read = map(tenants.read_registered_policy, (Client(org_id), Client(org_id, APP)))
            return [(await policy).max_output_tokens_cap for policy in read]

        assert await caps() == [500, 900]
        await tenants.put_app(org_id, APP, app_body(), BY)
        assert await caps() == [500, 500]
        await tenants.patch(Client(org_id), dict.fromkeys(cap), BY)
        assert await caps() == [None, None]
        for sort_key in ("ORG", "APP#api"):
            item = await stored(store, CONFIG, Key(f"ORG#{org_id}", sort_key))
            assert item.keys().isdisjoint(cap)

    async def test_the_attributes_are_those_of_the_schema(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        await tenants.put_org(org_id, org_body(), BY)
        await tenants.put_app(org_id, APP, app_body(tight_mode_threshold_pct=90), BY)
        org = await stored(store, CONFIG, Key(f"ORG#{org_id}", "ORG"))
        app = await stored(store, CONFIG, Key(f"ORG#{org_id}", "APP#api"))
        assert {**org, **org_body()} == org
        assert org["client_id"] == f"org-{org_id}"
        assert org["created_at_epoch"] == org["updated_at_epoch"]
        assert app["client_id"] == f"org-{org_id}-app-api"
        assert app["tight_mode_threshold_pct"] == 90
        assert "quotas" not in app

    async def test_an_update_replaces_what_an_app_overrides(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """What is not named any more is inherited again."""
        await tenants.put_org(org_id, org_body(), BY)
        await tenants.put_app(org_id, APP, app_body(session_limit=1, rate_limits=LIMITS), BY)
        again = await tenants.put_app(org_id, APP, app_body(tight_mode_threshold_pct=50), BY)
        assert (again.policy.session_limit, again.policy.tight_mode_threshold_pct) == (5, 50)
        assert again.policy == await tenants.read_registered_policy(Client(org_id, APP))

    async def test_no_update_touches_a_credential(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        """They are on the same item and belong to another feature."""
        await put_both(tenants, org_id)
        for sort in ("ORG", "APP#api"):
            mark = (Set("client_secret_hash", "kept"), Set("secret_retrieval_key", "kept too"))
            await store.update(Update(CONFIG, Key(f"ORG#{org_id}", sort), mark))
        await tenants.put_org(org_id, org_body(session_limit=7), BY)
        await tenants.put_app(org_id, APP, app_body(session_limit=7), BY)
        for sort in ("ORG", "APP#api"):
            item = await stored(store, CONFIG, Key(f"ORG#{org_id}", sort))
            assert (item["client_secret_hash"], item["session_limit"]) == ("kept", 7)
            assert item["secret_retrieval_key"] == "kept too"

    async def test_the_shard_count_is_for_ever(self, tenants: Tenants, org_id: OrgId) -> None:
        """A change is a conflict and changes nothing else either."""
        await tenants.put_org(org_id, org_body(agg_shard_count=16), BY)
        with pytest.raises(ConflictError):
            await tenants.put_org(org_id, org_body(agg_shard_count=8, session_limit=9), BY)
        policy = (await tenants.put_org(org_id, org_body(), BY)).policy
        assert (policy.agg_shard_count, policy.session_limit) == (16, 5)

    async def test_bad_settings_write_nothing(
        self, tenants: Tenants, meter: StoreMeter, org_id: OrgId
    ) -> None:
        """Neither a part of an organisation nor an entry in the list; an app needs the former."""
        with pytest.raises(InvalidConfigError):
            await tenants.put_org(org_id, org_body(timezone="Mars"), BY)
        with pytest.raises(NotFoundError):
            await tenants.put_app(org_id, APP, app_body(), BY)
        assert meter.calls["transact"] == 0
        with pytest.raises(NotFoundError):
            await tenants.read_registered_policy(Client(org_id))

    async def test_what_is_enrolled_comes_with_the_creation(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        for n in (1, 2):
            key = Key(f"enrolled-{org_id}-{n}")
            enrolment = Enrolment({"mark": n}, (Put(SECRET_RETRIEVAL_TOKENS, {"PK": key.pk}),))
            await tenants.put(Client(org_id), org_body(), BY, enrolment)
            written = await store.get(SECRET_RETRIEVAL_TOKENS, key) is not None
            assert written is (n == 1)
        item = await stored(store, CONFIG, Key(f"ORG#{org_id}", "ORG"))
        assert item["mark"] == 1


class TestPolicy:
    async def test_warm_costs_nothing_and_cold_one_read(
        self, tenants: Tenants, meter: StoreMeter, org_id: OrgId
    ) -> None:
        await put_both(tenants, org_id)
        for app_id in (None, APP):
            meter.clear()
            policy = await tenants.find_policy(org_id, app_id)
            assert dict(meter.calls) == {"batch_get": 1}
            assert await tenants.find_policy(org_id, app_id) is policy
            assert dict(meter.calls) == {"batch_get": 1}

    async def test_who_comes_together_shares_one_read(
        self, tenants: Tenants, meter: StoreMeter, org_id: OrgId
    ) -> None:
        """But not a read from before a change, which may have missed it."""
        await tenants.put_org(org_id, org_body(), BY)
        meter.clear()
        await asyncio.gather(*(tenants.find_policy(org_id) for _ in range(30)))
        assert dict(meter.calls) == {"batch_get": 1}
        tenants.forget(Client(org_id))
        before = asyncio.create_task(tenants.find_policy(org_id))
        for _ in range(2):  # the caller's turn, and that of the read
            await asyncio.sleep(0)
        tenants.forget(Client(org_id))
        await asyncio.gather(before, tenants.find_policy(org_id))
        assert dict(meter.calls) == {"batch_get": 3}

    async def test_a_change_made_here_is_seen_at_once(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """An organisation's also by its apps, however warm they are."""
        await put_both(tenants, org_id)
        await tenants.find_policy(org_id, APP)
        for limit in (7, 8):
            await tenants.put_org(org_id, org_body(session_limit=limit), BY)
            assert (await tenants.find_policy(org_id)).session_limit == limit
            assert (await tenants.find_policy(org_id, APP)).session_limit == limit
        await tenants.put_app(org_id, APP, app_body(session_limit=1), BY)
        assert (await tenants.find_policy(org_id, APP)).session_limit == 1
        await tenants.delete_app(org_id, APP, BY)
        with pytest.raises(NotFoundError):
            await tenants.find_policy(org_id, APP)
        await tenants.delete_org(org_id, BY)
        with pytest.raises(NotFoundError):
            await tenants.find_policy(org_id)

    async def test_a_change_made_elsewhere_is_seen_by_a_fresh_read(
        self, store: Store, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """`get` and `record` never answer from memory, and refresh it."""
        here, there = (Tenants(store, clock, LABELS) for _ in range(2))
        await here.put_org(org_id, org_body(), BY)
        await here.find_policy(org_id)
        await there.put_org(org_id, org_body(session_limit=7), BY)
        assert (await here.find_policy(org_id)).session_limit == 5
        assert (await here.read_registered_policy(Client(org_id))).session_limit == 7
        assert (await here.find_policy(org_id)).session_limit == 7
        await there.delete_org(org_id, BY)
        with pytest.raises(NotFoundError):
            await here.read_record(Client(org_id))
        with pytest.raises(NotFoundError):
            await here.find_policy(org_id)

    async def test_absent_and_deleted_answer_alike(self, tenants: Tenants, org_id: OrgId) -> None:
        """Without an organisation, deleted, or of a deleted organisation: one answer."""
        await put_both(tenants, org_id)
        told = set()

        async def ask(org: OrgId) -> None:
            with pytest.raises(NotFoundError) as error:
                await tenants.find_policy(org, APP)
            told.add(str(error.value).replace(org, "*"))

        await ask(new_org_id())
        await tenants.delete_app(org_id, APP, BY)
        await ask(org_id)
        await tenants.put_app(org_id, APP, app_body(), BY)
        await tenants.delete_org(org_id, BY)
        await ask(org_id)
        assert len(told) == 1

    async def test_an_imported_item_is_one_like_any_other(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        """With nothing but what the schema document has, it can be read, updated and deleted."""
        imported = {**org_body(), "created_at_epoch": 5, "client_id": f"org-{org_id}"}
        await store.put(Put(CONFIG, {"PK": f"ORG#{org_id}", "SK": "ORG", **imported}))
        await store.put(Put(CONFIG, {"PK": f"ORG#{org_id}", "SK": "APP#api", "app_name": "API"}))
        assert (await tenants.find_policy(org_id, APP)).session_limit == 5
        assert (await tenants.find_policy(org_id)).created_at_epoch == 5
        assert not (await tenants.put_org(org_id, org_body(session_limit=6), BY)).created
        assert not (await tenants.put_app(org_id, APP, app_body(session_limit=7), BY)).created
        assert (await tenants.find_policy(org_id, APP)).session_limit == 7
        await tenants.end_tokens_issued_before_now(Client(org_id))
        assert (await tenants.find_policy(org_id)).token_generation != ""
        await tenants.delete_org(org_id, BY)
        with pytest.raises(NotFoundError):
            await tenants.find_policy(org_id, APP)


class TestListing:
    async def test_every_organisation_is_listed_once(
        self, tenants: Tenants, meter: StoreMeter
    ) -> None:
        """Page by page, by queries, in the order of their ids."""
        mine = sorted([new_org_id() for _ in range(5)])
        for org_id in mine:
            await tenants.put_org(org_id, org_body(), BY)
        meter.clear()
        found = await all_orgs(tenants, 2)
        assert [org_id for org_id in found if org_id in mine] == mine
        assert len(found) == len(set(found))
        assert set(meter.calls) == {"query", "batch_get"}
        assert meter.calls["query"] == meter.calls["batch_get"]

    async def test_a_deleted_organisation_is_listed_no_more(self, tenants: Tenants) -> None:
        """The list is kept by the same transactions as the organisations."""
        org_id = new_org_id()
        await tenants.put_org(org_id, org_body(), BY)
        await tenants.delete_org(org_id, BY)
        assert org_id not in await all_orgs(tenants, 100)
        await tenants.put_org(org_id, org_body(), BY)
        assert org_id in await all_orgs(tenants, 100)

    async def test_apps_are_listed_with_what_holds_for_them(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        await tenants.put_org(org_id, org_body(session_limit=9), BY)
        await tenants.put_org(other := new_org_id(), org_body(), BY)
        await tenants.put_app(other, AppId("b"), app_body(), BY)
        for name in ("c", "a", "b"):
            await tenants.put_app(org_id, AppId(name), app_body(app_name=name), BY)
        first = await tenants.list_apps(org_id, limit=2)
        rest = await tenants.list_apps(org_id, first.after, limit=2)
        listed: list[Policy] = [*first.policies, *rest.policies]
        assert [policy.app_id for policy in listed] == ["a", "b", "c"]
        assert {policy.session_limit for policy in listed} == {9}
        assert rest.after is None
        assert [await tenants.read_registered_policy(policy.client) for policy in listed] == listed

    @pytest.mark.parametrize("limit", [0, -1, 101])
    async def test_pages_have_a_size(self, tenants: Tenants, org_id: OrgId, limit: int) -> None:
        """A missing organisation has no list."""
        with pytest.raises(NotFoundError):
            await tenants.list_apps(org_id)
        await tenants.put_org(org_id, org_body(), BY)
        with pytest.raises(InvalidValueError):
            await tenants.list_orgs(limit=limit)
        with pytest.raises(InvalidValueError):
            await tenants.list_apps(org_id, limit=limit)


class TestDeleting:
    async def test_it_is_gone_and_a_second_time_there_is_nothing(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        await put_both(tenants, org_id)
        await tenants.delete_app(org_id, APP, BY)
        with pytest.raises(NotFoundError):
            await tenants.delete_app(org_id, APP, BY)
        await tenants.delete_org(org_id, BY)
        with pytest.raises(NotFoundError):
            await tenants.delete_org(org_id, BY)

    async def test_one_transaction_ends_an_organisation_with_all_of_its_apps(
        self, tenants: Tenants, store: Store, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """Cleaning up comes after; a crash before it leaves nothing that counts."""
        await tenants.put_org(org_id, org_body(), BY)
        await tenants.put_app(org_id, APP, app_body(session_limit=9), BY)
        left_over = await stored(store, CONFIG, Key(f"ORG#{org_id}", "APP#api"))
        await tenants.delete_org(org_id, BY)
        await store.put(Put(CONFIG, left_over))  # as if the cleaning had not come to it

        elsewhere = Tenants(store, clock, LABELS)
        with pytest.raises(NotFoundError):
            await elsewhere.find_policy(org_id, APP)
        await elsewhere.put_org(org_id, org_body(), BY)
        with pytest.raises(NotFoundError):
            await elsewhere.find_policy(org_id, APP)
        assert (await elsewhere.list_apps(org_id)).policies == ()
        again = await elsewhere.put_app(org_id, APP, app_body(), BY)
        assert again.created
        assert again.policy.session_limit == 5

    async def test_what_a_crash_left_over_is_removed_by_the_next_delete(
        self, tenants: Tenants, store: Store, org_id: OrgId
    ) -> None:
        """Which says that there is nothing, as it should."""
        await put_both(tenants, org_id)
        left_over = await stored(store, CONFIG, key := Key(f"ORG#{org_id}", "APP#api"))
        await tenants.delete_org(org_id, BY)
        await store.put(Put(CONFIG, left_over))
        with pytest.raises(NotFoundError):
            await tenants.delete_org(org_id, BY)
        assert await store.get(CONFIG, key) is None

    async def test_many_apps_are_removed_in_bounded_steps(
        self, tenants: Tenants, store: Store, meter: StoreMeter, org_id: OrgId
    ) -> None:
        await tenants.put_org(org_id, org_body(), BY)
        for n in range(130):
            await tenants.put_app(org_id, AppId(f"app-{n}"), app_body(), BY)
        meter.clear()
        await tenants.delete_org(org_id, BY)
        assert meter.calls["transact"] == 1 + 2
        assert meter.calls["query"] == 2
        for n in (0, 99, 129):
            assert await store.get(CONFIG, Key(f"ORG#{org_id}", f"APP#app-{n}")) is None


class TestTokens:
    async def test_ending_them_is_one_read_and_one_write(
        self, tenants: Tenants, meter: StoreMeter, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        await tenants.put_org(org_id, org_body(), BY)
        before = await tenants.find_policy(org_id)
        clock.shift_ms = 5_000
        meter.clear()
        await tenants.end_tokens_issued_before_now(Client(org_id))
        assert dict(meter.calls) == {"batch_get": 1, "update": 1}
        after = await tenants.find_policy(org_id)
        assert after.token_generation != before.token_generation
        gone_by_ms = after.tokens_valid_from_epoch_ms - before.tokens_valid_from_epoch_ms
        assert 5_000 <= gone_by_ms < 60_000

    async def test_a_clock_that_was_set_back_ends_them_too(
        self, tenants: Tenants, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """The generation is new each time; the moment never goes back."""
        await tenants.put_org(org_id, org_body(), BY)
        seen = [await tenants.find_policy(org_id)]
        for shift_ms in (0, -3_600_000, -3_600_000, 0):
            clock.shift_ms = shift_ms
            await tenants.end_tokens_issued_before_now(Client(org_id))
            seen.append(await tenants.find_policy(org_id))
        assert len({policy.token_generation for policy in seen}) == 5
        moments = [policy.tokens_valid_from_epoch_ms for policy in seen]
        assert moments == sorted(moments)

    async def test_a_client_that_is_created_again_starts_anew(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        """Nothing that was issued to its predecessor counts for it."""
        generations = set()
        for _ in range(3):
            generations.add((await tenants.put_org(org_id, org_body(), BY)).policy.token_generation)
            app = await tenants.put_app(org_id, APP, app_body(), BY)
            generations.add(app.policy.token_generation)
            await tenants.delete_org(org_id, BY)
        assert len(generations) == 6

    async def test_an_update_of_settings_ends_nothing(
        self, tenants: Tenants, org_id: OrgId
    ) -> None:
        before = (await tenants.put_org(org_id, org_body(), BY)).policy
        after = (await tenants.put_org(org_id, org_body(session_limit=2), BY)).policy
        assert after.token_generation == before.token_generation
        assert after.tokens_valid_from_epoch_ms == before.tokens_valid_from_epoch_ms

    async def test_there_is_nothing_to_end_for_nobody(
        self, tenants: Tenants, org_id: OrgId, store: Store
    ) -> None:
        with pytest.raises(NotFoundError):
            await tenants.end_tokens_issued_before_now(Client(org_id))
        assert await store.get(CONFIG, Key(f"ORG#{org_id}", "ORG")) is None


class TestCosts:
    """What each operation asks of the store, once and for all."""

    async def test_puts_and_deletes(
        self, tenants: Tenants, meter: StoreMeter, org_id: OrgId
    ) -> None:
        """A read, the end of the audit trail, and a transaction; deleting looks for apps, too."""

        async def calls(work: object) -> dict[str, int]:
            meter.clear()
            await work  # type: ignore[misc]
            return dict(meter.calls)

        for client, body in ((Client(org_id), org_body()), (Client(org_id, APP), app_body())):
            for _ in ("created", "updated"):
                made = await calls(tenants.put(client, body, BY))
                assert made == {"batch_get": 1, "get": 1, "transact": 1}
        deleted = await calls(tenants.delete_app(org_id, APP, BY))
        assert deleted == {"batch_get": 1, "get": 1, "transact": 1}
        deleted = await calls(tenants.delete_org(org_id, BY))
        assert deleted == {"get": 2, "transact": 1, "query": 1}


async def test_a_changed_organisation_is_forgotten_with_its_apps(tenants: Tenants) -> None:
    """Apps inherit from it. A changed app is forgotten alone."""
    org, other = Client(new_org_id()), Client(new_org_id())
    app = Client(org.org_id, APP)
    for client in (org, other):
        await tenants.put_org(client.org_id, org_body(quota_scope="ORG"), BY)
    for changed, known in ((app, (org, other)), (org, (other,))):
        for client in (org, app, other):
            await tenants.find_policy(*client)
        tenants.forget(changed)
        assert tuple(one for one in (org, app, other) if tenants.recall_policy(one)) == known
