"""The service over HTTP, as ratios to a bare Starlette handler on the same server.

Run it with ``make bench-http``. The server runs as users run it (`pricekeeper serve`, one worker, a
durable SQLite file, access log on) and the loader beside it on the other core. Each scenario is
measured in alternating rounds with the bare handler; medians are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import getrandbits
from typing import Any, cast
from urllib import request

import uvloop
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from engine import start_dynoxide

CONNECTIONS = 64
ROUNDS = 5
SECONDS = 2.0
KEY = "7d1b49e0c2f8a6359e04b7d1c8f2a650"
console = Console(width=None if sys.stdout.isatty() else 120)

BARE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def handler(request):
    await request.json()
    return JSONResponse({"status": "accepted"}, status_code=202)

app = Starlette(routes=[Route("/usage", handler, methods=["POST"])])
"""


class Connection(asyncio.Protocol):
    """One connection that sends a request, waits for the answer, and sends the next."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = b""
        self.sent_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        if self.transport is None or time.perf_counter() >= self.load.until:
            self.load.finished()
            return
        self.sent_at = time.perf_counter()
        self.transport.write(self.load.make())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        self.load.note(head[9:12], time.perf_counter() - self.sent_at)
        self.send()

    def connection_lost(self, _: Exception | None) -> None:
        self.load.finished()


class Load:
    """Requests on many connections for a while, and how they were answered."""

    def __init__(self, make: Callable[[], bytes], seconds: float) -> None:
        self.make = make
        self.seconds = seconds
        self.until = 0.0
        self.statuses: dict[bytes, int] = {}
        self.latencies: list[float] = []
        self.open = 0
        self.done = asyncio.get_running_loop().create_future()

    def note(self, status: bytes, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.latencies.append(seconds)

    def finished(self) -> None:
        self.open -= 1
        if self.open <= 0 and not self.done.done():
            self.done.set_result(None)

    async def run(self, port: int) -> float:
        loop = asyncio.get_running_loop()
        self.open = CONNECTIONS
        started = time.perf_counter()
        self.until = started + self.seconds
        for _ in range(CONNECTIONS):
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
        await self.done
        return len(self.latencies) / (time.perf_counter() - started)


def http(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Callable[[], bytes]:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    data = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
    return lambda: data


def usage(path: str, headers: dict[str, str]) -> Callable[[], bytes]:
    """A new record each time: the id, which has its time in it, is the only part that changes."""
    mark = "0" * 36
    record = {
        "request_id": mark,
        "model_label": "economy",
        "input_tokens": 900,
        "output_tokens": 80,
    }
    template = http("POST", path, headers, json.dumps(record).encode())()
    before, _, after = template.partition(mark.encode())
    return lambda: before + new_id() + after


def new_id() -> bytes:
    """An id of version 7, made now. Its random part decides over which pages records spread."""
    now, rest = f"{time.time_ns() // 1_000_000:012x}", f"{getrandbits(72):018x}"
    return f"{now[:8]}-{now[8:]}-7{rest[:3]}-8{rest[3:6]}-{rest[6:]}".encode()


@contextmanager
def process(
    command: list[str], port: int, environment: dict[str, str], folder: Path
) -> Iterator[int]:
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(  # noqa: S603 - our own command
            command, env={**os.environ, **environment}, stdout=log, stderr=log, cwd=folder
        )
    try:
        for _ in range(300):
            if running.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=30)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, of either kind."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def call(method: str, url: str, headers: dict[str, str], body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    asked = request.Request(  # noqa: S310 - loopback
        url, data, {"Content-Type": "application/json", **headers}, method=method
    )
    with request.urlopen(asked) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read() or b"null")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def provision(url: str) -> tuple[str, dict[str, str]]:
    org, key = str(uuid.uuid4()), {"X-API-Key": KEY}
    quotas = dict.fromkeys(("premium", "standard", "economy"), 10**14)
    body = {
        "org_name": "Bench",
        "timezone": "Europe/Berlin",
        "quota_scope": "APP",
        "model_ordering": list(quotas),
        "quotas": quotas,
        "agg_shard_count": 16,
    }
    call("PUT", f"{url}/api/v1/orgs/{org}", key, body)
    made = call("PUT", f"{url}/api/v1/orgs/{org}/apps/app", key, {"app_name": "App"})
    claim = {"token": made["secret_retrieval"]["token"]}
    claimed = call("POST", f"{url}/api/v1/credentials/claim", {}, claim)
    grant = {"grant_type": "client_credentials", **claimed}
    token = call("POST", f"{url}/auth/token", {}, grant)["access_token"]
    return f"/api/v1/orgs/{org}/apps", {"Authorization": f"Bearer {token}"}


async def measure(
    scenarios: dict[str, tuple[int, Callable[[], bytes]]], seconds: float, pids: dict[int, int]
) -> dict[str, Any]:
    """Alternate between the scenarios; rates by name, and the latencies of all rounds."""
    found: dict[str, Any] = {
        name: {"rates": [], "cpu_us": [], "latencies": [], "statuses": {}} for name in scenarios
    }
    for turn in range(ROUNDS + 1):
        for name, (port, make) in scenarios.items():
            load = Load(make, seconds)
            before = cpu_seconds(pids[port])
            rate = await load.run(port)
            spent = cpu_seconds(pids[port]) - before
            if turn == 0:
                continue  # the first round warms everything up
            found[name]["rates"].append(rate)
            found[name]["cpu_us"].append(spent / len(load.latencies) * 1e6)
            found[name]["latencies"] += load.latencies
            for status, count in load.statuses.items():
                found[name]["statuses"][status] = found[name]["statuses"].get(status, 0) + count
    return found


def report(title: str, found: dict[str, Any], targets: dict[str, int]) -> None:
    table = Table(
        "scenario",
        "requests/s",
        "to bare",
        "CPU us",
        "to bare",
        "p50 ms",
        "p99 ms",
        "answers",
        "aim",
        title=title,
    )
    bare = found["bare Starlette handler"]["rates"]
    for name, result in found.items():
        rate = statistics.median(result["rates"])
        ratio = statistics.median(a / b for a, b in zip(result["rates"], bare, strict=True))
        cpu = statistics.median(result["cpu_us"])
        cpu_ratio = cpu / statistics.median(found["bare Starlette handler"]["cpu_us"])
        latencies = sorted(result["latencies"])
        p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
        answers = ", ".join(f"{status.decode()}: {n:,}" for status, n in result["statuses"].items())
        aim = f"{targets[name]:,}" if name in targets else ""
        cells = (
            f"{rate:,.0f}",
            f"{ratio:.2f}",
            f"{cpu:.0f}",
            f"{cpu_ratio:.2f}",
            f"{p50 * 1000:.1f}",
            f"{p99 * 1000:.1f}",
        )
        table.add_row(name, *cells, answers, aim)
    console.print(table)


def bench(
    store: str, title: str, folder: Path, environment: dict[str, str], seconds: float
) -> None:
    (folder / "bare.py").write_text(BARE)
    bare_port, port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--no-access-log", "--loop", "uvloop", "--http", "httptools"]
    bare = [sys.executable, "-m", "uvicorn", "bare:app", "--port", str(bare_port), *common]
    binary = str(Path(sys.executable).with_name("pricekeeper"))
    ours = [binary, "serve", "--port", str(port), "--store", store]
    settings = {
        "PRICEKEEPER_PROVISIONING_KEY": KEY,
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_API_RATE_LIMITS": "selection=100000000",
        **environment,
    }
    with (
        process(bare, bare_port, {}, folder) as bare_pid,
        process(ours, port, settings, folder) as pid,
    ):
        pids = {bare_port: bare_pid, port: pid}
        base, token = provision(url)
        sent = {**token, "Content-Type": "application/json"}
        found = uvloop.run(
            measure(
                {
                    "bare Starlette handler": (bare_port, usage("/usage", sent)),
                    "POST usage": (port, usage(f"{base}/app/usage", sent)),
                    "GET model-selection, warm": (
                        port,
                        http("GET", f"{base}/app/model-selection", token),
                    ),
                    "token check, warm (404)": (port, http("GET", f"{base}/other/limits", token)),
                },
                seconds,
                pids,
            )
        )
    report(title, found, {"POST usage": 5_000, "GET model-selection, warm": 10_000})


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument("--only", choices=["sqlite", "dynamodb"])
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        if chosen.only != "dynamodb":
            store = f"sqlite:///{folder}/bench.db"
            bench(store, "HTTP on SQLite, durable", folder, {}, chosen.seconds)
        if chosen.only != "sqlite":
            with start_dynoxide() as engine:
                store = f"dynamodb://us-east-1?prefix=bench-&endpoint={engine.endpoint}"
                keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
                bench(store, "HTTP on the DynamoDB engine", folder, keys, chosen.seconds)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
