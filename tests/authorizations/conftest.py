"""What the tests of authorizations share: every store, a clock to set, policies and instances."""

import random
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from metering.conftest import CATALOGUE, LABELS, PREMIUM, a_policy
from pricekeeper.audit import AuditTrail
from pricekeeper.authorizations import (
    Authorization,
    AuthorizationRequest,
    Authorizations,
    Authorized,
)
from pricekeeper.authorizations.recording import CaptureAnswer
from pricekeeper.clock import Clock
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.log import SHEETS_MAX
from pricekeeper.ledger.recounting import Recounts
from pricekeeper.limiter import Limiter
from pricekeeper.metering import Metering, Recorded, Usage, WindowSpend
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import Selector
from pricekeeper.storage import Store
from pricekeeper.tenants import Budget, Policy, QuotaEnforcement, Tenants, Window
from selection.conftest import NOON_MS, SettableClock
from stores import location, meter, store

__all__ = ["location", "meter", "store"]

USD = 1_000_000


@pytest.fixture
def table_prefix() -> str:
    """Tables of each test's own: a sweep looks at everything that is there."""
    return f"authorizations-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON_MS)


class Instance:
    """One instance of the service: everything that an authorization needs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seed: int | None = None,
        trail: AuditTrail | None = None,
        sheets_max: int = SHEETS_MAX,
    ) -> None:
        randomness = random.Random(seed) if seed is not None else None
        prices = PriceBook(store, clock, CATALOGUE)
        measure = WindowSpend(store, clock).read_spend
        self.ledger = Ledger(store, clock, measure, randomness=randomness, sheets_max=sheets_max)
        tenants = Tenants(store, clock, LABELS)
        self.recounts = Recounts(store, clock, tenants, measure, self.ledger)
        self.metering = Metering(store, clock, prices, ledger=self.ledger, randomness=randomness)
        self.selection = Selector(store, clock, self.metering, prices)
        self.limiter = Limiter(store, clock=clock, jitter=self.ledger.random.randrange)
        self.authorizations = Authorizations(
            store,
            clock,
            metering=self.metering,
            prices=prices,
            selection=self.selection,
            ledger=self.ledger,
            tokens=self.limiter.taker,
            trail=trail,
        )

    async def close(self) -> None:
        await self.authorizations.close()
        await self.metering.close()

    async def authorize(self, policy: Policy, **changes: Any) -> Authorized:
        return await self.authorizations.authorize(policy, a_request(**changes))

    async def capture(self, policy: Policy, authorization_id: str, **changes: Any) -> CaptureAnswer:
        return await self.authorizations.capture(policy, authorization_id, a_capture(**changes))

    def begin_capture(
        self,
        policy: Policy,
        authorization: Authorization,
        on_failure: Callable[[BaseException], None],
        **changes: Any,
    ) -> int | None:
        usage = a_capture(**changes)
        return self.authorizations.recording.begin_capture(policy, authorization, usage, on_failure)

    async def void(self, policy: Policy, authorization_id: str) -> None:
        await self.authorizations.void(policy, authorization_id, None)

    async def extend(self, policy: Policy, authorization_id: str, secs: int) -> Authorization:
        return await self.authorizations.extend(policy, authorization_id, secs)

    async def record(self, policy: Policy, usage: Usage) -> Recorded:
        return await self.authorizations.recording.record(policy, usage)


def a_request(**changes: Any) -> AuthorizationRequest:
    fields = {"input_tokens": 1_000, "max_output_tokens": 1_000, "model": PREMIUM, **changes}
    return AuthorizationRequest(**fields)


def a_capture(**changes: Any) -> Usage:
    fields = {"input_tokens": 1_000, "output_tokens": 500, **changes}
    return Usage(request_id="", model_label="", **fields)


HELD_USD_PICOS = 1_000 * 3_000_000 + 1_000 * 15_000_000
"""What that request holds."""
COST_USD_PICOS = 1_000 * 3_000_000 + 500 * 15_000_000
"""What that capture costs."""


def a_budget(limit_usd_micros: int = USD, **changes: Any) -> Budget:
    fields: dict[str, Any] = {"name": "daily", "window": Window.DAY, **changes}
    return Budget(limit_usd_micros=limit_usd_micros, **fields)


def a_strict_policy(**changes: Any) -> Policy:
    return a_policy(quota_enforcement=QuotaEnforcement.STRICT, **changes)


@pytest.fixture
async def instance(store: Store, clock: SettableClock) -> AsyncIterator[Instance]:
    made = Instance(store, clock)
    yield made
    await made.close()
