"""What counting usage costs, as ratios measured in one run on one machine.

Run it with ``make bench-spend``. Each round counts new records through metering, and keeps the
writes that this led to; then the bare store, empty of them, is given the very same ones. The ratio
of the two is what checking, pricing, grouping and answering cost. Rounds alternate, and medians are
reported, so that a busy neighbour disturbs both alike. Absolute figures depend on the machine and
its disk. Ids have their time in them, and are made when a record or a batch is sent.
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table as RichTable

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from engine import start_dynoxide
from pricekeeper.clock import SystemClock
from pricekeeper.errors import ConditionFailedError
from pricekeeper.metering import Metering, Recorded, Usage
from pricekeeper.metering.committer import WRITES_MAX
from pricekeeper.pricing import PriceBook, load_catalogue
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Delete as DeleteOperation
from pricekeeper.storage import Item, Key, Page, Put, Query, Store, Update, Write, open_store
from pricekeeper.storage import Table as StoreTable
from pricekeeper.storage.values import item_bytes
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import AppId, ModelLabel, OrgId, new_request_id

TASKS = 64
BATCHES = 4
ROUNDS = 7
WRITE_SECS = 0.010
console = Console()


class Kept:
    """The store that metering is given; it keeps the updates that it is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.updates: list[Update] = []

    async def transact(self, operations: Sequence[Write]) -> None:
        await self._store.transact(operations)

    async def get(self, table: StoreTable, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._store.get(table, key, consistent=consistent)

    async def put(self, operation: Put) -> None:
        await self._store.put(operation)

    async def update(self, operation: Update) -> Item:
        self.updates.append(operation)
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
    records_per_write: list[float] = field(default_factory=list)


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


@cache
def labels_used() -> tuple[ModelLabel, ...]:
    return load_catalogue().labels[:3]


def usages(count: int) -> list[Usage]:
    labels = labels_used()
    return [
        Usage(
            request_id=new_request_id(time.time_ns() // 1_000_000),
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


async def one_by_one(metering: Metering, policy: Policy, records: int) -> None:
    async def work() -> None:
        for _ in range(records // TASKS):
            await metering.record(policy, usages(1)[0])

    await asyncio.gather(*(work() for _ in range(TASKS)))


async def by_the_hundred(metering: Metering, policy: Policy, records: int) -> None:
    async def work() -> None:
        for _ in range(records // BATCHES // 100):
            answers = await metering.record_many(policy, usages(100))
            if not all(isinstance(answer, Recorded) for answer in answers):
                raise RuntimeError("a record was refused: nothing to be measured here")

    await asyncio.gather(*(work() for _ in range(BATCHES)))


async def replay(store: Store, updates: Sequence[Update]) -> None:
    """The same updates, as many at once as metering makes; those that were refused, too."""

    async def work(mine: Sequence[Update]) -> None:
        for update in mine:
            with suppress(ConditionFailedError):
                await store.update(update)

    await asyncio.gather(*(work(updates[task::WRITES_MAX]) for task in range(WRITES_MAX)))


async def measure(
    locations: Sequence[StoreLocation],
    submit: Callable[[Metering, Policy, int], Awaitable[None]],
    records: int,
) -> Speeds:
    clock = SystemClock()
    stores = [await open_store(each, clock=clock, meter=StoreMeter()) for each in locations]
    for store in stores:
        await store.create_tables()
    kept = Kept(stores[0])
    metering = Metering(kept, clock, PriceBook(kept, clock, load_catalogue()))
    policy = a_policy()
    await submit(metering, policy, records // 4)
    speeds = Speeds()
    for _ in range(ROUNDS):
        kept.updates.clear()
        speeds.metered.append(await per_second(records, submit(metering, policy, records)))
        same = list(kept.updates)
        speeds.records_per_write.append(records / len(same))
        speeds.bare.append(await per_second(records, replay(stores[1], same)))
    await metering.close()
    for store in stores:
        await store.close()
    return speeds


class Remote(Kept):
    """A store that is a network away: every write takes as long as one on DynamoDB may."""

    units = 0

    async def put(self, operation: Put) -> None:
        await asyncio.sleep(WRITE_SECS)
        await self._store.put(operation)
        self.units += 1

    async def update(self, operation: Update) -> Item:
        await asyncio.sleep(WRITE_SECS)
        try:
            found = await self._store.update(operation)
        except ConditionFailedError as refused:
            self.units += units_of(refused.item or {})
            raise
        self.units += units_of(found)
        return found


def units_of(item: Mapping[str, Any]) -> int:
    """What a write of the item is billed at."""
    return -(-item_bytes(item) // 1024)


async def write_units_per_record(per_second: int) -> float:
    """What a record costs if they arrive at random, that many a second, at one instance."""
    clock = SystemClock()
    store = await open_store(SqliteLocation(MEMORY), clock=clock, meter=StoreMeter())
    await store.create_tables()
    remote = Remote(store)
    metering = Metering(remote, clock, PriceBook(store, clock, load_catalogue()))
    policy = a_policy()
    for usage in usages(3):
        await metering.record(policy, usage)
    remote.units = 0
    random = Random(1)
    arriving: list[asyncio.Task[Recorded]] = []
    started = time.perf_counter()
    due = 0.0
    for _ in range(min(6_000, 6 * per_second)):
        due += random.expovariate(per_second)
        await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
        arriving.append(asyncio.create_task(metering.record(policy, usages(1)[0])))
    await asyncio.gather(*arriving)
    await metering.close()
    await store.close()
    return remote.units / len(arriving)


def paired(left: list[float], right: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def add_rows(table: RichTable, name: str, speeds: Speeds) -> None:
    median = statistics.median
    table.add_row(name, f"{median(speeds.metered):,.0f}/s")
    table.add_row("  records per write", f"{statistics.mean(speeds.records_per_write):.1f}")
    table.add_row("  the bare store, same writes", f"{median(speeds.bare):,.0f}/s")
    table.add_row("  ratio to that", f"{paired(speeds.metered, speeds.bare):.2f}")


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
        return [SqliteLocation(str(folder / f"{mark}{number}.db")) for number in range(2)]

    try:
        run("SQLite, durable", files, 1)
        with start_dynoxide() as engine:

            def tables(mark: str) -> list[StoreLocation]:
                return [
                    DynamoDbLocation("us-east-1", f"{mark}{number}-", engine.endpoint)
                    for number in range(2)
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
