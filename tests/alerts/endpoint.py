"""A real HTTP server on loopback that takes alerts, and does with them what a test says."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SECRET = "a-secret-of-the-webhook-of-a-test"


@dataclass(frozen=True)
class Taken:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def json(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.body)
        return made

    @property
    def id(self) -> str:
        return self.headers["idempotency-key"]

    def is_signed(self, secret: str = SECRET) -> bool:
        """Whether the signature is right, by the words of the specification alone."""
        stamp, name = self.headers["webhook-timestamp"], self.headers["webhook-id"]
        signed = f"{name}.{stamp}.".encode() + self.body
        made = base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
        return self.headers["webhook-signature"] == f"v1,{made.decode()}"


@dataclass
class Endpoint:
    """Where alerts are posted to."""

    url: str = ""
    answer: Callable[[Taken], int] = lambda _: 204
    """The status of the answer to a request whose own is 0 yet."""
    requests: list[Taken] = field(default_factory=list)
    before_answer: Callable[[Taken], None] = lambda _: None
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def accepted(self) -> list[Taken]:
        return [one for one in self.requests if 200 <= one.status < 300]

    def alerts(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The accepted alerts, each once."""
        found = {one.id: one.json for one in self.accepted}
        return [one for one in found.values() if kind in (None, one["kind"])]

    async def until_accepted(self, count: int) -> None:
        """Wait until so many requests were accepted."""
        while len(self.accepted) < count:
            self._came.clear()
            await self._came.wait()

    async def take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Taken(request.path, headers, await request.read(), 0)
        taken = Taken(seen.path, seen.headers, seen.body, self.answer(seen))
        self.requests.append(taken)
        self._came.set()
        self.before_answer(taken)
        if 300 <= taken.status < 400:
            return web.Response(status=taken.status, headers={"location": self.url})
        return web.Response(status=taken.status)


@asynccontextmanager
async def open_endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/{path:.*}", endpoint.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        endpoint.url = f"http://127.0.0.1:{port}/hook"
        yield endpoint
    finally:
        await runner.cleanup()
