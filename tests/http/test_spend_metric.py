"""Dollars in the metrics by name, on each store, with bounds on a manual clock."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from attribution import BY
from http_fixtures import ENVIRONMENT, METRICS_TOKEN, ORG, Api, Tenant, store_url, usage
from pricekeeper.bootstrap import Services, open_services
from pricekeeper.clock import ManualClock
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.money_metrics import ScopeOwner, Series, SpendMetric, name_series, printable
from pricekeeper.http.observing import Election
from pricekeeper.metering import Account, Total, Usage, org_day
from pricekeeper.metering.items import day_expires_at_epoch
from pricekeeper.metering.spend import Spender
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.storage import Set, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, Policy, config_key
from pricekeeper.values import parse_app_id, parse_org_id
from scraping import until
from serving import running_server
from totals import listed_total_puts

NAME = "pricekeeper_spend_usd_total"
DAY_MS = 86_400_000
HOSTILE = r'Acme"} 1 \n# HELP evil \ evil{a="b"} 2'
Dollars = dict[tuple[str, str, str], float]


def read_dollars(text: str) -> Dollars:
    """The lines by organisation, app and label, as Prometheus reads them; no empty ones."""
    return {
        (sample.labels["org"], sample.labels["app"], sample.labels["label"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == NAME and sample.value
    }


def scrape(api: Api) -> Dollars:
    reply = api.call("GET", "/metrics", token=METRICS_TOKEN)
    assert reply.status == 200
    return read_dollars(reply.data.decode())


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, request.param, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "workers"), [("sqlite-file", 2), ("dynoxide", 1)], indirect=["store"]
)
def test_dollars_by_name_are_the_same_after_a_restart(
    tmp_path: Path, store: str, workers: int
) -> None:
    """The totals are there at once after a kill, and grow from there."""
    environment = {**ENVIRONMENT, "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS": "1"}
    arguments = ("--workers", str(workers)) if workers > 1 else ()
    options: dict[str, Any] = {"environment": environment, "store": store}
    with running_server(tmp_path, *arguments, **options) as server:
        api = Api(server.url)
        tenant = Tenant(api).register()
        twin = Tenant(api).register()
        hostile = Tenant(api).register()
        named = {**ORG, "org_name": HOSTILE}
        assert api.provision("PUT", hostile.org, named).status == 200
        costs = {}
        for one in (tenant, twin, hostile):
            record = usage(output_tokens=700)
            reply = one.record(record)
            costs[one.org_id] = reply.json["cost_usd_micros"] / 1_000_000
        expected = {
            (f"Acme ({tenant.org_id})", "Web", "premium"): costs[tenant.org_id],
            (f"Acme ({twin.org_id})", "Web", "premium"): costs[twin.org_id],
            (HOSTILE, "Web", "premium"): costs[hostile.org_id],
        }
        until(lambda: scrape(api) == expected, lambda: (scrape(api), expected))
        text = api.call("GET", "/metrics", token=METRICS_TOKEN).data.decode()
        assert f"# TYPE {NAME} counter" in text
        assert "evil" not in {family.name for family in text_string_to_metric_families(text)}
        if workers == 1:
            server.kill()
    with running_server(tmp_path, *arguments, **options) as server:
        api = Api(server.url)
        until(lambda: scrape(api) == expected, lambda: (scrape(api), expected))
        tenant.api = api
        token = tenant.login()["access_token"]
        reply = api.call("POST", f"{tenant.app}/usage", usage(output_tokens=700), token=token)
        assert reply.status == 202
        mine = (f"Acme ({tenant.org_id})", "Web", "premium")
        expected[mine] *= 2
        until(lambda: scrape(api) == pytest.approx(expected), lambda: (scrape(api), expected))


@dataclass
class Instance:
    """A service on a clock that the test moves."""

    clock: ManualClock
    services: Services
    metrics: Metrics

    def metric(self, series_max: int = 1_000) -> SpendMetric:
        return SpendMetric(self.services, self.metrics.spend, series_max=series_max)

    def dollars(self) -> Dollars:
        return read_dollars(self.metrics.render_exposition().decode())

    async def org(self, name: str, **changes: Any) -> Policy:
        settings = {**ORG, "org_name": name, "quota_scope": "ORG", "rate_limits": {}, **changes}
        org_id = parse_org_id(str(uuid.uuid4()))
        return (await self.services.credentials.provision(Client(org_id), settings, BY)).policy

    async def app(self, org: Policy, app_id: str, name: str) -> Policy:
        settings = {"app_name": name}
        made = await self.services.credentials.provision(
            Client(org.org_id, parse_app_id(app_id)), settings, BY
        )
        return made.policy

    async def spend(self, policy: Policy, dollars: int, label: str = "premium") -> None:
        """Spend that many dollars, and aggregate."""
        prices = self.services.prices.catalogue.model(label).default_pricing
        assert prices.input is not None
        for _ in range(dollars):
            record = Usage(
                request_id=str(uuid.uuid4()),
                model_label=label,
                input_tokens=-(-1_000_000_000_000 // prices.input),
                output_tokens=0,
            )
            await self.services.metering.record(policy, record)
        await self.services.aggregator.run_once()


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Instance]:
    clock = ManualClock(1_768_000_000_000)  # 9 January 2026, 23:06 in UTC
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path / "data")
    async with open_services(settings, clock=clock) as services:
        yield Instance(clock, services, Metrics(services.meter))


async def test_there_is_a_bound_and_the_rest_is_one_line(at: Instance) -> None:
    """The highest spenders have lines; a line stays; the sum is complete."""
    metric = at.metric(series_max=2)
    orgs = [await at.org(f"org {number}") for number in range(4)]
    for number, org in enumerate(orgs):
        await at.spend(org, number + 1)
    await metric.refresh()
    expected = {
        ("org 3", "", "premium"): 4,
        ("org 2", "", "premium"): 3,
        ("other", "other", "other"): 3,
    }
    assert at.dollars() == pytest.approx(expected, rel=1e-5)

    await at.spend(orgs[0], 10)
    await metric.refresh()
    expected["other", "other", "other"] = 13
    assert at.dollars() == pytest.approx(expected, rel=1e-5)


async def test_a_month_ends_where_the_organisation_is(at: Instance) -> None:
    """Its line resets; the line of an organisation further west continues."""
    metric = at.metric()
    east = await at.org("East", timezone="Pacific/Auckland")
    west = await at.org("West", timezone="America/Los_Angeles")
    at.clock.advance_ms(21 * DAY_MS)  # 30 January, 23:06
    at.clock.advance_ms(14 * 3_600_000)  # 31 January, 13:06: February in Auckland
    for org in (east, west):
        await at.spend(org, 2)
    await metric.refresh()
    assert at.dollars() == pytest.approx(
        {("East", "", "premium"): 2, ("West", "", "premium"): 2}, rel=1e-5
    )
    at.clock.advance_ms(DAY_MS)
    await at.spend(east, 1)
    await metric.refresh()
    assert at.dollars() == pytest.approx({("East", "", "premium"): 3}, rel=1e-5)


async def test_a_new_name_takes_the_line_over(at: Instance) -> None:
    """Within ten minutes. The old name's line becomes empty, so sums stay right.

    A store that does not answer changes nothing until the next refresh.
    """
    metric = at.metric()
    org = await at.org("Before")
    await at.spend(org, 2)
    await metric.refresh()
    settings = {**ORG, "org_name": "After", "quota_scope": "ORG"}
    await at.services.credentials.provision(Client(org.org_id), settings, BY)
    at.clock.advance_ms(600_000)
    for _ in range(2):
        await metric.refresh()
        assert at.dollars() == pytest.approx({("After", "", "premium"): 2}, rel=1e-5)
        await at.services.store.close()


async def test_who_has_no_name_has_its_ids(at: Instance) -> None:
    """A deleted client, one that can't be read, an unknown one; other lines are still shown."""
    strange, good = await at.org("Strange"), await at.org("Good")
    gone = await at.org("Gone", quota_scope="APP")
    await at.spend(await at.app(gone, "web", "Web"), 4)
    await at.spend(strange, 2)
    await at.spend(good, 3)
    await at.services.tenants.delete_org(gone.org_id, BY)
    key = config_key(Client(strange.org_id))
    await at.services.store.update(Update(CONFIG, key, (Set("timezone", "Mars/Olympus"),)))
    day = org_day("UTC", at.clock.now_ms())
    account, expires = Account("ORG#unknown", "premium", day), day_expires_at_epoch(day)
    for put in listed_total_puts(account, Total(cost_usd_picos=10**12, as_of_ms=1), expires):
        await at.services.store.put(put)
    await at.metric().refresh()
    expected = {
        (str(gone.org_id), "web", "premium"): 4,
        (str(strange.org_id), "", "premium"): 2,
        ("Good", "", "premium"): 3,
        ("unknown", "", "premium"): 1,
    }
    assert at.dollars() == pytest.approx(expected, rel=1e-5)


def test_names_are_unmistakable() -> None:
    """Equal names have their ids; so does a name that imitates one, or the rest."""
    owners = {
        "ORG#1#APP#a": ScopeOwner("Acme", "Web", "UTC"),
        "ORG#1#APP#b": ScopeOwner("Acme", "Web", "UTC"),
        "ORG#1#APP#c": ScopeOwner("Acme", "Chat (b)", "UTC"),
        "ORG#2": ScopeOwner("Acme", None, "UTC"),
        "ORG#3": ScopeOwner("Acme (2)", None, "UTC"),
        "ORG#4": ScopeOwner("other", None, "UTC"),
        "ORG#5#APP#a": ScopeOwner("Beta", "Web", "UTC"),
    }
    lines = name_series(owners, [Spender(scope_key, "premium") for scope_key in owners])
    assert list(lines.values()) == [
        Series("Acme (1)", "Web (a)", "premium"),
        Series("Acme (1)", "Web (b)", "premium"),
        Series("Acme (1)", "Chat (b) (c)", "premium"),
        Series("Acme (2)", "", "premium"),
        Series("Acme (2) (3)", "", "premium"),
        Series("other (4)", "", "premium"),
        Series("Beta", "Web", "premium"),
    ]


def test_what_can_not_be_printed_is_replaced() -> None:
    """Letters of every script stay."""
    assert printable("Größe 株式会社") == "Größe 株式会社"
    assert printable("a\nb\x1b[0m\u2028\ud800") == "a\ufffdb\ufffd[0m\ufffd\ufffd"


def test_one_worker_of_several_is_elected(tmp_path: Path) -> None:
    with Election(tmp_path, "spend") as second:
        with Election(tmp_path, "spend") as first:
            assert (first.try_to_take_lock(), second.try_to_take_lock()) == (True, False)
            assert first.try_to_take_lock()
        assert second.try_to_take_lock()
    assert Election(None, "spend").try_to_take_lock()
