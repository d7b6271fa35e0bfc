"""One organisation floods while others work, in an order that a seed decides, on a faulty wire.

The flood comes in batches and single records, gives up on some, and repeats those refused or not
answered, at once. Its neighbours send a record now and then and a small batch. However it goes: no
neighbour is ever refused for lack of room, the flood is, no one holds more than its share, and in
the end everything counts once and every place is free again.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from faulty_store import Faults, FaultyStore, InterleavedClock, Interleaving
from metering.audit import Audit, Reported
from metering.conftest import LABELS, a_policy
from metering.variants import SOUND
from minting import either
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OverloadedError, StoreError
from pricekeeper.metering import Aggregator, Recorded, Refused, Usage, admission, service
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.tenants import Policy

SEEDS = range(12)
PLACES = 1_000
BATCHES = 25
NEIGHBOURS = 3
FAULTS = Faults(refused_pct=2, request_lost_pct=4, reply_lost_pct=5, late_pct=4)


class Flood:
    """One deployment, one organisation that floods, and its neighbours."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.random = Random(seed)
        self.clock = clock
        self.turns = Interleaving(seed, lambda random: clock.advance_ms(random.randrange(300)))
        self.wire = FaultyStore(store, self.turns, FAULTS)
        service_clock = InterleavedClock(clock, self.turns, clock.advance_ms)
        self.metering = SOUND.metering(self.wire, service_clock)
        self.audit = Audit()
        self.flooder = a_policy()
        self.neighbours = [a_policy() for _ in range(NEIGHBOURS)]
        self.refusals: dict[str, int] = {}

    def records(self, policy: Policy, count: int) -> list[Reported]:
        made = []
        for _ in range(count):
            usage = Usage(
                request_id=either(self.clock.now_ms(), self.random),
                model_label=self.random.choice(LABELS),
                input_tokens=self.random.randrange(3_000),
                output_tokens=self.random.randrange(1_000),
                timestamp_ms=self.clock.now_ms(),
            )
            made.append(Reported(policy, usage, usage.timestamp_ms or 0))
            self.audit.report(made[-1])
        return made

    async def send(self, records: Sequence[Reported]) -> None:
        policy, usages = records[0].policy, [one.usage for one in records]
        answers: Sequence[Recorded | Refused]
        try:
            if len(records) == 1:
                answers = [await self.metering.record(policy, usages[0])]
            else:
                answers = await self.metering.record_many(policy, usages)
        except OverloadedError:
            self.refusals[policy.org_id] = self.refusals.get(policy.org_id, 0) + 1
        except StoreError:
            pass
        else:
            for record, answer in zip(records, answers, strict=True):
                if isinstance(answer, Recorded):
                    self.audit.answer(record, answer)

    async def flood(self) -> None:
        """Send and repeat refused records; now and then stop waiting."""
        records = self.records(self.flooder, self.random.choice((1, 30, 100)))
        for _ in range(3):
            sending = asyncio.create_task(self.send(records))
            if self.random.random() < 0.1:
                await self.turns.turn()
                sending.cancel()
            await asyncio.wait([sending])
            self.look()

    async def work(self, policy: Policy) -> None:
        for _ in range(6):
            await self.send(self.records(policy, self.random.choice((1, 1, 5))))
            self.look()

    def look(self) -> None:
        """No organisation holds more places than were free when it took the last."""
        shares = self.metering.admission.shares
        assert shares._total == sum(shares.held.values()) <= PLACES
        assert all(count <= PLACES // 2 + 100 for count in shares.held.values())

    async def settle(self, store: Store) -> None:
        """Let everything arrive; report unanswered records again; sum up."""
        await self.wire.deliver()
        await self.metering.close()
        assert self.metering.admission.shares.held == {}
        survivor = SOUND.metering(store, self.clock)
        for record in self.audit.unanswered:
            self.audit.answer(record, await survivor.record(record.policy, record.usage))
        await survivor.close()
        await Aggregator(store, self.clock).run_once()
        await self.audit.check(store)


@pytest.mark.slow
async def test_a_flood_meets_its_share_and_its_neighbours_never_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing is lost or counted twice."""
    monkeypatch.setattr(service, "PENDING_MAX", PLACES)
    monkeypatch.setattr(admission, "WAITING_MAX", 8)
    befell = refused = 0
    for seed in SEEDS:
        clock = ManualClock(1_768_000_000_000)
        store = await open_store(SqliteLocation(MEMORY), clock=clock)
        await store.create_tables()
        flood = Flood(store, clock, seed)
        await flood.turns.run(
            *(flood.flood() for _ in range(BATCHES)),
            *(flood.work(policy) for policy in flood.neighbours),
        )
        await flood.settle(store)
        assert flood.refusals.keys() <= {flood.flooder.org_id}
        refused += flood.refusals.get(flood.flooder.org_id, 0)
        befell += sum(flood.wire.befell.values())
        await store.close()
    assert refused > len(SEEDS)
    assert befell > len(SEEDS)
