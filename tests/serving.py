"""A real server in a process of its own, for tests that talk to it over a socket."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from free_port import free_port

READY_SECS = 60


@dataclass
class Server:
    """A server that answers."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text("utf-8")

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=READY_SECS)


@contextmanager
def running_server(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str],
    store: str | None = None,
    port: int = 0,
) -> Iterator[Server]:
    """Run ``pricekeeper serve`` with its data in the folder until the end of the block."""
    port = port or free_port()
    log = folder / f"server-{port}.log"
    store = store or f"sqlite:///{folder}/store.db"
    command = [
        *(sys.executable, "-m", "pricekeeper", "serve"),
        *("--port", str(port), "--store", store, *arguments),
    ]
    settings = {
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_DRAIN_SECS": "0",
        "COLUMNS": "200",
        **environment,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, env={**os.environ, **settings}, stdout=output, stderr=output
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        server.stop()


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_SECS
    while True:
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not come up:\n{server.output()}")
        try:
            with urlopen(f"{server.url}/readyz", timeout=5) as answer:  # noqa: S310 - loopback
                if answer.status == 200:
                    return
        except (URLError, ConnectionError):
            select_a_moment()


def select_a_moment() -> None:
    """Give the processor to the process that is being waited for."""
    time.sleep(0.02)
