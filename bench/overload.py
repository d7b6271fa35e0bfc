"""The service under more batches than it can take: goodput, health and a neighbour, by load.

Run it with ``make bench-overload``. One organisation sends batches of a hundred records, in two
ways. *Connections* send a batch, wait for the answer, and send the next one at once: 24 of them
(1x), 72 and 240. *A rate* is constant, regardless of the answers: as many batches a second as the
24 connections got through (1x), 3 and 10 times that.

Meanwhile another process asks ``/healthz`` on a fresh connection twenty times a second, and another
organisation records one call as often. The loads are measured in turns, and medians are reported.
Where others use the machine, too, records by the server's own processor seconds say more than
records by the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from bench.rest import KEY, cpu_seconds, free_port, new_id, process, provision, usage

from engine import start_dynoxide

RECORDS = 100
ROUNDS = 3
SECONDS = 5.0
WARM_SECS = 1.0
"""How long a load lasts before it is measured."""
CONNECTIONS_FEW = 24
CONNECTIONS_MAX = 4_000
PROBES_A_SECOND = 20
PATIENCE_SECS = 60
LOADS = (1, 3, 10)
WAYS = ("connections", "a rate")
console = Console(width=None if sys.stdout.isatty() else 140)


def batch(path: str, headers: dict[str, str]) -> Callable[[], bytes]:
    """A request with a hundred new records each time."""
    record = json.dumps({"model_label": "economy", "input_tokens": 900, "output_tokens": 80})
    one = b'{"request_id": "%b", ' + record[1:].encode()
    form = b'{"requests":[' + b",".join([one] * RECORDS) + b"]}"  # filled in at one stroke

    def body() -> bytes:
        """The ids have their time in them: they were made when the batch was sent."""
        return form % tuple(new_id() for _ in range(RECORDS))

    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body())}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return lambda: head + body()


class Connection(asyncio.Protocol):
    """One connection: a request at a time, and then it says that it is free."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = b""
        self.sent_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, data: bytes) -> None:
        if self.transport is not None:
            self.sent_at = time.perf_counter()
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        status = head[9:12].decode()
        if status in ("503", "429") and not any(one.startswith(b"retry-after:") for one in lines):
            status += " without Retry-After"
        self.load.note(status, rest[:length], time.perf_counter() - self.sent_at)
        self.load.free(self)

    def connection_lost(self, _: Exception | None) -> None:
        self.load.lost(self)


@dataclass
class Load:
    """Batches for a while, and what became of them."""

    port: int
    make: Callable[[], bytes]
    statuses: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    idle: list[Connection] = field(default_factory=list)
    counted: int = 0
    unsent: int = 0
    open: int = 0
    measured_from: float = 0.0
    until: float = 0.0
    again: bool = False

    def note(self, status: str, body: bytes, seconds: float) -> None:
        self.statuses[status] += 1
        if status != "207":
            return
        answer = json.loads(body[: body.index(b',"results"')] + b"}")
        self.counted += answer["accepted"]
        if self.measured_from <= time.perf_counter() < self.until:
            self.latencies.append(seconds)
            self.records.update(answer)

    def free(self, connection: Connection) -> None:
        if self.again and time.perf_counter() < self.until:
            connection.send(self.make())
        else:
            self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self.open -= 1
        if connection in self.idle:
            self.idle.remove(connection)
        else:
            self.statuses["connection lost"] += 1

    def begin(self, seconds: float) -> float:
        """Measure for so long from now on, after a moment to warm up."""
        now = time.perf_counter()
        self.measured_from, self.until = now + WARM_SECS, now + WARM_SECS + seconds
        return now

    @property
    def goodput(self) -> float:
        """Records that were counted a second."""
        return self.records["accepted"] / (self.until - self.measured_from)

    async def connect(self) -> Connection:
        self.open += 1
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
        return made

    async def send_anew(self) -> None:
        (await self.connect()).send(self.make())

    async def end(self) -> None:
        """Wait until all have an answer, or patience ends."""
        deadline = self.until + PATIENCE_SECS
        while time.perf_counter() < deadline:
            if len(self.idle) == self.open:
                break
            await asyncio.sleep(0.05)
        self.statuses["no answer"] += self.open - len(self.idle)
        for connection in tuple(self.idle):
            if connection.transport is not None:
                connection.transport.abort()

    async def saturate(self, count: int, seconds: float) -> None:
        """So many connections, each with a batch all the time."""
        self.again = True
        connections = [await self.connect() for _ in range(count)]
        self.begin(seconds)
        for connection in connections:
            connection.send(self.make())
        await asyncio.sleep(seconds + WARM_SECS)
        await self.end()

    async def flood(self, batches_a_second: float, seconds: float) -> None:
        """This many batches a second, regardless of the answers."""
        tasks: set[asyncio.Task[None]] = set()
        started, sent = self.begin(seconds), 0
        wanted = round(batches_a_second * (seconds + WARM_SECS))
        while sent < wanted:
            due = min(wanted, int((time.perf_counter() - started) * batches_a_second) + 1)
            for _ in range(due - sent):
                if self.idle:
                    self.idle.pop().send(self.make())
                elif self.open < CONNECTIONS_MAX:
                    task = asyncio.create_task(self.send_anew())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    self.unsent += 1
            sent = due
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
        await self.end()


def probe(port: int, seconds: float, neighbour: str) -> None:
    """Ask for health on fresh connections, and record as a neighbour; print the latencies."""
    path, token = json.loads(neighbour)
    record = usage(path, {**token, "Content-Type": "application/json", "Connection": "close"})
    health = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    seen: dict[str, list[tuple[str, float]]] = {"health": [], "neighbour": []}
    until = time.perf_counter() + seconds

    def ask(name: str, make: Callable[[], bytes]) -> None:
        while (started := time.perf_counter()) < until:
            try:
                with socket.create_connection(("127.0.0.1", port), PATIENCE_SECS) as connection:
                    connection.sendall(make())
                    data = b"".join(iter(lambda: connection.recv(65_536), b""))
                status = data[9:12].decode() or "closed"
            except OSError as error:
                status = type(error).__name__
            took = time.perf_counter() - started
            seen[name].append((status, took))
            time.sleep(max(0.0, 1 / PROBES_A_SECOND - took))

    threads = [
        threading.Thread(target=ask, args=one)
        for one in (("health", lambda: health), ("neighbour", record))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(seen))


@dataclass
class Measured:
    """One load, over all rounds."""

    goodputs: list[float] = field(default_factory=list)
    by_cpu: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    seen: dict[str, list[tuple[str, float]]] = field(
        default_factory=lambda: {"health": [], "neighbour": []}
    )

    def add(self, load: Load, cpu_secs: float, seen: dict[str, Any]) -> None:
        self.goodputs.append(load.goodput)
        self.by_cpu.append(load.counted / cpu_secs)
        self.latencies += load.latencies
        self.statuses += load.statuses
        self.statuses["unsent"] += load.unsent
        self.failed += load.records["failed"]
        for name, answers in seen.items():
            self.seen[name] += [(status, took) for status, took in answers]

    @property
    def goodput(self) -> float:
        return statistics.median(self.goodputs)

    def asked(self, name: str, status: str) -> str:
        """The latencies of a prober, and how often it was not answered as it should."""
        took = sorted(seconds * 1000 for _, seconds in self.seen[name])
        bad = sum(answered != status for answered, _ in self.seen[name])
        p99 = took[len(took) * 99 // 100]
        return f"{statistics.median(took):.0f}, {p99:.0f}, {took[-1]:.0f} ({bad} of {len(took)})"


async def observe(
    load: Load, way: str, amount: float, seconds: float, neighbour: str
) -> dict[str, Any]:
    """Send, with a prober beside it."""
    lasts = str(seconds + WARM_SECS)
    command = [sys.executable, __file__, "--probe", str(load.port), neighbour, "--seconds", lasts]
    prober = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    if way == "connections":
        await load.saturate(round(amount), seconds)
    else:
        await load.flood(amount, seconds)
    output, _ = await prober.communicate()
    seen: dict[str, Any] = json.loads(output)
    return seen


async def measure(
    port: int, pid: int, make: Callable[[], bytes], neighbour: str, seconds: float
) -> dict[str, dict[str, Measured]]:
    """What becomes of each load, by the way it is sent."""
    saturated = Load(port, make)
    await saturated.saturate(CONNECTIONS_FEW, seconds)
    rate = saturated.goodput / RECORDS
    amounts = {"connections": CONNECTIONS_FEW, "a rate": rate}
    units = {"connections": "connections", "a rate": "batches/s"}
    loads = [(way, times, amounts[way] * times) for way in WAYS for times in LOADS]
    measured: dict[str, dict[str, Measured]] = {way: {} for way in WAYS}
    for _ in range(ROUNDS):
        for way, times, amount in loads:
            name = f"{times}x: {amount:,.0f} {units[way]}"
            load, before = Load(port, make), cpu_seconds(pid)
            seen = await observe(load, way, amount, seconds, neighbour)
            one = measured[way].setdefault(name, Measured())
            one.add(load, cpu_seconds(pid) - before, seen)
    return measured


def report(title: str, measured: dict[str, Measured]) -> None:
    table = Table(
        "load",
        "records/s",
        "to best",
        "by CPU s, to best",
        "failed in 207",
        "p50 ms",
        "health, ms: p50, p99, max (not 200)",
        "neighbour, ms: p50, p99, max (not 202)",
        "answers",
        title=title,
    )
    best = max(one.goodput for one in measured.values())
    best_by_cpu = max(statistics.median(one.by_cpu) for one in measured.values())
    for name, one in measured.items():
        counts = (f"{status}: {n:,}" for status, n in sorted(one.statuses.items()) if n)
        table.add_row(
            name,
            f"{one.goodput:,.0f}",
            f"{one.goodput / best:.2f}",
            f"{statistics.median(one.by_cpu) / best_by_cpu:.2f}",
            f"{one.failed:,}",
            f"{statistics.median(one.latencies) * 1000:.0f}" if one.latencies else "",
            one.asked("health", "200"),
            one.asked("neighbour", "202"),
            ", ".join(counts),
        )
    console.print(table)


def bench(
    store: str, title: str, folder: Path, environment: dict[str, str], seconds: float
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    binary = str(Path(sys.executable).with_name("pricekeeper"))
    ours = [binary, "serve", "--port", str(port), "--store", store]
    settings = {
        "PRICEKEEPER_PROVISIONING_KEY": KEY,
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_API_RATE_LIMITS": "off",  # else the flood would end at its limit
        **environment,
    }
    with process(ours, port, settings, folder) as pid:
        base, token = provision(url)
        make = batch(f"{base}/app/usage/batch", {**token, "Content-Type": "application/json"})
        other, other_token = provision(url)
        neighbour = json.dumps([f"{other}/app/usage", other_token])
        measured = uvloop.run(measure(port, pid, make, neighbour, seconds))
    for way, loads in measured.items():
        report(f"{title}, by {way}", loads)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument("--only", choices=["sqlite", "dynamodb"])
    arguments.add_argument(
        "--probe", nargs=2, metavar=("PORT", "NEIGHBOUR"), help=argparse.SUPPRESS
    )
    chosen = arguments.parse_args()
    if chosen.probe:
        probe(int(chosen.probe[0]), chosen.seconds, chosen.probe[1])
        return 0
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        if chosen.only != "dynamodb":
            store = f"sqlite:///{folder}/bench.db"
            bench(store, "Batches on SQLite, durable", folder, {}, chosen.seconds)
        if chosen.only != "sqlite":
            with start_dynoxide() as engine:
                store = f"dynamodb://us-east-1?prefix=bench-&endpoint={engine.endpoint}"
                keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
                bench(store, "Batches on the DynamoDB engine", folder, keys, chosen.seconds)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
