"""Authorize and capture over HTTP, beside a bare Starlette handler on the same server.

Run it with ``make bench-authorizations``. The server runs as users run it (`pricekeeper serve`, one
worker, a durable SQLite file). Each connection authorizes a call, captures it, and begins the next.
The app has a strict quota for the day, its organisation a budget for the month, and both have
requests and tokens a minute. Rounds alternate with the bare handler; medians are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import uvloop
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.rest import (
    BARE,
    CONNECTIONS,
    KEY,
    ROUNDS,
    SECONDS,
    Load,
    call,
    console,
    cpu_seconds,
    free_port,
    http,
    process,
    usage,
)

ASKED = {"model": "economy", "input_tokens": 900, "max_output_tokens": 800}
USED = {"input_tokens": 900, "output_tokens": 80}


class Pairs:
    """Authorize and capture on many connections for a while, and how long each took."""

    def __init__(self, base: str, headers: dict[str, str], seconds: float) -> None:
        self._authorize = http(
            "POST", f"{base}/authorizations", headers, json.dumps(ASKED).encode()
        )()
        self._base, self._headers, self._seconds = base, headers, seconds
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.statuses: Counter[str] = Counter()

    async def run(self, port: int) -> float:
        """Pairs a second."""
        began = time.perf_counter()
        until = began + self._seconds
        await asyncio.gather(*(self._connect(port, until) for _ in range(CONNECTIONS)))
        return len(self.latencies["capture"]) / (time.perf_counter() - began)

    async def _connect(self, port: int, until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            answer = await self._ask(reader, writer, "authorize", self._authorize)
            path = f"{self._base}/authorizations/{answer['authorization_id']}/capture"
            capture = http("POST", path, self._headers, json.dumps(USED).encode())()
            await self._ask(reader, writer, "capture", capture)
        writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, data: bytes
    ) -> Any:
        began = time.perf_counter()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(one[15:]) for one in lines if one.startswith(b"content-length:"))
        body = await reader.readexactly(length)
        self.latencies[name].append(time.perf_counter() - began)
        self.statuses[f"{name} {head[9:12].decode()}"] += 1
        return json.loads(body)


def provision(url: str) -> tuple[str, dict[str, str]]:
    """An app with one of everything that a call is held against."""
    org, key = str(uuid.uuid4()), {"X-API-Key": KEY}
    quotas = dict.fromkeys(("premium", "standard", "economy"), 10**14)
    wide = {"capacity": 10**9, "refill_amount": 10**9, "refill_period_ms": 60_000}
    limits = {"*": {"rpm": wide, "tpm": wide}}
    body = {
        "org_name": "Bench",
        "timezone": "Europe/Berlin",
        "quota_scope": "APP",
        "quota_enforcement": "STRICT",
        "model_ordering": list(quotas),
        "quotas": quotas,
        "rate_limits": limits,
        "budgets": [{"name": "monthly", "window": "MONTH", "limit_usd_micros": 10**14}],
    }
    call("PUT", f"{url}/api/v1/orgs/{org}", key, body)
    app = {"app_name": "App", "rate_limits": limits}
    made = call("PUT", f"{url}/api/v1/orgs/{org}/apps/app", key, app)
    claim = {"token": made["secret_retrieval"]["token"]}
    claimed = call("POST", f"{url}/api/v1/credentials/claim", {}, claim)
    grant = {"grant_type": "client_credentials", **claimed}
    token = call("POST", f"{url}/auth/token", {}, grant)["access_token"]
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return f"/api/v1/orgs/{org}/apps/app", sent


async def measure(
    ports: tuple[int, int], pids: tuple[int, int], base: str, sent: dict[str, str], seconds: float
) -> list[tuple[str, ...]]:
    """Alternate between the bare handler and pairs; one row for each thing that was measured."""
    rates: dict[str, list[float]] = defaultdict(list)
    cpu_us: dict[str, list[float]] = defaultdict(list)
    latencies: dict[str, list[float]] = defaultdict(list)
    statuses: Counter[str] = Counter()
    for turn in range(ROUNDS + 1):
        load = Load(usage("/usage", sent), seconds)
        before = cpu_seconds(pids[0])
        rate = await load.run(ports[0])
        spent = cpu_seconds(pids[0]) - before
        pairs = Pairs(base, sent, seconds)
        before = cpu_seconds(pids[1])
        pair_rate = await pairs.run(ports[1])
        pairs_spent = cpu_seconds(pids[1]) - before
        if turn == 0:
            continue  # the first round warms everything up
        rates["bare"].append(rate)
        rates["pair"].append(pair_rate)
        cpu_us["bare"].append(spent / len(load.latencies) * 1e6)
        cpu_us["pair"].append(pairs_spent / len(pairs.latencies["capture"]) * 1e6)
        latencies["bare"] += load.latencies
        for name, some in pairs.latencies.items():
            latencies[name] += some
        statuses += pairs.statuses

    def tail(name: str) -> str:
        ordered = sorted(latencies[name])
        p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        return f"{p50 * 1000:.1f}, {p99 * 1000:.1f}"

    bare, pair = statistics.median(rates["bare"]), statistics.median(rates["pair"])
    bare_us, pair_us = statistics.median(cpu_us["bare"]), statistics.median(cpu_us["pair"])
    return [
        ("bare Starlette handler", f"{bare:,.0f}", "1.00", f"{bare_us:.0f}", tail("bare"), ""),
        (
            "authorize and capture, a pair",
            f"{pair:,.0f}",
            f"{pair / bare:.2f}",
            f"{pair_us:.0f}",
            "",
            ", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items())),
        ),
        ("authorize", "", "", "", tail("authorize"), ""),
        ("capture", "", "", "", tail("capture"), ""),
    ]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        (folder / "bare.py").write_text(BARE)
        ports = free_port(), free_port()
        common = [
            "--host",
            "127.0.0.1",
            "--no-access-log",
            "--loop",
            "uvloop",
            "--http",
            "httptools",
        ]
        bare = [sys.executable, "-m", "uvicorn", "bare:app", "--port", str(ports[0]), *common]
        binary = str(Path(sys.executable).with_name("pricekeeper"))
        store = f"sqlite:///{folder}/bench.db"
        ours = [binary, "serve", "--port", str(ports[1]), "--store", store]
        settings = {
            "PRICEKEEPER_PROVISIONING_KEY": KEY,
            "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        }
        with (
            process(bare, ports[0], {}, folder) as bare_pid,
            process(ours, ports[1], settings, folder) as pid,
        ):
            base, sent = provision(f"http://127.0.0.1:{ports[1]}")
            rows = uvloop.run(measure(ports, (bare_pid, pid), base, sent, chosen.seconds))
    finally:
        shutil.rmtree(folder)
    table = Table("", "a second", "to bare", "CPU us", "p50, p99 ms", "answers")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
