"""The lifespan protocol: what the server learns about start and end."""

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pricekeeper.http.incoming import run_lifespan


class Server:
    """The server's side of the protocol."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"type": "lifespan", "state": {}}
        self.sent: list[MutableMapping[str, Any]] = []
        self.state_at_the_end: dict[str, Any] = {}

    async def receive(self) -> dict[str, Any]:
        """The start at once; the end after the application is up."""
        if not self.sent:
            return {"type": "lifespan.startup"}
        self.state_at_the_end = dict(self.scope["state"])
        return {"type": "lifespan.shutdown"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    async def run(self, fails_at: str = "") -> None:
        @asynccontextmanager
        async def lifespan() -> AsyncIterator[dict[str, Any]]:
            if fails_at == "startup":
                raise RuntimeError("no store")
            yield {"services": "open"}
            if fails_at == "shutdown":
                raise RuntimeError("not flushed")

        await run_lifespan(lifespan, self.scope, self.receive, self.send)


async def test_the_state_is_there_from_the_start_to_the_end() -> None:
    server = Server()
    await server.run()
    assert server.state_at_the_end == {"services": "open"}
    assert [message["type"] for message in server.sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


@pytest.mark.parametrize(("phase", "why"), [("startup", "no store"), ("shutdown", "not flushed")])
async def test_the_server_hears_what_failed(phase: str, why: str) -> None:
    """With the traceback; the server's own log gets the error, too."""
    server = Server()
    with pytest.raises(RuntimeError, match=why):
        await server.run(phase)
    failed = server.sent[-1]
    assert failed["type"] == f"lifespan.{phase}.failed"
    assert f"RuntimeError: {why}" in failed["message"]
