"""What an authorized call costs in DynamoDB's units, as documented in docs/costs.md.

Counted by dynoxide, which sums the capacity of transactions as DynamoDB does. The app has a strict
quota for the day, its organisation a budget for the month, and both have requests and tokens a
minute: two items of accounts and two buckets.
"""

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from authorizations.conftest import USD, Instance, a_budget, a_strict_policy
from metering.conftest import LABELS, a_policy, a_usage
from metering.test_costs import StillClock, read_units, write_units
from minting import minted
from pricekeeper.authorizations import Authorization
from pricekeeper.errors import AuthorizationDeniedError
from pricekeeper.ledger.recounting import Recounts
from pricekeeper.metering import WindowSpend
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, Policy, RateLimit, Tenants, Window
from pricekeeper.tenants.recounts import Recount, recount_put

SHEETS = 32


class TimelessClock(StillClock):
    """Writes take no time on any machine, so no instance yields to others."""

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
        quotas=dict.fromkeys(LABELS, 10 * USD),
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
    """Two buckets and a sheet: three units. The capture is a sheet, and gives tokens back."""
    made = await instance.authorize(known)
    await instance.authorizations.close()
    assert (write_units(meter), read_units(meter)) == (2 + 1, 0)
    meter.clear()
    await instance.capture(known, made.authorization.id)
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (1 + 2, 0)


@pytest.mark.parametrize("timed", [True, False])
async def test_an_id_of_the_callers_own_costs_its_claim(
    instance: Instance, known: Policy, meter: StoreMeter, clock: StillClock, timed: bool
) -> None:
    """One unit on the page of its usage record, and one for the moment of an id without a time."""
    asked_as = minted(clock.now_ms()) if timed else str(uuid.uuid4())
    await instance.authorize(known, authorization_id=asked_as)
    await instance.authorizations.close()
    await instance.capture(known, asked_as)
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (6 + (1 if timed else 2), 0)


async def test_an_id_of_the_callers_own_is_looked_up_elsewhere(
    instance: Instance, known: Policy, store: Store, clock: StillClock, meter: StoreMeter
) -> None:
    """The place, the new sheets, the grant and its outcome."""
    other = Instance(store, clock, seed=2)
    first = await authorize_some(instance, known, 1)
    await other.capture(known, first[0].id)  # it knows accounts and marks now
    await other.authorizations.close()
    made = await instance.authorize(known, authorization_id=minted(clock.now_ms()))
    await instance.authorizations.close()
    meter.clear()
    await other.capture(known, made.authorization.shown_id)
    await other.close()
    assert (write_units(meter), read_units(meter)) == (1 + 2, 1 + 1 + 1 + 2)


async def test_a_capture_elsewhere_reads_the_authorization(
    instance: Instance, known: Policy, store: Store, clock: StillClock, meter: StoreMeter
) -> None:
    """The new sheets, the grant and its outcome; here it is cached."""
    other = Instance(store, clock, seed=2)
    for one in await authorize_some(instance, known, 2):
        meter.clear()
        await other.capture(known, one.id)
        await other.authorizations.close()
    await other.close()
    assert (write_units(meter), read_units(meter)) == (1 + 2, 1 + 2)


async def test_a_sheet_that_another_instance_was_first_to_write_is_billed(
    instance: Instance, known: Policy, store: Store, clock: StillClock, meter: StoreMeter
) -> None:
    """The refused write brings along what is there, so nothing is read."""
    other = Instance(store, clock, seed=2)
    await call(other, known)
    await other.authorizations.close()
    made = await authorize_some(instance, known, 2)
    meter.clear()
    await other.authorize(known)
    await other.close()
    assert made
    assert (write_units(meter), read_units(meter)) == (2 + 1 + 1, 0)


async def test_nothing_is_written_to_give_nothing_back(
    instance: Instance, known: Policy, meter: StoreMeter
) -> None:
    """A call that used all its tokens does not write to the buckets."""
    made = await instance.authorize(known)
    await instance.authorizations.close()
    meter.clear()
    await instance.capture(known, made.authorization.id, input_tokens=1_000, output_tokens=1_000)
    await instance.close()
    assert write_units(meter) == 1


async def test_without_budgets_and_limits_only_sheets_are_written(
    instance: Instance, meter: StoreMeter
) -> None:
    """One when it is granted, and one when it is captured."""
    policy = a_policy()
    await call(instance, policy)
    meter.clear()
    await call(instance, policy)
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (1 + 1, 0)


async def test_a_denial_takes_nothing(instance: Instance, known: Policy, meter: StoreMeter) -> None:
    """It reads what is new in the log; a denial by a limit also reads the buckets."""
    with pytest.raises(AuthorizationDeniedError):
        await instance.authorize(known, max_output_tokens=1_000_000, model="premium")
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (0, 4)


async def test_a_chapter_is_filed(
    store: Store, clock: StillClock, known: Policy, meter: StoreMeter
) -> None:
    """Its seal, where the log begins, two items of accounts, and a unit for sixteen sheets.

    So a call alone costs a quarter of a unit more, and one under load next to nothing.
    """
    instance = Instance(store, clock, seed=3, sheets_max=SHEETS)
    await call(instance, known)
    while (await instance.ledger.read_book(known.org_id)).next.number < SHEETS:
        await call(instance, known)
    await instance.close()
    meter.clear()
    await instance.authorize(known)
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (3 + 1 + 1 + 2 + SHEETS // 16, 0)


@pytest.mark.parametrize(("together", "units_max"), [(1, 4), (10, 0.7), (20, 0.45)])
async def test_under_load_calls_share_the_buckets_and_the_sheets(
    instance: Instance, known: Policy, meter: StoreMeter, together: int, units_max: float
) -> None:
    """As many begin and end in a write of 10 ms as do at 100, 1,000 and 2,000 a second.

    Those that end began at different times. What they give back goes along with what is taken.
    """
    begun = [(await authorize_some(instance, known, 3))[0] for _ in range(together)]
    meter.clear()
    for _ in range(4):
        begun = await begin_and_end(instance, known, begun)
    given_back = 2  # by the last of them, with no later write
    assert read_units(meter) == 0
    await instance.close()
    assert (write_units(meter) - given_back) / together / 4 <= units_max


async def test_either_step_alone_shares_them_as_well(
    instance: Instance, known: Policy, meter: StoreMeter
) -> None:
    """Forty at once: what is left is the sheets."""
    begun = await authorize_some(instance, known, 40)
    assert (write_units(meter) / 40, read_units(meter)) == (0.125, 0)
    meter.clear()
    await asyncio.gather(*(instance.capture(known, one.id) for one in begun))
    await instance.close()
    assert (write_units(meter) / 40, read_units(meter)) == (0.225, 0)


async def test_claims_that_were_made_together_share_their_page(
    instance: Instance, known: Policy, meter: StoreMeter, clock: StillClock
) -> None:
    """As ids of version 7 do that are made within 16 ms."""
    begun = minted(clock.now_ms() // 16 * 16)
    names = [f"{begun[:15]}{number:03x}{begun[18:]}" for number in range(40)]
    await asyncio.gather(*(instance.authorize(known, authorization_id=name) for name in names))
    await instance.close()
    assert write_units(meter) / 40 <= 0.4


async def begin_and_end(
    instance: Instance, policy: Policy, begun: Sequence[Authorization]
) -> list[Authorization]:
    done = await asyncio.gather(
        asyncio.gather(*(instance.authorize(policy) for _ in begun)),
        asyncio.gather(*(instance.capture(policy, one.id) for one in begun)),
    )
    return [one.authorization for one in done[0]]


async def test_a_usage_record_that_nobody_authorized_is_a_transaction_with_a_sheet(
    store: Store, clock: StillClock, known: Policy, meter: StoreMeter
) -> None:
    """Its page becomes two units, and so is the sheet, however many accounts there are."""
    instance = Instance(store, clock, seed=2)
    for _ in range(2):
        meter.clear()
        await instance.metering.record(known, a_usage(request_id=minted(clock.now_ms())))
    await instance.close()
    assert (write_units(meter), read_units(meter)) == (2 + 2, 0)


async def authorize_some(instance: Instance, policy: Policy, count: int) -> list[Authorization]:
    made = await asyncio.gather(*(instance.authorize(policy) for _ in range(count)))
    await instance.authorizations.close()
    return [one.authorization for one in made]


@pytest.mark.parametrize(
    "row",
    [
        "alone | 6 | 0",
        "alone, nothing to give back | 4 | 0",
        "alone, no budget, no strict quota, no limit | 2 | 0",
        "100 a second, one instance | 4 | 0",
        "1,000 a second, one instance | 0.7 | 0",
        "2,000 a second, one instance | 0.45 | 0",
        "40 authorized at once, each | 0.13 | 0",
        "40 captured at once, each | 0.23 | 0",
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
    measure = WindowSpend(store, clock).read_spend
    recounts = Recounts(store, clock, tenants, measure, instance.ledger)
    await instance.close()
    meter.clear()
    assert await recounts.run_due() == 0
    assert (write_units(meter), read_units(meter)) == (0, 1), "a look for those that are due"
    client = Client(policy.org_id, policy.app_id)
    await store.put(recount_put(Recount(client, clock.now_ms())))
    meter.clear()
    assert await recounts.run_due() == 1
    assert (write_units(meter), read_units(meter)) == (2, 10)


class OneClient(Tenants):
    """Has one policy, which is not in the store."""

    policy: Policy

    async def read_policy(self, client: Client) -> Policy:
        assert client == self.policy.client
        return self.policy
