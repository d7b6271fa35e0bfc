"""What the foundation costs, as ratios measured in one run on one machine.

Run it with ``make bench``. Absolute figures depend on the machine and its disk; the ratios are
what the project promises. Each pair is measured in alternating rounds, and the median of the
rounds' ratios is reported, so that a busy neighbour disturbs both sides alike.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import uvloop
from rich.console import Console
from rich.table import Table as RichTable

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from engine import start_dynoxide
from pricekeeper.clock import SystemClock
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Add, Key, Put, Set, Store, Update, attr, open_store
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.telemetry import StoreMeter

TASKS = 64
IN_FLIGHT = 16
"""Updates under way at once: how a service uses its client."""
ROUNDS = 7
console = Console()


# -- SQLite -------------------------------------------------------------------------------

BARE_SELECT = "SELECT item FROM t WHERE pk = ? AND sk = ?"
BARE_UPSERT = (
    "INSERT INTO t VALUES (?, ?, ?, ?) "
    "ON CONFLICT (pk, sk) DO UPDATE SET expires = excluded.expires, item = excluded.item"
)


class BareSqlite:
    """The least that could do the same work: apsw, msgpack, no callers, no queue, no thread."""

    def __init__(self, path: Path, keys: list[Key]) -> None:
        self.encode = msgspec.msgpack.Encoder().encode
        self.decode = msgspec.msgpack.Decoder().decode
        self.connection = apsw.Connection(str(path))
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(
            "CREATE TABLE t (pk TEXT, sk TEXT, expires INTEGER, item BLOB, PRIMARY KEY (pk, sk)) "
            "WITHOUT ROWID"
        )
        for key in keys:
            row = (key.pk, key.sk, None, self.encode(bucket(key)))
            self.connection.execute(BARE_UPSERT, row)

    def update(self, key: Key) -> None:
        for (data,) in self.connection.execute(BARE_SELECT, (key.pk, key.sk)):
            item = self.decode(data)
            if item["tk"] >= 1:
                item["tk"] -= 1
                item["tc"] += 1
                row = (key.pk, key.sk, None, self.encode(item))
                self.connection.execute(BARE_UPSERT, row)

    def commit(self, keys: list[Key]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        for key in keys:
            self.update(key)
        self.connection.execute("COMMIT")


def bucket(key: Key) -> dict[str, object]:
    return {"PK": key.pk, "SK": key.sk, "tk": 10**9, "tc": 0, "rf": 5, "name": "premium"}


def debit(key: Key) -> Update:
    return Update(RATE_BUCKETS, key, (Add("tk", -1), Add("tc", 1)), attr("tk").ge(1))


async def updates_per_second(store: Store, keys: list[Key], times: int) -> float:
    async def work(key: Key) -> None:
        for _ in range(times):
            await store.update(debit(key))

    started = time.perf_counter()
    await asyncio.gather(*map(work, keys))
    return len(keys) * times / (time.perf_counter() - started)


def commits_per_second(work: Callable[[], None], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return times / (time.perf_counter() - started)


async def measure_sqlite(folder: Path, report: Report) -> None:
    keys = [Key(f"ORG#{n}", "premium") for n in range(TASKS)]
    bare = BareSqlite(folder / "bare.db", keys)
    meter = StoreMeter()
    path = str(folder / "ours.db")
    store = await SqliteStore.open(path, clock=SystemClock(), meter=meter)
    await store.create_tables()
    for key in keys:
        await store.put(Put(RATE_BUCKETS, bucket(key)))
    ours, grouped, single, alone = [], [], [], []
    meter.clear()
    for _ in range(ROUNDS):
        ours.append(await updates_per_second(store, keys, 150))
        grouped.append(TASKS * commits_per_second(lambda: bare.commit(keys), 150))
        single.append(commits_per_second(lambda: bare.commit(keys[:1]), 600))
    size = meter.commit_sizes.total / meter.commit_sizes.count
    for _ in range(ROUNDS):
        alone.append(await updates_per_second(store, keys[:1], 600))
        single.append(commits_per_second(lambda: bare.commit(keys[:1]), 600))
    await store.close()
    median = statistics.median
    report.line(f"SQLite, {TASKS} tasks, durable conditional updates", f"{median(ours):,.0f}/s", "")
    report.line("  operations per commit", f"{size:.1f}", "")
    report.ratio("  to a bare group-commit loop", paired(ours, grouped), at_least=0.60)
    report.ratio("  to committing one by one", paired(ours, single[:ROUNDS]), at_least=8)
    report.line("SQLite, one task", f"{median(alone):,.0f}/s", "")
    slowdown = paired(single[ROUNDS:], alone)
    report.ratio("  a bare commit is quicker by", slowdown, at_most=2)


def paired(left: list[float], right: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


# -- DynamoDB -----------------------------------------------------------------------------


async def cpu_us_per_call(call: Callable[[], Any], times: int, in_flight: int) -> float:
    async def work() -> None:
        for _ in range(times // in_flight):
            await call()

    started = time.process_time()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return (time.process_time() - started) / times * 1e6


async def measure_dynamodb(endpoint: str, report: Report) -> None:
    from aiobotocore.config import AioConfig  # noqa: PLC0415 - needed here alone, and slow
    from aiobotocore.session import get_session  # noqa: PLC0415

    location = DynamoDbLocation("us-east-1", "bench-", endpoint)
    store = await open_store(location, clock=SystemClock(), meter=StoreMeter())
    await store.create_tables()
    key = Key("ORG#1", "premium")
    await store.put(Put(RATE_BUCKETS, bucket(key)))
    operation = Update(RATE_BUCKETS, key, (Add("tk", -1), Set("rf", 5)), attr("tk").ge(1))
    config = AioConfig(retries={"max_attempts": 1})
    session = get_session()
    async with session.create_client(
        "dynamodb", region_name="us-east-1", endpoint_url=endpoint, config=config
    ) as client:

        def theirs() -> object:
            return client.update_item(
                TableName="bench-RateBuckets",
                Key={"PK": {"S": key.pk}, "SK": {"S": key.sk}},
                UpdateExpression="SET #r = :r ADD #t :d",
                ConditionExpression="#t >= :n",
                ExpressionAttributeNames={"#r": "rf", "#t": "tk"},
                ExpressionAttributeValues={":r": {"N": "5"}, ":d": {"N": "-1"}, ":n": {"N": "1"}},
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                ReturnConsumedCapacity="TOTAL",
            )

        for in_flight in (IN_FLIGHT, 1):
            ours_us, theirs_us = [], []
            for turn in range(ROUNDS + 1):
                ours = await cpu_us_per_call(lambda: store.update(operation), 320, in_flight)
                other = await cpu_us_per_call(theirs, 320, in_flight)
                if turn:  # the first round warms both up
                    ours_us.append(ours)
                    theirs_us.append(other)
            told = f"DynamoDB, client CPU per update, {in_flight} in flight"
            report.line(told, f"{statistics.median(ours_us):.0f} us", "")
            report.line("  aiobotocore", f"{statistics.median(theirs_us):.0f} us", "")
            ratio = paired(ours_us, theirs_us)
            if in_flight == IN_FLIGHT:
                report.ratio("  ours to aiobotocore's", ratio, at_most=1 / 3)
            else:
                report.line("  ours to aiobotocore's", f"{ratio:.2f}", "")
    await store.close()


# -- start-up -----------------------------------------------------------------------------


def start_ms(code: str) -> float:
    best = float("inf")
    for _ in range(9):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603
        best = min(best, time.perf_counter() - started)
    return best * 1000


def measure_imports(report: Report) -> None:
    bare, ours = start_ms("pass"), start_ms("import pricekeeper")
    stored = start_ms("import pricekeeper.storage, pricekeeper.storage.sqlite.store")
    report.ratio("import pricekeeper, ms over bare Python", ours - bare, at_most=150)
    report.line("  with the embedded store", f"{stored - bare:.0f}", "")
    code = (
        "import sys, pricekeeper.storage, pricekeeper.storage.sqlite.store; "
        "sys.exit('botocore' in sys.modules or 'aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603
    report.ratio("  AWS modules imported for SQLite", done.returncode, at_most=0)


# -- the report ---------------------------------------------------------------------------


class Report:
    """Lines with a target where there is one; remembers whether any was missed."""

    def __init__(self) -> None:
        self.table = RichTable("measured", "figure", "target", title="Foundation")
        self.missed: list[str] = []

    def line(self, name: str, figure: str, target: str) -> None:
        self.table.add_row(name, figure, target)

    def ratio(
        self,
        name: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        held = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        target = f"at least {at_least:g}" if at_least is not None else f"at most {at_most:.3g}"
        if not held:
            self.missed.append(name)
        colour, word = ("green", "held") if held else ("red", "missed")
        self.line(name, f"{value:.2f}", f"[{colour}]{target}: {word}[/{colour}]")


def main() -> int:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    report = Report()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        with console.status("SQLite: alternating rounds of ours and a bare loop"):
            uvloop.run(measure_sqlite(folder, report))
        with console.status("DynamoDB: our client and aiobotocore"), start_dynoxide() as engine:
            uvloop.run(measure_dynamodb(engine.endpoint, report))
        with console.status("Start-up: fresh interpreters"):
            measure_imports(report)
    finally:
        shutil.rmtree(folder)
    console.print(report.table)
    if report.missed:
        # A shared machine is noisy: a benchmark says what it measured, and is no gate.
        console.print(
            f"missed in this run: {', '.join(report.missed)}; on a busy machine run again"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
