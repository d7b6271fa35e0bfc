"""The stand-in on a loopback port: in a thread of this process, or as a process of its own."""

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
"""Whoever connects beyond that is answered with status 503 by uvicorn, and not counted."""
BACKLOG: Final = 2_048
START_SECS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Running:
    """A stand-in that answers."""

    url: str
    ledger: Ledger


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which hands itself to the application as a `PeerConnection`."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]

    def is_closing(self) -> bool:
        """Whether the peer has gone, or is being left."""
        return self.transport.is_closing()

    def close(self) -> None:
        """Leave, after what was written has been sent."""
        self.transport.close()

    def watch(self) -> None:
        """Read on after a long body, so that a peer that leaves is seen."""
        self.flow.resume_reading()


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it listens, and which stops with calls under way."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Leave all callers: a call that is silent would otherwise keep the server for ever."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


@contextmanager
def running(
    script: Script | None = None, *, port: int = 0, entries_max: int = ENTRIES_MAX
) -> Iterator[Running]:
    """A stand-in in a thread of this process, until the end of the block.

    ``script`` is what a call does that brings no directive; port 0 is any free one.
    """
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
    """Serve until a signal ends it, after printing the URL in a line of its own."""
    with _listener(port) as listener:
        print(_url(listener), flush=True)  # noqa: T201 - whoever starts it reads where it is
        _serve(_Server(_config(StandIn(ledger=Ledger(entries_max)))), listener)


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(BACKLOG)  # before anyone is told the URL
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
