"""A service that answers by script, over a real socket: what a network can do to a client."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Self

from pricekeeper.clock import ManualClock

USAGE = {
    "request_id": "r",
    "status": "accepted",
    "cost_usd_micros": 1,
    "pricing_version": "v",
    "shard_id": 0,
    "org_day": "20260123",
    "daily_total": None,
    "price_estimated": False,
}
"""The answer to a usage record."""
LOST = "the request arrives, and the connection is closed"


class HastyClock(ManualClock):
    """A clock whose sleeps are over at once, and are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_ms: list[int] = []

    async def sleep_ms(self, duration_ms: int) -> None:
        self.pauses_ms.append(duration_ms)
        self.advance_ms(duration_ms)


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        data = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        lines = [f"HTTP/1.1 {self.status} x", f"Content-Length: {len(data)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + data


class ScriptedService:
    """Answers requests in turn; ``seen`` has them."""

    def __init__(self, *script: Reply | str) -> None:
        self._script = list(script)
        self._server: asyncio.Server | None = None
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""

    @property
    def lines(self) -> list[str]:
        """The request lines, without the protocol."""
        return [line.rpartition(" ")[0] for line, _, _ in self.seen]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("Content-Length", "0")))
        self.seen.append((head[0], headers, body))
        step = self._step(head[0], headers)
        if isinstance(step, Reply):
            writer.write(step.encoded())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _step(self, line: str, headers: dict[str, str]) -> Reply | str:
        del line, headers
        return self._script.pop(0) if self._script else Reply(500)


class TokenService(ScriptedService):
    """A service with a new token for each login; it accepts tokens that are not ``dead``."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: set[str] = set()
        self.refusal = Reply(401, {"code": "UNAUTHORIZED", "detail": "no"})
        self.logins: list[Reply] = []
        """What to answer to the next logins instead of a token."""
        self.issued: list[str] = []
        self.used: list[str] = []
        """The tokens of the calls, in order."""

    def asked(self, path: str) -> int:
        """How often that path was asked for."""
        return sum(path in line for line in self.lines)

    def end_sessions(self) -> None:
        """Refuse every token that was issued so far."""
        self.dead.update(self.issued)

    def _step(self, line: str, headers: dict[str, str]) -> Reply:
        if "/auth/revoke" in line:
            return Reply()
        if "/auth/" in line:
            return self.logins.pop(0) if self.logins else self._token()
        token = headers["Authorization"].removeprefix("Bearer ")
        self.used.append(token)
        return (
            self.refusal
            if token in self.dead
            else Reply(body={"resources": {}, "org_resources": {}})
        )

    def _token(self) -> Reply:
        self.issued.append(f"at-{len(self.issued)}")
        body = {"access_token": self.issued[-1], "refresh_token": "pkf", "expires_in": 3600}
        return Reply(body=body)
