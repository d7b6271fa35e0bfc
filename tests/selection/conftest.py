"""What the tests of selection share: every store, a clock to set, and instances to ask."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.activity.event import Flip
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ReasonCode,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.metering import Counters, Metering, Total, org_day
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import day_expires_at_epoch
from pricekeeper.pricing import PICOS_PER_MICRO, PriceBook
from pricekeeper.pricing.deployment import parse_catalogue
from pricekeeper.selection import SelectionMeter, Selector
from pricekeeper.storage import Item, Key, Store, Update, Write
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import AppId, ModelLabel, OrgId
from selection.policies import APP, LABELS
from stores import location, meter, store, table_prefix
from totals import total_put

__all__ = ["location", "meter", "store", "table_prefix"]

NOON_MS = 1_894_708_800_000  # 2030-01-15T12:00:00Z: no engine expires what tests write

CATALOGUE = parse_catalogue(
    "version: 1\nmodels:\n"
    + "".join(
        f"  {label}:\n"
        f"    bedrock_model_id: anthropic.claude-{label}-20300101-v1:0\n"
        f"    family: claude\n    tier: {label}\n    description: The {label} model\n"
        "    default_pricing:\n"
        "      input_price_usd_micros_per_1m: 3000000\n"
        "      output_price_usd_micros_per_1m: 15000000\n"
        for label in LABELS
    ),
    "test",
)


class SettableClock(ManualClock):
    """A clock to set, while the pauses of a store between its own retries are real."""

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def set(self, moment: str) -> None:
        """Let time pass until that moment, written as RFC 3339."""
        self.advance_ms(epoch_ms(moment) - self.now_ms())


def epoch_ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1000


class World:
    """One store, and as many instances of the service as a test needs."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.org = Client(OrgId(str(uuid.uuid4())))
        """An organisation that no other test has used: the engine's tables outlive a test."""
        self.app = Client(self.org.org_id, APP)
        self.other_app = Client(self.org.org_id, AppId("batch"))
        self.instances: list[Selector] = []
        self.meterings: list[Metering] = []
        self.noted: list[Flip] = []
        """The flips that instances have reported."""

    def instance(self, store: Store | None = None, *, entries_max: int = 10_000) -> Selector:
        """Start a further instance; it may see the store through something else."""
        seen = store or self.store
        book = PriceBook(seen, self.clock, CATALOGUE)
        metering = Metering(seen, self.clock, book)
        made = Selector(
            seen,
            self.clock,
            metering,
            book,
            meter=SelectionMeter(),
            entries_max=entries_max,
            on_flip=self.noted.append,
        )
        self.instances.append(made)
        self.meterings.append(metering)
        return made

    async def spend(self, policy: Policy, spends: Mapping[ModelLabel, int]) -> None:
        """Let the aggregated totals of the day be these; they can only grow."""
        now_ms = self.clock.now_ms()
        day = org_day(policy.timezone, now_ms)
        for label, micros in spends.items():
            total = Total.of(Counters(cost_usd_picos=micros * PICOS_PER_MICRO), now_ms)
            account = Account(policy.scope_key, label, day)
            await self.store.put(total_put(account, total, day_expires_at_epoch(day)))

    async def sticky_item(self, policy: Policy) -> Item:
        """Read what is recorded for the policy's scope today, without its history."""
        day = org_day(policy.timezone, self.clock.now_ms())
        item = await self.store.get(STICKY_STATE, Key(policy.scope_key, f"DAY#{day}")) or {}
        return {name: value for name, value in item.items() if not name.startswith("history_")}

    def flips(self) -> int:
        """Count the flips that were made, by all instances together."""
        return sum(instance.meter.flips for instance in self.instances)

    async def close(self) -> None:
        for metering in self.meterings:
            await metering.close()


class GatedStore(FaultyStore):
    """A store whose first update waits at a gate, so that a test can do something in between."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def update(self, operation: Update) -> Item:
        if not self.reached.is_set():
            self.reached.set()
            await self.opened.wait()
        return await super().update(operation)


class FailingStore(FaultyStore):
    """A store that applies updates, or does not, and then fails in a given way, once."""

    def __init__(self, store: Store, error: StoreError, *, applied: bool) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._errors = [error]
        self._applied = applied

    async def update(self, operation: Update) -> Item:
        if not self._errors:
            return await super().update(operation)
        if self._applied:
            await super().update(operation)
        raise self._errors.pop()

    async def transact(self, operations: Sequence[Write]) -> None:
        if not self._errors or self._applied:
            await super().transact(operations)
        if self._errors:
            raise self._errors.pop()


class NeverFirst(FaultyStore):
    """A store in which another writer is always first, with a change that does not help."""

    async def update(self, _: Update) -> Item:
        raise ConditionFailedError(None)

    async def transact(self, operations: Sequence[Write]) -> None:
        reason = CancellationReason(ReasonCode.CONDITION_FAILED)
        raise TransactionCancelledError([reason for _ in operations])


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON_MS)


@pytest.fixture
async def world(store: Store, clock: SettableClock) -> AsyncIterator[World]:
    made = World(store, clock)
    yield made
    await made.close()


@pytest.fixture
def app() -> Client:
    return Client(OrgId(str(uuid.uuid4())), APP)
