"""Many calls with many faults, and the ledger compared with the bill call by call.

Callers leave streams half way, the upstream fails, and the gateway is killed and restarted on its
store. Each call has a number, in its metadata for the stand-in and in its tags for us. In the end a
captured call has cost its bill to the micro-dollar, an unsettled one is charged at least that, and
a call that left nothing was not billed.
"""

import asyncio
import json
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from free_port import free_port
from gateway.models import cost_of, write_deployment
from gateway.world import App, Books, ShiftedClock, directive, gateway_settings
from http_fixtures import ENVIRONMENT, Api
from pricekeeper.settings.locations import parse_store_location
from pricekeeper.standin import Ledger, running
from pricekeeper.testing.serving import running_service
from scraping import until
from serving import Server, running_server

FATES = (
    "ThrottlingException", "ServiceUnavailableException", "hangs-up", "cut", "breaks-off",
    "gateway-504",
)  # fmt: skip
ABANDONED_PCT = 20
FAILED_PCT = 5
CONNECT_TRIES_MAX = 400
EXPIRED_MS = 1_000_000


@dataclass(frozen=True)
class Call:
    """One call, as its number and the seed decide."""

    number: int
    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    leaves_after: int | None
    """How many bytes of its stream the caller reads; all of them, if it stays."""


@dataclass
class Report:
    """What a run came to."""

    calls: int
    secs: float
    happened: Counter[str]
    billed_calls: int
    billed_usd_micros: int
    books: Books
    equal: int
    above: int
    wrong: list[str]


def make_call(seed: int, number: int) -> Call:
    chance = random.Random(f"{seed}/{number}")
    roll = chance.randrange(100)
    script: dict[str, Any] = {
        "input_tokens": chance.randrange(1, 60),
        "output_tokens": chance.randrange(1, 120),
        "delay_ms": chance.randrange(30),
        "events": chance.randrange(1, 20),
    }
    leaves_after = None
    if roll < ABANDONED_PCT:
        script["between_ms"] = chance.randrange(1, 12)
        leaves_after = chance.choice((0, 1, 200, 1500))
    elif roll < ABANDONED_PCT + FAILED_PCT:
        script["fate"] = chance.choice(FATES)
    form = chance.choice(("converse", "invoke", "messages", "chat"))
    streams = leaves_after is not None or chance.random() < 0.4
    return _form(form, number, directive(**script), chance, streams, leaves_after)


def _form(
    form: str,
    number: int,
    text: str,
    chance: random.Random,
    streams: bool,
    leaves_after: int | None,
) -> Call:
    tag = {"call": str(number)}
    label = chance.choice(("premium", "standard", "economy", "auto"))
    content = [{"role": "user", "content": text}]
    headers = {"x-pricekeeper-tag-call": str(number)}
    body: dict[str, Any] = {"messages": content, "max_tokens": 150}
    if form == "converse":
        path = f"/model/{label}/converse{'-stream' if streams else ''}"
        body = {
            "messages": [{"role": "user", "content": [{"text": text}]}],
            "inferenceConfig": {"maxTokens": 150},
            "requestMetadata": tag,
        }
    elif form == "invoke":
        path = f"/model/{label}/invoke{'-with-response-stream' if streams else ''}"
        body["anthropic_version"] = "bedrock-2023-05-31"
        headers["x-amzn-bedrock-request-metadata"] = json.dumps(tag)
    elif form == "messages":
        path = "/anthropic/v1/messages"
        body |= {"model": label, "stream": streams, "metadata": tag}
    else:
        path = "/openai/v1/chat/completions"
        body |= {"model": "gpt", "stream": streams, "metadata": tag}
    return Call(number, path, body, headers, leaves_after)


@dataclass
class Soak:
    """One run."""

    folder: Path
    store: str
    calls: int
    seed: int = 15
    kills: int = 2
    concurrency: int = 16
    happened: Counter[str] = field(default_factory=Counter)
    _done: int = 0
    _app: App | None = None

    async def run(self) -> Report:
        """Make all calls, then judge."""
        began = time.monotonic()
        with running() as standin:
            port = free_port()
            environment = {
                **ENVIRONMENT,
                "PRICEKEEPER_BEDROCK_UPSTREAM": standin.url,
                "PRICEKEEPER_CONFIG": str(write_deployment(self.folder)),
            }
            await self._drive(environment, port)
            secs = time.monotonic() - began
            return await asyncio.to_thread(self._judge, standin.url, standin.ledger, secs)

    async def _drive(self, environment: Mapping[str, str], port: int) -> None:
        calling: asyncio.Task[None] | None = None
        for life in range(self.kills + 1):
            with running_server(
                self.folder, environment=environment, store=self.store, port=port
            ) as server:
                if calling is None:
                    self._app = await asyncio.to_thread(App(Api(server.url)).register)
                    calling = asyncio.create_task(self._call_all(server.url, self._app))
                if life < self.kills:
                    await self._kill_at(server, self.calls * (life + 1) // (self.kills + 1))
                else:
                    await calling

    async def _kill_at(self, server: Server, done: int) -> None:
        while self._done < done:  # noqa: ASYNC110 - callers count for themselves
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(server.process.wait)
        self.happened["kills"] += 1

    async def _call_all(self, url: str, app: App) -> None:
        numbers = iter(range(self.calls))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def work() -> None:
                for number in numbers:
                    call = make_call(self.seed, number)
                    self.happened[await self._make(session, url, app, call)] += 1
                    self._done += 1

            await asyncio.gather(*(work() for _ in range(self.concurrency)))

    async def _make(self, session: aiohttp.ClientSession, url: str, app: App, call: Call) -> str:
        headers = {**call.headers, "authorization": f"Bearer {app.pair}"}
        for _ in range(CONNECT_TRIES_MAX):
            try:
                async with session.post(
                    f"{url}/bedrock{call.path}", json=call.body, headers=headers
                ) as reply:
                    if call.leaves_after is None or reply.status != 200:
                        await reply.read()
                        return f"status {reply.status}"
                    await reply.content.read(call.leaves_after)
                    reply.close()
                    return "abandoned"
            except aiohttp.ClientConnectorError:  # between two lives of the gateway
                await asyncio.sleep(0.05)
            except (aiohttp.ClientError, OSError):
                return "broken"
        return "never sent"

    def _judge(self, upstream: str, ledger: Ledger, secs: float) -> Report:
        """Open the store once more, later than everything expires, and compare call by call."""
        assert self._app is not None
        clock = ShiftedClock()
        settings = replace(
            gateway_settings(self.folder, upstream),
            store=parse_store_location(self.store),
            data_dir=self.folder / "data",
        )
        with running_service(settings, clock) as url:
            app = App(Api(url), self._app.org_id, secret=self._app.secret)
            app.token = app.login()
            clock.shift_ms = EXPIRED_MS
            app.token = app.login()
            until(lambda: app.books().held == 0, app.books)
            return self._compare(app, ledger, secs)

    def _compare(self, app: App, ledger: Ledger, secs: float) -> Report:
        billed: Counter[int] = Counter()
        for entry in ledger.entries:
            billed[int(entry.request_metadata["call"])] += cost_of(entry)
        captured: dict[int, list[int]] = defaultdict(list)
        for record in app.usage():
            captured[int(record["tags"]["call"])].append(record["cost_usd_micros"])
        marked: dict[int, list[int]] = defaultdict(list)
        for one in app.unfinished("unsettled"):
            marked[int(one["tags"]["call"])].append(one["held_usd_micros"])
        report = Report(
            self.calls, secs, self.happened, ledger.billed_calls, sum(billed.values()),
            app.books(), 0, 0, [],
        )  # fmt: skip
        for number in range(self.calls):
            _compare_call(report, number, billed[number], captured[number], marked[number])
        total = sum(map(sum, (*captured.values(), *marked.values())))
        if total != report.books.spent + report.books.unsettled:
            report.wrong.append(f"the budget has {report.books}, the calls have {total}")
        if report.books.spent + report.books.unsettled < report.billed_usd_micros:
            report.wrong.append(f"{report.books} is below the bill")
        return report


def _compare_call(
    report: Report, number: int, billed: int, captured: list[int], held: list[int]
) -> None:
    told = f"call {number}: billed {billed}, captured {captured}, held {held}"
    if len(captured) + len(held) > 1:
        report.wrong.append(f"{told}: more than one")
    elif held and held[0] >= billed:
        report.above += 1
    elif not held and sum(captured) == billed:
        report.equal += 1
    else:
        report.wrong.append(told)
