"""Many calls in a bad world: our ledger beside the bill of the stand-in for Bedrock, call by call.

Processes of one app make wrapped calls and are killed, the service is killed and started again on
its file, streams are abandoned, answers do not come in time. A seed says what happens to which
call. In the end each call must cost its bill, to the micro-dollar, or more,
and then the difference is marked as unsettled. It never comes to less.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from client.apps import Credentials
from client.money import Money, money_of
from client.services import Service
from client.waiting import until
from pricekeeper.client import Api, PriceKeeper
from pricekeeper.client.asking import read_every_page
from pricekeeper.client.spool import find_folder, read_folder, read_refused
from pricekeeper.standin import BilledCall, running
from pricekeeper.wire.authorizations import AuthorizationAnswer
from pricekeeper.wire.spend import UsageRecord

PICOS: Final = 1_000_000
PRICES: Final = (4_400_000, 22_000_000)
"""Micro-dollars for a million tokens in and out, of the model that is called."""
KILLED_PERCENT: Final = 10
RESTARTS_PERCENT: Final = 10
ABANDONED_PERCENT: Final = 20
TIMEOUTS_PERCENT: Final = 5
LATER_MS: Final = 2 * 3_600_000
"""How much later the service is started for the last time: everything held has expired."""


@dataclass(frozen=True)
class Call:
    """What happens to one call."""

    number: int
    fate: str
    invokes: bool = False
    """Whether it is an ``invoke_model`` in place of a ``converse``."""
    kill: str = ""
    kill_after_ms: int = 0
    restarts: bool = False
    max_tokens: int = 64
    output_tokens: int = 10
    padding: int = 0
    events_read: int = 0
    closes: bool = False


@dataclass
class Report:
    """What a soak came to."""

    calls: int
    happened: Counter[str]
    secs: float = 0
    billed_attempts: int = 0
    billed_usd_micros: int = 0
    money: Money = field(default_factory=lambda: Money(0, 0))
    equal: int = 0
    """Calls that come to their bill exactly."""
    above: int = 0
    """Calls that come to more, which is marked as unsettled."""
    wrong: list[str] = field(default_factory=list)
    """Calls that come to less, or to more without a mark, and all other mistakes."""


def plan(calls: int, seed: int) -> list[Call]:
    """What happens to each call."""
    odds = random.Random(seed)
    planned = []
    for number in range(calls):
        drawn = odds.randrange(100)
        fate = "stream" if odds.randrange(2) else "whole"
        if drawn < ABANDONED_PERCENT:
            fate = "abandoned"
        elif drawn < ABANDONED_PERCENT + TIMEOUTS_PERCENT:
            fate = "timeout"
        kills = (
            ["soon", "after", "streaming"] if fate in ("stream", "abandoned") else ["soon", "after"]
        )
        most = odds.randrange(16, 512)
        planned.append(
            Call(
                number,
                fate,
                kill=odds.choice(kills) if odds.randrange(100) < KILLED_PERCENT else "",
                kill_after_ms=odds.randrange(1, 60),
                restarts=odds.randrange(100) < RESTARTS_PERCENT,
                max_tokens=most,
                output_tokens=odds.randrange(1, most),
                padding=odds.randrange(2_000),
                events_read=odds.randrange(10),
                closes=bool(odds.randrange(2)),
                invokes=bool(odds.randrange(2)),
            )
        )
    return planned


class Soak:
    """One run."""

    def __init__(self, folder: Path, calls: int, seed: int, processes: int) -> None:
        self._folder = folder
        self._calls = plan(calls, seed)
        self._processes = processes
        self._service = Service(folder)
        self._restarting = threading.Lock()
        self.report = Report(calls, Counter())

    async def run(self) -> Report:
        """Make all calls, settle all that can be, and compare."""
        began_at = time.monotonic()
        self._service.start()
        try:
            app = await self._service.register(self._folder / "spool")
            with running() as bedrock:
                lanes = [self._calls[lane :: self._processes] for lane in range(self._processes)]
                work = (asyncio.to_thread(self._work, app, bedrock.url, lane) for lane in lanes)
                await asyncio.gather(*work)
                self._tell_the_rest(app)
                billed = bedrock.ledger.entries
            await self._compare(app, billed)
        finally:
            self._service.kill()
        self.report.secs = time.monotonic() - began_at
        return self.report

    def _work(self, app: Credentials, bedrock: str, calls: list[Call]) -> None:
        """Have calls made, by one process after another."""
        while calls:
            done = self._run_process(app, bedrock, calls)
            calls = [one for one in calls if one.number > done]

    def _run_process(self, app: Credentials, bedrock: str, calls: list[Call]) -> int:
        """Run a process until it is killed or over; the last call that it began."""
        by_number = {one.number: one for one in calls}
        last = calls[0].number - 1
        with _process(app) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            given = {"bedrock": bedrock, "calls": [asdict(one) for one in calls]}
            process.stdin.write(f"{json.dumps(given)}\n")
            process.stdin.flush()
            for line in process.stdout:
                if line == "over\n":
                    last = calls[-1].number
                    continue
                last = int(line.split()[1])
                self._begin(by_number[last])
        if process.returncode < 0:
            self.report.happened["kill"] += 1
        elif process.returncode:
            self.report.wrong.append(f"a process ended with {process.returncode} after {last}")
            last = calls[-1].number
        return last

    def _begin(self, call: Call) -> None:
        self.report.happened[call.fate] += 1
        self.report.happened["invoke" if call.invokes else "converse"] += 1
        if call.restarts:
            with self._restarting:
                self._service.kill()
                self._service.start()
                self.report.happened["restart"] += 1

    def _tell_the_rest(self, app: Credentials) -> None:
        """One more process of the app takes over what the killed ones have left."""
        with PriceKeeper(
            app.url, app.client_id, app.client_secret, spool_dir=app.spool_dir, deadline_ms=30_000
        ) as keeper:
            keeper.flush()
            # What is put off are voids of authorizations that never reached the service.
            left = [one for one in keeper.engine.spool.pending(10_000) if one.kind != "void"]
            self.report.wrong += [f"{one.kind} {one.id} was not told" for one in left]
        folder = find_folder(str(app.spool_dir), app.url, app.client_id)
        assert folder is not None
        held = [path.name for path, is_held, _ in read_folder(folder) if is_held]
        self.report.wrong += [f"{name} is held by a process" for name in held]
        for one in read_refused(folder):
            # A killed process may have captured a call whose void then finds nothing.
            self.report.happened[f"refused {one['kind']}"] += 1
            if one["kind"] != "void":
                self.report.wrong.append(f"{one['kind']} {one['id']} was refused: {one['reason']}")

    async def _compare(self, app: Credentials, billed: list[BilledCall]) -> None:
        ours: defaultdict[int, int] = defaultdict(int)
        marked: defaultdict[int, int] = defaultdict(int)
        async with Api(app.url, app.client_id, app.client_secret) as api:
            for record in await _records(api):
                ours[int(record["tags"]["soak"])] += _cost_picos(
                    record["input_tokens"], record["output_tokens"]
                )
        self._service.kill()
        self._service.start(later_ms=LATER_MS)
        async with Api(app.url, app.client_id, app.client_secret) as api:
            await until(lambda: _is_nothing_held(api))
            for one in await _unsettled(api):
                marked[int(one["tags"]["soak"])] += one["held_usd_micros"] * PICOS
            self.report.money = await money_of(api)
        bill: defaultdict[int, int] = defaultdict(int)
        for entry in billed:
            tokens = entry.tokens
            number = int(entry.request_metadata["soak"])
            bill[number] += _cost_picos(tokens.input_tokens, tokens.output_tokens)
        self.report.billed_attempts = len(billed)
        self.report.billed_usd_micros = sum(bill.values()) // PICOS
        for call in self._calls:
            number = call.number
            self._judge(call, bill[number], ours[number], marked[number])
        if self.report.money.spent != sum(ours.values()) // PICOS:
            self.report.wrong.append(f"the budget has {self.report.money}, the records differ")

    def _judge(self, call: Call, bill: int, ours: int, marked: int) -> None:
        if ours == bill and not marked:
            self.report.equal += 1
        elif marked and ours + marked >= bill:
            self.report.above += 1
        else:
            self.report.wrong.append(f"{call}: billed {bill}, ours {ours}, marked {marked}")


def _cost_picos(input_tokens: int, output_tokens: int) -> int:
    return input_tokens * PRICES[0] + output_tokens * PRICES[1]


async def _records(api: Api) -> list[UsageRecord]:
    hour = (datetime.now(UTC) - timedelta(hours=20)).strftime("%Y-%m-%dT%H:00:00Z")
    read = partial(api.usage_records, first=hour)
    return await read_every_page(lambda after: read(after=after), lambda page: page.records)


async def _unsettled(api: Api) -> list[AuthorizationAnswer]:
    read = partial(api.authorizations, status="unsettled")
    return await read_every_page(lambda after: read(after=after), lambda page: page.authorizations)


async def _is_nothing_held(api: Api) -> bool:
    return (await money_of(api)).held == 0


@contextmanager
def _process(app: Credentials) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, str(Path(__file__).with_name("soak_app.py"))],
        env={**os.environ, **app.environment, "AWS_DEFAULT_REGION": "us-east-1",
             "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example",
             "PRICEKEEPER_DEADLINE_MS": "2000"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        yield process
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait()
