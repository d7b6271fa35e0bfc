"""The spend of the month, from the stored totals: the same in every process and store."""

from datetime import UTC, datetime

import pytest

from metering.conftest import ECONOMY, PREMIUM, STANDARD
from pricekeeper.clock import ManualClock
from pricekeeper.metering.counters import Account, Total
from pricekeeper.metering.items import day_expires_at_epoch, total_key
from pricekeeper.metering.spend import OTHERS, MonthSpend, Spender
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.telemetry import StoreMeter
from totals import listed_total_puts

DAY_MS = 86_400_000
NOVEMBER_16 = int(datetime(2099, 11, 16, 12, tzinfo=UTC).timestamp()) * 1000
"""Noon of 16 November 2099: nothing of that year expires during a test."""
ORG = "ORG#550e8400-e29b-41d4-a716-446655440000"
APP = f"{ORG}#APP#web"


@pytest.fixture
def time() -> ManualClock:
    return ManualClock(NOVEMBER_16)


async def spend(store: Store, scope_key: str, label: str, day: str, picos: int) -> None:
    """Write what metering and the aggregator leave behind."""
    account, expires = Account(scope_key, label, day), day_expires_at_epoch(day)
    for put in listed_total_puts(account, Total(cost_usd_picos=picos, as_of_ms=1), expires):
        await store.put(put)


async def test_the_days_of_the_month_add_up(store: Store, time: ManualClock) -> None:
    """By scope and label; days of other months do not count."""
    for day, picos in (("20991031", 1), ("20991101", 20), ("20991110", 300), ("20991116", 4_000)):
        await spend(store, APP, PREMIUM, day, picos)
    await spend(store, APP, STANDARD, "20991116", 7)
    await spend(store, ORG, PREMIUM, "20991102", 9)

    months = await MonthSpend(store, time).read()

    assert months["209911"] == {
        Spender(APP, PREMIUM): 4_320,
        Spender(APP, STANDARD): 7,
        Spender(ORG, PREMIUM): 9,
    }


async def test_a_new_process_reads_the_same(store: Store, time: ManualClock) -> None:
    """However many days one has kept in memory."""
    await spend(store, APP, PREMIUM, "20991103", 5)
    reader = MonthSpend(store, time)
    await reader.read()
    for number in range(17, 25):
        time.advance_ms(DAY_MS)
        await spend(store, APP, PREMIUM, f"209911{number}", 100)
        await reader.read()

    assert await reader.read() == await MonthSpend(store, time).read()
    assert (await reader.read())["209911"] == {Spender(APP, PREMIUM): 805}


async def test_days_that_are_over_are_read_once(
    store: Store, time: ManualClock, meter: StoreMeter
) -> None:
    """After the first time only what may have changed is."""
    reader = MonthSpend(store, time)
    await spend(store, APP, PREMIUM, "20991103", 5)
    meter.clear()
    await reader.read()
    first = meter.calls["query"]
    meter.clear()
    await reader.read()

    assert first >= 17
    assert meter.calls["query"] == 4  # of each day that may change
    assert meter.calls["batch_get"] == 0


async def test_a_new_month_begins_with_nothing(store: Store, time: ManualClock) -> None:
    """Also where it has begun before it has here; the old one is forgotten when it is over."""
    await spend(store, APP, PREMIUM, "20991130", 5)
    await spend(store, APP, PREMIUM, "20991201", 7)
    reader = MonthSpend(store, time)
    time.advance_ms(14 * DAY_MS + DAY_MS // 2 - 3_600_000)  # 23:00 of the last day, in UTC

    assert await reader.read() == {
        "209911": {Spender(APP, PREMIUM): 5},
        "209912": {Spender(APP, PREMIUM): 7},
    }
    time.advance_ms(2 * DAY_MS)
    assert await reader.read() == {"209912": {Spender(APP, PREMIUM): 7}}


async def test_a_total_that_can_not_be_read_is_nobody_elses(
    store: Store, time: ManualClock
) -> None:
    """It is left out."""
    day = "20991116"
    for label, picos in ((PREMIUM, 1), (STANDARD, 2), (ECONOMY, 3)):
        await spend(store, APP, label, day, picos)
    table, key = total_key(Account(APP, STANDARD, day))
    await store.put(Put(table, {"PK": key.pk, "SK": key.sk, "cost_usd_picos": "many"}))
    await store.put(Put(USAGE_AGG_SHARDED, {"PK": f"SPENT#{day}", "SK": "damaged"}))

    months = await MonthSpend(store, time).read()

    assert months["209911"] == {Spender(APP, PREMIUM): 1, Spender(APP, ECONOMY): 3}


async def test_what_is_kept_has_a_bound(store: Store, time: ManualClock) -> None:
    """Beyond it everything is one sum, and nothing is lost."""
    for number in range(6):
        for day in ("20991102", "20991116"):
            await spend(store, f"{ORG}#APP#{number}", PREMIUM, day, 10)

    months = await MonthSpend(store, time, spenders_max=4).read()

    assert sum(months["209911"].values()) == 120
    assert len(months["209911"]) == 5
    assert months["209911"][OTHERS] == 40
