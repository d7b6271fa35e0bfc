"""The real service in a thread: its own event loop, a real socket, a real store."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from pricekeeper.clock import Clock
from pricekeeper.http.app import make_app
from pricekeeper.http.server import server_config
from pricekeeper.settings import Settings

START_SECS_MAX: Final = 30


@contextmanager
def running_service(settings: Settings, clock: Clock) -> Iterator[str]:
    """Serve on a free loopback port; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        server = uvicorn.Server(server_config(make_app(settings, clock=clock)))
        thread = threading.Thread(target=server.run, args=([listening],), name="pricekeeper-serve")
        thread.start()
        try:
            _wait(server, thread)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


def _wait(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_SECS_MAX
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the service did not start; its log says why")
        time.sleep(0.01)
