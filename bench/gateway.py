"""The gateway beside a plain pass-through relay, and beside the stand-in for Bedrock alone.

Run it with ``make bench-gateway``. The gateway runs as users run it (`pricekeeper serve`, one
worker, a durable SQLite file, a strict quota and a budget), the relay is an aiohttp client behind
uvicorn that meters nothing, and the upstream of both is the stand-in, in a process of its own.
All three get the same requests, signed as an AWS SDK signs them; only the gateway looks at that.

Rounds alternate, and a ratio is the median of the ratios of single rounds: a machine that is shared
is as busy in one half of a round as in the other. A round in which others took much of the machine
is played again, a few times. A program of the lowest priority keeps each core awake, since a
virtual core that sleeps is given to others, and comes back some milliseconds late. Each scenario
has processes and a store of its own.
Where the model takes its time, callers begin one after the other, as callers do; one scenario has
them begin all at once. With ``--others`` LiteLLM's proxy and Portkey's gateway are installed and
measured beside it, with an instant model.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import choice
from typing import Any, Final, cast

import uvloop
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.gateway_others import OTHERS
from bench.rest import KEY, call, console, cpu_seconds, free_port, process

CALLERS = 32
ROUNDS = 7
SECONDS = 2.0
EVENTS = 200
MODEL = "us.anthropic.claude-haiku-5-5"
MODEL_MS = 50
BETWEEN_MS = 5
"""Between two events of a stream, as of a quick model."""
PROMPTS = 64
"""Each request has its own signature, as from an SDK, so no two heads are equal."""
STOLEN_PCT_MAX = 3
"""How much of the processors others may take in a round that counts."""
AGAIN_MAX = 14
VARIES_MS = 10
"""By how much the model that does not always take the same time is faster or slower."""
USER_AGENT = (
    "Boto3/1.43.117 md/Botocore#1.43.117 ua/2.1 os/linux#6.1 md/arch#x86_64 lang/python#3.11.7 "
    "md/pyimpl#CPython cfg/retry-mode#legacy Botocore/1.43.117"
)
SPINS: Final = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    for _ in range(1_000_000): pass
"""
RELAY = """
import aiohttp

HOP_BY_HOP = {
    b"connection", b"content-length", b"date", b"host", b"keep-alive", b"server",
    b"transfer-encoding", b"te", b"trailer", b"upgrade",
}
session = None

def passed(headers):
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]

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
    sent = [(name.decode(), value.decode()) for name, value in passed(scope["headers"])]
    async with session.post(url, data=body, headers=sent) as reply:
        headers = passed(reply.raw_headers)
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
        self.transport.write(choice(self.load.requests))

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
    """One of some calls on many connections for a while; these begin within ``ramp_secs``."""

    def __init__(self, requests: Sequence[bytes], seconds: float, ramp_secs: float) -> None:
        self.requests = requests
        self.seconds = seconds
        self.ramp_secs = ramp_secs
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
        await asyncio.gather(*(self._begin(number, port) for number in range(CALLERS)))
        await self._done
        return len(self.latencies) / (time.perf_counter() - started)

    async def _begin(self, number: int, port: int) -> None:
        await asyncio.sleep(self.ramp_secs * number / CALLERS)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Caller(self), "127.0.0.1", port)


Signed = Callable[[str, bytes], bytes]


def signed_request(port: int, keys: dict[str, str], prefix: str = "") -> Signed:
    """What an AWS SDK sends; a signature is good for minutes."""
    credentials = Credentials(keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])

    def make(path: str, body: bytes) -> bytes:
        made = AWSRequest(
            "POST",
            f"http://127.0.0.1:{port}{prefix}{path}",
            headers={
                "Content-Type": "application/json",
                "User-Agent": USER_AGENT,
                "amz-sdk-invocation-id": str(uuid.uuid4()),
                "amz-sdk-request": "attempt=1",
            },
            data=body,
        )
        SigV4Auth(credentials, "bedrock", "us-east-1").add_auth(made)
        headers = dict(made.headers.items())
        lines = [f"POST {prefix}{path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    return make


def register(url: str) -> tuple[str, str]:
    """An app of an organisation of its own, whose quota and budget never end; its id and pair."""
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
    return org, f"{claimed['client_id']}:{claimed['client_secret']}"


def provision(url: str) -> dict[str, str]:
    """The AWS credentials of a new app."""
    _, pair = register(url)
    basic = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    keys: dict[str, str] = call("GET", f"{url}/auth/aws-credentials", basic)
    return keys


def body_of(script: dict[str, Any], number: int = 0) -> bytes:
    text = f"hello {number} [[standin {json.dumps(script)}]]"
    messages = [{"role": "user", "content": [{"text": text}]}]
    return json.dumps({"messages": messages, "inferenceConfig": {"maxTokens": 300}}).encode()


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep every core busy with nothing, which gives way to everything; where that can be done."""
    if not hasattr(os, "SCHED_IDLE"):
        yield
        return
    mine = str(os.getpid())
    command = [sys.executable, "-c", SPINS]
    running = [
        subprocess.Popen([*command, str(core), mine])  # noqa: S603 - our own command
        for core in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@dataclass
class Round:
    """What one target did in one round."""

    calls_per_sec: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass
class Found:
    """What one target did in all rounds."""

    rounds: list[Round] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    resident_bytes: int = 0

    def median(self, what: str) -> float:
        values: list[float] = [getattr(one, what) for one in self.rounds]
        return statistics.median(values)

    def ratio(self, other: Found, what: str) -> float:
        """The median of the ratios of single rounds."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        ratios: list[float] = [getattr(a, what) / getattr(b, what) for a, b in pairs]
        return statistics.median(ratios)


@dataclass(frozen=True)
class Target:
    """Who is called, and with what."""

    port: int
    pid: int
    requests: Sequence[bytes]


async def measure(
    targets: dict[str, Target], seconds: float, ramp_secs: float = 0
) -> dict[str, Found]:
    """Alternate between the targets. The first round warms everything up."""
    found = {name: Found() for name in targets}
    await play_round(targets, found, seconds, ramp_secs)
    again = 0
    for one in found.values():
        one.rounds.clear()
        one.statuses.clear()
    while len(found["direct"].rounds) < ROUNDS:
        before = ticks()
        await play_round(targets, found, seconds, ramp_secs)
        stolen, all_ticks = (now - then for now, then in zip(ticks(), before, strict=True))
        if stolen * 100 > STOLEN_PCT_MAX * all_ticks and again < AGAIN_MAX:
            again += 1
            for one in found.values():
                one.rounds.pop()
    if again:
        console.print(f"{again} rounds were played again: others took much of the machine")
    return found


async def play_round(
    targets: dict[str, Target], found: dict[str, Found], seconds: float, ramp_secs: float
) -> None:
    for name, target in targets.items():
        load = Load(target.requests, seconds, ramp_secs)
        before = cpu_seconds(target.pid)
        rate = await load.run(target.port)
        spent = cpu_seconds(target.pid) - before
        took = sorted(load.latencies)
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        made = Round(rate, spent / len(took) * 1e6, p50 * 1000, p99 * 1000)
        found[name].rounds.append(made)
        found[name].statuses += load.statuses
        found[name].resident_bytes = resident_bytes(target.pid)


def ticks() -> tuple[int, int]:
    """What other machines have taken of the processors so far, and all that there was."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    times = list(map(int, fields))
    return times[7], sum(times)


def resident_bytes(pid: int) -> int:
    """How much memory a process has at the moment."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def report(title: str, found: dict[str, Found], per: int = 1) -> None:
    table = Table(
        "target", "calls/s", "CPU us a call", "to relay", "per event us", "p50 ms", "to direct",
        "p99 ms", "to direct", "MB", "answers", title=title,
    )  # fmt: skip
    relay, direct = found["plain relay"], found["direct"]
    for name, one in found.items():
        cpu_us = one.median("cpu_us")
        table.add_row(
            name,
            f"{one.median('calls_per_sec'):,.0f}",
            f"{cpu_us:,.0f}",
            f"{one.ratio(relay, 'cpu_us'):.2f}",
            f"{cpu_us / per:.1f}" if per > 1 else "",
            f"{one.median('p50_ms'):.1f}",
            f"{one.ratio(direct, 'p50_ms'):.2f}",
            f"{one.median('p99_ms'):.1f}",
            f"{one.ratio(direct, 'p99_ms'):.2f}",
            f"{one.resident_bytes / 1e6:,.0f}",
            ", ".join(f"{status}: {count:,}" for status, count in one.statuses.items()),
        )
    console.print(table)
    for name in sorted(found.keys() & OTHERS.keys()):
        gateway, other = found["gateway"], found[name]
        console.print(
            f"gateway: {gateway.ratio(other, 'calls_per_sec'):.1f} times the calls a second of "
            f"{name}, {other.ratio(gateway, 'cpu_us'):.1f} times those of a processor second"
        )


@dataclass(frozen=True)
class Scenario:
    """What is asked for, by how many callers at what time."""

    kind: str
    title: str
    end: str
    scripts: Sequence[dict[str, Any]]
    """What the stand-in does; each prompt has one of them."""
    ramp_secs: float = 0
    events: int = 1


def slow(title: str, times_ms: Sequence[int], ramp_secs: float) -> Scenario:
    """Calls of a model that takes these times."""
    scripts = [{**INSTANT, "delay_ms": one} for one in times_ms]
    return Scenario("slow", f"converse, a model that {title}", "converse", scripts, ramp_secs)


def stream(title: str, **script: Any) -> Scenario:
    """Streams whose events come in that way."""
    script = {"output_tokens": EVENTS, "events": EVENTS, **script}
    title = f"converse-stream, {EVENTS} events, {title}"
    return Scenario("streams", title, "converse-stream", [script], events=EVENTS)


INSTANT: Final[dict[str, Any]] = {"output_tokens": 20}
SCENARIOS: Final = (
    Scenario("calls", "converse, instant model", "converse", [INSTANT]),
    slow(f"takes {MODEL_MS} ms", [MODEL_MS], MODEL_MS / 1000),
    slow(
        f"takes {MODEL_MS - VARIES_MS} to {MODEL_MS + VARIES_MS} ms",
        range(MODEL_MS - VARIES_MS, MODEL_MS + VARIES_MS + 1),
        MODEL_MS / 1000,
    ),
    slow(f"takes {MODEL_MS} ms, who begin at once", [MODEL_MS], 0),
    stream(f"one each {BETWEEN_MS} ms", between_ms=BETWEEN_MS),
    stream("all at once"),
)


@contextmanager
def running_targets(
    folder: Path, scenario: Scenario, *, others: bool
) -> Iterator[dict[str, Target]]:
    """The stand-in, the relay and the gateway with an empty store, until the end of the block."""
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
    run = [sys.executable, "-m"]
    commands = {
        "direct": ([*run, "pricekeeper.standin", "--port", str(standin)], standin, {}),
        "plain relay": ([*run, "uvicorn", "relay:app", "--port", str(relay), *served], relay, {}),
        "gateway": ([binary, "serve", "--port", str(gateway), "--store", store], gateway, settings),
    }
    path = f"/model/{MODEL}/{scenario.end}"
    scripts = [scenario.scripts[number % len(scenario.scripts)] for number in range(PROMPTS)]
    bodies = [body_of(script, number) for number, script in enumerate(scripts)]
    with ExitStack() as opened:
        start = opened.enter_context
        pids = {
            name: start(process(command, port, environment, folder))
            for name, (command, port, environment) in commands.items()
        }
        keys = provision(f"http://127.0.0.1:{gateway}")
        targets: dict[str, Target] = {}
        for name, (_, port, _) in commands.items():
            make = signed_request(port, keys, "/bedrock" if name == "gateway" else "")
            targets[name] = Target(port, pids[name], [make(path, body) for body in bodies])
        for name, running in OTHERS.items() if others else ():
            other = start(running(folder, upstream, MODEL))
            targets[name] = Target(other.port, other.pid, [other.request(scripts[0])])
        yield targets


def bench(folder: Path, seconds: float, *, only: str | None, others: bool) -> None:
    for number, scenario in enumerate(SCENARIOS):
        if only not in {None, scenario.kind}:
            continue
        own = folder / str(number)
        own.mkdir()
        with running_targets(own, scenario, others=others and scenario.kind == "calls") as targets:
            found = uvloop.run(measure(targets, seconds, scenario.ramp_secs))
        report(f"{scenario.title}, {CALLERS} callers", found, scenario.events)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument(
        "--only", choices=sorted({one.kind for one in SCENARIOS}), help="scenarios of that kind"
    )
    arguments.add_argument(
        "--others", action="store_true", help="LiteLLM and Portkey beside it, with npm and pip"
    )
    chosen = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        with awake_cores():
            bench(folder, chosen.seconds, only=chosen.only, others=chosen.others)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
