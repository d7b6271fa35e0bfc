"""A real service whose clock can be moved, and an app that is registered with it."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pricekeeper.cli.demo.service import demo_settings, running_service
from pricekeeper.client import Admin, Api
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
    """An organisation with one app, and their credentials."""

    def __init__(self, url: str, key: str, clock: MovableClock) -> None:
        self.url = url
        self.key = key
        self.clock = clock
        self.org_id = str(uuid.uuid4())
        self.secrets: dict[str, str] = {}

    def admin(self) -> Admin:
        return Admin(self.url, self.key, clock=self.clock)

    def keeper(self, client_id: str | None = None, **more: Any) -> Api:
        name = client_id or f"org-{self.org_id}-app-{APP}"
        return Api(self.url, name, self.secrets[name], clock=self.clock, **more)

    async def register(self) -> None:
        async with self.admin() as admin:
            org = await admin.put_org(self.org_id, ORG_BODY)
            app = await admin.put_app(self.org_id, APP, APP_BODY)
            for created in (org, app):
                claimed = await admin.claim(created["secret_retrieval"]["token"])
                self.secrets[claimed["client_id"]] = claimed["client_secret"]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def service(tmp_path: Path, clock: MovableClock) -> Iterator[tuple[str, str]]:
    settings = demo_settings(tmp_path)
    with running_service(settings, clock) as url:
        yield url, settings.provisioning_key or ""


@pytest.fixture
async def acme(service: tuple[str, str], clock: MovableClock) -> Acme:
    acme = Acme(*service, clock)
    await acme.register()
    return acme


@pytest.fixture
async def keeper(acme: Acme) -> AsyncIterator[Api]:
    async with acme.keeper() as keeper:
        yield keeper
