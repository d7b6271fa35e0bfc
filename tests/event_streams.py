"""Services that share a store in one event loop, and browsers that listen to them.

The test moves time in small steps, and after each of them the woken tasks run.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from http_fixtures import KEY, METRICS_TOKEN, ORG, store_url
from in_loop_service import Reply, Service, serving
from minting import minted
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.settings import Settings, parse_store_location

STEP_MS = 100
ENDING_SECS = 3
"""How long the tasks get before those that do not sleep count as ended."""
WORK_SECS_MAX = 20
"""How long a busy machine may take for the work of one step."""


@dataclass(frozen=True)
class Event:
    """One event as it came."""

    name: str
    id: str
    data: Any
    at_ms: int
    """On the test's clock."""


@dataclass
class Browser:
    """A reader of one stream."""

    reply: aiohttp.ClientResponse
    clock: ManualClock
    events: list[Event] = field(default_factory=list)
    last_id: str = ""
    comments: int = 0
    has_ended: bool = False

    async def read(self) -> None:
        """Take what comes, as the specification of server-sent events says."""
        name, data = "", ""
        try:
            async for raw in self.reply.content:
                line = raw.decode().removesuffix("\n")
                if not line:
                    if data:
                        self.events.append(
                            Event(name, self.last_id, json.loads(data), self.clock.now_ms())
                        )
                    name, data = "", ""
                elif line.startswith(":"):
                    self.comments += 1
                else:
                    key, _, value = line.partition(": ")
                    name = value if key == "event" else name
                    data = value if key == "data" else data
                    self.last_id = value if key == "id" else self.last_id
        except aiohttp.ClientError:
            pass
        self.has_ended = True

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@dataclass
class Tenant:
    """An organisation with the app ``web``, and tokens of both."""

    org_id: str
    org_token: str
    app_token: str

    @property
    def org(self) -> str:
        return f"/api/v1/orgs/{self.org_id}"

    @property
    def app(self) -> str:
        return f"{self.org}/apps/web"


@dataclass
class Fleet:
    """Services on one store, and a clock for all of them."""

    services: list[Service]
    clock: ManualClock
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def listen(
        self, at: int = 0, *, token: str = "", key: str = "", last_id: str = ""
    ) -> AsyncIterator[Browser]:
        """Listen at one of the services until the end of the block."""
        headers = {"last-event-id": last_id} if last_id else {}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        headers |= {"x-api-key": key} if key else {}
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self.services[at].url + "/api/v1/events", headers=headers) as reply,
        ):
            assert reply.status == 200, await reply.text()
            browser = Browser(reply, self.clock)
            reading = asyncio.create_task(browser.read())
            await self.work_until(lambda: bool(browser.last_id))
            try:
                yield browser
            finally:
                reading.cancel()

    async def pass_ms(self, duration_ms: int, step_ms: int = STEP_MS) -> None:
        """Let time pass. Woken tasks work and sleep again, or end."""
        for _ in range(0, duration_ms, step_ms):
            asleep = self.clock.sleepers
            self.clock.advance_ms(step_ms)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDING_SECS):
                    while self.clock.sleepers < asleep:  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.001)

    async def pass_until(self, seen: Callable[[], bool], within_ms: int) -> int:
        """Let time pass until something is seen; returns how long that took."""
        passed_ms = 0
        while not seen():
            assert passed_ms < within_ms, "it was not seen in time"
            await self.pass_ms(STEP_MS)
            await _let_work()
            passed_ms += STEP_MS
        return passed_ms

    async def work_until(self, seen: Callable[[], bool]) -> None:
        """Let all tasks work, without any time passing, until something is seen."""
        async with asyncio.timeout(WORK_SECS_MAX):
            while not seen():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)

    async def register(self, org_id: str, **changes: Any) -> Tenant:
        """A new organisation with an app."""
        service = self.services[0]
        secrets = []
        org = f"/api/v1/orgs/{org_id}"
        for path, body in ((org, {**ORG, **changes}), (f"{org}/apps/web", {"app_name": "Web"})):
            made = await service.provision("PUT", path, body)
            assert made.status == 201, made.json
            claim = {"token": made.json["secret_retrieval"]["token"]}
            secrets.append((await service.call("POST", "/api/v1/credentials/claim", claim)).json)
        await service.provision("PUT", f"{org}/apps/batch", {"app_name": "Batch"})
        tokens = [await self.login(one) for one in secrets]
        return Tenant(org_id, *tokens)

    async def login(self, claimed: Any) -> str:
        body = {"grant_type": "client_credentials"} | {
            name: claimed[name] for name in ("client_id", "client_secret")
        }
        token: str = (await self.services[0].call("POST", "/auth/token", body)).json["access_token"]
        return token

    async def record(self, tenant: Tenant, at: int = 0, app: str = "web", **changes: Any) -> Any:
        """Have a record counted at one of the services."""
        body = {
            "request_id": minted(self.clock.now_ms()),
            "model_label": "premium",
            "input_tokens": 1000,
            "output_tokens": 500,
            **changes,
        }
        token = tenant.app_token if app == "web" else tenant.org_token
        path = f"{tenant.org}/apps/{app}/usage"
        reply = await self.services[at].call("POST", path, body, token=token)
        assert reply.status == 202, reply.json
        return body

    async def streams(self, what: str, at: int = 0) -> int:
        """How many streams were opened, refused or ended so, as the metrics say."""
        text = await self.services[at].text("/metrics", METRICS_TOKEN)
        found = re.search(rf'pricekeeper_event_streams_total{{what="{what}"}} (\d+)', text)
        assert found is not None
        return int(found[1])

    async def call(
        self, method: str, path: str, body: Any = None, at: int = 0, **how: Any
    ) -> Reply:
        return await self.services[at].call(method, path, body, **how)

    async def pages(self, path: str, name: str, **how: Any) -> list[dict[str, Any]]:
        """All rows of a list, page after page."""
        rows: list[dict[str, Any]] = []
        after = ""
        while True:
            reply = await self.call("GET", path + after, **how)
            assert reply.status == 200, reply.json
            rows += reply.json[name]
            if "next" not in reply.json:
                return rows
            after = f"{'&' if '?' in path else '?'}after={reply.json['next']}"


async def _let_work() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.002)


def settings_for(
    request: pytest.FixtureRequest, store: str, folder: Path, **changes: Any
) -> Settings:
    """Settings of a service on that kind of store."""
    settings = Settings(
        parse_store_location(store_url(request, store, folder)),
        data_dir=folder,
        provisioning_key=KEY,
        metrics_token=METRICS_TOKEN,
        aggregator_interval_secs=0,
        request_deadline_ms=60_000,
        log_level="warning",
    )
    return replace(settings, **changes)


@asynccontextmanager
async def running_fleet(settings: Settings, count: int = 2) -> AsyncIterator[Fleet]:
    """So many services on one store, as workers or instances are."""
    clock = ManualClock(SystemClock().now_ms() // 1000 * 1000)
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(serving(settings, clock)) for _ in range(count)]
        yield Fleet(services, clock)


@pytest.fixture(params=["sqlite-file", "dynoxide"])
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Two services on each store."""
    async with running_fleet(settings_for(request, request.param, tmp_path)) as running:
        yield running
