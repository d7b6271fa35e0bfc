"""What an authorized call costs in DynamoDB's units, as documented in docs/costs.md.

Counted by dynoxide, which sums the capacity of transactions as DynamoDB does. The chain is an app
with a strict quota for the day, an organisation with a budget for the month, and requests and
tokens a minute on both.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from authorizations.conftest import Instance, a_budget
from metering.conftest import LABELS, a_policy
from metering.test_costs import StillClock, read_units, write_units
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Policy, QuotaEnforcement, RateLimit, Window

LIMITS = {"*": {"rpm": RateLimit(10**6, 10**6, 60_000), "tpm": RateLimit(10**9, 10**9, 60_000)}}


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
async def store(
    dynoxide: str, table_prefix: str, clock: StillClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    location = DynamoDbLocation("us-east-1", table_prefix, dynoxide)
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    yield opened
    await opened.close()


@pytest.fixture
def policy() -> Policy:
    return a_policy(
        quota_enforcement=QuotaEnforcement.STRICT,
        quotas=dict.fromkeys(LABELS, 10**9),
        org_budgets=(a_budget(10**10, name="monthly", window=Window.MONTH),),
        rate_limits=LIMITS,
        org_rate_limits=LIMITS,
    )


@pytest.fixture
async def instance(
    store: Store, clock: StillClock, meter: StoreMeter, policy: Policy
) -> AsyncIterator[Instance]:
    """An instance that has authorized and captured such a call before, in this tick."""
    made = Instance(store, clock)
    for _ in range(2):
        granted = await made.authorize(policy)
        await made.capture(policy, granted.authorization.id)
    await made.authorizations.close()  # the buckets are settled after the answer
    meter.clear()
    yield made
    await made.close()


async def test_an_authorized_call_alone(
    instance: Instance, meter: StoreMeter, policy: Policy
) -> None:
    """Each item of a transaction is two units; the buckets are settled by a plain write each."""
    granted = await instance.authorize(policy)
    assert (write_units(meter), read_units(meter)) == (10, 0)
    meter.clear()
    await instance.capture(policy, granted.authorization.id)
    await instance.authorizations.close()
    assert (write_units(meter), read_units(meter)) == (10, 1)


async def test_authorized_calls_share_their_transactions(
    instance: Instance, meter: StoreMeter, policy: Policy
) -> None:
    """Forty at once: what is left is the item of each authorization, written twice."""
    granted = await asyncio.gather(*(instance.authorize(policy) for _ in range(40)))
    authorized = write_units(meter) / 40
    meter.clear()
    await asyncio.gather(*(instance.capture(policy, one.authorization.id) for one in granted))
    await instance.authorizations.close()
    captured = write_units(meter) / 40
    assert authorized <= 2.5
    assert captured <= 2.8, captured
