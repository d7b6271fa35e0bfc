"""What an authorized call costs in DynamoDB's units, as documented in docs/costs.md.

Counted by dynoxide, which sums the capacity of transactions as DynamoDB does. The app has a strict
quota for the day, its organisation a budget for the month, and both have requests and tokens a
minute: two items of accounts and two buckets.
"""

import asyncio
import dataclasses
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from authorizations.conftest import USD, Instance, a_budget, a_strict_policy
from metering.conftest import LABELS, a_policy, a_usage
from metering.test_costs import StillClock, read_units, write_units
from minting import minted
from pricekeeper.authorizations import Authorization
from pricekeeper.authorizations.items import sheet_key
from pricekeeper.authorizations.pace import LOOK_EVERY
from pricekeeper.budgets import Recounts
from pricekeeper.metering import WindowSpend
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, Write, open_store
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import item_bytes
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Policy, RateLimit, Tenants, Window
from pricekeeper.tenants.recounts import Recount, recount_put
from pricekeeper.values import AppId


class TimelessClock(StillClock):
    """Transactions take no time, however busy the machine is: nobody looks for others then."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return 0


@pytest.fixture
def clock() -> StillClock:
    return TimelessClock()


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
async def instance(store: Store, clock: StillClock) -> AsyncIterator[Instance]:
    made = Instance(store, clock, seed=1)
    yield made
    await made.close()


@pytest.fixture
async def known(instance: Instance, meter: StoreMeter) -> Policy:
    """A policy that this process has authorized for before, in this tick."""
    limits = {
        "*": {"rpm": RateLimit(60_000, 60_000, 60_000), "tpm": RateLimit(10**9, 10**9, 60_000)}
    }
    policy = a_strict_policy(
        quotas=dict.fromkeys(LABELS, 1_000 * USD),
        org_budgets=(a_budget(10_000 * USD, name="monthly", window=Window.MONTH),),
        rate_limits=limits,
        org_rate_limits=limits,
    )
    await call(instance, policy)
    await instance.close()
    meter.clear()
    return policy


async def call(instance: Instance, policy: Policy, **usage: int) -> None:
    made = await instance.authorize(policy)
    await instance.capture(policy, made.authorization.id, **usage)


async def test_alone(instance: Instance, known: Policy, meter: StoreMeter) -> None:
    """Two items of accounts, two buckets and the sheet: ten units, then six and two.

    The capture changes the accounts and the sheet, which the record is on, and gives tokens back to
    each bucket by itself.
    """
    made = await instance.authorize(known)
    await instance.authorizations.close()
    assert (write_units(meter), read_units(meter)) == (10, 0)
    meter.clear()
    await instance.capture(known, made.authorization.id)
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (6 + 2, 0)


@pytest.mark.parametrize("timed", [True, False])
async def test_an_id_of_the_callers_own_costs_the_place_that_it_takes(
    instance: Instance, known: Policy, meter: StoreMeter, clock: StillClock, timed: bool
) -> None:
    """Two units: on the page of such a usage record, or in place of its receipt."""
    asked_as = minted(clock.now_ms()) if timed else str(uuid.uuid4())
    await instance.authorize(known, authorization_id=asked_as)
    await instance.authorizations.close()
    await instance.capture(known, asked_as)
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (18 + 2, 0)


async def test_an_id_of_the_callers_own_is_looked_up_elsewhere(
    instance: Instance, known: Policy, store: Store, clock: StillClock, meter: StoreMeter
) -> None:
    """Whom it stands for, and the sheet."""
    other = Instance(store, clock, seed=2)
    first = await authorize_some(instance, known, 1)
    await other.capture(known, first[0].id)  # it knows accounts and marks now
    made = await instance.authorize(known, authorization_id=minted(clock.now_ms()))
    await instance.authorizations.close()
    await other.authorizations.close()
    meter.clear()
    await other.capture(known, made.authorization.shown_id)
    await other.close()
    assert (write_units(meter), read_units(meter)) == (8, 2)


async def test_a_capture_elsewhere_reads_the_authorization(
    instance: Instance, known: Policy, store: Store, clock: StillClock, meter: StoreMeter
) -> None:
    """At the instance that granted it, it is remembered."""
    other = Instance(store, clock, seed=2)
    for one in await authorize_some(instance, known, 2):
        meter.clear()
        await other.capture(known, one.id)
        await other.authorizations.close()
    await other.close()
    assert (write_units(meter), read_units(meter)) == (8, 1)


async def test_nothing_is_written_to_give_nothing_back(
    instance: Instance, known: Policy, meter: StoreMeter
) -> None:
    """A call that used what was taken for it leaves the buckets alone."""
    made = await instance.authorize(known)
    await instance.authorizations.close()
    meter.clear()
    await instance.capture(known, made.authorization.id, input_tokens=1_000, output_tokens=1_000)
    await instance.close()
    assert write_units(meter) == 6


async def test_without_budgets_and_limits_only_the_sheet_is_written(
    instance: Instance, meter: StoreMeter
) -> None:
    """Two units when it is granted, and two when it is captured."""
    policy = a_policy()
    await call(instance, policy)
    meter.clear()
    await call(instance, policy)
    await instance.close()
    assert write_units(meter) == 2 + 2


@pytest.mark.parametrize(("together", "units"), [(1, 12), (10, 3.6), (20, 3.1)])
async def test_under_load_calls_share_the_accounts_the_buckets_and_the_sheets(
    instance: Instance, known: Policy, meter: StoreMeter, together: int, units: float
) -> None:
    """As many begin and end in a transaction of 10 ms as do at 100, 1,000 and 2,000 a second.

    Those that end began at different times, so that each changes a sheet of its own: two units.
    """
    begun = [(await authorize_some(instance, known, 3))[0] for _ in range(together)]
    meter.clear()
    await begin_and_end(instance, known, begun)
    assert meter.calls["transact"] == 1
    assert (write_units(meter) / together, read_units(meter)) == (units, 0)


@pytest.mark.parametrize(("together", "units"), [(10, 2.4), (20, 1.8)])
async def test_calls_that_begin_and_end_together_share_their_sheets(
    instance: Instance, known: Policy, meter: StoreMeter, together: int, units: float
) -> None:
    """As calls of equal length do, and captures that a client sends in one request."""
    begun = await authorize_some(instance, known, together)
    meter.clear()
    await begin_and_end(instance, known, begun)
    assert (write_units(meter) / together, read_units(meter)) == (units, 0)


async def begin_and_end(instance: Instance, policy: Policy, begun: Sequence[Authorization]) -> None:
    authorized = await asyncio.gather(
        *(instance.authorize(policy) for _ in begun),
        *(instance.capture(policy, one.id) for one in begun),
    )
    await instance.close()
    assert len(authorized) == 2 * len(begun)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("long", [False, True])
async def test_a_full_sheet_is_one_unit_with_all_of_its_records(
    instance: Instance, known: Policy, store: Store, long: bool, named: bool
) -> None:
    """Three authorizations, or two under ids of their callers' own or where names are long."""
    policy = known
    if long:
        limit = RateLimit(10**9, 10**9, 60_000)
        policy = dataclasses.replace(
            known,
            client=known.client._replace(app_id=AppId("an-app-of-28-letters-exactly")),
            incarnation="0123456789abcdef",
            rate_limits={"*": {"rpm": limit, "tpm": limit}},
            org_rate_limits={"*": {"rpm": limit, "tpm": limit}},
        )
    names = [str(uuid.uuid4()) if named else None for _ in range(6)]
    made = await asyncio.gather(
        *(instance.authorize(policy, authorization_id=one, input_tokens=99_999) for one in names)
    )
    await instance.authorizations.close()
    for one in made:
        await instance.capture(
            policy, one.authorization.shown_id, input_tokens=98_765, output_tokens=999
        )
    found = Counter(sheet_key(policy.org_id, one.authorization.id) for one in made)
    assert sorted(found.values()) == ([2, 2, 2] if named or long else [3, 3])
    for key in found:
        sheet = await store.get(USAGE_AGG_SHARDED, key)
        assert sheet is not None
        assert item_bytes(sheet) <= 1024


async def test_either_step_alone_shares_them_as_well(
    instance: Instance, known: Policy, meter: StoreMeter
) -> None:
    """Forty at once: what is left is the sheets."""
    begun = await authorize_some(instance, known, 40)
    assert (write_units(meter) / 40, read_units(meter)) == (0.9, 0)
    meter.clear()
    await asyncio.gather(*(instance.capture(known, one.id) for one in begun))
    await instance.close()
    assert (write_units(meter) / 40, read_units(meter)) == (0.85, 0)


@pytest.mark.parametrize(("together", "units"), [(0, 0.5), (1, 0.25), (10, 0.025), (20, 0.0125)])
async def test_an_instance_that_meets_nobody_looks_for_others_now_and_then(
    instance: Instance,
    known: Policy,
    store: Store,
    clock: StillClock,
    meter: StoreMeter,
    monkeypatch: pytest.MonkeyPatch,
    together: int,
    units: float,
) -> None:
    """Once in sixteen transactions, if they take as long as DynamoDB's: accounts and buckets."""
    let_take(10, monkeypatch, store, clock)
    calls = 0
    begun = await authorize_some(instance, known, together)
    await instance.authorize(known)  # the first of those that take long
    await instance.authorizations.close()
    meter.clear()
    while meter.calls["transact"] < 2 * LOOK_EVERY:
        if together:
            captures = [instance.capture(known, one.id) for one in begun]
            begun, _ = await asyncio.gather(
                authorize_some(instance, known, together), asyncio.gather(*captures)
            )
            calls += together
        else:
            await call(instance, known)
            calls += 1
        await instance.authorizations.close()
    assert read_units(meter) / calls == units


async def test_a_usage_record_that_nobody_authorized_is_a_transaction_with_the_accounts(
    store: Store, clock: StillClock, known: Policy, meter: StoreMeter
) -> None:
    """Its page becomes two units, and so is each item of accounts."""
    instance = Instance(store, clock, seed=2)
    for _ in range(2):
        meter.clear()
        await instance.metering.record(known, a_usage(request_id=minted(clock.now_ms())))
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (2 + 2 * 2, 0)


async def authorize_some(instance: Instance, policy: Policy, count: int) -> list[Authorization]:
    made = await asyncio.gather(*(instance.authorize(policy) for _ in range(count)))
    await instance.authorizations.close()
    return [one.authorization for one in made]


def let_take(
    duration_ms: int, monkeypatch: pytest.MonkeyPatch, store: Store, clock: StillClock
) -> None:
    """Let a transaction take so long, and everything else no time."""
    transact, elapsed_ms = store.transact, 0

    async def take(operations: Sequence[Write]) -> None:
        nonlocal elapsed_ms
        await transact(operations)
        elapsed_ms += duration_ms

    async def sleep(_: int) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(store, "transact", take)
    monkeypatch.setattr(type(clock), "monotonic_ms", lambda _: elapsed_ms)
    monkeypatch.setattr(type(clock), "sleep_ms", lambda _, duration_ms: sleep(duration_ms))


@pytest.mark.parametrize(
    "row",
    [
        "alone | 18 | 0.5",
        "alone, nothing to give back | 16 | 0.5",
        "alone, no budget, no strict quota, no limit | 4 | 0",
        "100 a second, one instance | 12 | 0.25",
        "1,000 a second, one instance | 3.6 | 0.03",
        "2,000 a second, one instance | 3.1 | 0.01",
        "1,000 a second, calls of equal length | 2.4 | 0.03",
        "2,000 a second, calls of equal length | 1.8 | 0.01",
        "40 authorized at once, each | 0.9 | 0",
        "40 captured at once, each | 0.85 | 0",
    ],
)
def test_the_page_says_the_same(row: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "costs.md").read_text()
    assert f"| {row} |" in page


async def test_a_recount(
    instance: Instance, known: Policy, store: Store, clock: StillClock, meter: StoreMeter
) -> None:
    """Of one app in whose accounts nothing is missing: the claim, and when it is made again.

    It reads the note, the accounts twice, and of the journal two marks and a region.
    """
    policy = dataclasses.replace(known, budgets=(a_budget(),))
    await call(instance, policy)
    tenants = OneClient(store, clock, LABELS)
    tenants.policy = policy
    recounts = Recounts(store, clock, tenants, WindowSpend(store, clock).measure)
    await instance.close()
    meter.clear()
    assert await recounts.run_due() == 0
    assert (write_units(meter), read_units(meter)) == (0, 1), "a look for those that are due"
    client = Client(policy.org_id, policy.app_id)
    await store.put(recount_put(Recount(client, clock.now_ms())))
    meter.clear()
    assert await recounts.run_due() == 1
    assert (write_units(meter), read_units(meter)) == (2, 6)


class OneClient(Tenants):
    """Knows one policy, which nobody has written down."""

    policy: Policy

    async def read_policy(self, client: Client) -> Policy:
        assert client == self.policy.client
        return self.policy
