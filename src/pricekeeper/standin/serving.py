"""The stand-in on a loopback port, in a thread or as its own process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pricekeeper.standin.app import CONNECTION, StandIn
from pricekeeper.standin.ledger import ENTRIES_MAX, Ledger
from pricekeeper.standin.script import Script

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 4_096
"""uvicorn answers further connections with 503, uncounted."""
BACKLOG: Final = 2_048
START_SECS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Running:
    """A running stand-in."""

    url: str
    ledger: Ledger


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, as a `PeerConnection`."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def close(self) -> None:
        self.transport.close()

    def watch(self) -> None:
        self.flow.resume_reading()


class _Server(uvicorn.Server):
    """uvicorn's server, with a start event and a stop that aborts calls."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Abort all calls: a silent one would run on."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


@contextmanager
def running(
    script: Script | None = None, *, port: int = 0, entries_max: int = ENTRIES_MAX
) -> Iterator[Running]:
    """Run a stand-in in a thread during the block; ``script`` applies without a directive."""
    app = StandIn(script, Ledger(entries_max))
    with _listener(port) as listener:
        server = _Server(_config(app))
        thread = threading.Thread(target=_serve, args=(server, listener), name="standin")
        thread.start()
        try:
            if not server.ready.wait(START_SECS_MAX):
                raise TimeoutError(f"the stand-in did not start within {START_SECS_MAX} s")
            yield Running(_url(listener), app.ledger)
        finally:
            server.should_exit = True
            thread.join()


def serve(port: int = 0, *, entries_max: int = ENTRIES_MAX) -> None:
    """Print the URL on its own line, then serve until a signal."""
    with _listener(port) as listener:
        print(_url(listener), flush=True)  # noqa: T201 - its parent reads the URL
        _serve(_Server(_config(StandIn(ledger=Ledger(entries_max)))), listener)


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(BACKLOG)  # before the URL is known
    return listener


def _url(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=60,
    )


def _serve(server: _Server, listener: socket.socket) -> None:
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
