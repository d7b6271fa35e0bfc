"""A neighbour's calls through the gateway while another organisation floods it, by kind of flood.

Run it with ``make bench-neighbours``. One organisation makes one call after the other with an
instant model. Another one floods the same worker from a process of its own: with long bodies of a
frozen app, with long bodies that are authorized, with the largest bodies while the model thinks,
with as many calls under way as the server has connections, and with prompts to count.

The quiet p50 is measured before and after each flood. The promise is that a flood leaves the
neighbour within ten times that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.gateway import MODEL, register, resident_bytes
from bench.rest import KEY, call, console, free_port, process

SECONDS: Final = 5.0
PATIENCE_SECS: Final = 30.0
PROMISED: Final = 10
MEGABYTE: Final = 1 << 20
LARGEST_BYTES: Final = 25 * MEGABYTE - 1024
HEAD_MAX: Final = 1 << 16
THINKS: Final = "think for a while"
CONNECTIONS: Final = 2_048
UPSTREAM: Final = """
import asyncio, sys

CONVERSED = (
    b'{"output":{"message":{"role":"assistant","content":[{"text":"hi"}]}},"stopReason":"end_turn",'
    b'"usage":{"inputTokens":5,"outputTokens":1,"totalTokens":6},"metrics":{"latencyMs":1}}'
)
COUNTED = b'{"inputTokens":5}'

async def serve(reader, writer):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        length = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n", 1)[0])
        thinks = False
        while length:
            part = await reader.read(min(length, 1 << 18))
            length -= len(part)
            thinks = thinks or b"think for a while" in part
        if thinks:
            await asyncio.sleep(8)
        body = COUNTED if b"/count-tokens" in head else CONVERSED
        type = b"Content-Type: application/json"
        lines = [b"HTTP/1.1 200 OK", type, b"Content-Length: %d" % len(body), b"", body]
        writer.write(b"\\r\\n".join(lines))

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 18)
    await server.serve_forever()

asyncio.run(main())
"""
"""Bedrock, as far as this needs it: reading what it is sent costs it nothing, so that what is
measured is the gateway alone."""


@dataclass(frozen=True)
class Target:
    """Where calls go, and as whom."""

    port: int
    pair: str

    def request(self, path: str, body: bytes) -> bytes:
        """A call with the app's secret as bearer."""
        lines = [
            f"POST /bedrock{path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"Authorization: Bearer {self.pair}",
            f"Content-Length: {len(body)}",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def converse(text: str, **more: Any) -> bytes:
    """A short call."""
    messages = [{"role": "user", "content": [{"text": text}]}]
    return json.dumps({"messages": messages, "inferenceConfig": {"maxTokens": 8}, **more}).encode()


def blocks() -> bytes:
    """A body of 1.1 MB with 45,000 blocks."""
    content = [{"text": "a" * 8}] * 45_000
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def _long(text_bytes: int) -> bytes:
    """A call that the model thinks about, with a system prompt of that length."""
    return converse(THINKS, system=[{"text": "a" * text_bytes}])


def names() -> bytes:
    """A body of 1.1 MB with 90,000 names."""
    return json.dumps({f"n{number:06}": 1 for number in range(90_000)}).encode()


CONVERSE: Final = f"/model/{MODEL}/converse"
COUNT: Final = f"/model/{MODEL}/count-tokens"


@dataclass(frozen=True)
class Flood:
    """So many connections that make these calls, one after the other."""

    connections: int
    path: str
    bodies: Callable[[], list[bytes]]
    is_frozen: bool = False


FLOODS: Final = {
    "nothing": Flood(0, CONVERSE, list),
    "a frozen app, 1.1 MB bodies": Flood(8, CONVERSE, lambda: [blocks(), names()], is_frozen=True),
    "1.1 MB bodies": Flood(8, CONVERSE, lambda: [blocks(), names()]),
    "25 MB bodies, a model that thinks": Flood(
        660,
        CONVERSE,
        lambda: [_long(LARGEST_BYTES), *[_long(60_000)] * 24, *[_long(10)] * 35],
    ),
    "calls under way": Flood(CONNECTIONS, CONVERSE, lambda: [converse(THINKS)]),
    "prompts to count": Flood(
        64, COUNT, lambda: [json.dumps({"input": {"converse": json.loads(blocks())}}).encode()]
    ),
}


async def ask(target: Target, data: bytes) -> str:
    """Make one call on a connection of its own; its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=HEAD_MAX)
    try:
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")  # may come before all is sent
        return head[9:12].decode()
    finally:
        writer.transport.abort()


async def keep_asking(
    target: Target, datas: list[bytes], first: int, until: float, statuses: Counter[str]
) -> None:
    number = first
    while time.monotonic() < until:
        try:
            async with asyncio.timeout(max(0.1, until - time.monotonic())):
                statuses[await ask(target, datas[number % len(datas)])] += 1
        except (OSError, EOFError, TimeoutError) as error:
            statuses[type(error).__name__] += 1
            await asyncio.sleep(0.05)
        number += 1


async def flood(target: Target, one: Flood, seconds: float) -> Counter[str]:
    statuses: Counter[str] = Counter()
    datas = [target.request(one.path, body) for body in one.bodies()]
    until = time.monotonic() + seconds
    await asyncio.gather(
        *(keep_asking(target, datas, number, until, statuses) for number in range(one.connections))
    )
    return statuses


def run_flood(target: Target, name: str, seconds: float, answers: Any) -> None:
    """The process that floods."""
    answers.put(asyncio.run(flood(target, FLOODS[name], seconds)))


@dataclass
class Found:
    """What became of the neighbour's calls."""

    latencies: list[float]
    statuses: Counter[str]

    def percentile(self, percent: int) -> float:
        took = sorted(self.latencies)
        return took[min(len(took) - 1, len(took) * percent // 100)]


async def neighbour(target: Target, seconds: float) -> Found:
    """One call after the other, for that time and until one is answered."""
    data = target.request(CONVERSE, converse("hello"))
    found = Found([], Counter())
    until = time.monotonic() + seconds
    while time.monotonic() < until or not found.latencies:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                found.statuses[await ask(target, data)] += 1
        except (OSError, EOFError, TimeoutError) as error:
            found.statuses[type(error).__name__] += 1
        found.latencies.append(time.monotonic() - began)
    return found


def provision(url: str, *, is_frozen: bool = False) -> Target:
    """An app of an organisation of its own, whose budget never ends."""
    org, pair = register(url)
    if is_frozen:
        path = f"{url}/api/v1/orgs/{org}/apps/app/freeze"
        call("PUT", path, {"X-API-Key": KEY}, {"reason": "bench"})
    return Target(urlsplit(url).port or 0, pair)


@contextmanager
def running_gateway(folder: Path) -> Iterator[tuple[str, int]]:
    """The gateway with an empty store, and its upstream; its address and process."""
    standin, gateway = free_port(), free_port()
    binary = str(Path(sys.executable).with_name("pricekeeper"))
    serve = [binary, "serve", "--port", str(gateway), "--store", f"sqlite:///{folder}/bench.db"]
    settings = {
        "PRICEKEEPER_PROVISIONING_KEY": KEY,
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_BEDROCK_UPSTREAM": f"http://127.0.0.1:{standin}",
    }
    bedrock = [sys.executable, "-c", UPSTREAM, str(standin)]
    with ExitStack() as opened:
        opened.enter_context(process(bedrock, standin, {}, folder))
        pid = opened.enter_context(process(serve, gateway, settings, folder))
        yield f"http://127.0.0.1:{gateway}", pid


def measure(folder: Path, seconds: float, only: str) -> None:
    table = Table(
        "flood", "quiet p50 ms", "p50 ms", "times", "p99 ms", "max ms", "neighbour", "flood", "MB",
        title="a neighbour's calls",
    )  # fmt: skip
    context = multiprocessing.get_context("spawn")
    for name, one in FLOODS.items():
        if only not in name:
            continue
        own = folder / str(uuid.uuid4())
        own.mkdir()
        with running_gateway(own) as (url, pid):
            target, flooder = provision(url), provision(url, is_frozen=one.is_frozen)
            asyncio.run(neighbour(target, 1))  # warms everything up
            before = asyncio.run(neighbour(target, seconds / 2))
            answers = context.Queue()
            flooding = context.Process(
                target=run_flood, args=(flooder, name, seconds + 2, answers), daemon=True
            )
            flooding.start()
            time.sleep(2)  # until the process has begun
            found = asyncio.run(neighbour(target, seconds))
            answered = answers.get(timeout=60)
            flooding.join(timeout=60)
            megabytes = resident_bytes(pid) / 1e6
            after = asyncio.run(neighbour(target, seconds / 2))
        quiet = statistics.median(before.latencies + after.latencies)
        p50 = found.percentile(50)
        table.add_row(
            name,
            f"{quiet * 1000:.1f}",
            f"{p50 * 1000:.1f}",
            f"{p50 / quiet:.1f}",
            f"{found.percentile(99) * 1000:.0f}",
            f"{max(found.latencies) * 1000:.0f}",
            _shown(found.statuses),
            _shown(answered),
            f"{megabytes:,.0f}",
        )
        console.print(f"{name}: {p50 / quiet:.1f} times the quiet p50 (promised: {PROMISED})")
    console.print(table)


def _shown(statuses: Counter[str]) -> str:
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=SECONDS)
    arguments.add_argument("--only", default="", help="floods with that in their name")
    chosen = arguments.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        measure(folder, chosen.seconds, chosen.only)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
