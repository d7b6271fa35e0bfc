"""The real service in a thread of this process: its own event loop, a real socket, a real file."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from pricekeeper.cli.serving import server_config
from pricekeeper.clock import Clock
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.http.app import make_app
from pricekeeper.settings import API_LIMITS_PER_MINUTE, Settings, SqliteLocation

START_SECS_MAX: Final = 30
AGGREGATE_EVERY_SECS: Final = 300


def demo_settings(folder: Path) -> Settings:
    """As a small company would run it, with everything in that folder."""
    return Settings(
        store=SqliteLocation(str(folder / "demo.db")),
        data_dir=folder / "data",
        provisioning_key=secrets.token_hex(16),
        api_limits_per_minute=dict(API_LIMITS_PER_MINUTE),
        aggregator_interval_secs=AGGREGATE_EVERY_SECS,
        log_level="error",
        drain_secs=0,
    )


@contextmanager
def running_service(settings: Settings, clock: Clock) -> Iterator[str]:
    """Serve on a free port of the loopback address; the value is the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        server = uvicorn.Server(server_config(make_app(settings, clock=clock)))
        thread = threading.Thread(target=server.run, args=([listening],), name="pricekeeper-demo")
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
            raise StoreUnavailableError("the demo's service did not start; its log says why")
        time.sleep(0.01)
