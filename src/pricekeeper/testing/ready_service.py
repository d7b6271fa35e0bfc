"""A service with an organisation and an app, for tests; it logs to `logging`."""

from __future__ import annotations

import logging
import secrets
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from pricekeeper.client import Admin, AsyncPriceKeeper, PriceKeeper
from pricekeeper.client.api import Api
from pricekeeper.client.asking import read_every_page
from pricekeeper.client.keeper import close_keepers, flush_keepers
from pricekeeper.client.threads import LoopThread
from pricekeeper.settings import (
    CLIENT_ID,
    CLIENT_SECRET,
    CLIENT_SPOOL,
    MEMORY,
    URL,
    Settings,
    SqliteLocation,
)
from pricekeeper.testing.clocks import MovableClock
from pricekeeper.testing.serving import running_service

APP_ID: Final = "app"
LABELS: Final = ("premium", "standard", "economy")
"""Of the default deployment file."""
QUOTA_USD_MICROS: Final = 1_000_000_000
ANSWER_SECS_MAX: Final = 30
STOP_SECS: Final = 5

T = TypeVar("T")


class Service:
    """A running service, and its app's credentials."""

    def __init__(
        self, url: str, org_id: str, clock: MovableClock, folder: Path, stopping: ExitStack
    ) -> None:
        self.url = url
        self.org_id = org_id
        self.app_id = APP_ID
        self.client_id = ""
        self.client_secret = ""
        self.clock = clock
        """Keepers of `keeper` use it, too."""
        self._folder = folder
        self._stopping = stopping
        self._loop = LoopThread("pricekeeper-testing")
        self._opened = AsyncExitStack()
        self._admin: Admin
        self._api: Api

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the app's clients."""
        return {
            URL: self.url,
            CLIENT_ID: self.client_id,
            CLIENT_SECRET: self.client_secret,
            CLIENT_SPOOL: str(self._folder / "spool"),
        }

    @property
    def spent_usd_micros(self) -> int:
        """Of all calls of the app."""
        return sum(one["cost_usd_micros"] for one in self.records())

    @property
    def held_usd_micros(self) -> int:
        return self._sum_held("open")

    @property
    def unsettled_usd_micros(self) -> int:
        """Charges for calls of unknown usage."""
        return self._sum_held("unsettled")

    def records(self) -> list[dict[str, Any]]:
        """All counted calls, oldest first, after a flush."""
        return list(reversed(self._list("records", self._api.usage_records)))

    def keeper(self, **options: Any) -> PriceKeeper:
        """A keeper of the app on the service's clock."""
        return PriceKeeper(self.url, self.client_id, self.client_secret, **self._given(options))

    def async_keeper(self, **options: Any) -> AsyncPriceKeeper:
        """An asyncio keeper of the app."""
        return AsyncPriceKeeper(
            self.url, self.client_id, self.client_secret, **self._given(options)
        )

    def freeze(self, reason: str = "a test") -> None:
        """Deny further calls, as an administrator would."""
        self._wait(self._admin.freeze(self.org_id, self.app_id, reason=reason))

    def unfreeze(self, reason: str = "a test") -> None:
        self._wait(self._admin.unfreeze(self.org_id, self.app_id, reason=reason))

    def stop(self) -> None:
        """Stop the service early."""
        self._stopping.close()

    async def _register(self, key: str, org: Mapping[str, Any], app: Mapping[str, Any]) -> None:
        self._admin = await self._opened.enter_async_context(Admin(self.url, key, clock=self.clock))
        await self._admin.put_org(self.org_id, org)
        made = await self._admin.put_app(self.org_id, self.app_id, app)
        claimed = await self._admin.claim(made["secret_retrieval"]["token"])
        self.client_id, self.client_secret = claimed["client_id"], claimed["client_secret"]
        credentials = self.client_id, self.client_secret
        self._api = await self._opened.enter_async_context(
            Api(self.url, *credentials, clock=self.clock, outside_slots=True)
        )

    def _end(self) -> None:
        close_keepers(self.url)
        self._wait(self._opened.aclose())
        self._loop.stop(STOP_SECS)

    def _sum_held(self, status: str) -> int:
        read = partial(self._api.authorizations, status=status)
        return sum(one["held_usd_micros"] for one in self._list("authorizations", read))

    def _list(self, name: str, read: Callable[..., Awaitable[Any]]) -> list[dict[str, Any]]:
        flush_keepers(self.url)
        reading = read_every_page(lambda after: read(after=after), lambda page: page[name])
        found: list[dict[str, Any]] = msgspec.to_builtins(self._wait(reading))
        return found

    def _given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"clock": self.clock, "spool_dir": self._folder / "spool", **options}

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.submit(work).result(ANSWER_SECS_MAX)


@contextmanager
def service(
    *,
    quotas: Mapping[str, int] | None = None,
    budgets: Sequence[Mapping[str, Any]] = (),
    rate_limits: Mapping[str, Any] | None = None,
    model_ordering: Sequence[str] = LABELS,
    deployment_file: Path | None = None,
    clock: MovableClock | None = None,
) -> Iterator[Service]:
    """Run the real service with an organisation and an app until the end of the block.

    The app's settings are those of ``PUT /orgs/{org_id}/apps/{app_id}``. ``quotas`` are strict, in
    micro-dollars a day by label (else a billion). ``deployment_file`` has labels and prices.
    """
    clock, key = clock or MovableClock(), secrets.token_hex(16)
    given = {label: (quotas or {}).get(label, QUOTA_USD_MICROS) for label in model_ordering}
    org = {
        "org_name": "Testing",
        "timezone": "UTC",
        "quota_scope": "APP",
        "model_ordering": list(model_ordering),
        "quotas": given,
        "quota_enforcement": "STRICT",
    }
    app: dict[str, Any] = {"app_name": "App", "budgets": [dict(one) for one in budgets]}
    if rate_limits is not None:
        app["rate_limits"] = dict(rate_limits)
    with (
        tempfile.TemporaryDirectory(prefix="pricekeeper-testing-") as folder,
        logs_to_logging(),
        ExitStack() as stack,
    ):
        settings = Settings(
            store=SqliteLocation(MEMORY),
            config_path=deployment_file,
            data_dir=Path(folder) / "data",
            provisioning_key=key,
            log_level="error",
            drain_secs=0,
        )
        url = stack.enter_context(running_service(settings, clock))
        made = Service(url, str(uuid.uuid4()), clock, Path(folder), stack)
        try:
            made._wait(made._register(key, org, app))  # noqa: SLF001 - of this module
            yield made
        finally:
            made._end()  # noqa: SLF001


@contextmanager
def logs_to_logging() -> Iterator[None]:
    """Send the service's log to `logging`, unless structlog is configured."""
    before = structlog.get_config()
    if not isinstance(before["logger_factory"], structlog.PrintLoggerFactory):
        yield
        return
    structlog.configure(logger_factory=_make_logger)
    try:
        yield
    finally:
        structlog.configure(**before)


def _make_logger(*names: Any) -> Any:
    if names and str(names[0]).startswith("pricekeeper."):
        return logging.getLogger(names[0])
    return structlog.PrintLogger()
