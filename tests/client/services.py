"""The service as a process that can be stopped, killed and restarted on its file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from client.apps import Credentials
from client.conftest import APP, ORG_BODY
from client.money import BUDGET
from free_port import free_port
from pricekeeper.client import Admin

KEY = "3f9c1e7a5b8d2460c7e1f3a9b5d80264"
ORG = "550e8400-e29b-41d4-a716-446655440000"
READY_SECS = 30
LATER = """
import pricekeeper.clock
import pricekeeper.bootstrap.services
from pricekeeper.cli import main

class Later(pricekeeper.clock.SystemClock):
    def now_ms(self):
        return super().now_ms() + {later_ms}

    def monotonic_ms(self):
        return super().monotonic_ms() + {later_ms}

pricekeeper.bootstrap.services.SystemClock = Later
main()
"""


class Service:
    """One service on one port and one file, in one process after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self, later_ms: int = 0) -> None:
        """Start, and wait until it answers; its clock may be ahead of the machine's."""
        settings = {
            "PRICEKEEPER_DATA_DIR": str(self._folder / "data"),
            "PRICEKEEPER_PROVISIONING_KEY": KEY,
            "PRICEKEEPER_DRAIN_SECS": "0",
            "PRICEKEEPER_API_RATE_LIMITS": "off",
            "PRICEKEEPER_REQUEST_DEADLINE_SECS": "60",
        }
        command = [sys.executable, "-m", "pricekeeper"]
        if later_ms:
            command = [sys.executable, "-c", LATER.format(later_ms=later_ms)]
        command += ["serve", "--port", str(self._port)]
        store = f"sqlite:///{self._folder}/store.db"
        with (self._folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--store", store],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )
        ends_at = time.monotonic() + READY_SECS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > ends_at:
                raise RuntimeError((self._folder / "service.log").read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Suspend it: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)

    async def register(self, spool_dir: Path, **app: Any) -> Credentials:
        """An organisation and an app, with a budget that tells what all calls come to."""
        body = {**ORG_BODY, "quotas": {"premium": 10**12, "standard": 10**12}, "budgets": [BUDGET]}
        async with Admin(self.url, KEY) as admin:
            await admin.put_org(ORG, {**body, "session_limit": 5})
            made = await admin.put_app(ORG, APP, {"app_name": "Chat", **app})
            claimed = await admin.claim(made["secret_retrieval"]["token"])
        return Credentials(self.url, claimed["client_id"], claimed["client_secret"], spool_dir)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/readyz", timeout=5) as answer:  # noqa: S310 - loopback
                return bool(answer.status == 200)
        except (URLError, ConnectionError, TimeoutError):
            return False


@contextmanager
def running_service(folder: Path) -> Iterator[Service]:
    """A service until the end of the block."""
    service = Service(folder)
    service.start()
    try:
        yield service
    finally:
        service.kill()
