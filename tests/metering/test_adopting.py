"""Adopting the usage of another service: what is taken, and what is left unchanged."""

from random import Random

import pytest

from memory_store import MemoryStore
from metering.conftest import COST_USD_PICOS, DAY_MS, PREMIUM, QuickClock, a_policy, a_usage, stored
from metering.other_service import SHARDS, OtherService
from metering.test_posting import clock, memory, metering
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering import Account, Aggregator, Metering, org_day
from pricekeeper.metering.adopting import UsageAdopter
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.items import fold_from, total_key
from pricekeeper.storage import Put
from pricekeeper.storage.tables import DAILY_TOTAL
from pricekeeper.storage.typed_items import StrangeItems
from pricekeeper.tenants import Policy
from stored_items import daily_total

__all__ = ["clock", "memory", "metering"]
ONE = Counters(2_000_000, 3, 4, requests=1)


@pytest.fixture
def elsewhere(clock: QuickClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def other(elsewhere: MemoryStore) -> OtherService:
    return OtherService(elsewhere, Random(1))


@pytest.fixture
def adopter(elsewhere: MemoryStore, memory: MemoryStore, clock: QuickClock) -> UsageAdopter:
    return UsageAdopter(elsewhere, memory, clock)


@pytest.fixture
def account(clock: QuickClock, policy: Policy) -> Account:
    return Account(policy.scope_key, PREMIUM, org_day("UTC", clock.now_ms()))


async def test_each_counter_is_the_larger_of_total_and_shards(
    other: OtherService, adopter: UsageAdopter, memory: MemoryStore, account: Account
) -> None:
    """Its aggregation may be behind its shards, and its shards may have expired."""
    for _ in range(10):
        await other.count(account, ONE)
    await other.put_total(account, Counters(19_000_000, 31, 39, requests=10))
    adopted = await adopter.adopt(account.scope_key, account.label, SHARDS)
    assert (adopted.accounts, adopted.changed) == (1, 1)
    fold = fold_from(await memory.get(*total_key(account)))
    assert fold.adopted == fold.total == Counters(20_000_000, 31, 40, requests=10)


async def test_an_adopted_total_is_complete_up_to_no_later_moment(
    other: OtherService,
    adopter: UsageAdopter,
    metering: Metering,
    memory: MemoryStore,
    clock: QuickClock,
    policy: Policy,
    account: Account,
) -> None:
    """Records that are counted here and not folded yet would be missing from answers."""
    await metering.record(policy, a_usage())
    await other.count(account, ONE)
    await adopter.adopt(account.scope_key, account.label, SHARDS)
    assert (await stored(memory, policy, account.day)).as_of_ms == 0
    assert (await Aggregator(memory, clock).run_once()).failed == 0
    folded = await stored(memory, policy, account.day)
    assert (folded.requests, folded.cost_usd_picos) == (2, COST_USD_PICOS + 2_000_000)
    clock.advance_ms(60_000)
    await other.count(account, ONE)
    await adopter.adopt(account.scope_key, account.label, SHARDS)
    total = await stored(memory, policy, account.day)
    assert (total.requests, total.as_of_ms) == (3, folded.as_of_ms)


async def test_expired_days_and_strange_items_are_left_out(
    other: OtherService,
    adopter: UsageAdopter,
    elsewhere: MemoryStore,
    memory: MemoryStore,
    clock: QuickClock,
    account: Account,
) -> None:
    """A day that is no longer kept is not adopted; an item of no day is reported."""
    old = account._replace(day=org_day("UTC", clock.now_ms() - 100 * DAY_MS))
    for one in (account, old):
        await other.count(one, ONE)
    nothing = {"PK": account.partition, "SK": "DAY#nothing", "requests": 5}
    await elsewhere.put(Put(DAILY_TOTAL, nothing))
    with StrangeItems() as strange:
        adopted = await adopter.adopt(account.scope_key, account.label, SHARDS)
    assert (adopted.accounts, adopted.cost_usd_picos) == (1, 2_000_000)
    assert strange.counts == {"DailyTotal": 1}
    assert await memory.get(*total_key(old)) is None


@pytest.mark.parametrize(
    "missing", ["cost_usd_micros", "input_tokens", "output_tokens", "requests"]
)
async def test_a_missing_counter_is_not_zero(
    adopter: UsageAdopter,
    elsewhere: MemoryStore,
    memory: MemoryStore,
    account: Account,
    missing: str,
) -> None:
    """Nothing of the account is adopted."""
    table, item = daily_total(account.scope_key, account.label, account.day)
    del item[missing]
    await elsewhere.put(Put(table, item))
    with pytest.raises(UnreadableItemError):
        await adopter.adopt(account.scope_key, account.label, SHARDS)
    assert await memory.get(*total_key(account)) is None


async def test_another_scope_is_not_adopted(
    other: OtherService, adopter: UsageAdopter, account: Account
) -> None:
    """Only the scope and label that were named."""
    await other.count(Account(a_policy().scope_key, PREMIUM, account.day), ONE)
    assert (await adopter.adopt(account.scope_key, account.label, SHARDS)).accounts == 0
