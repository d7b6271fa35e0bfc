"""A store with two million records of five thousand organisations, beside an empty one.

Run it with ``make bench-large``. Usage, selection and aggregation are measured on both in turns, in
store calls, which must be the same, and in processor time, as a ratio. The records are those of the
last thirty days, and everything of them has been folded.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.spend import a_policy

from pricekeeper.clock import SystemClock
from pricekeeper.metering import Account, Aggregator, Metering, Usage, org_day
from pricekeeper.metering.aggregator import closable_tick
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.fold import Fold
from pricekeeper.metering.items import (
    checkpoint_update,
    day_expires_at_epoch,
    fold_put,
    spent_put,
    total_key,
)
from pricekeeper.metering.journal import (
    FULL_WEIGHT,
    Address,
    JournalEntry,
    Terms,
    address_of,
    encode_entry,
    encode_terms,
    lanes_of,
)
from pricekeeper.metering.journal_items import (
    PostedRegion,
    Written,
    marker_put,
    page_expires_at_epoch,
    page_key,
    page_update,
    tick_put,
)
from pricekeeper.pricing import PriceBook, load_catalogue
from pricekeeper.selection import Selector
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import Put, Store, Update, open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Policy
from pricekeeper.ticks import tick_of
from pricekeeper.values import AppId, OrgId, new_request_id

RECORDS = 2_000_000
ORGS = 5_000
DAYS = 30
ROUNDS = 5
USAGES = 2_000
SELECTIONS = 200
ACTIVE_ORGS = 50
MS_PER_DAY = 86_400_000
console = Console(width=None if sys.stdout.isatty() else 120)


def a_page(policy: Policy, at_ms: int, random: Random) -> list[Put | Update]:
    """A full page of records, with what marks it and what it came to."""
    label, day = policy.model_ordering[0], org_day(policy.timezone, at_ms)
    terms = encode_terms(
        Terms(policy.scope_key, policy.client.app_id, label, day, "default", "v1", "bench")
    )
    first = address_of(new_request_id(at_ms)) or Address("")
    key = page_key(policy.org_id, first.region, 0, first.digits[:11])
    records = []
    for _ in range(FULL_WEIGHT):
        address = address_of(new_request_id(at_ms)) or Address("")
        entry = JournalEntry(
            random.randbytes(16), random.randbytes(6), at_ms, 0, terms.ref, 0, 10**9, 9, 9
        )
        records.append(Written(address.name, encode_entry(entry), terms))
    posting = PostedRegion(policy.org_id, first.region, lanes_of(policy.agg_shard_count))
    expires, account = (
        page_expires_at_epoch(first.region, 90),
        Account(policy.scope_key, label, day),
    )
    total = Fold(Counters(10**9 * FULL_WEIGHT, requests=FULL_WEIGHT), closed=tick_of(at_ms), rev=1)
    return [
        page_update(key, records, expires),
        tick_put(tick_of(at_ms), expires),
        marker_put(tick_of(at_ms), posting, expires),
        spent_put(account, day_expires_at_epoch(day)),
        replace_unguarded(fold_put(total_key(account)[1], total, None, at_ms, expires)),
    ]


def replace_unguarded(put: Put) -> Put:
    return Put(put.table, put.item)


async def fill(store: Store, records: int, orgs: int) -> None:
    """Write the history, a few hundred pages at a time."""
    random, now_ms = Random(1), SystemClock().now_ms()
    pages, written = records // FULL_WEIGHT, 0
    while written < pages:
        writes: list[Awaitable[object]] = []
        for number in range(written, min(pages, written + 200)):
            org = OrgId(str(uuid.UUID(int=number % orgs + 1, version=4)))
            policy = replace(a_policy(), client=Client(org, AppId("api")))
            at_ms = now_ms - MS_PER_DAY - random.randrange(DAYS * MS_PER_DAY)
            writes += (
                store.update(one) if isinstance(one, Update) else store.put(one)
                for one in a_page(policy, at_ms, random)
            )
        await asyncio.gather(*writes)
        written = min(pages, written + 200)
        console.print(f"\r{written * FULL_WEIGHT:,} records", end="")
    console.print()


class Bench:
    """One store and everything on it."""

    def __init__(self, store: Store, meter: StoreMeter) -> None:
        self.meter, clock, catalogue = meter, SystemClock(), load_catalogue()
        prices = PriceBook(store, clock, catalogue)
        self.clock = clock
        self.metering = Metering(store, clock, prices)
        self.selection = Selector(store, clock, self.metering, prices)
        self.aggregator = Aggregator(store, clock)

    async def record(self, policy: Policy, count: int) -> None:
        for _ in range(count):
            made = new_request_id(self.clock.now_ms())
            usage = Usage(
                request_id=made,
                model_label=policy.model_ordering[0],
                input_tokens=900,
                output_tokens=80,
            )
            await self.metering.record(policy, usage)

    async def usage(self) -> None:
        policy = a_policy()
        await asyncio.gather(*(self.record(policy, USAGES // 20) for _ in range(20)))

    async def select(self) -> None:
        for _ in range(SELECTIONS):
            await self.selection.select(a_policy())

    async def aggregate(self) -> None:
        await self.aggregator.run_once()

    async def prepare_aggregation(self) -> None:
        await asyncio.gather(*(self.record(a_policy(), 1) for _ in range(ACTIVE_ORGS)))


async def measured(bench: Bench, work: Callable[[], Awaitable[None]]) -> tuple[Counter[str], float]:
    before, began = Counter(bench.meter.calls), time.process_time()
    await work()
    took = time.process_time() - began
    return Counter(bench.meter.calls) - before, took


async def run(folder: Path, records: int, orgs: int) -> None:
    benches = []
    for name in ("empty", "large"):
        meter = StoreMeter()
        location = SqliteLocation(str(folder / f"{name}.db"))
        store = await open_store(location, clock=SystemClock(), meter=meter)
        await store.create_tables()
        if name == "large":
            await fill(store, records, orgs)
        now_ms = SystemClock().now_ms()
        await store.update(checkpoint_update(now_ms - 60_000, closable_tick(now_ms)))
        benches.append((store, Bench(store, meter)))
    table = Table("work", "store calls: empty", "large", "CPU: empty, ms", "large, ms", "ratio")
    for title in ("usage", "select", "aggregate"):
        calls: list[set[int]] = [set(), set()]
        took: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for number, (_, bench) in enumerate(benches):
                if title == "aggregate":
                    await bench.prepare_aggregation()
                counted, secs = await measured(bench, getattr(bench, title))
                calls[number].add(counted.total())
                took[number].append(secs * 1000)
        empty, large = map(statistics.median, took)
        shown = [
            " to ".join(f"{one:,}" for one in sorted({min(seen), max(seen)})) for seen in calls
        ]
        table.add_row(title, *shown, f"{empty:.1f}", f"{large:.1f}", f"{large / empty:.2f}")
    console.print(table)
    for store, bench in benches:
        await bench.metering.close()
        await store.close()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=RECORDS)
    arguments.add_argument("--orgs", type=int, default=ORGS)
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        uvloop.run(run(folder, chosen.records, chosen.orgs))
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
