"""The real service in the event loop of the test: a real socket, and a clock that the test moves.

Service and test share one thread: time passes for the service when the test says so.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from http_fixtures import ORG
from pricekeeper.bootstrap import Services
from pricekeeper.clock import Clock, ManualClock
from pricekeeper.http.app import make_app
from pricekeeper.http.dashboard import FOLDER
from pricekeeper.http.server import server_config
from pricekeeper.settings import Settings

LOOKS_MAX = 50


@dataclass(frozen=True)
class Reply:
    """An answer with any status."""

    status: int
    headers: dict[str, str]
    json: Any


@dataclass(frozen=True)
class Service:
    """A service that answers."""

    url: str
    session: aiohttp.ClientSession
    key: str
    inside: Services
    """What it works with: for tests that damage what is stored."""
    stop: Callable[[], None]
    """Asks it to end, which it does when its requests are answered."""

    async def call(
        self, method: str, path: str, body: Any = None, *, token: str = "", key: str = ""
    ) -> Reply:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        headers |= {"x-api-key": key} if key else {}
        async with self.session.request(
            method, self.url + path, json=body, headers=headers
        ) as reply:
            names = {name.lower(): value for name, value in reply.headers.items()}
            shown = await reply.json(content_type=None) if "json" in reply.content_type else None
            return Reply(reply.status, names, shown)

    async def text(self, path: str, token: str) -> str:
        headers = {"authorization": f"Bearer {token}"}
        async with self.session.get(self.url + path, headers=headers) as reply:
            return await reply.text()

    async def provision(self, method: str, path: str, body: Any = None) -> Reply:
        return await self.call(method, path, body, key=self.key)


@dataclass(frozen=True)
class Account:
    """An organisation with one app, and the secret of the app."""

    org_id: str
    secret: str

    @property
    def path(self) -> str:
        return f"/api/v1/orgs/{self.org_id}/apps/web"

    @property
    def credentials(self) -> dict[str, str]:
        client_id = f"org-{self.org_id}-app-web"
        return {
            "grant_type": "client_credentials",
            "client_id": client_id,
            "client_secret": self.secret,
        }

    async def login(self, service: Service) -> str:
        """An access token of the app."""
        granted = await service.call("POST", "/auth/token", self.credentials)
        assert granted.status == 200, granted.json
        token: str = granted.json["access_token"]
        return token


@asynccontextmanager
async def serving(
    settings: Settings, clock: Clock, page_folder: Path = FOLDER
) -> AsyncIterator[Service]:
    """Serve on a free port of the loopback address until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = uvicorn.Server(
            server_config(make_app(settings, clock=clock, page_folder=page_folder))
        )
        running = asyncio.create_task(server.serve([listening]))
        try:
            while not server.started and not running.done():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.005)
            assert server.started, "the service did not start; its log says why"
            async with aiohttp.ClientSession() as session:
                inside = server.lifespan.state["services"]
                yield Service(
                    f"http://127.0.0.1:{port}",
                    session,
                    settings.provisioning_key or "",
                    inside,
                    lambda: setattr(server, "should_exit", True),
                )
        finally:
            server.should_exit = True
            await running


async def register(service: Service, org_id: str, **changes: Any) -> Account:
    """Make an organisation with an app, and claim the secret of the app."""
    org = f"/api/v1/orgs/{org_id}"
    assert (await service.provision("PUT", org, {**ORG, **changes})).status == 201
    made = await service.provision("PUT", f"{org}/apps/web", {"app_name": "Web"})
    retrieval = {"token": made.json["secret_retrieval"]["token"]}
    claimed = await service.call("POST", "/api/v1/credentials/claim", retrieval)
    return Account(org_id, claimed.json["client_secret"])


async def pass_time(clock: ManualClock, duration_ms: int, step_ms: int = 5_000) -> None:
    """Let time pass in steps; after each, woken tasks get turns to work.

    Some wake for the last time, so the end of all work is not known. A machine that is too
    busy makes a test see less here, and never fail.
    """
    for _ in range(0, duration_ms, step_ms):
        asleep = clock.sleepers
        clock.advance_ms(step_ms)
        for _ in range(LOOKS_MAX):
            if clock.sleepers >= asleep:
                break
            await asyncio.sleep(0.001)
