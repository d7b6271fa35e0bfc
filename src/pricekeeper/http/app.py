"""The ASGI application: every operation on its path, and the lifespan around them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from starlette.routing import Router

from pricekeeper.bootstrap import Services, Supervisor, open_services
from pricekeeper.clock import Clock
from pricekeeper.credentials.strength import require_strong_key
from pricekeeper.http import aggregates, containment, health, identity, provisioning, runtime
from pricekeeper.http.access_log import AccessLog
from pricekeeper.http.draining import readiness_ends_first
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.observing import Observer
from pricekeeper.http.openapi import openapi
from pricekeeper.http.serving import Shell
from pricekeeper.limiter import Limiter
from pricekeeper.settings import Settings, read_settings
from pricekeeper.telemetry.logs import configure_logging, keep_secret

OPERATIONS: Final = (
    *runtime.OPERATIONS,
    *identity.OPERATIONS,
    *aggregates.OPERATIONS,
    *provisioning.OPERATIONS,
    *containment.OPERATIONS,
    *health.OPERATIONS,
)


def make_app(settings: Settings, *, clock: Clock | None = None) -> Shell:
    """An application that opens its services when it starts and drains them when it stops."""
    document = msgspec.json.encode(openapi(OPERATIONS))

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, Any]]:
        draining = asyncio.Event()
        async with (
            open_services(settings, clock=clock) as services,
            _api_limits(services) as api_limits,
            _background(services, api_limits) as observer,
        ):
            with readiness_ends_first(draining, settings.drain_secs):
                yield {
                    "services": services,
                    "api_limits": api_limits,
                    "metrics": observer.metrics,
                    "openapi": document,
                    "draining": draining,
                }

    access_log = AccessLog(enabled=settings.log_level in ("debug", "info"))
    return Shell(OPERATIONS, Router(lifespan=lifespan), access_log)


def app_from_environment() -> Shell:
    """The application as the environment configures it: what each worker process starts from."""
    return _app_from_environment(public_key_allowed=False)


def demo_app_from_environment() -> Shell:
    """The same, where the demo's key is good enough: ``serve --demo`` sees to the rest."""
    return _app_from_environment(public_key_allowed=True)


def _app_from_environment(*, public_key_allowed: bool) -> Shell:
    settings = read_settings(os.environ)
    require_strong_key(settings.provisioning_key, public_allowed=public_key_allowed)
    configure_logging(settings.log_level)
    if settings.provisioning_key is not None:
        keep_secret(settings.provisioning_key)
    return make_app(settings)


@asynccontextmanager
async def _api_limits(services: Services) -> AsyncIterator[ApiLimits]:
    """The API's own limits; what was prefetched for them is given back at the end."""
    async with Limiter(services.store, clock=services.clock) as limiter:
        yield ApiLimits(limiter, services.settings.api_limits_per_minute)


@asynccontextmanager
async def _background(services: Services, api_limits: ApiLimits) -> AsyncIterator[Observer]:
    """Aggregation, price refresh and metrics, supervised, for as long as the service runs."""
    supervisor = Supervisor(services.clock)
    observer = Observer(services, Metrics(services.meter), supervisor, api_limits)
    interval_secs = services.settings.aggregator_interval_secs
    if interval_secs:
        supervisor.start(
            "aggregator",
            lambda: services.aggregator.run_forever(interval_secs * 1000, observer.aggregated),
        )
    if services.settings.price_source is not None:
        supervisor.start("prices", observer.refresh_prices_daily)
    supervisor.start("metrics", observer.carry_forever)
    try:
        yield observer
    finally:
        await supervisor.close()
        observer.carry()  # for whoever is scraped after this worker has ended
