"""Freezing a client on every store: what holds, who may lift it, and what lost replies do to it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from attribution import BY
from faulty_store import (
    LATE,
    REFUSED,
    REPLY_LOST,
    REQUEST_LOST,
    SENT_TWICE,
    Faults,
    FaultyStore,
    GoesDark,
    InterleavedClock,
    Interleaving,
    Overtaken,
)
from pricekeeper import authority
from pricekeeper.authority import Attribution
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    FrozenError,
    NotFoundError,
    NotPermittedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from pricekeeper.storage import Set, Store, Update, Write
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Freeze, Tenants, config_key
from pricekeeper.values import AppId, OrgId
from stores import ShiftedClock
from tenants.conftest import APP, LABELS, app_body, new_org_id, org_body

DEPLOYMENT = replace(BY, actor="deployment-key/0", reason="leaked")


def of_org(org_id: OrgId) -> Attribution:
    """Act with the organisation's own key."""
    return replace(DEPLOYMENT, actor="org-key/0", authority=authority.of_org(org_id))


def because(reason: str) -> Attribution:
    return replace(DEPLOYMENT, reason=reason)


async def freeze_of(tenants: Tenants, client: Client) -> Freeze | None:
    """Read the store, past the cache."""
    return (await tenants.read_registered_policy(client)).freeze


async def turn(tenants: Tenants, client: Client, *, frozen: bool) -> None:
    """Freeze the client, or lift its freeze."""
    await (tenants.freeze if frozen else tenants.unfreeze)(client, DEPLOYMENT)


@pytest.fixture
async def app(tenants: Tenants, org_id: OrgId) -> Client:
    await tenants.put_org(org_id, org_body(quota_scope="ORG"), BY)
    await tenants.put_app(org_id, APP, app_body(), BY)
    return Client(org_id, APP)


class TestWhatHolds:
    async def test_a_frozen_client_is_told_why_and_since_when(
        self, tenants: Tenants, clock: ShiftedClock, app: Client
    ) -> None:
        """The check of the policy raises; reading it does not."""
        (await tenants.read_registered_policy(app)).require_unfrozen()
        freeze = await tenants.freeze(app, DEPLOYMENT)
        with pytest.raises(FrozenError) as told:
            (await tenants.find_policy(app.org_id, app.app_id)).require_unfrozen()
        error = told.value
        assert (error.scope, error.reason) == ("APP", "leaked")
        assert error.frozen_at_epoch == freeze.frozen_at_epoch
        assert abs(error.frozen_at_epoch - clock.now_epoch()) < 60
        (await tenants.read_registered_policy(app.org)).require_unfrozen()

    async def test_an_organisations_freeze_is_its_apps_too(
        self, tenants: Tenants, app: Client
    ) -> None:
        """Of registered ones and of others, seen here at once though they were remembered."""
        absent = AppId("never-registered")
        for app_id in (None, APP, absent):
            assert (await tenants.find_policy(app.org_id, app_id)).freeze is None
        await tenants.freeze(app.org, DEPLOYMENT)
        for app_id in (None, APP, absent):
            freeze = (await tenants.find_policy(app.org_id, app_id)).freeze
            assert freeze is not None
            assert (freeze.scope, freeze.reason) == ("ORG", "leaked")
        await tenants.unfreeze(app.org, DEPLOYMENT)
        for app_id in (None, APP, absent):
            assert (await tenants.find_policy(app.org_id, app_id)).freeze is None

    async def test_an_apps_own_freeze_is_shown_before_its_organisations(
        self, tenants: Tenants, app: Client
    ) -> None:
        """Each is lifted separately, and the other one stays."""
        await tenants.freeze(app.org, because("all"))
        await tenants.freeze(app, because("one"))
        freeze = await freeze_of(tenants, app)
        assert freeze is not None
        assert (freeze.scope, freeze.reason) == ("APP", "one")
        assert await tenants.unfreeze(app, DEPLOYMENT)
        freeze = await freeze_of(tenants, app)
        assert freeze is not None
        assert (freeze.scope, freeze.reason) == ("ORG", "all")
        assert not await tenants.unfreeze(app, DEPLOYMENT)

    async def test_freezing_again_keeps_the_moment_and_has_the_last_reason(
        self, tenants: Tenants, clock: ShiftedClock, app: Client
    ) -> None:
        """Lifted and set again, it is a new one."""
        first = await tenants.freeze(app, because("one"))
        clock.shift_ms = 60_000
        again = await tenants.freeze(app, because("two"))
        assert again == replace(first, reason="two")
        assert await freeze_of(tenants, app) == again
        await tenants.unfreeze(app, DEPLOYMENT)
        again = await tenants.freeze(app, because("three"))
        assert again.frozen_at_epoch >= first.frozen_at_epoch + 60

    async def test_it_outlasts_new_settings_and_ends_with_the_client(
        self, tenants: Tenants, app: Client
    ) -> None:
        """Putting settings touches settings; what is created again is another client."""
        freeze = await tenants.freeze(app, DEPLOYMENT)
        put = await tenants.put_app(app.org_id, APP, app_body(session_limit=7), BY)
        assert put.policy.freeze == freeze
        await tenants.delete_app(app.org_id, APP, BY)
        assert (await tenants.put_app(app.org_id, APP, app_body(), BY)).policy.freeze is None
        await tenants.freeze(app.org, DEPLOYMENT)
        assert (await tenants.put_org(app.org_id, org_body(), BY)).policy.freeze is not None
        await tenants.delete_org(app.org_id, BY)
        assert (await tenants.put_org(app.org_id, org_body(), BY)).policy.freeze is None

    async def test_lists_show_it(self, tenants: Tenants, app: Client) -> None:
        """Of apps with what they have from their organisation."""
        await tenants.freeze(app.org, DEPLOYMENT)
        (listed,) = (await tenants.list_apps(app.org_id)).policies
        assert listed.freeze is not None
        before = OrgId(f"{int(app.org_id[:8], 16) - 1:08x}{app.org_id[8:]}")
        listed = (await tenants.list_orgs(after=before)).policies[0]
        assert (listed.org_id, listed.freeze is not None) == (app.org_id, True)

    async def test_it_is_two_reads_and_one_transaction(
        self, tenants: Tenants, meter: StoreMeter, app: Client
    ) -> None:
        """Both ways, also if nothing changes: the request is recorded."""
        for change in (tenants.freeze, tenants.freeze, tenants.unfreeze, tenants.unfreeze):
            meter.clear()
            await change(app, DEPLOYMENT)
            assert dict(meter.calls) == {"batch_get": 1, "get": 1, "transact": 1}

    async def test_nobody_can_not_be_frozen(self, tenants: Tenants, app: Client) -> None:
        """Neither an absent client nor an unregistered app."""
        for client in (Client(new_org_id()), Client(app.org_id, AppId("absent"))):
            with pytest.raises(NotFoundError):
                await tenants.freeze(client, DEPLOYMENT)
            with pytest.raises(NotFoundError):
                await tenants.unfreeze(client, DEPLOYMENT)


@pytest.mark.parametrize("stored", [{}, "yes", True, {"reason": None, "frozen_at_epoch": "x"}])
async def test_a_freeze_that_says_too_little_is_one_all_the_same(
    tenants: Tenants, app: Client, stored: object
) -> None:
    """Written by hand; the deployment's key lifts it."""
    key = config_key(app)
    await tenants._store.update(Update(CONFIG, key, (Set("freeze", stored),)))  # type: ignore[arg-type]
    with pytest.raises(FrozenError):
        (await tenants.read_registered_policy(app)).require_unfrozen()
    with pytest.raises(NotPermittedError):
        await tenants.unfreeze(app, of_org(app.org_id))
    assert await tenants.unfreeze(app, DEPLOYMENT)
    (await tenants.read_registered_policy(app)).require_unfrozen()


class TestAuthority:
    async def test_an_organisations_key_lifts_what_it_has_frozen(
        self, tenants: Tenants, app: Client
    ) -> None:
        own = of_org(app.org_id)
        for lifting in (own, DEPLOYMENT):
            await tenants.freeze(app, own)
            assert await tenants.unfreeze(app, lifting)

    async def test_it_does_not_touch_what_the_deployments_key_has_frozen(
        self, tenants: Tenants, app: Client
    ) -> None:
        """Not by lifting it, and not by freezing over it; also if it had frozen it first."""
        own = of_org(app.org_id)
        await tenants.freeze(app, own)
        freeze = await tenants.freeze(app, because("the platform says so"))
        for change in (tenants.unfreeze, tenants.freeze):
            with pytest.raises(NotPermittedError):
                await change(app, own)
        assert await freeze_of(tenants, app) == freeze
        assert await tenants.unfreeze(app, DEPLOYMENT)


class TestDeletion:
    """What an administrator has frozen, the organisation's own key does not end."""

    @pytest.fixture
    async def others(self, tenants: Tenants, app: Client) -> list[Client]:
        """Apps before it and behind it, more than one page of them."""
        names = [AppId(f"{letter}{number:03}") for letter in "az" for number in range(51)]
        for name in names:
            await tenants.put_app(app.org_id, name, app_body(), BY)
        return [Client(app.org_id, name) for name in names]

    async def test_a_frozen_organisation_and_its_apps_stay(
        self, tenants: Tenants, app: Client
    ) -> None:
        """Also an app that is not frozen itself."""
        await tenants.freeze(app.org, DEPLOYMENT)
        own = of_org(app.org_id)
        with pytest.raises(NotPermittedError):
            await tenants.delete_org(app.org_id, own)
        with pytest.raises(NotPermittedError):
            await tenants.delete_app(app.org_id, APP, own)
        assert await freeze_of(tenants, app) is not None
        await tenants.unfreeze(app.org, DEPLOYMENT)
        await tenants.delete_app(app.org_id, APP, own)
        await tenants.delete_org(app.org_id, own)

    async def test_a_frozen_app_keeps_its_organisation(
        self, tenants: Tenants, app: Client, others: list[Client]
    ) -> None:
        """At any place among the others; a key above that one still deletes."""
        own = of_org(app.org_id)
        for frozen in (others[0], app, others[-1]):
            await tenants.freeze(frozen, DEPLOYMENT)
            with pytest.raises(NotPermittedError, match=f"the app {frozen.app_id} was frozen"):
                await tenants.delete_org(app.org_id, own)
            with pytest.raises(NotPermittedError):
                await tenants.delete_app(app.org_id, frozen.app_id or APP, own)
            await tenants.unfreeze(frozen, DEPLOYMENT)
        await tenants.freeze(app, DEPLOYMENT)
        await tenants.delete_org(app.org_id, DEPLOYMENT)

    async def test_what_that_key_has_frozen_it_deletes(self, tenants: Tenants, app: Client) -> None:
        own = of_org(app.org_id)
        await tenants.freeze(app, own)
        await tenants.freeze(app.org, own)
        await tenants.delete_app(app.org_id, APP, own)
        await tenants.delete_org(app.org_id, own)

    @pytest.mark.parametrize("frozen", ["org", "app"])
    @pytest.mark.parametrize("deleted", ["org", "app"])
    async def test_a_freeze_between_reading_and_deleting_is_seen(
        self,
        store: Store,
        tenants: Tenants,
        clock: ShiftedClock,
        app: Client,
        frozen: str,
        deleted: str,
    ) -> None:
        """The deletion has looked and found nothing; it is refused, and again when repeated."""
        victim = app.org if frozen == "org" else app
        froze = list[Freeze]()

        async def freeze_first(_: Sequence[Write]) -> None:
            if not froze:
                froze.append(await tenants.freeze(victim, DEPLOYMENT))

        here = Tenants(Overtaken(store, freeze_first), clock, LABELS)

        async def delete() -> None:
            if deleted == "org":
                await here.delete_org(app.org_id, of_org(app.org_id))
            else:
                await here.delete_app(app.org_id, APP, of_org(app.org_id))

        for told in (ContendedError, NotPermittedError):
            with pytest.raises(told):
                await delete()
        assert [await freeze_of(tenants, victim)] == froze

    async def test_apps_that_are_frozen_at_one_moment_do_not_wait_for_each_other(
        self, store: Store, clock: ShiftedClock, tenants: Tenants, app: Client
    ) -> None:
        racers = [Tenants(store, clock, LABELS) for _ in range(2)]
        chosen = [Client(app.org_id, AppId(f"a{number}")) for number in range(12)]
        for one in chosen:
            await tenants.put_app(one.org_id, one.app_id or APP, app_body(), BY)
        await asyncio.gather(
            *(racers[n % 2].freeze(one, DEPLOYMENT) for n, one in enumerate(chosen))
        )
        for one in chosen:
            assert await freeze_of(racers[0], one) is not None


class TestLostReplies:
    @pytest.mark.parametrize("frozen", [True, False])
    async def test_what_was_done_is_recognised_and_the_rest_can_be_repeated(
        self, store: Store, tenants: Tenants, clock: ShiftedClock, app: Client, frozen: bool
    ) -> None:
        """A lost request is unknown, a refused one unavailable; neither has done anything."""
        for faults, told in (
            (REFUSED, StoreUnavailableError),
            (REQUEST_LOST, OutcomeUnknownError),
            (REPLY_LOST, None),
            (SENT_TWICE, None),
        ):
            await turn(tenants, app, frozen=not frozen)
            turns = Interleaving(1)
            shaky = Tenants(FaultyStore(store, turns, faults), clock, LABELS)
            (outcome,) = await turns.run(turn(shaky, app, frozen=frozen))
            assert isinstance(outcome, told or type(None)), faults
            assert (await freeze_of(tenants, app) is not None) == (frozen == (told is None))
            await turn(tenants, app, frozen=frozen)
            assert (await freeze_of(tenants, app) is not None) == frozen

    @pytest.mark.parametrize("frozen", [True, False])
    async def test_a_change_that_arrives_late_changes_nothing_that_came_after(
        self, store: Store, tenants: Tenants, clock: ShiftedClock, app: Client, frozen: bool
    ) -> None:
        """Neither is a lifted freeze brought back, nor one lifted that was set since."""
        await turn(tenants, app, frozen=not frozen)
        unknown = 0
        for seed in range(8):
            turns = Interleaving(seed)
            shaky = FaultyStore(store, turns, LATE)
            (told,) = await turns.run(turn(Tenants(shaky, clock, LABELS), app, frozen=frozen))
            unknown += isinstance(told, OutcomeUnknownError)
            await turn(tenants, app, frozen=frozen)
            await turn(tenants, app, frozen=not frozen)
            await shaky.deliver()
            assert (await freeze_of(tenants, app) is not None) != frozen
        assert unknown

    async def test_an_outcome_that_nobody_can_read_is_seen_here_when_it_can(
        self, store: Store, clock: ShiftedClock, app: Client
    ) -> None:
        turns = Interleaving(1)
        shaky = GoesDark(store, turns, Faults())
        here = Tenants(shaky, clock, LABELS)
        assert (await here.find_policy(app.org_id, app.app_id)).freeze is None
        (told,) = await turns.run(here.freeze(app, DEPLOYMENT))
        assert isinstance(told, OutcomeUnknownError)
        shaky.faults = Faults()
        assert (await here.find_policy(app.org_id, app.app_id)).freeze is not None


async def test_racing_changes_all_succeed_and_leave_one_whole_freeze(
    store: Store, clock: ShiftedClock, tenants: Tenants, app: Client
) -> None:
    """The loser reads again; the final state is one of the requested ones."""
    reasons = [f"reason {number}" for number in range(6)]
    racers = [Tenants(store, clock, LABELS) for _ in reasons]
    made = await asyncio.gather(
        *(one.freeze(app, because(reason)) for one, reason in zip(racers, reasons, strict=True))
    )
    left = await freeze_of(tenants, app)
    assert left is not None
    assert left in made
    assert {freeze.frozen_at_epoch for freeze in made} <= {
        left.frozen_at_epoch,
        left.frozen_at_epoch + 1,
    }


async def test_what_was_acknowledged_is_never_undone_by_a_late_copy(
    store: Store, seeds: range
) -> None:
    """One administrator, every fault, many seeds: after an acknowledged change, it holds.

    Also for the instance itself, while others keep asking it.
    """
    befell: Counter[str] = Counter()
    faults = Faults(refused_pct=5, request_lost_pct=5, reply_lost_pct=10, late_pct=15)
    for seed in seeds:
        clock = ManualClock()
        org_id, turns = new_org_id(), Interleaving(seed)
        shaky = FaultyStore(store, turns, faults)
        tenants = Tenants(shaky, InterleavedClock(clock, turns, clock.advance_ms), LABELS)
        sound = Tenants(store, clock, LABELS)
        await sound.put_org(org_id, org_body(), BY)
        client = Client(org_id)

        async def administer(
            tenants: Tenants = tenants, sound: Tenants = sound, client: Client = client
        ) -> None:
            for step in range(12):
                try:
                    if step % 3 == 2:
                        await tenants.unfreeze(client, DEPLOYMENT)
                    else:
                        await tenants.freeze(client, because(f"step {step}"))
                except (OutcomeUnknownError, StoreUnavailableError):
                    continue
                freeze = (await sound.read_registered_policy(client)).freeze
                wanted = None if step % 3 == 2 else f"step {step}"
                assert (None if freeze is None else freeze.reason) == wanted
                cached = tenants._cache.get(client)
                assert cached is None or cached.freeze == freeze

        async def ask(tenants: Tenants = tenants, org_id: OrgId = org_id) -> None:
            for _ in range(12):
                try:
                    await tenants.find_policy(org_id)
                except StoreUnavailableError:
                    continue

        outcomes = await turns.run(administer(), ask(), ask())
        assert outcomes == [None, None, None], seed
        befell += shaky.befell
    assert len(seeds) < 100 or len(befell) == 4, befell
