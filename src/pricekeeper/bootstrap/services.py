"""Opens an instance's services in order, and closes them in reverse.

Closing commits accepted work and returns prefetched tokens before it closes the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from pricekeeper.activity import Activity
from pricekeeper.admin_keys import AdminKeys, list_roots
from pricekeeper.alerts import Alerts, Guard, Sources
from pricekeeper.audit import AuditTrail
from pricekeeper.authorizations import Authorizations
from pricekeeper.bootstrap.secrets import open_keys, read_peppers
from pricekeeper.bootstrap.telling import NewsTeller
from pricekeeper.clock import Clock, Doubt, SystemClock, TrustedClock
from pricekeeper.credentials import Credentials, ProvisioningKeys, Sealer, Verifier
from pricekeeper.credentials.strength import HOW_TO_MAKE_ONE
from pricekeeper.errors import SettingsError
from pricekeeper.export import DailyExports
from pricekeeper.forecast import SpendHistory
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.recounting import Recounts
from pricekeeper.limiter import Limiter
from pricekeeper.metering import Aggregator, Metering, Voider, WindowSpend
from pricekeeper.pricing import PriceBook, PriceSource, load_catalogue
from pricekeeper.selection import Selector
from pricekeeper.sessions import Sessions
from pricekeeper.settings import PROVISIONING_KEY, AwsPriceLocation, PriceLocation, Settings
from pricekeeper.storage import Store, open_store, require_format
from pricekeeper.storage.typed_items import StrangeItems
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Tenants
from pricekeeper.tokens import Identity, KeysMeter, KeyWatcher

CLOCKS_APART_MS: Final = 5_000
"""Tolerated clock difference of instances."""
STORE_WAIT_MS: Final = 60_000
"""How long to wait for the store."""


HOW_TO_MAKE_A_ROOT: Final = "pricekeeper admin-keys create NAME --role ADMIN, on the store"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """All services of an instance."""

    settings: Settings
    clock: TrustedClock
    meter: StoreMeter
    strange_items: StrangeItems
    store: Store
    trail: AuditTrail
    tenants: Tenants
    credentials: Credentials
    provisioning_keys: ProvisioningKeys
    admin_keys: AdminKeys
    identity: Identity
    key_watcher: KeyWatcher | None
    """For signing keys outside the data folder."""
    keys_meter: KeysMeter
    prices: PriceBook
    metering: Metering
    voider: Voider
    aggregator: Aggregator
    aggregator_interval_secs: int
    selection: Selector
    ledger: Ledger
    recounts: Recounts
    authorizations: Authorizations
    limiter: Limiter
    exports: DailyExports
    spend_history: SpendHistory
    alerts: Alerts
    activity: Activity


@asynccontextmanager
async def open_services(
    settings: Settings, *, clock: Clock | None = None, store_wait_ms: int = 0
) -> AsyncIterator[Services]:
    """Open all services; wait at most ``store_wait_ms`` for the store. Closes them at the end."""
    clock, meter = trusted_clock(clock), StoreMeter()
    catalogue, interval_secs = (
        load_catalogue(settings.config_path),
        settings.aggregator_interval_secs,
    )
    if interval_secs is None:
        interval_secs = catalogue.aggregator_interval_secs
    peppers = await read_peppers(settings, clock)
    async with AsyncExitStack() as closing:
        strange_items = closing.enter_context(StrangeItems())
        store = await open_store(
            settings.store, clock=clock, meter=meter, start_wait_ms=store_wait_ms
        )
        closing.push_async_callback(store.close)
        await store.create_tables()
        await require_format(store)
        trail = AuditTrail(store, clock, retention_days=settings.audit_retention_days)
        tenants = Tenants(
            store,
            clock,
            catalogue.labels,
            trail=trail,
            orgs_set_budgets=settings.org_admins_set_budgets,
        )
        verifier = Verifier(store, clock, peppers)
        credentials = Credentials(store, clock, tenants, peppers, trail=trail, verifier=verifier)
        keys, key_watcher = await open_keys(settings, clock)
        identity = Identity(
            store,
            clock=clock,
            tenants=tenants,
            credentials=credentials,
            sessions=Sessions(store, clock=clock, keys=keys, trail=trail),
            keys=keys,
            issuer=settings.issuer,
            audience=settings.audience,
        )
        prices = PriceBook(store, clock, catalogue)
        activity = Activity(store, clock, listeners_max=settings.event_listeners_max)
        closing.push_async_callback(activity.close)
        teller = NewsTeller(activity.feed)
        measure = WindowSpend(store, clock).read_spend
        ledger = Ledger(store, clock, measure, retention_days=settings.retention_days)
        closing.push_async_callback(ledger.close)
        metering = Metering(
            store,
            clock,
            prices,
            retention_days=settings.retention_days,
            linger_ms=settings.usage_linger_ms,
            ledger=ledger,
            on_counted=teller.note_counted,
            in_flight_ms=settings.request_deadline_ms + CLOCKS_APART_MS,
        )
        closing.push_async_callback(metering.close)
        voider = Voider(
            store, clock, trail=trail, tenants=tenants, ledger=ledger, poster=metering.poster
        )
        limiter = Limiter(store, clock=clock)
        closing.push_async_callback(limiter.close)
        selection = Selector(
            store, clock, metering, prices, trail=trail, on_flip=activity.feed.note_flip
        )
        alerts = Alerts(
            store,
            clock,
            tenants,
            sealer=Sealer(peppers),
            sources=Sources(
                metering.meter.estimated,
                prices.meter.unpriced,
                Aggregator(store, clock).read_caught_up_at_ms,
                interval_secs,
            ),
            ledger=ledger,
            catalogue=catalogue,
            trail=trail,
            guard=Guard(settings.alert_networks, settings.alert_topics),
            observe=teller.note_alert,
        )
        closing.push_async_callback(alerts.close)
        authorizations = Authorizations(
            store,
            clock,
            metering=metering,
            prices=prices,
            selection=selection,
            ledger=ledger,
            tokens=limiter.taker,
            watch=alerts,
            trail=trail,
            on_change=teller.note_changed,
        )
        closing.push_async_callback(authorizations.close)
        yield Services(
            settings=settings,
            clock=clock,
            meter=meter,
            strange_items=strange_items,
            store=store,
            trail=trail,
            tenants=tenants,
            credentials=credentials,
            provisioning_keys=ProvisioningKeys(
                store, clock, tenants, peppers, trail=trail, verifier=verifier
            ),
            admin_keys=AdminKeys(store, clock, peppers, trail=trail),
            identity=identity,
            key_watcher=key_watcher,
            keys_meter=keys.meter,
            prices=prices,
            metering=metering,
            voider=voider,
            aggregator=Aggregator(
                store, clock, retention_days=settings.retention_days, look=alerts.look
            ),
            aggregator_interval_secs=interval_secs,
            selection=selection,
            ledger=ledger,
            recounts=Recounts(store, clock, tenants, measure, ledger),
            authorizations=authorizations,
            limiter=limiter,
            exports=DailyExports(store, clock, settings),
            spend_history=SpendHistory(store, clock),
            alerts=alerts,
            activity=activity,
        )


def trusted_clock(clock: Clock | None = None) -> TrustedClock:
    """Wrap a clock so that it logs doubts. A given one is not compared with the store's."""
    if isinstance(clock, TrustedClock):
        return clock
    given = clock is not None
    return TrustedClock(clock or SystemClock(), uses_store_date=not given, on_change=_log_doubt)


def _log_doubt(doubt: Doubt | None, leap_ms: int) -> None:
    if doubt is None:
        _log.warning("clock_believed", corrected_by_ms=leap_ms)
    else:
        _log.error("clock_in_doubt", reason=doubt.value, ahead_by_ms=leap_ms)


def price_source(location: PriceLocation) -> PriceSource:
    """Make the price source that a setting or command names."""
    if isinstance(location, AwsPriceLocation):
        from pricekeeper.pricing.sources.aws_price_list import AwsPriceList, offer_urls  # noqa: PLC0415

        return AwsPriceList(location.sources or offer_urls(location.region), location.region)
    from pricekeeper.pricing.sources.genai import GenaiPrices  # noqa: PLC0415

    return GenaiPrices()


def no_administrator() -> SettingsError:
    """The error that names both ways to make an administrator."""
    return SettingsError(
        PROVISIONING_KEY,
        "is not set, and the store has no ADMIN key for all organisations; make one: "
        f"{HOW_TO_MAKE_ONE}, or {HOW_TO_MAKE_A_ROOT}",
    )


async def require_administrator(services: Services) -> None:
    """Require an administrator's key. If all have expired, only log it: apps must still run."""
    if services.settings.provisioning_key is not None:
        return
    roots = await list_roots(services.store)
    if not roots:
        raise no_administrator()
    now_epoch = services.clock.now_ms() // 1000
    if all(key.has_ended(now_epoch) for key in roots):
        _log.error("admin_keys_expired", fix=HOW_TO_MAKE_A_ROOT)
