"""What the tests of alerts share: every store, instances, an organisation, and an endpoint."""

import uuid
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest

from alerts.endpoint import SECRET, Endpoint, open_endpoint
from alerts.topics_server import TOPIC
from attribution import BY
from metering.conftest import CATALOGUE, LABELS, PREMIUM, a_usage
from minting import minted
from pricekeeper.alerts import Alerts, ChannelKind, ChannelRequest, Guard, Owner, Sources
from pricekeeper.alerts.alert import DEPLOYMENT
from pricekeeper.alerts.items import StoredAlert
from pricekeeper.clock import Clock
from pricekeeper.credentials import Pepper, Peppers, Sealer
from pricekeeper.ledger import Ledger
from pricekeeper.metering import Aggregator, Metering, WindowSpend
from pricekeeper.metering.aggregation_report import AggregationReport
from pricekeeper.pricing import Catalogue, PriceBook
from pricekeeper.selection import Selector
from pricekeeper.storage import Store
from pricekeeper.tenants import Tenants
from pricekeeper.values import AppId, OrgId
from selection.conftest import NOON_MS, SettableClock
from stores import location, meter, store

__all__ = ["location", "meter", "store"]

USD = 1_000_000
APP = AppId("web")
PEPPERS = Peppers(Pepper("v1", b"p" * 32))
LOOPBACK = Guard([ip_network("127.0.0.0/8")], [TOPIC])
COST_USD_MICROS = 10_500
"""What the record of `Org.spend` costs, once."""


class Instance:
    """One instance of the service, as far as alerts are concerned."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        guard: Guard = LOOPBACK,
        catalogue: Catalogue = CATALOGUE,
    ) -> None:
        self.store = store
        self.tenants = Tenants(store, clock, LABELS)
        self.prices = PriceBook(store, clock, catalogue)
        self.ledger = Ledger(store, clock, WindowSpend(store, clock).read_spend)
        self.metering = Metering(store, clock, self.prices, ledger=self.ledger)
        sources = Sources(
            self.metering.meter.estimated,
            self.prices.meter.unpriced,
            Aggregator(store, clock).read_caught_up_at_ms,
            60,
        )
        self.alerts = Alerts(
            store,
            clock,
            self.tenants,
            sealer=Sealer(PEPPERS),
            sources=sources,
            ledger=self.ledger,
            catalogue=catalogue,
            guard=guard,
        )
        self.aggregator = Aggregator(store, clock, look=self.alerts.look)
        self.selection = Selector(store, clock, self.metering, self.prices)

    async def close(self) -> None:
        await self.metering.close()
        await self.ledger.close()
        await self.alerts.close()

    async def aggregate(self) -> AggregationReport:
        report = await self.aggregator.run_once()
        assert not report.failed, report.errors
        return report

    async def deliver(self) -> None:
        await self.alerts.courier.run_once()


class Org:
    """An organisation with one app, its settings, and what it spends."""

    def __init__(self, instance: Instance, clock: Clock) -> None:
        self.id = OrgId(str(uuid.uuid4()))
        self.instance = instance
        self.clock = clock
        self.settings: dict[str, Any] = {
            "org_name": "Acme",
            "timezone": "UTC",
            "quota_scope": "APP",
            "model_ordering": list(LABELS),
            "quotas": dict.fromkeys(LABELS, 1_000 * USD),
            "alerts": {"quota_at_pct": []},
        }
        self.app_settings: dict[str, Any] = {"app_name": "Web"}

    async def configure(self, app: dict[str, Any] | None = None, **changes: Any) -> None:
        self.settings |= changes
        self.app_settings |= app or {}
        await self.instance.tenants.put_org(self.id, self.settings, BY)
        await self.instance.tenants.put_app(self.id, APP, self.app_settings, BY)

    async def spend(self, times: int = 1, instance: Instance | None = None, **changes: Any) -> None:
        """Have a record counted that costs so many times `COST_USD_MICROS`."""
        on = instance or self.instance
        policy = await on.tenants.find_policy(self.id, changes.pop("app_id", APP))
        fields = {
            "model_label": PREMIUM,
            "input_tokens": 1_000 * times,
            "output_tokens": 500 * times,
            **changes,
        }
        await on.metering.record(policy, a_usage(minted(self.clock.now_ms()), **fields))

    async def owner(self) -> Owner:
        return await self.instance.alerts.channels.find_owner(self.id)

    async def add_channel(self, url: str, name: str = "ops", **changes: Any) -> None:
        request = ChannelRequest(ChannelKind.WEBHOOK, url, SECRET, **changes)
        await self.instance.alerts.channels.put(await self.owner(), name, request, BY)

    async def history(self, **wanted: Any) -> list[StoredAlert]:
        page = await self.instance.alerts.history.read_page(await self.owner(), **wanted)
        return list(page.entries)


def budget(limit_usd_micros: int, *at_pct: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "daily",
        "window": "DAY",
        "limit_usd_micros": limit_usd_micros,
        "alert_at_pct": list(at_pct),
        **changes,
    }


async def add_deployment_channel(instance: Instance, url: str, name: str = "platform") -> None:
    request = ChannelRequest(ChannelKind.WEBHOOK, url, SECRET)
    await instance.alerts.channels.put(DEPLOYMENT, name, request, BY)


@pytest.fixture
def table_prefix() -> str:
    """Each test has its own tables, because a courier serves all queues."""
    return f"alerts-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON_MS)


@pytest.fixture
async def instance(store: Store, clock: SettableClock) -> AsyncIterator[Instance]:
    made = Instance(store, clock)
    yield made
    await made.close()


@pytest.fixture
async def org(instance: Instance, clock: SettableClock) -> Org:
    made = Org(instance, clock)
    await made.configure()
    return made


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with open_endpoint() as opened:
        yield opened
