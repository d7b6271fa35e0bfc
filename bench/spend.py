"""What counting usage costs, as ratios measured in one run on one machine.

Run it with ``make bench-spend``. Each round counts new records through metering, and keeps the
transactions that this led to; then the bare store, empty of them, is given the very same ones.
The ratio of the two is what checking, pricing, combining and answering cost. Beside it stands the
same work without combining: every record in a transaction of its own, as many at once as there
were tasks. Rounds alternate, and medians are reported, so that a busy neighbour disturbs all
sides alike. Absolute figures depend on the machine and its disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import uvloop
from rich.console import Console
from rich.table import Table as RichTable

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from engine import start_dynoxide
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Metering, Recorded, Usage
from pricekeeper.pricing import PriceBook, load_catalogue
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Add, Item, Key, Page, Put, Query, Store, Update, Write, open_store
from pricekeeper.storage import Delete as DeleteOperation
from pricekeeper.storage import Table as StoreTable
from pricekeeper.storage.tables import REQUEST_DEDUP
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import AppId, OrgId

TASKS = 64
BATCHES = 4
ROUNDS = 7
TRANSACTION_SECS = 0.010
console = Console()


class Kept:
    """The store that metering is given; it keeps what it is asked to write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.transactions: list[Sequence[Write]] = []

    async def transact(self, operations: Sequence[Write]) -> None:
        self.transactions.append(operations)
        await self._store.transact(operations)

    async def get(self, table: StoreTable, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._store.get(table, key, consistent=consistent)

    async def put(self, operation: Put) -> None:
        await self._store.put(operation)

    async def update(self, operation: Update) -> Item:
        return await self._store.update(operation)

    async def delete(self, operation: DeleteOperation) -> Item | None:
        return await self._store.delete(operation)

    async def batch_get(
        self, keys: Sequence[tuple[StoreTable, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        return await self._store.batch_get(keys, consistent=consistent)

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        return await self._store.query(query, consistent=consistent)

    async def create_tables(self) -> None:
        await self._store.create_tables()

    async def close(self) -> None:
        await self._store.close()


@dataclass(slots=True)
class Speeds:
    """Records a second, round by round."""

    metered: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    records_per_transaction: list[float] = field(default_factory=list)


def a_policy() -> Policy:
    labels = load_catalogue().labels
    return Policy(
        client=Client(OrgId(str(uuid.uuid4())), AppId("api")),
        org_name="Bench",
        app_name="api",
        timezone="America/New_York",
        quota_scope=QuotaScope.APP,
        model_ordering=labels,
        quotas=dict.fromkeys(labels, 10**12),
        sticky_fallback_enabled=True,
        agg_shard_count=8,
        tight_mode_threshold_pct=95,
        refresh_interval_normal_secs=300,
        refresh_interval_tight_secs=60,
        session_limit=5,
        rate_limits={},
        org_rate_limits={},
        inherited_fields=(),
        created_at_epoch=0,
        updated_at_epoch=0,
        token_generation="",
        tokens_valid_from_epoch_ms=0,
        incarnation="life-1",
        org_incarnation="life-1",
    )


def usages(count: int) -> list[Usage]:
    labels = load_catalogue().labels[:3]
    return [
        Usage(
            request_id=str(uuid.uuid4()),
            model_label=labels[number % len(labels)],
            input_tokens=1_200,
            output_tokens=350,
        )
        for number in range(count)
    ]


async def per_second(records: int, work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return records / (time.perf_counter() - started)


async def one_by_one(metering: Metering, policy: Policy, records: Sequence[Usage]) -> None:
    async def work(mine: Sequence[Usage]) -> None:
        for usage in mine:
            await metering.record(policy, usage)

    await asyncio.gather(*(work(records[task::TASKS]) for task in range(TASKS)))


async def by_the_hundred(metering: Metering, policy: Policy, records: Sequence[Usage]) -> None:
    async def work(mine: Sequence[Usage]) -> None:
        for first in range(0, len(mine), 100):
            answers = await metering.record_many(policy, mine[first : first + 100])
            if not all(isinstance(answer, Recorded) for answer in answers):
                raise RuntimeError("a record was refused: nothing to be measured here")

    await asyncio.gather(*(work(records[task::BATCHES]) for task in range(BATCHES)))


async def replay(store: Store, transactions: Sequence[Sequence[Write]], at_once: int) -> None:
    async def work(mine: Sequence[Sequence[Write]]) -> None:
        for operations in mine:
            await store.transact(operations)

    await asyncio.gather(*(work(transactions[task::at_once]) for task in range(at_once)))


def alone(transactions: Sequence[Sequence[Write]]) -> list[Sequence[Write]]:
    """The same records, each with its counters in a transaction of its own."""
    single: list[Sequence[Write]] = []
    for operations in transactions:
        receipts = [one for one in operations if one.table is REQUEST_DEDUP]
        counters = [one for one in operations if isinstance(one, Update)]
        for number, receipt in enumerate(receipts):
            update = counters[number % len(counters)]
            shard = f"{update.key.pk.rpartition('#')[0]}#{number % 8}"
            key = Key(shard, update.key.sk)
            actions = tuple(
                Add(one.attribute, 1) if isinstance(one, Add) else one for one in update.actions
            )
            single.append([receipt, Update(update.table, key, actions)])
    return single


async def measure(
    locations: Sequence[StoreLocation],
    submit: Callable[[Metering, Policy, Sequence[Usage]], Awaitable[None]],
    records: int,
) -> Speeds:
    clock = SystemClock()
    stores = [await open_store(each, clock=clock, meter=StoreMeter()) for each in locations]
    for store in stores:
        await store.create_tables()
    kept = Kept(stores[0])
    metering = Metering(kept, clock, PriceBook(kept, clock, load_catalogue()))
    policy = a_policy()
    await submit(metering, policy, usages(records // 4))
    speeds = Speeds()
    for _ in range(ROUNDS):
        fresh = usages(records)
        kept.transactions.clear()
        speeds.metered.append(await per_second(records, submit(metering, policy, fresh)))
        same = list(kept.transactions)
        single = alone(same)
        speeds.records_per_transaction.append(records / len(same))
        speeds.bare.append(await per_second(records, replay(stores[1], same, 1)))
        speeds.alone.append(await per_second(records, replay(stores[2], single, TASKS)))
    await metering.close()
    for store in stores:
        await store.close()
    return speeds


class Remote(Kept):
    """A store that is a network away: every transaction takes as long as one on DynamoDB may."""

    async def transact(self, operations: Sequence[Write]) -> None:
        self.transactions.append(operations)
        await asyncio.sleep(TRANSACTION_SECS)


async def write_units_per_record(per_second: int) -> float:
    """What a record costs if they arrive at random, that many a second, at one instance.

    An operation of a transaction on an item under 1 KB is two write units.
    """
    clock = SystemClock()
    store = await open_store(SqliteLocation(MEMORY), clock=clock, meter=StoreMeter())
    await store.create_tables()
    remote = Remote(store)
    metering = Metering(remote, clock, PriceBook(store, clock, load_catalogue()))
    policy = a_policy()
    for usage in usages(3):
        await metering.record(policy, usage)
    remote.transactions.clear()
    random = Random(1)
    arriving: list[asyncio.Task[Recorded]] = []
    started = time.perf_counter()
    due = 0.0
    for usage in usages(min(6_000, 6 * per_second)):
        due += random.expovariate(per_second)
        await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
        arriving.append(asyncio.create_task(metering.record(policy, usage)))
    await asyncio.gather(*arriving)
    await metering.close()
    await store.close()
    return 2 * sum(map(len, remote.transactions)) / len(arriving)


def paired(left: list[float], right: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def add_rows(table: RichTable, name: str, speeds: Speeds) -> None:
    median = statistics.median
    table.add_row(name, f"{median(speeds.metered):,.0f}/s")
    table.add_row(
        "  records per transaction", f"{statistics.mean(speeds.records_per_transaction):.1f}"
    )
    table.add_row("  the bare store, same transactions", f"{median(speeds.bare):,.0f}/s")
    table.add_row("  ratio to that", f"{paired(speeds.metered, speeds.bare):.2f}")
    table.add_row("  the bare store, one record each", f"{median(speeds.alone):,.0f}/s")
    table.add_row("  ratio to that", f"{paired(speeds.metered, speeds.alone):.2f}")


def main() -> None:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    table = RichTable("measured", "figure", title="Counting usage")
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    ways = (
        (f"record, {TASKS} tasks", one_by_one, TASKS * 60),
        (f"record_many of 100, {BATCHES} tasks", by_the_hundred, BATCHES * 1_000),
    )

    def run(place: str, locations: Callable[[str], list[StoreLocation]], scale: int) -> None:
        for name, submit, records in ways:
            with console.status(f"{place}: {name}"):
                fresh = locations(uuid.uuid4().hex[:6])
                speeds = uvloop.run(measure(fresh, submit, records // scale))
            add_rows(table, f"{place}: {name}", speeds)

    def files(mark: str) -> list[StoreLocation]:
        return [SqliteLocation(str(folder / f"{mark}{number}.db")) for number in range(3)]

    try:
        run("SQLite, durable", files, 1)
        with start_dynoxide() as engine:

            def tables(mark: str) -> list[StoreLocation]:
                return [
                    DynamoDbLocation("us-east-1", f"{mark}{number}-", engine.endpoint)
                    for number in range(3)
                ]

            run("DynamoDB engine", tables, 4)
    finally:
        shutil.rmtree(folder)
    for rate in (10, 100, 1_000):
        with console.status(f"{rate} arrivals a second"):
            units = uvloop.run(write_units_per_record(rate))
        table.add_row(f"write units a record, {rate:,} arriving a second", f"{units:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
