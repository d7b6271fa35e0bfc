"""Everything at once, in an order that a seed decides: instances, aggregators, faults, midnight.

Several instances count for apps in three zones, around the midnight of each. Their wire loses
requests and replies, delivers late, up to minutes, and their processes die. Their clocks are up to
two seconds wrong. Clients repeat a third of their records, some ids have their time in them and
some not, and unanswered records are reported again. Another service counts in a store of its
own, which is adopted again and again. Two aggregators and the adoption are stopped at any read or
write. However it goes, the
totals are those of the distinct records.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

import quick_loop
from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from metering.audit import Audit, Reported, Watcher
from metering.conftest import LABELS, PREMIUM, a_policy
from metering.other_service import SHARDS, OtherService
from metering.variants import BROKEN, SEEDING, SOUND, Variant
from minting import minted
from pricekeeper.clock import Clock, ManualClock
from pricekeeper.errors import (
    OutcomeUnknownError,
    PriceKeeperError,
    StoreError,
    StoreUnavailableError,
)
from pricekeeper.metering import Aggregator, Metering, Usage, day_start_ms, journal, journal_items
from pricekeeper.metering.adopting import UsageAdopter
from pricekeeper.metering.journal import FULL_WEIGHT
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Key, Store, open_store
from pricekeeper.storage.tables import ALL_TABLES
from pricekeeper.ticks import TICK_MS
from pricekeeper.values import OrgId
from quick_loop import quiet
from slow_wire import SkewedClock, SlowWire, TornStore
from slowness import batches

__all__ = ["quiet"]

pytestmark = pytest.mark.usefixtures("quiet")
HISTORIES = 500
HISTORIES_EACH = 50
BEFALLING = {
    "refused", "request_lost", "reply_lost", "late", "crashed",
    "last_request", "slow_request", "slow_reply",
}  # fmt: skip
INSTANCES = 3
CLIENTS = 8
RECORDS = 8
RUNS = 8
SKEW_MS = 2_000
ZONES = ("Pacific/Kiritimati", "UTC", "America/Sao_Paulo")
HOUR_MS = 3_600_000
FAULTS = Faults(
    refused_pct=3, request_lost_pct=4, reply_lost_pct=5, late_pct=4, resent_pct=4, crashed_pct=2
)
Logged: TypeAlias = tuple[str, Any, Any]
"""A call, its operation, and what came of it."""
_NO_ANSWER = (OutcomeUnknownError, StoreUnavailableError, Crashed, asyncio.CancelledError)


class World:
    """One deployment, its clients, and their books."""

    def __init__(self, store: Store, clock: ManualClock, seed: int, variant: Variant) -> None:
        self.random = Random(seed)
        SEEDING.seed(seed)
        self.clock = clock
        set_full_weight(self.random.choice((1, 2, FULL_WEIGHT)))  # pages may be full soon
        longest_ms = self.random.choice((200, 1_500, 6_000))
        self.turns = Interleaving(seed, lambda _: clock.advance_ms(self.turns.below(longest_ms)))
        self.real = store
        self.wire = SlowWire(store, self.turns, FAULTS, clock)
        self.torn = TornStore(store, self.turns, FAULTS, clock)
        self.calm = FaultyStore(store, self.turns, Faults())
        self.variant = variant
        self.audit = Audit()
        self.watcher = Watcher(self.calm, self.audit)
        self.policies = [
            a_policy(
                org_id=OrgId(str(uuid.UUID(int=self.random.getrandbits(128), version=4))),
                timezone=self.random.choice(ZONES),
                agg_shard_count=self.random.choice((8, 24)),
            )
            for _ in range(3)
        ]
        self.instances = [self.instance() for _ in range(INSTANCES)]
        self.crowded_ms = clock.now_ms() - self.random.randrange(10_000)
        self.elsewhere = MemoryStore(clock)
        self.other_service = OtherService(self.elsewhere, self.random)
        self.crashes = 0

    def service_clock(self) -> SkewedClock:
        return SkewedClock(self.clock, self.turns, self.random.randint(-SKEW_MS, SKEW_MS))

    def instance(self) -> Metering:
        return self.variant.metering(self.wire, self.service_clock())

    def new_record(self) -> Reported:
        """Of any app, any time from yesterday on, mostly around the midnight that is near."""
        random = self.random
        now_ms = self.clock.now_ms()
        ago_ms = random.choice((0, 30_000, 600_000, 2 * HOUR_MS, 21 * HOUR_MS))
        policy = random.choice(self.policies)
        label = random.choice(LABELS)
        made_ms = now_ms - random.choice((0, 0, 0, 100, 90_000, 5 * HOUR_MS))
        if random.random() < 0.3:
            made_ms = self.crowded_ms + random.randrange(3)  # one page that everybody writes to
        request_id = (
            str(uuid.UUID(int=random.getrandbits(128), version=4))
            if random.random() < 0.3
            else minted(made_ms, random)
        )
        usage = Usage(
            request_id=request_id,
            model_label=label,
            input_tokens=random.randrange(3_000),
            output_tokens=random.randrange(1_000),
            cache_read_tokens=random.randrange(100) if label == PREMIUM else 0,
            timestamp_ms=now_ms - ago_ms + random.randrange(60_000),
        )
        return Reported(policy, usage, usage.timestamp_ms or now_ms)

    async def client(self) -> None:
        """Report and sometimes repeat, through every failure."""
        for _ in range(RECORDS):
            if self.random.random() < 0.1:
                await self.count_elsewhere()
            known = list(self.audit.reported.values())
            if known and self.random.random() < 0.3:
                record = self.random.choice(known)
            else:
                record = self.new_record()
                self.audit.report(record)
            await self.send(record)

    async def send(self, record: Reported) -> None:
        number = self.random.randrange(INSTANCES)
        instance = self.instances[number]
        try:
            answer = await instance.record(record.policy, record.usage)
        except Crashed:
            self.crashes += 1
            if self.instances[number] is instance:
                self.instances[number] = self.instance()
        except _NO_ANSWER:
            pass
        else:
            self.audit.answer(record, answer)

    async def count_elsewhere(self) -> None:
        """The other service counts a record."""
        record = self.new_record()
        await self.other_service.count(record.account, self.audit.adopt(record))

    async def adopt(self, store: Store, clock: Clock) -> None:
        adopter = UsageAdopter(self.elsewhere, store, clock)
        for policy in self.policies:
            for label in LABELS:
                await adopter.adopt(policy.scope_key, label, SHARDS)

    async def keep_adopting(self) -> None:
        """Adopt, die, adopt again."""
        for _ in range(RUNS):
            with suppress(StoreError, Crashed):
                await self.adopt(self.torn, self.service_clock())

    async def aggregate(self) -> None:
        """Run, die, run again."""
        for _ in range(RUNS):
            try:
                await self.variant.aggregator(self.torn, self.service_clock()).run_once()
            except (StoreError, Crashed):
                continue

    async def watch(self) -> None:
        for _ in range(4 * RUNS):
            await self.watcher.look(self.audit.expected())
            await self.turns.turn()

    async def settle(self) -> None:
        """Let everything arrive; report unanswered records; sum up once more."""
        await self.wire.deliver()
        await self.torn.deliver()
        survivor = self.variant.metering(self.calm, self.clock)
        for record in self.audit.unanswered:
            self.audit.answer(record, await survivor.record(record.policy, record.usage))
        await survivor.close()
        await self.adopt(self.calm, self.clock)
        for _ in range(2):
            report = await self.variant.aggregator(self.calm, self.clock).run_once()
            assert not report.failed, report.errors
            await self.watcher.look(self.audit.expected())
            self.clock.advance_ms(4 * TICK_MS)  # the second time, every tick is closed


async def simulate(seed: int, variant: Variant, *, written: list[Logged] | None = None) -> World:
    """One history, from ten minutes before a midnight on; raises what it finds wrong."""
    zone = ZONES[seed % len(ZONES)]
    clock = ManualClock(day_start_ms(zone, "20181104") - 10 * 60_000)
    store = MemoryStore(clock) if written is None else LoggedStore(clock, written)
    try:
        await store.create_tables()
        await Aggregator(store, clock).run_once()  # so that the next need not look far back
        world = World(store, clock, seed, variant)
        await world.turns.run(
            *(world.client() for _ in range(CLIENTS)),
            world.aggregate(),
            world.aggregate(),
            world.keep_adopting(),
            world.watch(),
        )
        await world.settle()
        assert world.watcher.broken == []
        await world.audit.check(store)
    finally:
        set_full_weight(FULL_WEIGHT)
        await store.close()
    return world


def set_full_weight(weight: int) -> None:
    for module in (journal, journal_items):
        vars(module)["FULL_WEIGHT"] = weight


@pytest.mark.parametrize("first", batches(HISTORIES, HISTORIES_EACH))
def test_the_totals_are_those_of_the_distinct_records(first: int) -> None:
    """With losses, repetitions, delays and crashes; and no total ever goes back."""
    befell: Counter[str] = Counter()
    records = answers = crashes = days = 0
    for seed in range(first, first + HISTORIES_EACH):
        world = quick_loop.run(simulate(seed, SOUND))
        befell += world.wire.befell + world.torn.befell
        crashes += world.crashes
        records += len(world.audit.reported)
        answers += sum(map(len, world.audit.answers.values()))
        days += len({record.account.day for record in world.audit.reported.values()})
    assert befell.keys() >= BEFALLING
    assert crashes > HISTORIES_EACH // 3
    assert answers > records  # duplicates were answered too
    assert days >= 2 * HISTORIES_EACH


async def test_the_simulated_store_does_what_sqlite_does() -> None:
    """Every write and query of three histories has the same outcome, and leaves the same items."""
    for seed in range(3):
        written: list[Logged] = []
        world = await simulate(seed, SOUND, written=written)
        memory = world.real
        assert isinstance(memory, MemoryStore)
        store = await open_store(SqliteLocation(MEMORY), clock=world.clock)
        try:
            await store.create_tables()
            for call, operation, outcome in written:
                assert await outcome_of(getattr(store, call)(operation)) == outcome
            for (table_name, pk), items in memory.partitions.items():
                for sk, item in items.items():
                    table = next(one for one in ALL_TABLES if one.name == table_name)
                    assert await store.get(table, Key(pk, sk or None)) == item
        finally:
            await store.close()
    assert any(outcome == "ConditionFailedError" for _, _, outcome in written)
    assert any(call == "query" and outcome.items for call, _, outcome in written)


class LoggedStore(MemoryStore):
    """Notes each write and query and what became of it."""

    def __init__(self, clock: ManualClock, written: list[Logged]) -> None:
        super().__init__(clock)
        for call in ("put", "update", "delete", "transact", "query"):
            setattr(self, call, partial(self._log, written, call, getattr(self, call)))

    async def _log(
        self,
        written: list[Logged],
        call: str,
        send: Callable[[Any], Awaitable[Any]],
        operation: Any,
        **options: Any,
    ) -> Any:
        outcome: Any = None
        try:
            outcome = await send(operation, **options)
        except StoreError as error:
            outcome = type(error).__name__
            raise
        finally:
            written.append((call, operation, outcome))
        return outcome


async def outcome_of(call: Awaitable[object]) -> object:
    try:
        return await call
    except StoreError as error:
        return type(error).__name__


@pytest.mark.parametrize("name", BROKEN)
def test_the_same_checks_catch_a_broken_variant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seed that `docs/proof.md` names."""
    break_it, seed = BROKEN[name]
    variant = break_it(monkeypatch)
    with pytest.raises((AssertionError, PriceKeeperError)):
        quick_loop.run(simulate(seed, variant))


def test_every_broken_variant_is_in_the_document() -> None:
    listed = (Path(__file__).parents[2] / "docs" / "proof.md").read_text()
    for name, (_, seed) in BROKEN.items():
        assert f"| {name} | {seed} |" in listed
