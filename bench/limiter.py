"""Our limiter beside zae-limiter 0.17.0 on one DynamoDB engine, in one run.

    make bench-limiter                 print the table
    make bench-limiter ARGS=--write    and put it into docs/benchmarks.md

Each limiter runs in a process of its own, in turns, several times; medians are reported, so
that a busy neighbour disturbs all alike. zae-limiter and limits live in a virtual environment
of their own (``.bench-venv``, made on the first run), so that what they need does not touch
what we use. zae-limiter is used as is quickest for it: with stored limits, which its single
speculative write needs, and with its caches on. All run on the loop that the service runs on,
unless ``--loop asyncio`` says otherwise.

What an acquire is: one request and 1,000 tokens, from two limits that are never short, without a
lease of ours, on buckets that exist. The saturating client asks for one of 25 a second as
often as it can, waiting for the time in each denial.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent
RIVALS: Final = CHECKOUT / ".bench-venv"
RIVAL_PACKAGES: Final = ("zae-limiter==0.17.0", "limits==5.8.0")
LOOPS: Final = ("uvloop", "asyncio")
PAGE: Final = CHECKOUT / "docs" / "benchmarks.md"

ROUNDS: Final = 5
BUCKETS: Final = 256
TASKS: Final = 32
SECONDS: Final = 2.0
SATURATED_SECONDS: Final = 6.0
SATURATED_RATE: Final = 25
CONSUME: Final = {"rpm": 1, "tpm": 1_000}
PREFETCH: Final = 100
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "AKIDFORBENCHONLY",
    "AWS_SECRET_ACCESS_KEY": "secretForBenchOnly",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


# -- what is measured: one process, one limiter ---------------------------------------------


@dataclass
class Subject:
    """A limiter: how to acquire, how to saturate, and how many store calls it has made."""

    acquire: Callable[[str], Awaitable[None]]
    saturate: Callable[[], Awaitable[float]] | None
    """Ask once; 0 if it was granted, else the seconds to wait."""
    calls: Callable[[], int]


@contextlib.asynccontextmanager
async def ours(place: str, prefetch: int = 1) -> AsyncIterator[Subject]:
    """Our limiter, on DynamoDB or on a SQLite file."""
    from pricekeeper.clock import SystemClock  # noqa: PLC0415 - not there in the rivals' environment
    from pricekeeper.limiter import Denial, Limit, Limiter, PreparedRequest  # noqa: PLC0415
    from pricekeeper.settings import parse_store_location  # noqa: PLC0415
    from pricekeeper.storage import open_store  # noqa: PLC0415
    from pricekeeper.telemetry import StoreMeter  # noqa: PLC0415

    ample = [Limit.per_minute("rpm", 10**6), Limit.per_minute("tpm", 10**9)]
    scarce = [Limit.per_second("rps", SATURATED_RATE)]
    meter, clock = StoreMeter(), SystemClock()
    store = await open_store(parse_store_location(place), clock=clock, meter=meter)
    await store.create_tables()
    async with Limiter(store, clock=clock, limits=ample, hold_ms=1_000) as limiter:
        requests: dict[str, PreparedRequest] = {}
        saturated = limiter.prepare("e", "scarce", {"rps": 1}, limits=scarce)

        async def acquire(entity: str) -> None:
            request = requests.get(entity)
            if request is None:
                request = limiter.prepare(entity, "model", CONSUME, ahead=prefetch - 1)
                requests[entity] = request
            if not request.take_at_once():
                await request.take()

        async def saturate() -> float:
            outcome = await saturated.take()
            return (outcome.retry_after_ms or 0) / 1_000 if isinstance(outcome, Denial) else 0

        yield Subject(acquire, saturate, lambda: sum(meter.calls.values()))
    await store.close()


@contextlib.asynccontextmanager
async def zae(place: str) -> AsyncIterator[Subject]:
    """zae-limiter, with its limits stored, its caches and speculative writes on as they come."""
    library: Any = importlib.import_module("zae_limiter")
    where = {"region": "us-east-1", "endpoint_url": place}
    first = library.Repository(name="zae-bench", _skip_deprecation_warning=True, **where)
    await first.create_table()
    await first.register_namespace("default")
    await first.close()
    repository = await library.Repository.open(stack="zae-bench", auto_update=False, **where)
    limiter = library.RateLimiter(repository=repository)
    limit = library.Limit
    ample = [limit.per_minute("rpm", 10**6), limit.per_minute("tpm", 10**9)]
    await limiter.set_system_defaults(ample)
    await limiter.set_resource_defaults("scarce", [limit.per_second("rps", SATURATED_RATE)])
    sent = 0

    def count(**_: object) -> None:
        nonlocal sent
        sent += 1

    client = await repository._get_client()  # noqa: SLF001 - there is no other way to count
    client.meta.events.register("before-send.dynamodb.*", count)

    async def acquire(entity: str) -> None:
        async with limiter.acquire(entity_id=entity, resource="model", consume=CONSUME):
            pass

    async def saturate() -> float:
        try:
            async with limiter.acquire(entity_id="e", resource="scarce", consume={"rps": 1}):
                return 0
        except library.RateLimitExceeded as denied:
            return float(denied.retry_after_seconds)

    yield Subject(acquire, saturate, lambda: sent)
    await limiter.close()


@contextlib.asynccontextmanager
async def in_memory(_: str) -> AsyncIterator[Subject]:
    """The limits package in memory: no store, nothing shared, nothing survives. For scale."""
    library: Any = importlib.import_module("limits")
    storages: Any = importlib.import_module("limits.aio.storage")
    strategies: Any = importlib.import_module("limits.aio.strategies")
    window = strategies.FixedWindowRateLimiter(storages.MemoryStorage())
    rpm, tpm = library.parse("1000000/minute"), library.parse("1000000000/minute")

    async def acquire(entity: str) -> None:
        await window.hit(rpm, entity)
        await window.hit(tpm, entity, cost=CONSUME["tpm"])

    yield Subject(acquire, None, lambda: 0)


SUBJECTS: Final[dict[str, Callable[[str], Any]]] = {
    "ours": ours,
    "ours, prefetch": lambda place: ours(place, PREFETCH),
    "ours, SQLite": ours,
    "zae-limiter": zae,
    "limits": in_memory,
}
SCENES: Final = {
    "many buckets, 1 task": (1, BUCKETS),
    f"many buckets, {TASKS} tasks": (TASKS, BUCKETS),
    "one hot bucket, 1 task": (1, 1),
    f"one hot bucket, {TASKS} tasks": (TASKS, 1),
}
SATURATED: Final = "rate obtained"


async def measure(name: str, place: str) -> dict[str, dict[str, float]]:
    """All scenes on one limiter."""
    figures: dict[str, dict[str, float]] = {}
    async with SUBJECTS[name](place) as subject:
        for scene, (tasks, buckets) in SCENES.items():
            figures[scene] = await throughput(subject, tasks, buckets)
        if subject.saturate is not None and name != "ours, prefetch":
            figures[SATURATED] = {"share": await share_of_rate(subject.saturate)}
    return figures


async def throughput(subject: Subject, tasks: int, buckets: int) -> dict[str, float]:
    entities = [f"tenant-{place}" for place in range(buckets)]
    done = 0

    async def warm_up(place: int) -> None:
        for entity in entities[place::TASKS]:
            await subject.acquire(entity)
            await subject.acquire(entity)

    async def work(place: int) -> None:
        nonlocal done
        turn = place * buckets // tasks
        while time.perf_counter() < deadline:
            await subject.acquire(entities[turn % buckets])
            turn += 1
            done += 1

    await asyncio.gather(*map(warm_up, range(TASKS)))
    calls, cpu, started = subject.calls(), time.process_time(), time.perf_counter()
    deadline = started + SECONDS
    await asyncio.gather(*map(work, range(tasks)))
    return {
        "per_second": done / (time.perf_counter() - started),
        "calls": (subject.calls() - calls) / done,
        "cpu_us": (time.process_time() - cpu) / done * 1e6,
    }


async def share_of_rate(saturate: Callable[[], Awaitable[float]]) -> float:
    """How much of its rate a client gets that takes all it can, once its burst is used up."""
    burst = [saturate() for _ in range(2 * SATURATED_RATE)]
    await asyncio.gather(*burst)
    got, started = 0, time.perf_counter()
    while time.perf_counter() - started < SATURATED_SECONDS:
        wait = await saturate()
        got += not wait
        if wait:
            await asyncio.sleep(wait)
    return got / (SATURATED_RATE * (time.perf_counter() - started))


# -- the run: engines, turns and the table --------------------------------------------------


def run(engine: str, loop: str, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Every limiter in turns; the median of each figure."""
    sys.path.insert(0, str(CHECKOUT / "tools"))
    engines: Any = importlib.import_module("engine")
    start = {"dynoxide": engines.start_dynoxide, "dynamodb-local": engines.start_dynamodb_local}
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in SUBJECTS}
    with start[engine]() as running, tempfile.TemporaryDirectory() as folder:
        endpoint = running.endpoint
        for turn in range(rounds):
            for name in SUBJECTS:
                place = f"dynamodb://us-east-1?prefix=bench-&endpoint={endpoint}"
                if name == "ours, SQLite":
                    place = f"sqlite:///{folder}/{turn}.db"
                elif name in {"zae-limiter", "limits"}:
                    place = endpoint
                found[name].append(in_a_process(name, place, loop))
                print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr)
    return {name: medians(figures) for name, figures in found.items()}


def in_a_process(name: str, place: str, loop: str) -> dict[str, dict[str, float]]:
    rival = name in {"zae-limiter", "limits"}
    python = rivals_python() if rival else sys.executable
    done = subprocess.run(  # noqa: S603
        [python, __file__, "--subject", name, "--place", place, "--loop", loop],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, dict[str, float]] = json.loads(done.stdout)
    return figures


def rivals_python() -> str:
    """The Python that has the others; its environment is made if it is not there."""
    python = RIVALS / "bin" / "python"
    stamp = RIVALS / ".installed"
    packages = (*RIVAL_PACKAGES, "uvloop")
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {', '.join(RIVAL_PACKAGES)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(RIVALS)], check=True)  # noqa: S603
        (RIVALS / ".gitignore").write_text("*\n")
        install = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
        subprocess.run([*install, *packages], check=True)  # noqa: S603
        stamp.write_text(wanted)
    return str(python)


def medians(rounds: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        scene: {
            figure: statistics.median(one[scene][figure] for one in rounds)
            for figure in rounds[0][scene]
        }
        for scene in rounds[0]
    }


def table(figures: dict[str, dict[str, dict[str, float]]], setting: str) -> str:
    names = list(SUBJECTS)
    head = ["", *names, "ours to zae-limiter"]
    lines = [head, ["---"] * len(head)]
    rows = (
        ("acquires a second", "per_second", "{:,.0f}"),
        ("store calls an acquire", "calls", "{:.2f}"),
        ("client CPU an acquire, us", "cpu_us", "{:,.0f}"),
    )
    for title, figure, form in rows:
        for scene in SCENES:
            cells = [form.format(figures[name][scene][figure]) for name in names]
            mine, theirs = (figures[name][scene][figure] for name in ("ours", "zae-limiter"))
            ratio = "" if figure == "calls" else f"**{mine / theirs:.2f}**"
            lines.append([f"{title}: {scene}", *cells, ratio])
    shares = [figures[name].get(SATURATED, {}).get("share") for name in names]
    cells = ["" if share is None else f"{share:.1%}" for share in shares]
    lines.append([f"share of its rate, a saturating client at {SATURATED_RATE}/s", *cells, ""])
    told = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"`make bench-limiter`: {setting}, {os.cpu_count()} cores shared by client and engine, "
        f"Python {sys.version.split()[0]}, {', '.join(RIVAL_PACKAGES)}. Medians.\n\n{told}\n"
    )


def write(text: str) -> None:
    """Put the table in place of the last one, and leave everything else on the page alone."""
    page = PAGE.read_text() if PAGE.exists() else "# Benchmarks\n\n## Limiter\n"
    begin, end = "<!-- limiter: begin -->", "<!-- limiter: end -->"
    block = f"{begin}\n{text}{end}\n"
    if begin in page:
        page = re.sub(f"{begin}.*{end}\n", lambda _: block, page, flags=re.DOTALL)
    else:
        page = page.replace("## Limiter\n", f"## Limiter\n\n{block}", 1)
    PAGE.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    parser.add_argument("--engine", choices=("dynoxide", "dynamodb-local"), default="dynoxide")
    parser.add_argument("--loop", choices=LOOPS, default=LOOPS[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subject", choices=tuple(SUBJECTS), help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.subject:
        loop: Any = importlib.import_module(asked.loop)
        print(json.dumps(loop.run(measure(asked.subject, asked.place))))
        return
    setting = f"{asked.engine}, {asked.loop}, {asked.rounds} rounds in turns"
    text = table(run(asked.engine, asked.loop, asked.rounds), setting)
    print(text)
    if asked.write:
        write(text)


if __name__ == "__main__":
    main()
