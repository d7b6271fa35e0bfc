"""What wrapping a Bedrock client costs a program: a wrapped ``converse`` beside a bare one.

Run it with ``make bench-client``. The service (one worker, a durable SQLite file) and the stand-in
for Bedrock run as processes of their own; the CPU of this process is the client's alone, with
all of its threads. Rounds alternate; medians of rounds are reported.

A program that waits for something before each call finds its caches cold, and the same botocore
code costs it about twice the CPU. So our own CPU is measured against bare calls that wait as long
before each call, and do nothing meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from rich.console import Console
from rich.table import Table

# In the place of this folder, where a module has the name of the tests' package.
sys.path[0] = str(Path(__file__).parent.parent / "tests")

import pricekeeper  # noqa: E402 - the path comes first
from client.services import running_service  # noqa: E402
from pricekeeper.client.engine import Engine  # noqa: E402
from pricekeeper.client.transport import Wire  # noqa: E402

CALLS = 300
ROUNDS = 7
CPU_MS_AIM = 1.0
MESSAGES = [{"role": "user", "content": [{"text": "What does the last metre cost?" * 20}]}]
console = Console(width=None if sys.stdout.isatty() else 120)


@dataclass
class Found:
    """What the rounds of one kind of client came to."""

    cpu_ms: list[float] = field(default_factory=list)
    """For each call, of all threads of this process; one figure for each round."""
    latencies_ms: list[float] = field(default_factory=list)

    def percentile(self, hundredth: int) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[len(ordered) * hundredth // 100]


@contextmanager
def standin() -> Iterator[str]:
    command = [sys.executable, "-m", "pricekeeper.standin"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def client_of(url: str) -> Any:
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="example",  # noqa: S106 - made up
    )


def measure(
    client: Any,
    calls: int,
    found: Found,
    flush: Callable[[], object] = bool,
    pause_secs: float = 0,
) -> None:
    """Make some calls, one after another, and wait until all are reported."""
    cpu_before = time.process_time()
    for _ in range(calls):
        if pause_secs:
            time.sleep(pause_secs)
        began_at = time.perf_counter()
        client.converse(
            modelId="us.anthropic.claude-opus-5-5",
            messages=MESSAGES,
            inferenceConfig={"maxTokens": 500},
        )
        found.latencies_ms.append((time.perf_counter() - began_at) * 1000)
    flush()
    found.cpu_ms.append((time.process_time() - cpu_before) / calls * 1000)


def count(counts: Counter[str]) -> None:
    """Count requests to the service by their path, and how often a caller waits for one."""
    exchange, submit = Wire.exchange, Engine.submit

    async def counted_exchange(self: Wire, request: Any, headers: Any) -> Any:
        counts[request.path.rpartition("/")[2]] += 1
        return await exchange(self, request, headers)

    def counted_submit(self: Engine, work: Any) -> Any:
        counts["waits"] += 1
        return submit(self, work)

    Wire.exchange = counted_exchange  # type: ignore[method-assign]
    Engine.submit = counted_submit  # type: ignore[method-assign]


def report(bare: Found, waiting: Found, wrapped: Found, counts: Counter[str], calls: int) -> None:
    table = Table("measured", "bare", "bare, waiting", "wrapped", "aim", title="A wrapped converse")
    after = (counts["waits"] - counts["authorizations"]) / calls
    rows = (
        ("round trips before the call", counts["authorizations"] / calls, "1"),
        ("round trips after it that it waits for", after, "0"),
        ("requests in the background for each call", counts["captures"] / calls, ""),
    )
    for name, figure, aim in rows:
        table.add_row(name, "0", "0", f"{figure:.2f}", aim)
    cpu = [statistics.median(one.cpu_ms) for one in (bare, waiting, wrapped)]
    table.add_row("CPU of the program, ms", *(f"{one:.2f}" for one in cpu), "")
    for hundredth in (50, 99):
        figures = (one.percentile(hundredth) for one in (bare, waiting, wrapped))
        table.add_row(f"latency p{hundredth}, ms", *(f"{one:.2f}" for one in figures), "")
    own = [ours - theirs for ours, theirs in zip(wrapped.cpu_ms, waiting.cpu_ms, strict=True)]
    table.add_row("our own CPU, ms", "", "", f"{statistics.median(own):.2f}", f"< {CPU_MS_AIM:.0f}")
    console.print(table)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--calls", type=int, default=CALLS)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        standin() as bedrock,
        running_service(Path(folder)) as service,
    ):
        app = asyncio.run(service.register(Path(folder) / "spool"))
        with pricekeeper.PriceKeeper(
            app.url, app.client_id, app.client_secret, spool_dir=app.spool_dir
        ) as keeper:
            bare, waiting, wrapped = Found(), Found(), Found()
            plain = client_of(bedrock)
            ours = pricekeeper.wrap(client_of(bedrock), keeper)
            warm, warm_wrapped = Found(), Found()
            measure(plain, given.calls, warm)
            measure(ours, given.calls, warm_wrapped)
            pause_secs = (warm_wrapped.percentile(50) - warm.percentile(50)) / 1000
            count(counts)
            for _ in range(given.rounds):
                measure(plain, given.calls, bare)
                measure(plain, given.calls, waiting, pause_secs=pause_secs)
                measure(ours, given.calls, wrapped, flush=lambda: wait_until_told(keeper))
        report(bare, waiting, wrapped, counts, given.calls * given.rounds)
    return 0


def wait_until_told(keeper: pricekeeper.PriceKeeper) -> None:
    while keeper.untold:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
