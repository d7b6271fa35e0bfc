"""Budgets in the metrics: from the accounts, by name, within bounds."""

import math
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from attribution import BY
from http_fixtures import ORG
from pricekeeper.authorizations.request import AuthorizationRequest
from pricekeeper.bootstrap import Services, open_services
from pricekeeper.clock import ManualClock
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.money_metrics import BudgetMetrics
from pricekeeper.metering import Usage
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import OrgId, parse_app_id, parse_org_id

LIMIT_MICROS = 2_000_000
DAILY = {"name": "daily", "window": "DAY", "limit_usd_micros": LIMIT_MICROS}
TEAMS = {"name": "teams", "window": "DAY", "limit_usd_micros": LIMIT_MICROS, "per_tag": "team"}
CALL = AuthorizationRequest(input_tokens=1_000, max_output_tokens=500, model="premium")
Lines = dict[tuple[str, ...], float]


class World:
    """A service on a clock that the test moves."""

    def __init__(self, services: Services, clock: ManualClock) -> None:
        self.services = services
        self.clock = clock
        self.metrics = Metrics(services.meter)

    async def client(self, name: str, *, app: str = "web", **settings: Any) -> Policy:
        org_id = parse_org_id(str(uuid.uuid4()))
        body = {**ORG, "org_name": name, "rate_limits": {}, "tag_keys": ["team"]}
        body |= {"budgets": [DAILY, TEAMS], **settings}
        await self.services.credentials.provision(Client(org_id), body, BY)
        made = await self.services.credentials.provision(
            Client(org_id, parse_app_id(app)), {"app_name": app.title(), "budgets": [DAILY]}, BY
        )
        return made.policy

    async def refresh(self, *spenders: OrgId, clients_max: int = 100) -> None:
        metrics = BudgetMetrics(self.services, self.metrics, clients_max=clients_max)
        await metrics.refresh(spenders)

    def lines(self, name: str, *labels: str) -> Lines:
        """The values of a metric by some of its labels, without NaN."""
        text = self.metrics.render_exposition().decode()
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"pricekeeper_{name}" and not math.isnan(sample.value)
        }

    def used(self) -> Lines:
        return self.lines("budget_used_ratio", "org", "app", "budget")


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock(1_768_000_000_000)
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path / "data")
    async with open_services(settings, clock=clock) as services:
        yield World(services, clock)


async def test_what_is_held_used_and_unsettled_is_shown_by_name(at: World) -> None:
    """Each step of a call shows, for the organisation and its app."""
    app = await at.client("Acme")
    granted = await at.services.authorizations.authorize(app, CALL)
    held = granted.authorization.grant.held_usd_picos
    await at.refresh()
    share = held / (LIMIT_MICROS * 1_000_000)
    assert at.used() == pytest.approx(
        {("Acme", "", "daily"): share, ("Acme", "Web", "daily"): share}
    )
    assert at.lines("held_usd", "org", "app", "label") == {
        ("Acme", "Web", "premium"): pytest.approx(held / 1e12)
    }
    assert at.lines("unsettled_usd", "org") == {}
    assert at.lines("budget_limit_usd", "org_id", "app_id", "window") == {
        (app.org_id, "", "DAY"): 2.0,
        (app.org_id, "web", "DAY"): 2.0,
    }

    at.clock.advance_ms(901_000)
    await at.services.authorizations.expiry.expire_due()
    await at.refresh()
    assert at.lines("held_usd", "org") == {}
    assert at.lines("unsettled_usd", "org", "app", "label") == {
        ("Acme", "Web", "premium"): pytest.approx(held / 1e12)
    }

    usage = Usage(request_id="", model_label="", input_tokens=0, output_tokens=0)
    await at.services.authorizations.capture(app, granted.authorization.shown_id, usage)
    await at.refresh(app.org_id)
    assert at.lines("unsettled_usd", "org") == {}
    assert set(at.used().values()) == {0.0}


async def test_only_who_is_active_is_looked_at(at: World) -> None:
    """An unused account has no line, and an idle organisation costs nothing."""
    busy, idle = await at.client("Busy"), await at.client("Idle")
    record = Usage(
        request_id=str(uuid.uuid4()), model_label="premium", input_tokens=1, output_tokens=1
    )
    await at.services.metering.record(busy, record)
    await at.refresh(busy.org_id, idle.org_id)
    assert {org for org, _, _ in at.used()} == {"Busy"}
    before = sum(at.services.meter.calls.values())
    await at.refresh()
    assert at.used() == {}
    calls = sum(at.services.meter.calls.values()) - before
    await at.client("Idle too")
    before = sum(at.services.meter.calls.values())
    await at.refresh()
    assert sum(at.services.meter.calls.values()) - before == calls


async def test_there_is_a_bound_and_who_was_deleted_has_no_line(at: World) -> None:
    policies = [await at.client(f"Org {number}") for number in range(3)]
    for policy in policies:
        await at.services.authorizations.authorize(policy, CALL)
    await at.refresh(clients_max=3)
    assert len(at.used()) == 3
    await at.services.tenants.delete_org(policies[0].org_id, BY)
    await at.refresh(policies[0].org_id)
    assert {org for org, _, _ in at.used()} == {"Org 1", "Org 2"}


async def test_a_limit_of_nothing_is_no_ratio(at: World) -> None:
    nothing = {**DAILY, "limit_usd_micros": 0, "enforcement": "SOFT"}
    app = await at.client("Zero", budgets=[nothing])
    await at.services.authorizations.authorize(app, CALL)
    await at.refresh()
    assert ("Zero", "", "daily") not in at.used()
    assert at.lines("budget_limit_usd", "org", "app")["Zero", ""] == 0
