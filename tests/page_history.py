"""A deployment with some days behind it, for the page to show: three companies in three zones.

The days are lived through a real service on a clock that is moved, so every total, budget and flip
is what the service made of it. What is served to a browser later is the same store, on the real
clock.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from http_fixtures import ENVIRONMENT, Api
from minting import minted
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Aggregator
from pricekeeper.settings import read_settings
from pricekeeper.storage import open_store
from pricekeeper.testing.serving import running_service
from spend_world import DAY_MS, HOUR_MS, MovedClock

DAYS = 9
SEED = 20_260_117
USD = 1_000_000
_MINUTE_MS = 60_000


class PastClock(MovedClock):
    """A clock that begins some days ago, and whose time still only grows."""

    def monotonic_ms(self) -> int:
        return self.at_ms


@dataclass(frozen=True)
class App:
    """An app: how much of a day it calls, with how many tokens, and on which models."""

    app_id: str
    name: str
    calls: int
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    labels: dict[str, int]
    hours: range
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Company:
    """An organisation and its apps."""

    org_id: str
    name: str
    zone: str
    apps: tuple[App, ...]
    settings: dict[str, Any]


def _budget(name: str, window: str, usd: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "window": window, "limit_usd_micros": int(usd * USD), **more}


def _limits(rpm: int, tpm: int) -> dict[str, Any]:
    return {
        "*": {
            "rpm": {"capacity": rpm, "refill_amount": rpm, "refill_period_ms": 60_000},
            "tpm": {"capacity": tpm, "refill_amount": tpm, "refill_period_ms": 60_000},
        }
    }


COMPANIES = (
    Company(
        "5a7e1c90-6f1d-4b52-9a41-0d5c2f8e7b31",
        "Larkspur Outfitters",
        "America/New_York",
        (
            App("support-chat", "Support chat", 80, (600, 6_000), (150, 900),
                {"premium": 3, "standard": 5, "economy": 2}, range(11, 24),
                {"budgets": [_budget("chat-daily", "DAY", 1.5)]}),
            App("code-review", "Code review", 50, (3_000, 26_000), (200, 1_800),
                {"premium": 7, "standard": 3}, range(12, 23)),
            App("night-reports", "Night reports", 30, (9_000, 42_000), (800, 2_600),
                {"standard": 6, "economy": 4}, range(3, 9)),
        ),
        {
            "quotas": {"premium": 6 * USD, "standard": 4 * USD, "economy": 2 * USD},
            "tag_keys": ["team", "feature"],
            "rate_limits": _limits(120, 400_000),
            "budgets": [
                _budget("monthly", "MONTH", 95, alert_at_pct=[50, 80, 100]),
                _budget("team-weekly", "WEEK", 11, per_tag="team"),
                _budget("premium-daily", "DAY", 4, labels=["premium"]),
            ],
            "quota_enforcement": "STRICT",
        },
    ),
    Company(
        "c0b4d2e7-13a8-4c6f-8b25-9e1f7a3d5064",
        "Fjord Analytics",
        "Europe/Oslo",
        (
            App("forecaster", "Forecaster", 60, (4_000, 30_000), (400, 2_400),
                {"premium": 4, "standard": 6}, range(6, 17)),
            App("translator", "Translator", 70, (300, 2_400), (200, 1_900),
                {"economy": 9, "standard": 1}, range(5, 20)),
        ),
        {
            "quotas": {"premium": 5 * USD, "standard": 5 * USD, "economy": USD},
            "tag_keys": ["team"],
            "rate_limits": _limits(60, 250_000),
            "budgets": [
                _budget("monthly", "MONTH", 160),
                _budget("daily", "DAY", 7, enforcement="SOFT"),
            ],
        },
    ),
    Company(
        "8d3f6a15-42c9-4e07-b1d8-6c90e5f2a7b4",
        "Kestrel Labs",
        "Asia/Kolkata",
        (
            App("tutor", "Tutor <beta>", 40, (500, 5_000), (300, 2_000),
                {"standard": 3, "economy": 7}, range(4, 16)),
        ),
        {
            "quotas": {"premium": 3 * USD, "standard": 2 * USD, "economy": USD},
            "budgets": [_budget("monthly", "MONTH", 30)],
        },
    ),
)  # fmt: skip
TEAMS = ("retail", "platform", "growth")
FEATURES = ("search", "reply", "summary", "review")


@dataclass
class History:
    """The history, and the credentials that belong to it."""

    folder: Path
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    @property
    def description(self) -> dict[str, Any]:
        """What a browser's tests have to know of it."""
        companies = [
            {"org_id": one.org_id, "name": one.name, "zone": one.zone,
             "apps": [app.app_id for app in one.apps]}
            for one in COMPANIES
        ]  # fmt: skip
        return {"companies": companies, "secrets": self.secrets}


def live_through(folder: Path, days: int = DAYS) -> History:
    """Let some days pass, up to this moment."""
    made = History(folder)
    environment = {
        **ENVIRONMENT,
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
        "PRICEKEEPER_STORE": made.store,
        "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS": "1",
        "PRICEKEEPER_LOG_LEVEL": "error",
    }
    end_ms = SystemClock().now_ms()
    clock = PastClock(end_ms - days * DAY_MS)
    dice = random.Random(SEED)
    with running_service(read_settings(environment), clock) as url:
        api = Api(url)
        for company in COMPANIES:
            _register(api, company, made.secrets)
        for until_ms in range(end_ms - (days - 1) * DAY_MS, end_ms + 1, DAY_MS):
            clock.at_ms = until_ms
            for company in COMPANIES:
                _live_a_day(api, company, made.secrets, until_ms, dice)
    asyncio.run(_aggregate(made, clock))
    return made


async def _aggregate(made: History, clock: MovedClock) -> None:
    """Fold everything into totals, as the service would within a minute."""
    settings = read_settings({**ENVIRONMENT, "PRICEKEEPER_STORE": made.store})
    store = await open_store(settings.store, clock=clock)
    try:
        report = await Aggregator(store, clock).run_once()
        assert not report.failed, report.errors
    finally:
        await store.close()


def _register(api: Api, company: Company, secrets: dict[str, str]) -> None:
    path = f"/api/v1/orgs/{company.org_id}"
    body = {
        "org_name": company.name,
        "timezone": company.zone,
        "quota_scope": "APP",
        "model_ordering": ["premium", "standard", "economy"],
        **company.settings,
    }
    bodies = [(path, body)]
    bodies += (
        (f"{path}/apps/{app.app_id}", {"app_name": app.name, **app.settings})
        for app in company.apps
    )
    for where, what in bodies:
        reply = api.provision("PUT", where, what)
        assert reply.status == 201, reply.data
        token = reply.json["secret_retrieval"]["token"]
        claimed = api.call("POST", "/api/v1/credentials/claim", {"token": token}).json
        secrets[claimed["client_id"]] = claimed["client_secret"]


def _live_a_day(
    api: Api, company: Company, secrets: dict[str, str], until_ms: int, dice: random.Random
) -> None:
    """The calls of the day up to that moment, reported by the organisation for its apps."""
    client_id = f"org-{company.org_id}"
    granted = api.call(
        "POST",
        "/auth/token",
        {"grant_type": "client_credentials", "client_id": client_id,
         "client_secret": secrets[client_id]},
    )  # fmt: skip
    token = granted.json["access_token"]
    for app in company.apps:
        records = sorted(_records(company, app, until_ms, dice), key=lambda one: one["timestamp"])
        path = f"/api/v1/orgs/{company.org_id}/apps/{app.app_id}/usage/batch"
        reply = api.call("POST", path, {"requests": records}, token=token)
        assert (reply.status, reply.json["failed"]) == (207, 0), reply.data


def _records(
    company: Company, app: App, until_ms: int, dice: random.Random
) -> Iterator[dict[str, Any]]:
    since_ms = until_ms - DAY_MS + _MINUTE_MS
    labels, weights = list(app.labels), list(app.labels.values())
    for _ in range(dice.randint(app.calls * 2 // 3, app.calls)):
        at_ms = _moment(app, since_ms, until_ms, dice)
        tokens = dice.randint(*app.input_tokens)
        yield {
            "request_id": minted(at_ms, dice),
            "timestamp": datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "model_label": dice.choices(labels, weights)[0],
            "input_tokens": tokens,
            "output_tokens": dice.randint(*app.output_tokens),
            "cache_read_tokens": dice.choice((0, 0, tokens // 2)),
            "cache_write_5m_tokens": dice.choice((0, 0, 0, tokens // 4)),
            "status": "ERROR" if dice.random() < 0.02 else "OK",
            "tags": {"team": dice.choice(TEAMS), "feature": dice.choice(FEATURES)},
        }


def _moment(app: App, since_ms: int, until_ms: int, dice: random.Random) -> int:
    """A moment of the stretch at one of the hours at which the app is busy, if there is one."""
    for _ in range(20):
        at_ms = dice.randrange(since_ms, until_ms)
        if at_ms // HOUR_MS % 24 in app.hours:
            return at_ms
    return at_ms
