"""The gateway beside a plain pass-through relay, and beside the stand-in for Bedrock alone.

Run it with ``make bench-gateway``. The gateway runs as users run it (`pricekeeper serve`, one
worker, a durable SQLite file, a strict quota and a budget), the relay is an aiohttp client behind
uvicorn that meters nothing, and the upstream of both is the stand-in, in a process of its own.
Requests are signed as an AWS SDK signs them. Rounds alternate; medians and ratios are reported.
With ``--others`` LiteLLM's proxy and Portkey's gateway are installed and measured beside it, with
an instant model.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import uvloop
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.gateway_others import OTHERS
from bench.rest import KEY, call, console, cpu_seconds, free_port, process

CALLERS = 32
ROUNDS = 5
SECONDS = 2.0
EVENTS = 200
MODEL = "us.anthropic.claude-haiku-5-5"
RELAY = """
import aiohttp

session = None

async def app(scope, receive, send):
    global session
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            session = aiohttp.ClientSession(auto_decompress=False)
            await send({"type": "lifespan.startup.complete"})
        await session.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    url = UPSTREAM + scope["raw_path"].decode()
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as reply:
        headers = [(b"content-type", reply.headers["content-type"].encode())]
        if "content-length" in reply.headers:
            headers.append((b"content-length", reply.headers["content-length"].encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        while chunk := await reply.content.readany():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
"""


class Caller(asyncio.Protocol):
    """One connection that makes a call, reads its whole answer, and makes the next."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = bytearray()
        self.sent_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        if self.transport is None or time.perf_counter() >= self.load.until:
            self.load.finish()
            return
        self.sent_at = time.perf_counter()
        self.transport.write(self.load.data)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[:end]).lower()
        if b"transfer-encoding: chunked" in head:
            if not self.buffer.endswith(b"\r\n0\r\n\r\n"):
                return
        else:
            at = head.index(b"content-length:") + 15
            if len(self.buffer) < end + 4 + int(head[at:].split(b"\r\n", 1)[0]):
                return
        self.load.note(head[9:12].decode(), time.perf_counter() - self.sent_at)
        self.buffer.clear()
        self.send()

    def connection_lost(self, _: Exception | None) -> None:
        self.load.finish()


class Load:
    """The same call on many connections for a while."""

    def __init__(self, data: bytes, seconds: float) -> None:
        self.data = data
        self.seconds = seconds
        self.until = 0.0
        self.statuses: Counter[str] = Counter()
        self.latencies: list[float] = []
        self._open = CALLERS
        self._done = asyncio.get_running_loop().create_future()

    def note(self, status: str, seconds: float) -> None:
        self.statuses[status] += 1
        self.latencies.append(seconds)

    def finish(self) -> None:
        self._open -= 1
        if self._open <= 0 and not self._done.done():
            self._done.set_result(None)

    async def run(self, port: int) -> float:
        started = time.perf_counter()
        self.until = started + self.seconds
        loop = asyncio.get_running_loop()
        for _ in range(CALLERS):
            await loop.create_connection(lambda: Caller(self), "127.0.0.1", port)
        await self._done
        return len(self.latencies) / (time.perf_counter() - started)


Signed = Callable[[str, bytes], bytes]


def plain_request(port: int) -> Signed:
    def make(path: str, body: bytes) -> bytes:
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    return make


def signed_request(port: int, keys: dict[str, str]) -> Signed:
    """What an AWS SDK sends; one signature is good for minutes."""
    credentials = Credentials(keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])

    def make(path: str, body: bytes) -> bytes:
        made = AWSRequest(
            "POST",
            f"http://127.0.0.1:{port}/bedrock{path}",
            headers={"Content-Type": "application/json"},
            data=body,
        )
        SigV4Auth(credentials, "bedrock", "us-east-1").add_auth(made)
        headers = dict(made.headers.items())
        lines = [f"POST /bedrock{path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    return make


def provision(url: str) -> dict[str, str]:
    """An app with a quota and a budget that never end, and its credentials."""
    org, key = str(uuid.uuid4()), {"X-API-Key": KEY}
    quotas = dict.fromkeys(("premium", "standard", "economy"), 10**14)
    body = {
        "org_name": "Bench",
        "timezone": "Europe/Berlin",
        "quota_scope": "APP",
        "quota_enforcement": "STRICT",
        "model_ordering": list(quotas),
        "quotas": quotas,
        "budgets": [{"name": "monthly", "window": "MONTH", "limit_usd_micros": 10**14}],
    }
    call("PUT", f"{url}/api/v1/orgs/{org}", key, body)
    made = call("PUT", f"{url}/api/v1/orgs/{org}/apps/app", key, {"app_name": "App"})
    claim = {"token": made["secret_retrieval"]["token"]}
    claimed = call("POST", f"{url}/api/v1/credentials/claim", {}, claim)
    pair = f"{claimed['client_id']}:{claimed['client_secret']}"
    basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    keys: dict[str, str] = call("GET", f"{url}/auth/aws-credentials", basic)
    return keys


def body_of(script: dict[str, Any]) -> bytes:
    text = f"hello [[standin {json.dumps(script)}]]"
    messages = [{"role": "user", "content": [{"text": text}]}]
    return json.dumps({"messages": messages, "inferenceConfig": {"maxTokens": 300}}).encode()


async def measure(
    targets: dict[str, tuple[int, int, bytes]], seconds: float
) -> dict[str, dict[str, Any]]:
    """Alternate between the targets (port, pid, request)."""
    found: dict[str, dict[str, Any]] = {
        name: {"latencies": [], "statuses": Counter(), **defaultdict(list)} for name in targets
    }
    for turn in range(ROUNDS + 1):
        for name, (port, pid, data) in targets.items():
            load = Load(data, seconds)
            before = cpu_seconds(pid)
            rate = await load.run(port)
            spent = cpu_seconds(pid) - before
            if turn == 0:
                continue  # the first round warms everything up
            found[name].setdefault("rates", []).append(rate)
            used_us = spent / max(1, len(load.latencies)) * 1e6
            found[name].setdefault("cpu_us", []).append(used_us)
            found[name]["latencies"] += load.latencies
            found[name]["statuses"] += load.statuses
            found[name]["resident_bytes"] = resident_bytes(pid)
    return found


def resident_bytes(pid: int) -> int:
    """How much memory a process has at the moment."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def report(title: str, found: dict[str, dict[str, Any]], per: int = 1) -> None:
    table = Table(
        "target", "calls/s", "CPU us a call", "to relay", "per event us", "p50 ms", "to direct",
        "p99 ms", "to direct", "MB", "answers", title=title,
    )  # fmt: skip
    relay = statistics.median(found["plain relay"]["cpu_us"])
    direct = sorted(found["direct"]["latencies"])
    for name, result in found.items():
        latencies = sorted(result["latencies"])
        p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
        cpu = statistics.median(result["cpu_us"])
        table.add_row(
            name,
            f"{statistics.median(result['rates']):,.0f}",
            f"{cpu:,.0f}",
            f"{cpu / relay:.2f}",
            f"{cpu / per:.1f}" if per > 1 else "",
            f"{p50 * 1000:.1f}",
            f"{p50 / direct[len(direct) // 2]:.2f}",
            f"{p99 * 1000:.1f}",
            f"{p99 / direct[len(direct) * 99 // 100]:.2f}",
            f"{result['resident_bytes'] / 1e6:,.0f}",
            ", ".join(f"{status}: {count:,}" for status, count in result["statuses"].items()),
        )
    console.print(table)
    for name in sorted(found.keys() & OTHERS.keys()):
        medians = {
            one: [statistics.median(found[one][what]) for what in ("rates", "cpu_us")]
            for one in ("gateway", name)
        }
        (rate, cpu), (other_rate, other_cpu) = medians.values()
        console.print(
            f"gateway: {rate / other_rate:.1f} times the calls a second of {name}, "
            f"{other_cpu / cpu:.1f} times those of a processor second"
        )


def bench(folder: Path, seconds: float, *, others: bool) -> None:
    standin, relay, gateway = free_port(), free_port(), free_port()
    upstream = f"http://127.0.0.1:{standin}"
    (folder / "relay.py").write_text(f'UPSTREAM = "{upstream}"\n{RELAY}')
    binary = str(Path(sys.executable).with_name("pricekeeper"))
    served = ["--host", "127.0.0.1", "--no-access-log", "--loop", "uvloop", "--http", "httptools"]
    store = f"sqlite:///{folder}/bench.db"
    settings = {
        "PRICEKEEPER_PROVISIONING_KEY": KEY,
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_BEDROCK_UPSTREAM": upstream,
    }
    with ExitStack() as opened:
        start = opened.enter_context
        run = [sys.executable, "-m"]
        commands = {
            "direct": ([*run, "pricekeeper.standin", "--port", str(standin)], standin, {}),
            "plain relay": (
                [*run, "uvicorn", "relay:app", "--port", str(relay), *served], relay, {},
            ),
            "gateway": (
                [binary, "serve", "--port", str(gateway), "--store", store], gateway, settings,
            ),
        }  # fmt: skip
        pids = {
            name: start(process(command, port, environment, folder))
            for name, (command, port, environment) in commands.items()
        }
        keys = provision(f"http://127.0.0.1:{gateway}")
        ports = {name: port for name, (_, port, _) in commands.items()}
        requests: dict[str, Signed] = {
            "direct": plain_request(standin),
            "plain relay": plain_request(relay),
            "gateway": signed_request(gateway, keys),
        }

        def targets(end: str, script: dict[str, Any]) -> dict[str, tuple[int, int, bytes]]:
            path, body = f"/model/{MODEL}/{end}", body_of(script)
            return {
                name: (ports[name], pids[name], make(path, body)) for name, make in requests.items()
            }

        instant: dict[str, Any] = {"output_tokens": 20}
        with ExitStack() as beside:
            instantly = targets("converse", instant)
            for name, running in OTHERS.items() if others else ():
                other = beside.enter_context(running(folder, upstream, MODEL))
                instantly[name] = (other.port, other.pid, other.request(instant))
            found = uvloop.run(measure(instantly, seconds))
        report(f"converse, instant model, {CALLERS} callers", found)
        slow = {"output_tokens": 20, "delay_ms": 50}
        found = uvloop.run(measure(targets("converse", slow), seconds))
        report(f"converse, a model that takes 50 ms, {CALLERS} callers", found)
        many = {"output_tokens": EVENTS, "events": EVENTS}
        found = uvloop.run(measure(targets("converse-stream", many), seconds))
        report(f"converse-stream, {EVENTS} events, {CALLERS} callers", found, per=EVENTS)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument(
        "--others", action="store_true", help="LiteLLM and Portkey beside it, with npm and pip"
    )
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        bench(folder, chosen.seconds, others=chosen.others)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
