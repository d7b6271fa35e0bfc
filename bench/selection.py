"""What choosing a model costs, as ratios measured in one run on one machine.

Run it as ``python bench/selection.py``. A *warm* selection is answered from memory; a *cold* one
reads overrides, fallback and totals (the day's prices stay warm: they are read once a minute).
Each is set against the bare store doing the same one `batch_get`, in alternating rounds, and the
median of the rounds' ratios is reported, so that a busy neighbour disturbs both sides alike.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table as RichTable

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from engine import start_dynoxide
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Counters, Metering, org_day
from pricekeeper.metering.counters import Account
from pricekeeper.metering.fold import Fold
from pricekeeper.metering.items import day_expires_at_epoch, fold_put, total_key
from pricekeeper.pricing import PriceBook, load_catalogue
from pricekeeper.selection import Selector
from pricekeeper.selection.cache import STALENESS_NORMAL_MS_MAX
from pricekeeper.selection.items import override_key
from pricekeeper.settings import DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.storage.tables import STICKY_STATE
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import AppId, OrgId

ROUNDS = 7
TASKS = 64
QUOTA_USD_MICROS = 10_000_000
console = Console()


class HurryingClock(SystemClock):
    """Real time that can be hurried along, so that nothing remembered is young enough."""

    __slots__ = ("hurried_ms",)

    def __init__(self) -> None:
        self.hurried_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.hurried_ms


def policy(app: str, labels: tuple[str, ...]) -> Policy:
    return Policy(
        client=Client(OrgId("550e8400-e29b-41d4-a716-446655440000"), AppId(app)),
        org_name="bench",
        app_name=app,
        timezone="America/New_York",
        quota_scope=QuotaScope.APP,
        model_ordering=labels,  # type: ignore[arg-type]
        quotas=dict.fromkeys(labels, QUOTA_USD_MICROS),  # type: ignore[arg-type]
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
        token_generation="bench",  # noqa: S106 - the name of a generation, not a secret
        tokens_valid_from_epoch_ms=0,
        incarnation="life-1",
        org_incarnation="life-1",
    )


class Bench:
    """One store, one instance, and as many apps as tasks."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = HurryingClock()
        self.catalogue = load_catalogue()
        labels = self.catalogue.labels[:3]
        self.policies = [policy(f"app-{n}", labels) for n in range(TASKS)]
        book = PriceBook(store, SystemClock(), self.catalogue)
        metering = Metering(store, SystemClock(), book)
        self.selection = Selector(store, self.clock, metering, book)

    async def fill(self) -> None:
        """Give every label of every app a total, as on a working day."""
        now_ms = self.clock.now_ms()
        for mine in self.policies:
            day = org_day(mine.timezone, now_ms)
            for label in mine.model_ordering:
                fold = Fold(Counters(cost_usd_picos=10**12, requests=1))
                _, key = total_key(Account(mine.scope_key, label, day))
                put = fold_put(key, fold, None, now_ms, day_expires_at_epoch(day))
                await self.store.put(put)

    async def warm(self, mine: Policy) -> None:
        await self.selection.select(mine)

    async def cold(self, mine: Policy) -> None:
        self.clock.hurried_ms += STALENESS_NORMAL_MS_MAX
        await self.selection.select(mine)

    async def bare(self, mine: Policy) -> None:
        day = org_day(mine.timezone, self.clock.now_ms())
        states = [(STICKY_STATE, override_key(one, day)) for one in (mine.client, mine.client.org)]
        totals = [total_key(Account(mine.scope_key, label, day)) for label in mine.model_ordering]
        await self.store.batch_get([*states, *totals])

    async def per_second(self, work: Callable[[Policy], Awaitable[None]], times: int) -> float:
        async def task(mine: Policy) -> None:
            for _ in range(times):
                await work(mine)

        started = time.perf_counter()
        await asyncio.gather(*map(task, self.policies))
        return TASKS * times / (time.perf_counter() - started)


async def measure(name: str, location: StoreLocation, times: int, report: RichTable) -> None:
    store = await open_store(location, clock=SystemClock(), meter=StoreMeter())
    await store.create_tables()
    bench = Bench(store)
    await bench.fill()
    await bench.per_second(bench.cold, 2)
    warm, cold, bare = [], [], []
    for _ in range(ROUNDS):
        bare.append(await bench.per_second(bench.bare, times))
        cold.append(await bench.per_second(bench.cold, times))
        warm.append(await bench.per_second(bench.warm, times * 20))
    await store.close()
    median = statistics.median
    report.add_row(f"{name}: bare batch_get of the same items", f"{median(bare):,.0f}/s", "")
    report.add_row(f"{name}: cold", f"{median(cold):,.0f}/s", f"{paired(cold, bare):.2f}")
    report.add_row(f"{name}: warm", f"{median(warm):,.0f}/s", f"{paired(warm, bare):.1f}")


def paired(left: list[float], right: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def main() -> int:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    title = f"Model selection, {TASKS} tasks, 3 labels"
    report = RichTable("measured", "figure", "to the bare reads", title=title)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        with console.status("SQLite"):
            file = SqliteLocation(str(folder / "selection.db"))
            uvloop.run(measure("SQLite", file, 50, report))
        with console.status("DynamoDB engine"), start_dynoxide() as engine:
            tables = DynamoDbLocation("us-east-1", "bench-", engine.endpoint)
            uvloop.run(measure("DynamoDB engine", tables, 5, report))
    finally:
        shutil.rmtree(folder)
    console.print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
