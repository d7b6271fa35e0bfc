"""From counts to metrics, on a clock that the test moves."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from attribution import BY
from http_fixtures import ORG
from pricekeeper.bootstrap import Services, Supervisor, open_services
from pricekeeper.clock import ManualClock
from pricekeeper.credentials.meter import SECRETS_MAX, CredentialsMeter
from pricekeeper.http import metrics as metrics_module
from pricekeeper.http.limits import ApiLimits
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.observing import Observer
from pricekeeper.metering import AggregationReport, Usage
from pricekeeper.metering import meter as metering_meter
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.storage import Put
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.storage.tables import REVOKED_TOKENS
from pricekeeper.telemetry import Sizes, StoreMeter
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import parse_org_id
from scraping import Samples, read_samples

LAG = "pricekeeper_aggregator_lag_seconds"
DAY_MS = 24 * 3_600_000


@dataclass
class Instance:
    """A service and its metrics."""

    clock: ManualClock
    services: Services
    supervisor: Supervisor
    observer: Observer

    def scrape(self) -> Samples:
        return read_samples(self.observer.metrics.render_exposition().decode())

    async def org(self, org_id: str = "", **more: Any) -> Policy:
        settings = {**ORG, "quota_scope": "ORG", **more}
        made = parse_org_id(org_id or str(uuid.uuid4()))
        return (await self.services.credentials.provision(Client(made), settings, BY)).policy

    async def report(self, policy: Policy, input_tokens: int) -> None:
        """Use the premium model."""
        await self.services.metering.record(policy, used(input_tokens))

    async def spend(self, policy: Policy, input_tokens: int) -> None:
        """Use the premium model, and update the metrics."""
        await self.report(policy, input_tokens)
        await self.services.selection.assess(policy, force_check=True)

    async def restarted(self) -> "Instance":
        """Start another observer on the same store, as a restart would."""
        limits = ApiLimits(self.services.limiter, {})
        metrics = Metrics(self.services.meter)
        observer = Observer(self.services, metrics, self.supervisor, limits)
        await observer.read_lag()
        return Instance(self.clock, self.services, self.supervisor, observer)


def used(input_tokens: int) -> Usage:
    """A record of the premium model."""
    request_id = str(uuid.uuid4())
    return Usage(
        request_id=request_id, model_label="premium", input_tokens=input_tokens, output_tokens=0
    )


def quota_line(policy: Policy) -> str:
    """The line about the organisation's quota of the premium model."""
    whose = f'app="",app_id="",label="premium",org="{policy.org_name}",org_id="{policy.org_id}"'
    return f"pricekeeper_quota_used_ratio{{{whose}}}"


@asynccontextmanager
async def observing(folder: Path, **changes: Any) -> AsyncIterator[Instance]:
    clock = ManualClock()
    settings = Settings(SqliteLocation(MEMORY), data_dir=folder / "data", **changes)
    async with open_services(settings, clock=clock) as services:
        supervisor, limits = Supervisor(clock), ApiLimits(services.limiter, {})
        observer = Observer(services, Metrics(services.meter), supervisor, limits)
        await observer.read_lag()
        yield Instance(clock, services, supervisor, observer)
        await supervisor.close()


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Instance]:
    async with observing(tmp_path) as instance:
        yield instance


async def test_the_lag_grows_until_a_run_is_complete(at: Instance) -> None:
    """It is the time since the last complete run began, on any instance."""
    assert at.scrape()[LAG] == 0
    at.clock.advance_ms(60_000)
    assert at.scrape()[LAG] == 60
    at.observer.note_aggregation(AggregationReport(at.clock.now_ms()))
    assert at.scrape()[LAG] == 0
    for since_last_ms, lag_secs in ((None, 60), (600_000, 600)):
        at.clock.advance_ms(60_000)
        failed = AggregationReport(at.clock.now_ms(), failed=1, since_last_ms=since_last_ms)
        at.observer.note_aggregation(failed)
        assert at.scrape()[LAG] == lag_secs
    skipped = AggregationReport(at.clock.now_ms(), since_last_ms=10_000, skipped=True)
    at.observer.note_aggregation(skipped)
    assert at.scrape()[LAG] == 10


async def test_an_instance_without_an_aggregator_does_not_know_the_lag(tmp_path: Path) -> None:
    """Neither zero, a promise, nor more, an alarm."""
    async with observing(tmp_path, aggregator_interval_secs=0) as instance:
        assert isnan(instance.scrape()[LAG])


async def test_a_restart_does_not_end_the_lag(at: Instance) -> None:
    """The store knows when the last complete run began, or since when the first is due."""
    at.clock.advance_ms(60_000)
    assert (await at.restarted()).scrape()[LAG] == 60
    await at.services.aggregator.run_once()
    at.clock.advance_ms(30_000)
    again = await at.restarted()
    assert again.scrape()[LAG] == 30
    at.clock.advance_ms(5_000)
    assert again.scrape()[LAG] == 35


async def test_a_quota_is_unspent_again_when_the_day_is_over(at: Instance) -> None:
    """A client that stopped in the evening does not cause an alarm all night.

    Before that, an override or an older total does not lower it.
    """
    policy = await at.org()
    name = quota_line(policy)
    await at.spend(policy, input_tokens=400_000)
    used = at.scrape()[name]
    assert used > 1
    await at.services.selection.set_override(policy, "premium", BY)
    for _ in range(2):
        await at.services.selection.assess(policy)
        assert at.scrape()[name] == used
        at.clock.advance_ms(10_000)
    at.clock.advance_ms(DAY_MS)
    assert at.scrape()[name] == 0
    await at.spend(policy, input_tokens=400)
    assert 0 < at.scrape()[name] < 1


async def test_an_app_that_only_reports_has_its_quotas_shown(at: Instance) -> None:
    """From records and from batches."""
    policy = await at.org()
    name = quota_line(policy)
    await at.report(policy, input_tokens=10_000)
    first = at.scrape()[name]
    assert 0 < first < 1
    await at.report(policy, input_tokens=10_000)
    assert at.scrape()[name] == pytest.approx(2 * first)
    await at.services.metering.record_many(policy, [used(10_000), used(10_000)])
    assert at.scrape()[name] == pytest.approx(4 * first)
    at.clock.advance_ms(DAY_MS)
    assert at.scrape()[name] == 0


async def test_only_so_many_scopes_are_shown(at: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thousand."""
    monkeypatch.setattr(metering_meter, "SCOPES_MAX", 3)
    policies = [await at.org() for _ in range(5)]
    for policy in (*policies, policies[0]):
        await at.services.selection.assess(policy)
    shown = {name for name in at.scrape() if name.startswith("pricekeeper_quota_used_ratio")}
    assert len(shown) == 3 * len(ORG["model_ordering"])
    assert all(policy.org_id in str(shown) for policy in policies[:3])


async def test_a_line_is_under_the_name_of_whom_it_is_about(at: Instance) -> None:
    """Equal names are distinguished by id; a renamed scope has one line."""
    first, second = await at.org(), await at.org()
    for policy in (first, second):
        await at.spend(policy, input_tokens=400_000)
    shown = at.scrape()
    assert shown[quota_line(first)] == shown[quota_line(second)] > 1
    renamed = await at.org(first.org_id, org_name="Other Name")
    await at.spend(renamed, input_tokens=400_000)
    shown = at.scrape()
    assert isnan(shown[quota_line(first)])
    assert shown[quota_line(renamed)] > 1


def test_only_so_many_limit_names_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants name their limits; beyond the bound, the rest counts as one."""
    monkeypatch.setattr(metrics_module, "_LIMIT_NAMES_MAX", 2)
    metrics = Metrics(StoreMeter())
    for name in ("rpm", "tpm", "a", "b", "rpm"):
        metrics.note_limit_decision(name, "granted")
    samples = read_samples(metrics.render_exposition().decode())
    total = 'pricekeeper_limit_decisions_total{limit="%s",outcome="granted"}'
    shown = {name: samples.get(total % name) for name in ("rpm", "tpm", "other", "a")}
    assert shown == {"rpm": 2, "tpm": 1, "other": 2, "a": None}


async def test_a_job_that_crashes_is_counted(at: Instance) -> None:
    """Shown at zero from the start, so that the first crash is a change."""

    async def crash() -> None:
        await at.clock.sleep_ms(1)
        raise ZeroDivisionError

    at.supervisor.start("prices", crash)
    name = 'pricekeeper_job_crashes_total{job="prices"}'
    assert at.scrape()[name] == 0
    for _ in range(100):
        if at.scrape()[name] < 2:
            at.clock.advance_ms(60_000)
            await asyncio.sleep(0)
    assert at.scrape()[name] == 2


async def test_a_clock_in_doubt_is_shown(at: Instance) -> None:
    names = [f"pricekeeper_clock_{name}" for name in ("in_doubt", "leap_seconds", "leaps_total")]

    def shown() -> list[float]:
        samples = at.scrape()
        return [samples[name] for name in names]

    assert shown() == [0, 0, 0]
    at.clock.jump_ms(-DAY_MS)
    assert shown() == [1, -86_400, 1]
    at.clock.jump_ms(DAY_MS)
    assert shown() == [0, 0, 1]


async def test_swept_rows_are_counted(at: Instance) -> None:
    expired = {"PK": "jti", "expires_at_epoch": (at.clock.now_ms() - DAY_MS) // 1000}
    await at.services.store.put(Put(REVOKED_TOKENS, expired))
    assert isinstance(at.services.store, SqliteStore)
    await at.services.store.sweep()
    assert at.scrape()["pricekeeper_store_swept_total"] == 1


@pytest.mark.parametrize(
    ("size", "bound"), [(1, "1.0"), (2, "2.0"), (3, "4.0"), (1_000, "1024.0"), (1_025, "+Inf")]
)
def test_counts_are_carried_over_once(size: int, bound: str) -> None:
    """Extra scrapes change nothing. Sizes are a histogram, as Prometheus itself would count."""
    meter = StoreMeter()
    metrics = Metrics(meter)
    for _ in range(2):
        meter.calls["get"] += 1
        meter.commit_sizes.note(size)
        metrics.carry_meters()
        metrics.carry_meters()
    samples = read_samples(metrics.render_exposition().decode())
    assert samples['pricekeeper_store_calls_total{call="get"}'] == 2
    name = "pricekeeper_store_commit_operations"
    buckets = {key: count for key, count in samples.items() if key.startswith(f"{name}_bucket")}
    assert (samples[f"{name}_count"], samples[f"{name}_sum"]) == (2, 2 * size)
    assert next(key for key, count in buckets.items() if count) == f'{name}_bucket{{le="{bound}"}}'
    assert set(buckets.values()) <= {0, 2}
    assert meter.commit_sizes == Sizes(meter.commit_sizes.counts, 2 * size)


async def test_the_age_of_a_secret_is_shown_when_its_client_comes(at: Instance) -> None:
    """From its first login on this instance, and of the newest secret from its claim."""
    policy, credentials = await at.org(), at.services.credentials
    labels = f'app="",app_id="",org="{policy.org_name}",org_id="{policy.org_id}"'
    name = f"pricekeeper_client_secret_created_timestamp_seconds{{{labels}}}"
    for expected in (None, at.clock.now_ms() // 1000 + 86_400):
        assert at.scrape().get(name) == expected
        at.clock.advance_ms(86_400_000)
        rotation = await credentials.rotate(policy.client, 0, BY)
        claimed = await credentials.claim(rotation.retrieval.token.reveal(), BY)
        claimed_at_epoch = at.clock.now_ms() // 1000
        assert at.scrape().get(name) == (claimed_at_epoch if expected else None)
        at.clock.advance_ms(3_600_000)
        await credentials.authenticate(policy.client_id, claimed.client_secret.reveal())
        assert at.scrape()[name] == claimed_at_epoch


async def test_only_so_many_ages_are_kept(at: Instance) -> None:
    """Tenants name clients, and a metric has a line for each."""
    meter, policy = CredentialsMeter(), await at.org()

    def log_in(client: Client, created_at_epoch: int | None) -> None:
        known = replace(policy, client=client, client_secret_created_at_epoch=created_at_epoch)
        meter.note_login(known)

    for number in range(SECRETS_MAX + 5):
        log_in(Client(parse_org_id(str(uuid.UUID(int=number)))), number)
    first = next(iter(meter.secret_ages))
    log_in(first, 77)
    log_in(first, None)
    assert len(meter.secret_ages) == SECRETS_MAX
    assert meter.secret_ages[first].created_at_epoch == 77
