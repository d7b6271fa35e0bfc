"""What wrapping a Bedrock client costs a program: a wrapped ``converse`` beside a bare one.

Run it with ``make bench-client``. The service (one worker, a durable SQLite file) and the stand-in
for Bedrock run as processes of their own; the CPU of this process is the client's alone, with
all of its threads. Rounds of bare and of wrapped calls alternate; medians of rounds are reported.
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

import pricekeeper
from client.services import running_service
from pricekeeper.client.engine import Engine
from pricekeeper.client.transport import Wire

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


def measure(client: Any, calls: int, flush: Callable[[], object], found: Found) -> None:
    """Make some calls, one after another, and wait until all is told."""
    cpu_before = time.process_time()
    for _ in range(calls):
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


def report(bare: Found, wrapped: Found, counts: Counter[str], calls: int) -> None:
    own_ms = statistics.median(wrapped.cpu_ms) - statistics.median(bare.cpu_ms)
    table = Table("measured", "bare", "wrapped", "added", "aim", title="A wrapped converse")
    table.add_row(
        "round trips before the call", "0", f"{counts['authorizations'] / calls:.2f}", "", "1"
    )
    after = (counts["waits"] - counts["authorizations"]) / calls
    table.add_row("round trips after it that it waits for", "0", f"{after:.2f}", "", "0")
    table.add_row(
        "requests in the background for each call", "0", f"{counts['captures'] / calls:.2f}", "", ""
    )
    table.add_row(
        "CPU of the program, ms",
        f"{statistics.median(bare.cpu_ms):.2f}",
        f"{statistics.median(wrapped.cpu_ms):.2f}",
        f"{own_ms:.2f}",
        f"under {CPU_MS_AIM:.0f}",
    )
    for hundredth in (50, 99):
        before, now = bare.percentile(hundredth), wrapped.percentile(hundredth)
        cells = f"{before:.2f}", f"{now:.2f}", f"{now - before:.2f}"
        table.add_row(f"latency p{hundredth}, ms", *cells, "")
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
            bare, wrapped = Found(), Found()
            plain = client_of(bedrock)
            ours = pricekeeper.wrap(client_of(bedrock), keeper)
            for client in (plain, ours):  # everything is warm after that
                measure(client, given.calls // 5, keeper.flush, Found())
            count(counts)
            for _ in range(given.rounds):
                measure(plain, given.calls, lambda: None, bare)
                measure(ours, given.calls, lambda: wait_until_told(keeper), wrapped)
        report(bare, wrapped, counts, given.calls * given.rounds)
    return 0


def wait_until_told(keeper: pricekeeper.PriceKeeper) -> None:
    while keeper.untold:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
