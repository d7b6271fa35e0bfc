"""With unreliable stores, acknowledged changes hold, and unknown outcomes are reported."""

from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from attribution import BY
from faulty_store import (
    REPLY_LOST,
    REQUEST_LOST,
    SENT_TWICE,
    Crashed,
    Faults,
    FaultyStore,
    GoesDark,
    InterleavedClock,
    Interleaving,
)
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, Saved, Tenants
from pricekeeper.values import OrgId
from tenants.conftest import APP, LABELS, app_body, new_org_id, org_body

ALL_LOST = Faults(reply_lost_pct=100)
FAULTS = ("refused", "request_lost", "reply_lost", "late")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sound(store: Store, clock: ManualClock) -> Tenants:
    return Tenants(store, clock, LABELS)


async def under(
    faults: Faults, store: Store, clock: ManualClock, work: str, *arguments: Any
) -> Any:
    """What a call of `Tenants` comes to with such a store: its result or its error."""
    turns = Interleaving(1)
    waiting = InterleavedClock(clock, turns, clock.advance_ms)
    tenants = Tenants(FaultyStore(store, turns, faults), waiting, LABELS)
    call: Coroutine[Any, Any, Any] = getattr(tenants, work)(*arguments)
    return (await turns.run(call))[0]


class TestOneLostReply:
    async def test_a_creation_is_recognised(
        self, store: Store, clock: ManualClock, org_id: OrgId
    ) -> None:
        """The winner keeps what came with it, although it never heard back."""
        for client, body in ((Client(org_id), org_body()), (Client(org_id, APP), app_body())):
            saved = await under(REPLY_LOST, store, clock, "put", client, body, BY)
            assert isinstance(saved, Saved)
            assert saved.created

    async def test_a_creation_that_never_arrived_is_unknown_and_can_be_repeated(
        self, store: Store, clock: ManualClock, sound: Tenants, org_id: OrgId
    ) -> None:
        """It may still be under way, so it is not reported as failed."""
        told = await under(REQUEST_LOST, store, clock, "put_org", org_id, org_body(), BY)
        assert isinstance(told, OutcomeUnknownError)
        assert (await sound.put_org(org_id, org_body(), BY)).created

    async def test_nobody_is_told_that_nothing_happened_when_it_did(
        self, store: Store, clock: ManualClock, sound: Tenants, org_id: OrgId
    ) -> None:
        """Even if looking again fails: unavailable would mean not applied."""
        put = await under(ALL_LOST, store, clock, "put_org", org_id, org_body(), BY)
        assert isinstance(put, StoreUnavailableError)  # it did not get further than reading
        turns = Interleaving(1)
        waiting = InterleavedClock(clock, turns, clock.advance_ms)
        tenants = Tenants(GoesDark(store, turns, Faults()), waiting, LABELS)
        (put,) = await turns.run(tenants.put_org(org_id, org_body(), BY))
        assert isinstance(put, OutcomeUnknownError)
        assert (await sound.read_registered_policy(Client(org_id))).org_name == "Sample"

    async def test_an_update_is_recognised_by_its_entry(
        self, store: Store, clock: ManualClock, sound: Tenants, org_id: OrgId
    ) -> None:
        """However many of its replies are lost; one that never arrived can be repeated."""
        await sound.put_org(org_id, org_body(), BY)
        body = org_body(session_limit=7)
        told = await under(REQUEST_LOST, store, clock, "put_org", org_id, body, BY)
        assert isinstance(told, OutcomeUnknownError)
        saved = await under(REPLY_LOST, store, clock, "put_org", org_id, body, BY)
        assert isinstance(saved, Saved)
        assert saved.policy.session_limit == 7
        assert (await sound.read_registered_policy(Client(org_id))).session_limit == 7

    async def test_the_end_of_tokens_that_was_sent_twice_is_recognised_by_its_effect(
        self, store: Store, clock: ManualClock, sound: Tenants, org_id: OrgId
    ) -> None:
        """The second copy is refused and shows what the first one did; it has no entry."""
        await sound.put_org(org_id, org_body(), BY)
        client = Client(org_id)
        for faults in (SENT_TWICE, REPLY_LOST):
            before = (await sound.read_registered_policy(client)).token_generation
            ended = await under(faults, store, clock, "end_tokens_issued_before_now", client)
            assert ended is None
            assert (await sound.read_registered_policy(client)).token_generation != before

    async def test_a_deletion_is_recognised_and_one_that_never_arrived_is_unknown(
        self, store: Store, clock: ManualClock, sound: Tenants, org_id: OrgId
    ) -> None:
        """What is not there any more has been deleted; else it may still be."""
        await sound.put_org(org_id, org_body(), BY)
        await sound.put_app(org_id, APP, app_body(), BY)
        deletions = (("delete_app", org_id, APP, BY), ("delete_org", org_id, BY))
        for deletion in deletions:
            told = await under(REQUEST_LOST, store, clock, *deletion)
            assert isinstance(told, OutcomeUnknownError)
        for deletion in deletions:
            assert await under(REPLY_LOST, store, clock, *deletion) is None
        with pytest.raises(NotFoundError):
            await sound.read_registered_policy(Client(org_id))


async def test_what_was_acknowledged_is_never_undone_by_a_late_copy(
    store: Store, clock: ManualClock, seeds: range
) -> None:
    """One writer, every fault, many seeds: after an acknowledged change, that change holds.

    Also through the writer's own cache, while others keep filling it.
    """
    befell: Counter[str] = Counter()
    faults = Faults(refused_pct=5, request_lost_pct=5, reply_lost_pct=10, late_pct=15)
    for seed in seeds:
        org_id, turns = new_org_id(), Interleaving(seed)
        shaky = FaultyStore(store, turns, faults)
        tenants = Tenants(shaky, InterleavedClock(clock, turns, clock.advance_ms), LABELS)
        sound = Tenants(store, clock, LABELS)
        await sound.put_org(org_id, org_body(), BY)

        async def write(
            tenants: Tenants = tenants, sound: Tenants = sound, org_id: OrgId = org_id
        ) -> None:
            for limit in range(1, 13):
                try:
                    saved = await tenants.put_org(org_id, org_body(session_limit=limit), BY)
                except (OutcomeUnknownError, StoreUnavailableError):
                    continue
                assert saved.policy.session_limit == limit
                assert (await sound.read_registered_policy(Client(org_id))).session_limit == limit
                cached = tenants._cache.get(Client(org_id))
                assert cached is None or cached.session_limit == limit

        async def read(tenants: Tenants = tenants, org_id: OrgId = org_id) -> None:
            for _ in range(12):
                try:
                    await tenants.find_policy(org_id)
                except StoreUnavailableError:
                    continue

        outcomes = await turns.run(write(), read(), read())
        assert outcomes == [None, None, None], seed
        befell += shaky.befell
    assert len(seeds) < 100 or set(befell) == set(FAULTS)


async def test_whatever_happens_the_list_agrees_and_no_app_outlives_its_org(
    store: Store, clock: ManualClock, seeds: range
) -> None:
    """Several instances create, delete, crash and repeat themselves; then all is delivered."""
    befell: Counter[str] = Counter()
    faults = Faults(
        refused_pct=3,
        request_lost_pct=3,
        reply_lost_pct=8,
        late_pct=8,
        crashed_pct=4,
    )
    for seed in seeds:
        org_id, turns = new_org_id(), Interleaving(seed)
        shaky = FaultyStore(store, turns, faults)

        async def act(shaky: FaultyStore = shaky, org_id: OrgId = org_id, seed: int = seed) -> None:
            waiting = InterleavedClock(clock, shaky._turns, clock.advance_ms)
            tenants = Tenants(shaky, waiting, LABELS)
            for _ in range(5):
                choice = shaky._turns.random.randrange(4)
                try:
                    if choice == 0:
                        await tenants.delete_org(org_id, BY)
                    elif choice == 1:
                        await tenants.put_app(org_id, APP, app_body(), BY)
                    else:
                        await tenants.put_org(org_id, org_body(session_limit=choice), BY)
                except (
                    OutcomeUnknownError,
                    StoreUnavailableError,
                    NotFoundError,
                    ContendedError,
                    Crashed,  # and a new process continues
                ):
                    tenants = Tenants(shaky, waiting, LABELS)

        outcomes = await turns.run(act(), act(), act())
        assert outcomes == [None, None, None], seed
        await shaky.deliver()
        befell += shaky.befell

        org = await store.get(CONFIG, Key(f"ORG#{org_id}", "ORG"))
        entry = await store.get(CONFIG, Key("ORGS", org_id))
        assert (org is None) == (entry is None), seed
        sound = Tenants(store, clock, LABELS)
        app = await store.get(CONFIG, Key(f"ORG#{org_id}", "APP#api"))
        counts = org is not None and app is not None
        counts = counts and app["org_incarnation"] == org["incarnation"]  # type: ignore[index]
        try:
            await sound.read_registered_policy(Client(org_id, APP))
        except NotFoundError:
            assert not counts, seed
        else:
            assert counts, seed
        if org is not None:  # and everything works from here
            await sound.put_app(org_id, APP, app_body(), BY)
            await sound.delete_org(org_id, BY)
        assert await store.get(CONFIG, Key("ORGS", org_id)) is None
    assert len(seeds) < 100 or min(befell[name] for name in (*FAULTS, "crashed")) > 20, befell
