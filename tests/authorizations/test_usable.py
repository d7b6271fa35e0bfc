"""A budget is usable: holds of cheap calls come back before any caller is finally denied.

Thirty-two callers request answers fifty times as long as they get. A few holds fill the budget, so
most callers are denied most of the time, temporarily. They retry when another call has ended. The
first final denial comes when the budget is nearly spent.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from authorizations.conftest import Instance, a_budget, a_strict_policy
from metering.conftest import LABELS, PREMIUM, STANDARD, a_policy
from pricekeeper.budgets import Balance, accounts_for
from pricekeeper.errors import AuthorizationDeniedError
from pricekeeper.settings import DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.tenants import Policy, RateLimit, Window
from selection.conftest import SettableClock

CALLERS = 32
USED_TOKENS, ASKED_TOKENS = 40, 2_000
CALL_USD_MICROS = 1_000 * 3 + USED_TOKENS * 15
BUDGET_USD_MICROS = 100 * CALL_USD_MICROS
SPENT_PCT = 95
PATIENCE_SECS = 60


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    if request.param == "sqlite-file":
        return SqliteLocation(str(tmp_path / "store.db"))
    endpoint: str = request.getfixturevalue("dynoxide")
    return DynamoDbLocation("us-east-1", table_prefix, endpoint)


@pytest.fixture
async def store(location: StoreLocation, clock: SettableClock) -> AsyncIterator[Store]:
    opened = await open_store(location, clock=clock)
    await opened.create_tables()
    yield opened
    await opened.close()


class Crowd:
    """Callers that share a budget, and what they have seen."""

    def __init__(self, instances: list[Instance], policy: Policy, at_ms: int) -> None:
        self.instances = instances
        self.policy = policy
        (self.account,) = (
            one for one in accounts_for(policy, PREMIUM, {}, at_ms) if one.name == "scarce"
        )
        self.random = Random(1)
        self.ended = 0
        """How many calls have ended."""
        self.news = asyncio.Condition()
        self.denied_for_now = 0
        self.at_first_final: Balance | None = None

    async def run(self) -> None:
        async with asyncio.timeout(PATIENCE_SECS):
            await asyncio.gather(*(self.call_on_and_on(n) for n in range(CALLERS)))

    async def call_on_and_on(self, number: int) -> None:
        """Call until one is finally denied."""
        instance = self.instances[number % len(self.instances)]
        while True:
            seen = self.ended
            try:
                granted = await instance.authorize(
                    self.policy,
                    max_output_tokens=ASKED_TOKENS,
                    allow_lower_max_output=True,
                )
            except AuthorizationDeniedError as denied:
                if any(one.retry_after_ms is None for one in denied.denied_by):
                    await self.note_final()
                    return
                self.denied_for_now += 1
                async with self.news:
                    await self.news.wait_for(lambda: self.ended > seen)  # noqa: B023
                continue
            for _ in range(self.random.randrange(20)):  # the call takes its time
                await asyncio.sleep(0)
            grant = granted.authorization.grant
            await instance.capture(
                self.policy,
                granted.authorization.id,
                output_tokens=min(USED_TOKENS, grant.max_output_tokens),
            )
            async with self.news:
                self.ended += 1
                self.news.notify_all()

    async def note_final(self) -> None:
        balance = (await self.instances[0].ledger.read([self.account]))[self.account]
        assert balance.used <= self.account.limit_usd_picos
        if self.at_first_final is None:
            self.at_first_final = balance


@pytest.mark.parametrize("instances", [1, 3])
async def test_all_but_a_twentieth_is_spent_before_the_first_final_denial(
    store: Store, clock: SettableClock, instances: int
) -> None:
    """Whether the callers share an instance or have three."""
    limits = {"*": {"rpm": RateLimit(100_000, 10, 1_000), "tpm": RateLimit(10_000_000, 10, 1_000)}}
    policy = a_strict_policy(
        quotas=dict.fromkeys(LABELS, 2 * BUDGET_USD_MICROS),
        budgets=(a_budget(3 * BUDGET_USD_MICROS),),
        org_budgets=(a_budget(BUDGET_USD_MICROS, name="scarce", window=Window.MONTH),),
        rate_limits=limits,
        org_rate_limits=limits,
    )
    crowd = Crowd([Instance(store, clock) for _ in range(instances)], policy, clock.now_ms())
    await crowd.run()
    limit = crowd.account.limit_usd_picos
    assert crowd.at_first_final is not None
    assert crowd.at_first_final.spent >= limit * SPENT_PCT // 100
    assert crowd.denied_for_now > CALLERS
    for instance in crowd.instances:
        await instance.close()
    after = (await crowd.instances[0].ledger.read([crowd.account]))[crowd.account]
    assert (after.held, after.unsettled) == (0, 0)
    assert after.spent >= limit * SPENT_PCT // 100


async def test_a_denial_that_a_capture_would_lift_says_so_whichever_label_it_frees(
    store: Store, clock: SettableClock
) -> None:
    """The first label is spent for the day; the second is only held, and that is what counts."""
    instance = Instance(store, clock)
    policy = a_policy(
        model_ordering=(PREMIUM, STANDARD),
        budgets=(
            a_budget(2_000, name="first", labels=(PREMIUM,)),
            a_budget(5_000, name="second", labels=(STANDARD,)),
        ),
    )
    holder = await instance.authorize(policy, model=STANDARD)
    with pytest.raises(AuthorizationDeniedError) as denied:
        await instance.authorize(policy, model=PREMIUM, fallback=True)
    assert [one.name for one in denied.value.denied_by] == ["second"]
    assert denied.value.retry_after_ms(clock.now_ms()) == 1_000
    await instance.capture(policy, holder.authorization.id, input_tokens=1, output_tokens=1)
    granted = await instance.authorize(policy, model=PREMIUM, fallback=True)
    assert granted.authorization.grant.terms.label == STANDARD
    await instance.close()
