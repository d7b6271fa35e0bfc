"""A change and its entry: both are written, or neither."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from attribution import BY
from audit_trail.conftest import a_change, entries_of, findings, thing_key, thing_put
from faulty_store import (
    LATE,
    REFUSED,
    REPLY_LOST,
    REQUEST_LOST,
    Crashed,
    Faults,
    FaultyStore,
    InterleavedClock,
    Interleaving,
    Overtaken,
)
from pricekeeper.audit import AuditTrail
from pricekeeper.audit import items as trail_items
from pricekeeper.audit.entry import chain_of
from pricekeeper.audit.service import ATTEMPTS_MAX
from pricekeeper.authority import Attribution
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    ReasonCode,
    StoreMisconfiguredError,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.storage import Delete, Put, Store, Write
from pricekeeper.storage.tables import AUDIT_TRAIL, CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.values import OrgId
from stores import ShiftedClock, stored
from tenants.conftest import new_org_id


async def put_thing(trail: AuditTrail, org_id: OrgId | None, name: str) -> None:
    await trail.write(BY, a_change(org_id, name), thing_put(org_id, name))


async def is_there(store: Store, org_id: OrgId | None, name: str) -> bool:
    return await store.get(CONFIG, thing_key(org_id, name)) is not None


class TestTogether:
    async def test_a_change_is_made_with_its_entry(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, org_id: OrgId
    ) -> None:
        """Who, from where, what, to whom and why, before and after."""
        by = Attribution("cli/jane", "192.0.2.9", "r-7", "asked for")
        change = a_change(org_id, "one", before={"n": 1}, after={"n": 2})
        await trail.apply(by, change, [thing_put(org_id, "one"), thing_put(org_id, "two")])
        assert await is_there(store, org_id, "one")
        assert await is_there(store, org_id, "two")
        (entry,) = await entries_of(store, org_id)
        assert (entry.actor, entry.address, entry.request_id) == ("cli/jane", "192.0.2.9", "r-7")
        assert (entry.action, entry.target, entry.reason) == ("thing.put", "one", "asked for")
        assert (entry.before, entry.after, entry.seq) == ({"n": 1}, {"n": 2}, 1)
        assert abs(entry.at_ms - clock.now_ms()) < 60_000
        assert entry.expires_at_epoch == entry.at_ms // 1000 + 400 * 86_400

    async def test_what_is_refused_has_no_entry(
        self, store: Store, trail: AuditTrail, org_id: OrgId
    ) -> None:
        """The reasons are those of the operations, with the items that were in the way."""
        await put_thing(trail, org_id, "one")
        with pytest.raises(ConditionFailedError) as failed:
            await put_thing(trail, org_id, "one")
        assert failed.value.item == {"PK": f"THINGS#{org_id}", "SK": "one"}
        operations = [thing_put(org_id, "two"), thing_put(org_id, "one")]
        with pytest.raises(TransactionCancelledError) as cancelled:
            await trail.apply(BY, a_change(org_id), operations)
        assert [reason.code for reason in cancelled.value.reasons] == [
            ReasonCode.NONE,
            ReasonCode.CONDITION_FAILED,
        ]
        assert not await is_there(store, org_id, "two")
        assert len(await entries_of(store, org_id)) == 1

    async def test_if_the_entry_can_not_be_written_the_change_is_not_made(
        self, store: Store, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """Neither when the store refuses, nor when the end of the chain can't be read."""
        for faults in (REFUSED, Faults(refused_pct=100)):
            turns = Interleaving(1)
            trail = AuditTrail(FaultyStore(store, turns, faults), clock)
            (told,) = await turns.run(put_thing(trail, org_id, "one"))
            assert isinstance(told, StoreUnavailableError)
        assert not await is_there(store, org_id, "one")
        assert await entries_of(store, org_id) == []

    async def test_a_request_that_changes_nothing_can_be_written_down_alone(
        self, store: Store, trail: AuditTrail, org_id: OrgId
    ) -> None:
        await trail.write(BY, a_change(org_id), None)
        assert len(await entries_of(store, org_id)) == 1

    async def test_chains_are_apart(self, store: Store, trail: AuditTrail, org_id: OrgId) -> None:
        """Each organisation has its own, and the deployment has one."""
        other = new_org_id()
        before = len(await entries_of(store, None))
        for owner in (org_id, other, None, org_id):
            await trail.apply(BY, a_change(owner), ())
        assert [one.seq for one in await entries_of(store, org_id)] == [1, 2]
        assert [one.seq for one in await entries_of(store, other)] == [1]
        assert len(await entries_of(store, None)) == before + 1

    async def test_it_costs_one_read_and_one_transaction(
        self, trail: AuditTrail, meter: StoreMeter, org_id: OrgId
    ) -> None:
        """The end of the chain, and everything else together."""
        for name in ("one", "two"):
            meter.clear()
            await put_thing(trail, org_id, name)
            assert dict(meter.calls) == {"get": 1, "transact": 1}


class TestLostReplies:
    async def test_what_was_applied_is_known_and_applied_once(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, org_id: OrgId
    ) -> None:
        await put_thing(trail, org_id, "before")
        turns = Interleaving(1)
        shaky = AuditTrail(FaultyStore(store, turns, REPLY_LOST), clock)
        (told,) = await turns.run(put_thing(shaky, org_id, "one"))
        assert told is None
        assert [one.target for one in await entries_of(store, org_id)] == ["before", "one"]

    async def test_what_never_arrived_is_unknown(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, org_id: OrgId
    ) -> None:
        """It may still arrive; the same again is a change of its own."""
        turns = Interleaving(1)
        shaky = AuditTrail(FaultyStore(store, turns, REQUEST_LOST), clock)
        (told,) = await turns.run(put_thing(shaky, org_id, "one"))
        assert isinstance(told, OutcomeUnknownError)
        await put_thing(trail, org_id, "one")
        assert len(await entries_of(store, org_id)) == 1

    async def test_a_copy_that_arrives_late_changes_nothing_that_came_after(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail
    ) -> None:
        """The chain has gone on since, and it does not fit any more."""
        unknown = 0
        for seed in range(8):
            org_id, turns = new_org_id(), Interleaving(seed)
            shaky = FaultyStore(store, turns, LATE)
            (told,) = await turns.run(put_thing(AuditTrail(shaky, clock), org_id, "one"))
            if not isinstance(told, OutcomeUnknownError):
                continue
            unknown += 1
            await put_thing(trail, org_id, "two")
            before = [one.target for one in await entries_of(store, org_id)]
            await shaky.deliver()
            assert [one.target for one in await entries_of(store, org_id)] == before
        assert unknown

    async def test_a_refusal_while_a_copy_is_under_way_is_unknown(
        self, store: Store, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """What is in the way now may be gone when the first copy arrives."""
        late: list[tuple[Write, ...]] = []

        async def hold_up(operations: Sequence[Write]) -> None:
            if not late:
                late.append(tuple(operations))
                await store.put(thing_put(org_id, "one"))
                raise OutcomeUnknownError("held up")

        with pytest.raises(OutcomeUnknownError):
            await put_thing(AuditTrail(Overtaken(store, hold_up), clock), org_id, "one")
        key = thing_key(org_id, "one")
        await store.delete(Delete(CONFIG, key))
        await store.transact(late[0])
        assert len(await entries_of(store, org_id)) == 1

    async def test_a_refusal_after_the_chain_went_on_is_a_refusal(
        self, store: Store, clock: ShiftedClock, trail: AuditTrail, org_id: OrgId
    ) -> None:
        """No copy of it can be applied any more, so the outcome is known."""
        lost: list[Sequence[Write]] = []

        async def lose(operations: Sequence[Write]) -> None:
            if not lost:
                lost.append(operations)
                await put_thing(trail, org_id, "one")
                raise OutcomeUnknownError("lost")

        with pytest.raises(ConditionFailedError):
            await put_thing(AuditTrail(Overtaken(store, lose), clock), org_id, "one")
        assert len(await entries_of(store, org_id)) == 1


class TestOthers:
    async def test_changes_at_once_all_get_entries_with_consecutive_numbers(
        self, store: Store, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """Of one instance and of several, which do not know of each other."""
        instances = [AuditTrail(store, clock) for _ in range(4)]
        names = [f"{number:02}" for number in range(24)]
        await asyncio.gather(
            *(put_thing(instances[index % 4], org_id, name) for index, name in enumerate(names))
        )
        entries = await entries_of(store, org_id)
        assert [entry.seq for entry in entries] == list(range(1, 25))
        assert sorted(entry.target for entry in entries) == names
        assert await findings(store, clock, org_id) == []

    async def test_who_never_gets_a_turn_is_told_so(
        self, store: Store, clock: ShiftedClock, org_id: OrgId
    ) -> None:
        """After a bounded number of attempts, and nothing was done."""
        sound = AuditTrail(store, clock)
        always_late = Overtaken(store, lambda _: sound.apply(BY, a_change(org_id), ()))
        with pytest.raises(ContendedError):
            await put_thing(AuditTrail(always_late, clock), org_id, "one")
        assert not await is_there(store, org_id, "one")
        assert len(await entries_of(store, org_id)) == ATTEMPTS_MAX

    async def test_behind_a_head_that_was_set_back_nothing_is_changed(
        self, store: Store, trail: AuditTrail, org_id: OrgId
    ) -> None:
        """No entry is ever overwritten; the error says what to do."""
        await put_thing(trail, org_id, "one")
        key = trail_items.head_key(chain_of(org_id))
        head = await stored(store, AUDIT_TRAIL, key)
        await put_thing(trail, org_id, "two")
        await store.put(Put(AUDIT_TRAIL, head))
        with pytest.raises(StoreMisconfiguredError, match="audit verify"):
            await put_thing(trail, org_id, "three")
        assert not await is_there(store, org_id, "three")
        assert [one.target for one in await entries_of(store, org_id)] == ["one", "two"]


async def test_whatever_happens_a_change_and_its_entry_are_both_there_or_neither(
    store: Store, clock: ShiftedClock, seeds: range
) -> None:
    """Several instances, every fault, crashes; then all that was under way is delivered."""
    befell: Counter[str] = Counter()
    faults = Faults(
        refused_pct=4, request_lost_pct=4, reply_lost_pct=10, late_pct=12, crashed_pct=4
    )
    for seed in seeds:
        org_id, turns, hands = new_org_id(), Interleaving(seed), ManualClock(clock.now_ms())
        shaky = FaultyStore(store, turns, faults)
        waiting = InterleavedClock(hands, turns, hands.advance_ms)
        acknowledged, refused = set[str](), set[str]()

        async def act(
            worker: int,
            org_id: OrgId = org_id,
            shaky: FaultyStore = shaky,
            waiting: InterleavedClock = waiting,
            acknowledged: set[str] = acknowledged,
            refused: set[str] = refused,
        ) -> None:
            trail = AuditTrail(shaky, waiting)
            for step in range(4):
                # Some of them want the same, so that one of these is refused.
                name = f"shared-{step}" if worker < 2 else f"{worker}-{step}"
                try:
                    await put_thing(trail, org_id, name)
                except ConditionFailedError:
                    refused.add(name)
                except (OutcomeUnknownError, StoreUnavailableError, Crashed):
                    trail = AuditTrail(shaky, waiting)
                else:
                    assert name not in acknowledged
                    acknowledged.add(name)

        outcomes = await turns.run(*(act(worker) for worker in range(4)))
        assert outcomes == [None] * 4, seed
        await shaky.deliver()
        befell += shaky.befell

        entries = await entries_of(store, org_id)
        targets = [entry.target for entry in entries]
        assert len(set(targets)) == len(targets), seed
        names = [f"{who}-{step}" for who in ("shared", 2, 3) for step in range(4)]
        for name in names:
            assert await is_there(store, org_id, name) == (name in targets), (seed, name)
        assert acknowledged <= set(targets), seed
        assert refused <= set(targets), seed
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1)), seed
        assert await findings(store, clock, org_id) == [], seed
    assert len(seeds) < 100 or min(befell.values()) > 20, befell
