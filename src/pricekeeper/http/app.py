"""The service as an ASGI application with its lifespan."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pricekeeper.authorizations import SELDOM_MS, SWEEP_INTERVAL_MS
from pricekeeper.bootstrap import STORE_WAIT_MS, Services, Supervisor, open_services
from pricekeeper.clock import Clock
from pricekeeper.concurrency.deadline import DEADLINES, Deadlines
from pricekeeper.credentials.strength import refuse_public_token, require_strong_key
from pricekeeper.http import connections, dashboard
from pricekeeper.http.dashboard import FOLDER, load_page
from pricekeeper.http.exchange import BEGIN
from pricekeeper.http.health import Readiness
from pricekeeper.http.limits import HOLD_MS, ApiLimits
from pricekeeper.http.metrics import MULTIPROCESS, Metrics
from pricekeeper.http.metrics_listener import Heartbeat, HeartbeatInFile, OneWorker, beat_forever
from pricekeeper.http.observing import Observer
from pricekeeper.http.openapi import openapi
from pricekeeper.http.routes import GATEWAY_ROUTES, ROUTES
from pricekeeper.http.server import collect_garbage_less_often, install_drain_handlers
from pricekeeper.http.serving import GATEWAY, AccessLog, Shell
from pricekeeper.limiter import Limiter
from pricekeeper.settings import Settings, read_settings
from pricekeeper.telemetry.logs import configure_logging, keep_secret

if TYPE_CHECKING:
    from pricekeeper.gateway.relay import Gateway

CALLS_PERCENT: Final = 75
"""Share of the connections for calls through the gateway."""


def make_app(
    settings: Settings,
    *,
    clock: Clock | None = None,
    worker: OneWorker | None = None,
    heartbeat: Heartbeat | None = None,
    page_folder: Path = FOLDER,
) -> Shell:
    """An application that opens its services at the start and drains them at the end.

    A thread watches it through ``worker``, another process through ``heartbeat``.
    """
    operations = ROUTES if settings.serves_api else GATEWAY_ROUTES
    document = msgspec.json.encode(openapi(operations))
    beat = heartbeat if worker is None else worker.beat

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, Any]]:
        draining = asyncio.Event()
        async with (
            open_services(settings, clock=clock, store_wait_ms=STORE_WAIT_MS) as services,
            _open_api_limits(services) as api_limits,
            _run_background(services, api_limits, beat) as observer,
            aclosing(Readiness(services.store, services.clock)) as readiness,
            _open_gateway(services, api_limits, observer.metrics) as gateway,
        ):
            listeners = services.activity.listeners
            with (
                nullcontext() if worker is None else worker.showing(observer.metrics),
                install_drain_handlers(draining, settings.drain_secs, listeners.close),
                closing(Deadlines(settings.request_deadline_ms)) as deadlines,
            ):
                yield {
                    "services": services,
                    "api_limits": api_limits,
                    "metrics": observer.metrics,
                    "openapi": document,
                    "draining": draining,
                    "readiness": readiness,
                    dashboard.PAGE: load_page(page_folder),
                    DEADLINES: deadlines,
                    GATEWAY: gateway,
                    BEGIN: shell.begin,
                    connections.LISTENERS: listeners,
                    connections.STATE: connections.Connections(
                        connections.affordable_connections(settings.connections_max),
                        connections.HELD_BYTES_MAX,
                    ),
                }

    access_log = AccessLog(enabled=settings.log_level in ("debug", "info"))
    shell = Shell(operations, lifespan, access_log)
    return shell


def app_from_environment(worker: OneWorker | None = None, *, public_allowed: bool = False) -> Shell:
    """The application of a worker process, configured by the environment.

    ``public_allowed`` accepts the demo's secrets.
    """
    collect_garbage_less_often()
    settings = read_settings(os.environ)
    require_strong_key(settings.provisioning_key, public_allowed=public_allowed)
    refuse_public_token(settings.metrics_token, public_allowed=public_allowed)
    configure_logging(settings.log_level)
    for secret in (settings.provisioning_key, settings.metrics_token):
        if secret is not None:
            keep_secret(secret)
    folder = os.environ.get(MULTIPROCESS)
    heartbeat = None if folder is None else HeartbeatInFile(Path(folder)).beat
    return make_app(settings, worker=worker, heartbeat=heartbeat)


@asynccontextmanager
async def _open_api_limits(services: Services) -> AsyncIterator[ApiLimits]:
    """Open the API's own limits; at the end, return prefetched tokens."""
    async with Limiter(services.store, clock=services.clock, hold_ms=HOLD_MS) as limiter:
        yield ApiLimits(limiter, services.settings.api_limits_per_minute)


@asynccontextmanager
async def _open_gateway(
    services: Services, api_limits: ApiLimits, metrics: Metrics
) -> AsyncIterator[Gateway | None]:
    location = services.settings.bedrock
    if location is None or not services.settings.serves_gateway:
        yield None
        return
    from pricekeeper.gateway.relay import Gateway  # noqa: PLC0415
    from pricekeeper.gateway.upstream import open_upstream  # noqa: PLC0415

    async def note_guess(address: str | None) -> None:
        await api_limits.count_guess(address, services.clock.now_ms())

    def is_barred(address: str | None) -> bool:
        return api_limits.bar_of(address, services.clock.now_ms()) is not None

    async with open_upstream(location, services.clock) as upstream:
        gateway = Gateway(
            services,
            upstream,
            note_guess=note_guess,
            is_barred=is_barred,
            body_bytes_max=services.settings.gateway_body_mb_max << 20,
            calls_max=max(1, services.settings.connections_max * CALLS_PERCENT // 100),
            logs=services.settings.log_level in ("debug", "info"),
        )
        metrics.watch(gateway.meter)
        metrics.watch(gateway.sharing.meter)
        try:
            yield gateway
        finally:
            await gateway.close()


@asynccontextmanager
async def _run_background(
    services: Services, api_limits: ApiLimits, heartbeat: Heartbeat | None
) -> AsyncIterator[Observer]:
    supervisor = Supervisor(services.clock)
    observer = Observer(services, Metrics(services.meter), supervisor, api_limits)
    await observer.read_lag()
    interval_secs = services.aggregator_interval_secs
    if interval_secs:
        supervisor.start(
            "aggregator",
            lambda: services.aggregator.run_forever(
                interval_secs * 1000, observer.note_aggregation
            ),
        )
    sweep_interval_ms = SWEEP_INTERVAL_MS if interval_secs else SELDOM_MS
    supervisor.start("activity", services.activity.run_forever)
    supervisor.start(
        "expiry", lambda: services.authorizations.expiry.run_forever(sweep_interval_ms)
    )
    supervisor.start("recounts", services.recounts.run_forever)
    supervisor.start("alerts", services.alerts.courier.run_forever)
    supervisor.start("alert-checks", services.alerts.checks.run_forever)
    if services.key_watcher is not None:
        supervisor.start("signing-keys", services.key_watcher.run_forever)
    if services.settings.export_to is not None:
        supervisor.start("export", services.exports.run_forever)
    else:
        await services.exports.try_to_release()
    supervisor.start("prices", observer.refresh_prices_daily)
    supervisor.start("metrics", observer.carry_forever)
    if services.settings.metrics_token is not None or services.settings.metrics_address is not None:
        supervisor.start("spend", observer.show_spend_forever)
    if heartbeat is not None:
        supervisor.start("heartbeat", lambda: beat_forever(heartbeat, services.clock))
    try:
        yield observer
    finally:
        await supervisor.close()
        observer.carry()  # for a scrape after this worker has ended
