"""The service and the stand-in for Bedrock, and an app for each scenario.

The service is a process of its own, as users run it; the requests that it got are counted in its
access log. The stand-in is a thread of this process, so that its ledger can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from math import floor
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from client_matrix.environments import FOLDER, Client, Kind
from client_matrix.scenarios import BUDGET, DEPLOYMENT, ORG, PRICES_USD_MICROS_PER_1M, Scenario
from pricekeeper.client import Admin, Api
from pricekeeper.clock import SystemClock
from pricekeeper.settings import Settings, SqliteLocation
from pricekeeper.standin import running
from pricekeeper.standin.serving import Running
from pricekeeper.testing.serving import running_service
from snippets import gateway_environment

READY_SECS_MAX: Final = 30
STOP_SECS_MAX: Final = 30
EXPIRY_SECS_MAX: Final = 90
HOUR_MS: Final = 3_600_000
_ATTEMPT: Final = {
    "wrapped": re.compile(r'"method":"POST","route":"/api/v1/orgs/[^"]+/authorizations","status"'),
    "gateway": re.compile(r'^\{"event":"gateway",', re.MULTILINE),
}
"""What is in the line of the service's log for each call that it is asked for."""


class LaterClock(SystemClock):
    """The machine's clocks an hour later, when everything that was held has expired."""

    def now_ms(self) -> int:
        return super().now_ms() + HOUR_MS

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + HOUR_MS


@dataclass(frozen=True, slots=True)
class App:
    """The app of one scenario."""

    client_id: str
    client_secret: str


@dataclass(frozen=True, slots=True)
class Account:
    """An app's budget at one moment."""

    spent: int
    held: int
    unsettled: int

    @property
    def charged(self) -> int:
        """All that the app can not spend any more."""
        return self.spent + self.held + self.unsettled


class World:
    """Where the clients run."""

    def __init__(self, kind: Kind, folder: Path, upstream: Running) -> None:
        self.kind = kind
        self.upstream = upstream
        self._folder = folder
        self._key = secrets.token_hex(32)
        self._log = folder / "service.log"
        self._deployment = folder / "deployment.yaml"
        built_in = files("pricekeeper.pricing").joinpath("default_config.yaml").read_text("utf-8")
        self._deployment.write_text(built_in.rstrip() + "\n" + DEPLOYMENT, "utf-8")
        self.url = f"http://127.0.0.1:{_free_port()}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the service until the end of the block."""
        port = self.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "pricekeeper", "serve", "--port", port]
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                command, env=self._service_environment(), stdout=output, stderr=output
            )
        try:
            self._wait_until_ready(process)
            yield
        finally:
            process.terminate()
            process.wait(STOP_SECS_MAX)

    @contextmanager
    def an_hour_later(self) -> Iterator[None]:
        """Serve the same store when all that is held has expired."""
        settings = Settings(
            store=SqliteLocation(str(self._folder / "store.db")),
            config_path=self._deployment,
            data_dir=self._folder / "data",
            provisioning_key=self._key,
            api_limits_per_minute={},
            aggregator_interval_secs=1,
            log_level="error",
            drain_secs=0,
        )
        with running_service(settings, LaterClock()) as url:
            self.url = url
            yield

    def prepare(self, scenario: Scenario) -> App:
        """An organisation and an app with what the scenario allows."""
        return asyncio.run(self._prepare(scenario))

    def account(self, app: App) -> Account:
        """The app's budget now."""
        return asyncio.run(self._account(app))

    def environment(self, client: Client, app: App, home: Path) -> dict[str, str]:
        """What a client's script finds in its environment, and nothing else.

        For the gateway, that is what its document shows.
        """
        surroundings = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CLIENT_KIND": self.kind,
            "CLIENT_PACKAGES": str(FOLDER / client.environment),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network at its start
        }
        if self.kind == "gateway":
            return gateway_environment(
                self.url, app.client_id, app.client_secret, client.block, surroundings
            )
        return surroundings | {
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": self.upstream.url,
            "PRICEKEEPER_URL": self.url,
            "PRICEKEEPER_CLIENT_ID": app.client_id,
            "PRICEKEEPER_CLIENT_SECRET": app.client_secret,
            "PRICEKEEPER_SPOOL_DIR": str(home / "spool"),
        }

    def count_requests(self) -> int:
        """How many calls the service was asked for so far."""
        return len(_ATTEMPT[self.kind].findall(self._log.read_text("utf-8", "replace")))

    def count_upstream(self) -> int:
        """How many calls have reached the stand-in since it was cleared."""
        return sum(self.upstream.ledger.attempts.values())

    def bill_usd_micros(self) -> int:
        """What the stand-in has billed since it was cleared, in this function's own arithmetic.

        It is cut to whole micro-dollars, as our service shows it.
        """
        total = Fraction(0)
        for entry in self.upstream.ledger.entries:
            input_price, output_price = PRICES_USD_MICROS_PER_1M[entry.model_id]
            tokens = entry.tokens
            total += Fraction(tokens.input_tokens * input_price, 1_000_000)
            total += Fraction(tokens.output_tokens * output_price, 1_000_000)
        return floor(total)

    def service_log(self) -> str:
        """The last of what the service has printed."""
        return self._log.read_text("utf-8", "replace")[-3_000:]

    def _service_environment(self) -> dict[str, str]:
        settings = {
            "PRICEKEEPER_STORE": f"sqlite:///{self._folder}/store.db",
            "PRICEKEEPER_CONFIG": str(self._deployment),
            "PRICEKEEPER_DATA_DIR": str(self._folder / "data"),
            "PRICEKEEPER_PROVISIONING_KEY": self._key,
            "PRICEKEEPER_API_RATE_LIMITS": "off",
            "PRICEKEEPER_DRAIN_SECS": "0",
        }
        if self.kind == "gateway":
            settings |= {
                "PRICEKEEPER_BEDROCK_UPSTREAM": self.upstream.url,
                "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
                "AWS_SECRET_ACCESS_KEY": "any",
            }
        return {**os.environ, **settings}

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + READY_SECS_MAX
        while True:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the service did not start:\n{self.service_log()}")
            with (
                contextlib.suppress(URLError, ConnectionError, TimeoutError),
                urlopen(f"{self.url}/readyz", timeout=5),  # noqa: S310 - loopback
            ):
                return
            time.sleep(0.1)

    async def _prepare(self, scenario: Scenario) -> App:
        org_id = str(uuid.uuid4())
        budget = {
            "name": BUDGET,
            "window": "MONTH",
            "limit_usd_micros": scenario.limit_usd_micros,
        }
        settings: Mapping[str, Any] = {
            "app_name": "Clients",
            "budgets": [budget],
            "rate_limits": scenario.rate_limits,
        }
        async with Admin(self.url, self._key) as admin:
            await admin.put_org(org_id, ORG)
            app = await admin.put_app(org_id, "app", settings)
            claimed = await admin.claim(app["secret_retrieval"]["token"])
        return App(claimed["client_id"], claimed["client_secret"])

    async def _account(self, app: App) -> Account:
        async with Api(self.url, app.client_id, app.client_secret) as api:
            found = await api.budgets()
        mine = next(one for one in found["budgets"] if one["name"] == BUDGET)
        fields = ("spent_usd_micros", "held_usd_micros", "unsettled_usd_micros")
        return Account(*(mine[name] for name in fields))


@contextmanager
def open_world(kind: Kind, folder: Path) -> Iterator[World]:
    """A world whose stand-in answers; its service is started with `serving`."""
    with running() as upstream:
        yield World(kind, folder, upstream)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
