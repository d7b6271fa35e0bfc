"""64 writers at full speed on real stores, with lost replies, two aggregators, and midnight.

A third of what is reported is reported again, here or at another instance. Half-way the clock
passes midnight. In the end the totals are those of the distinct records, and none ever went back.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import pytest

from fault_proxy import Fault, FaultProxy
from faulty_store import Faults, FaultyStore, Interleaving
from metering.audit import Audit, Reported, Watcher
from metering.conftest import ECONOMY, LABELS, MeteringMaker, a_policy
from minting import either
from pricekeeper.errors import ContendedError, OutcomeUnknownError, StoreUnavailableError
from pricekeeper.metering import Aggregator, Metering, Usage
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Item, Store, Update, Write
from pricekeeper.storage.dynamodb.client import Limits
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.telemetry import StoreMeter
from stores import ShiftedClock

WRITERS = 64
RECORDS = 30
DAY_MS = 86_400_000
_T = TypeVar("_T")


class LossyStore(FaultyStore):
    """Now and then a commit's request or reply is lost, or it is refused."""

    def __init__(self, store: Store, random: Random) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._random = random
        self.lost = 0

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._send(lambda: self._store.transact(operations))

    async def update(self, operation: Update) -> Item:
        return await self._send(lambda: self._store.update(operation))

    async def _send(self, send: Callable[[], Awaitable[_T]]) -> _T:
        dice = self._random.randrange(100)
        if dice < 20:
            self.lost += 1
        if dice < 5:
            raise OutcomeUnknownError("injected: the request was lost")
        if dice < 10:
            raise ContendedError("injected")
        reply = await send()
        if dice < 20:
            raise OutcomeUnknownError("injected: the reply was lost")
        return reply


class Load:
    """Writers, aggregators and a watcher on one deployment."""

    def __init__(
        self, store: Store, clock: ShiftedClock, new_metering: Callable[[], Metering], seed: int
    ) -> None:
        self.random = Random(seed)
        self.store = store
        self.clock = clock
        self.instances = [new_metering() for _ in range(2)]
        self.policies = [a_policy(timezone="UTC") for _ in range(3)]
        self.audit = Audit()
        self.watcher = Watcher(store, self.audit)
        self.left = WRITERS * RECORDS
        self.done = asyncio.Event()

    def record(self) -> Reported:
        """A new one, or, three times in ten, one that was reported before."""
        known = self.audit.reported
        if known and self.random.random() < 0.3:
            return known[self.random.choice(list(known))]
        at_ms = self.clock.now_ms() - self.random.choice((0, 0, 5_000, 23 * 3_600_000))
        usage = Usage(
            request_id=either(at_ms, self.random),
            model_label=self.random.choice((*LABELS, ECONOMY)),
            input_tokens=self.random.randrange(5_000),
            output_tokens=self.random.randrange(2_000),
            timestamp_ms=at_ms,
        )
        record = Reported(self.random.choice(self.policies), usage, at_ms)
        self.audit.report(record)
        return record

    async def write(self) -> None:
        for _ in range(RECORDS):
            record = self.record()
            instance = self.random.choice(self.instances)
            # Without an answer it stays unanswered, and is reported again in the end.
            with contextlib.suppress(OutcomeUnknownError, StoreUnavailableError):
                self.audit.answer(record, await instance.record(record.policy, record.usage))
            self.left -= 1
            if self.left == WRITERS * RECORDS // 2:
                self.clock.shift_ms += 120_000
        if not self.left:
            self.done.set()

    async def aggregate(self) -> None:
        while not self.done.is_set():
            await Aggregator(self.store, self.clock).run_once()
            await self.watcher.look(self.audit.expected())

    async def run(self) -> None:
        day_ms = self.clock.now_ms() // DAY_MS * DAY_MS
        self.clock.shift_ms += day_ms + DAY_MS - 60_000 - self.clock.now_ms()
        await Aggregator(self.store, self.clock).run_once()
        await asyncio.gather(
            *(self.write() for _ in range(WRITERS)), self.aggregate(), self.aggregate()
        )
        for record in self.audit.unanswered:
            answer = await self.instances[0].record(record.policy, record.usage)
            self.audit.answer(record, answer)
        await Aggregator(self.store, self.clock).run_once()
        await self.watcher.look(self.audit.expected())
        assert self.watcher.broken == []
        await self.audit.check(self.store)
        assert len({account.day for account in self.audit.expected()}) == 2


async def test_64_writers_on_every_store(
    store: Store, clock: ShiftedClock, new_metering: MeteringMaker
) -> None:
    """With commits that are lost before and after they were applied."""
    lossy = LossyStore(store, Random(7))
    await Load(store, clock, lambda: new_metering(lossy, clock), seed=1).run()
    assert lossy.lost > 5


ODDS = {
    Fault.CLOSE_AFTER: 6,
    Fault.RESET_MID_BODY: 4,
    Fault.SERVER_ERROR_AFTER: 5,
    Fault.CLOSE_BEFORE: 5,
    Fault.SERVER_ERROR_BEFORE: 4,
    Fault.THROTTLE: 5,
    Fault.CONFLICT: 10,
}


@pytest.fixture
async def proxy(dynoxide: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(dynoxide) as proxy:
        yield proxy


@pytest.mark.slow
async def test_64_writers_through_an_unreliable_network(
    proxy: FaultProxy, dynoxide: str, table_prefix: str, new_metering: MeteringMaker
) -> None:
    """Between the adapter and the engine, four requests in ten meet something."""
    clock = ShiftedClock()
    limits = Limits(pause_first_ms=1, pause_max_ms=20, lost_replies_max=2)
    direct, wire = [
        await DynamoDbStore.open(
            DynamoDbLocation("us-east-1", table_prefix, endpoint),
            clock=clock,
            meter=StoreMeter(),
            limits=limits,
        )
        for endpoint in (dynoxide, proxy.endpoint)
    ]
    await direct.create_tables()
    load = Load(direct, clock, lambda: new_metering(wire, clock), seed=2)
    proxy.misbehave(3, ODDS)
    try:
        await load.run()
    finally:
        proxy.misbehave(3, {})
        for metering in load.instances:
            await metering.close()
        await wire.close()
        await direct.close()
    for target in ("PutItem", "UpdateItem"):
        assert proxy.attempts(target) > 1.2 * proxy.applied(target)
