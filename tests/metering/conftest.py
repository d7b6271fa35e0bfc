"""Fixtures of metering: every store, new organisations, and records."""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from pricekeeper.clock import Clock, ManualClock
from pricekeeper.metering import (
    Account,
    AggregationReport,
    Aggregator,
    Metering,
    Recorded,
    Refused,
    Total,
    Usage,
    org_day,
)
from pricekeeper.metering.items import total_from, total_key
from pricekeeper.pricing import Catalogue, Model, ModelRef, PriceBook, normalise_model_id
from pricekeeper.pricing.prices import RateCard
from pricekeeper.storage import Store
from pricekeeper.tenants import Client, Policy, QuotaScope
from pricekeeper.values import AppId, ModelLabel, OrgId
from stores import ShiftedClock, location, meter, store

__all__ = ["location", "meter", "store"]

PREMIUM, STANDARD, ECONOMY = map(ModelLabel, ("premium", "standard", "economy"))
LABELS = (PREMIUM, STANDARD, ECONOMY)
APP = AppId("api")
DAY_MS = 86_400_000


def _model(label: ModelLabel, model_id: str, card: RateCard) -> Model:
    ref = normalise_model_id(model_id)
    assert isinstance(ref, ModelRef)
    return Model(
        label=label,
        bedrock_model_id=model_id,
        ref=ref,
        family="claude",
        tier=label,
        description=label,
        default_pricing=card,
    )


CATALOGUE = Catalogue(
    {
        PREMIUM: _model(
            PREMIUM,
            "anthropic.claude-3-5-sonnet-20241022-v2:0",
            RateCard(
                input=3_000_000,
                output=15_000_000,
                cache_read=300_000,
                cache_write_5m=3_750_000,
                cache_write_1h=6_000_000,
            ),
        ),
        STANDARD: _model(
            STANDARD,
            "anthropic.claude-3-5-haiku-20241022-v1:0",
            RateCard(input=800_000, output=4_000_000),
        ),
        # A price that is no multiple of anything: every token leaves a fraction of a micro-dollar.
        ECONOMY: _model(ECONOMY, "amazon.nova-micro-v1:0", RateCard(input=35_001, output=140_003)),
    },
    "a test",
)


def new_org_id() -> OrgId:
    return OrgId(str(uuid.uuid4()))


def a_policy(app_id: AppId | None = APP, **changes: Any) -> Policy:
    """An app's policy; of a new organisation unless told."""
    org_id = changes.pop("org_id", None) or new_org_id()
    policy = Policy(
        client=Client(org_id, app_id),
        org_name="Sample",
        app_name=app_id,
        timezone="UTC",
        quota_scope=QuotaScope.APP,
        model_ordering=LABELS,
        quotas=dict.fromkeys(LABELS, 10_000_000),
        sticky_fallback_enabled=True,
        agg_shard_count=8,
        tight_mode_threshold_pct=95,
        refresh_interval_normal_secs=300,
        refresh_interval_tight_secs=60,
        session_limit=5,
        rate_limits={},
        org_rate_limits={},
        inherited_fields=(),
        created_at_epoch=0,
        updated_at_epoch=0,
        token_generation="g",
        tokens_valid_from_epoch_ms=0,
        incarnation="life-1",
        org_incarnation="life-1",
    )
    return dataclasses.replace(policy, **changes)


def a_usage(request_id: str | None = None, **changes: Any) -> Usage:
    """A new record, or one with this id."""
    fields: dict[str, Any] = {
        "model_label": PREMIUM,
        "input_tokens": 1_000,
        "output_tokens": 500,
        **changes,
    }
    return Usage(request_id=request_id or str(uuid.uuid4()), **fields)


COST_USD_PICOS = 1_000 * 3_000_000 + 500 * 15_000_000
"""What that record costs."""


@pytest.fixture
def table_prefix() -> str:
    """Tables of each test's own: an aggregator looks at everything that is there."""
    return f"metering-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def clock() -> ShiftedClock:
    """Real time, moved to noon, so that no test meets midnight unless it means to."""
    clock = ShiftedClock()
    since_noon_ms = (clock.now_ms() - DAY_MS // 2) % DAY_MS
    clock.shift_ms = DAY_MS - since_noon_ms
    return clock


class QuickClock(ManualClock):
    """Pauses take no real time; ``paused_ms`` are those that were asked for."""

    def __init__(self, *now_ms: int) -> None:
        super().__init__(*now_ms)
        self.paused_ms: list[int] = []

    async def sleep_ms(self, duration_ms: int) -> None:
        self.paused_ms.append(duration_ms)
        await asyncio.sleep(0)


def today(clock: Clock, zone: str = "UTC") -> str:
    return org_day(zone, clock.now_ms())


async def stored(store: Store, policy: Policy, day: str, label: str = PREMIUM) -> Total:
    return total_from(await store.get(*total_key(Account(policy.scope_key, label, day))))


def told(answer: Recorded | Refused) -> str:
    """Its outcome, or why it was refused."""
    return answer.outcome.value if isinstance(answer, Recorded) else answer.code


MeteringMaker: TypeAlias = Callable[[Store, Clock], Metering]


@pytest.fixture
async def new_metering() -> AsyncIterator[MeteringMaker]:
    """Instances of the service, closed when the test is over."""
    made: list[Metering] = []

    def make(store: Store, clock: Clock) -> Metering:
        made.append(Metering(store, clock, PriceBook(store, clock, CATALOGUE)))
        return made[-1]

    yield make
    for metering in made:
        await metering.close()


@pytest.fixture
def metering(new_metering: MeteringMaker, store: Store, clock: ShiftedClock) -> Metering:
    return new_metering(store, clock)


@pytest.fixture
def policy() -> Policy:
    return a_policy()


@dataclass
class World:
    """A store, an instance on it, and a client that reports to it."""

    store: Store
    clock: ShiftedClock
    metering: Metering
    policy: Policy

    async def record(self, usage: Usage | None = None) -> Recorded:
        return await self.metering.record(self.policy, usage or a_usage())

    async def aggregate(self) -> AggregationReport:
        return await Aggregator(self.store, self.clock).run_once()

    async def stored(self, day: str) -> Total:
        return await stored(self.store, self.policy, day)


@pytest.fixture
def world(store: Store, clock: ShiftedClock, metering: Metering, policy: Policy) -> World:
    return World(store, clock, metering, policy)
