"""A real service whose clock can be moved, and an app that is registered with it."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from client.apps import Credentials
from client.money import BUDGET
from hanging_proxy import HangingProxy, hanging_proxy
from pricekeeper.cli.demo import demo_settings
from pricekeeper.client import Admin, Api, AsyncPriceKeeper, PriceKeeper, engine
from pricekeeper.client.transport import Wire
from pricekeeper.concurrency import Backoff
from pricekeeper.testing.serving import running_service
from tokens.conftest import MovableClock

APP = "chat"
ORG_BODY: dict[str, Any] = {
    "org_name": "Acme",
    "timezone": "UTC",
    "quota_scope": "APP",
    "model_ordering": ["premium", "standard"],
    "quotas": {"premium": 1_000_000, "standard": 500_000},
    "session_limit": 2,
}

APP_BODY: dict[str, Any] = {
    "app_name": "Chat",
    "rate_limits": {"*": {"rpm": {"capacity": 3, "refill_amount": 3, "refill_period_ms": 60_000}}},
}


class Acme:
    """An organisation with one app, and their credentials; keepers of it spool in its folder."""

    def __init__(self, url: str, key: str, clock: MovableClock, folder: Path) -> None:
        self.url = url
        self.keeper_url = url
        """Where keepers find the service; perhaps a wire that can hang."""
        self.key = key
        self.clock = clock
        self.spool_dir = folder / "spool"
        self.org_id = str(uuid.uuid4())
        self.secrets: dict[str, str] = {}

    def admin(self) -> Admin:
        return Admin(self.url, self.key, clock=self.clock)

    @property
    def client_id(self) -> str:
        return f"org-{self.org_id}-app-{APP}"

    def api(self, client_id: str | None = None, **more: Any) -> Api:
        name = client_id or self.client_id
        return Api(self.url, name, self.secrets[name], clock=self.clock, **more)

    def keeper(self, **more: Any) -> AsyncPriceKeeper:
        return AsyncPriceKeeper(**self.settings(**more))

    def blocking_keeper(self, **more: Any) -> PriceKeeper:
        return PriceKeeper(**self.settings(**more))

    def settings(self, **more: Any) -> dict[str, Any]:
        """The arguments of a keeper; a busy machine may be slow."""
        name = self.client_id
        mine = {"url": self.keeper_url, "client_id": name, "client_secret": self.secrets[name]}
        used = {"spool_dir": self.spool_dir, "deadline_ms": 10_000, "clock": self.clock}
        return {**mine, **used, **more}

    async def put_budget(self, **more: Any) -> None:
        """Have a budget that tells what all calls come to, and no limits of speed."""
        async with self.admin() as admin:
            quotas = {"premium": 10**12, "standard": 10**12}
            budgets = [{**BUDGET, **more}]
            await admin.put_org(self.org_id, {**ORG_BODY, "quotas": quotas, "budgets": budgets})
            await admin.put_app(self.org_id, APP, {"app_name": "Chat"})

    async def register(self, **body: Any) -> None:
        async with self.admin() as admin:
            org = await admin.put_org(self.org_id, {**ORG_BODY, **body})
            app = await admin.put_app(self.org_id, APP, APP_BODY)
            for created in (org, app):
                claimed = await admin.claim(created["secret_retrieval"]["token"])
                self.secrets[claimed["client_id"]] = claimed["client_secret"]


@pytest.fixture
def clock() -> MovableClock:
    """It is noon of a day in the middle of a month: no window ends while a test runs."""
    clock, now = MovableClock(), datetime.now(UTC)
    next_month = now.replace(day=1) + timedelta(days=32)
    noon = next_month.replace(day=15, hour=12, minute=0)
    clock.pass_ms((noon - now) // timedelta(milliseconds=1))
    return clock


@pytest.fixture
def service(tmp_path: Path, clock: MovableClock) -> Iterator[tuple[str, str]]:
    settings = demo_settings(tmp_path)
    with running_service(settings, clock) as url:
        yield url, settings.provisioning_key or ""


@pytest.fixture
async def acme(service: tuple[str, str], clock: MovableClock, tmp_path: Path) -> Acme:
    acme = Acme(*service, clock, tmp_path)
    await acme.register()
    return acme


@pytest.fixture
async def app(acme: Acme) -> Credentials:
    """What a program of the app has in its environment."""
    await acme.put_budget()
    return Credentials(acme.url, acme.client_id, acme.secrets[acme.client_id], acme.spool_dir)


@pytest.fixture
def wire(acme: Acme) -> Iterator[HangingProxy]:
    """A wire between the keepers and the service that can hang."""
    with hanging_proxy(acme.url) as proxy:
        acme.keeper_url = proxy.endpoint
        yield proxy


@pytest.fixture
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BACKOFF", Backoff(50, 30_000))


@pytest.fixture
def quick_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SNAPSHOT_EVERY_MS", 20)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The last part of the path of each request that is sent from now on."""
    paths: list[str] = []
    exchange: Callable[..., Any] = Wire.exchange

    async def note(self: Wire, request: Any, headers: Any) -> Any:
        paths.append(request.path.rpartition("/")[2])
        return await exchange(self, request, headers)

    monkeypatch.setattr(Wire, "exchange", note)
    return paths


@pytest.fixture
async def api(acme: Acme) -> AsyncIterator[Api]:
    async with acme.api() as api:
        yield api


@pytest.fixture
async def keeper(acme: Acme) -> AsyncIterator[AsyncPriceKeeper]:
    async with acme.keeper() as keeper:
        yield keeper
