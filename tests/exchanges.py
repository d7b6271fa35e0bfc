"""Exchanges without a server: requests as a handler gets them, and what is written in answer."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from pricekeeper.http.connections import Connections
from pricekeeper.http.exchange import Exchange


class Written(asyncio.Transport):
    """Remembers the written bytes, and how it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.aborted = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


def exchange(
    transport: Written,
    method: str = "GET",
    *,
    keep_alive: bool = True,
    version: str = "1.1",
    tasks: set[asyncio.Task[None]] | None = None,
    **scope: Any,
) -> Exchange:
    """A request whose body has not come."""
    log, flow = logging.getLogger("test"), FlowControl(transport)
    whole: Any = {"method": method, "http_version": version, "headers": [], **scope}
    return Exchange(
        whole, transport, flow, log, [], lambda: None, set() if tasks is None else tasks,
        connections=Connections(1, 1), offer_place=lambda: None, keep_alive=keep_alive,
        held_bytes=0,
    )  # fmt: skip
