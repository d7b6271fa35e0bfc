"""Items that the port can't even hold: beside them, neighbours are counted and read as ever.

DynamoDB lets another program write fractions and types of its own into our tables; a SQLite file
may hold bytes that can't be decoded. Both come in one reply with the items of others.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import botocore.session
import pytest

from metering.conftest import COST_USD_PICOS, LABELS, PREMIUM, MeteringMaker, a_policy, a_usage
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering import Aggregator, Metering, Outcome, org_day
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import total_key
from pricekeeper.metering.journal_items import page_key
from pricekeeper.settings import DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Delete, Key, Put, Store, Table
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.typed_items import StrangeItems
from pricekeeper.tenants import Policy
from pricekeeper.ticks import region_at
from stores import ShiftedClock

Damage: TypeAlias = Callable[[Table, Key], Awaitable[None]]

FRACTION = {"cost_usd_picos": {"N": "1.5"}, "tags": {"NS": ["1"]}}


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    if request.param == "sqlite-file":
        return SqliteLocation(str(tmp_path / "store.db"))
    endpoint: str = request.getfixturevalue("dynoxide")
    return DynamoDbLocation("us-east-1", table_prefix, endpoint)


@pytest.fixture
def damage(location: StoreLocation, table_prefix: str) -> Damage:
    """Writes what the port would refuse to write, around it."""

    async def in_sqlite(table: Table, key: Key) -> None:
        assert isinstance(location, SqliteLocation)
        # With the library that the store uses: another one in the same process would end its locks.
        with apsw.Connection(location.path) as connection:
            connection.execute(
                f'INSERT OR REPLACE INTO "{table.name}" (pk, sk, item) VALUES (?, ?, ?)',  # noqa: S608
                (key.pk, key.sk or "", b"\xc1 no item"),
            )
        connection.close()

    async def in_dynamodb(table: Table, key: Key) -> None:
        assert isinstance(location, DynamoDbLocation)
        client: Any = botocore.session.get_session().create_client(
            "dynamodb",
            region_name="us-east-1",
            endpoint_url=location.endpoint,
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        attributes = {"PK": {"S": key.pk}, "SK": {"S": key.sk}, **FRACTION}
        client.put_item(TableName=f"{table_prefix}{table.name}", Item=attributes)

    return in_sqlite if isinstance(location, SqliteLocation) else in_dynamodb


@pytest.mark.parametrize("kind", ["total", "page"])
async def test_the_neighbour_is_aggregated_and_read(
    metering: Metering, store: Store, clock: ShiftedClock, damage: Damage, kind: str
) -> None:
    """One account of four is damaged: three totals are right, and one is never nothing."""
    day = org_day("UTC", clock.now_ms())
    policies = [a_policy() for _ in range(4)]
    for policy in policies:
        await metering.record(policy, a_usage())
    broken, *others = policies
    account = Account(broken.scope_key, PREMIUM, day)
    page = page_key(broken.org_id, region_at(clock.now_ms()), 0, "0strange")
    place = total_key(account) if kind == "total" else (USAGE_AGG_SHARDED, page)
    await damage(*place)

    with StrangeItems() as strange:
        report = await Aggregator(store, clock).run_once()

    assert report.failed == 0
    assert report.unreadable >= 1
    assert strange.counts.keys() == {place[0].name}
    for policy in others:
        totals = await metering.read_totals(policy.scope_key, LABELS, day)
        assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
    if kind == "total":
        totals = await metering.read_totals(broken.scope_key, LABELS, day)
        assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
    else:
        with pytest.raises(UnreadableItemError):
            await metering.read_totals(broken.scope_key, LABELS, day)
    again = await Aggregator(store, clock).run_once()
    assert again.since_last_ms is not None, "the run is complete without the strange account"

    # Once it is removed, the next run makes the total complete.
    await store.delete(Delete(*place))
    clock.shift_ms += 10 * 60_000
    mended = await Aggregator(store, clock).run_once()
    assert (mended.failed, mended.unreadable) == (0, 0)
    totals = await metering.read_totals(broken.scope_key, LABELS, day)
    assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS


async def test_a_record_is_counted_beside_a_page_that_is_none(
    new_metering: MeteringMaker, policy: Policy, store: Store, clock: ShiftedClock
) -> None:
    """A page that can't be read keeps no record out, and a live total with it is no answer."""
    account = Account(policy.scope_key, PREMIUM, org_day("UTC", clock.now_ms()))
    key = page_key(policy.org_id, region_at(clock.now_ms()), 0, "0strange")
    other, metering = a_policy(), new_metering(store, clock)
    await store.put(Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, "n": "many"}))

    both = await asyncio.gather(
        metering.record(policy, a_usage()), metering.record(other, a_usage())
    )

    assert [one.outcome for one in both] == [Outcome.ACCEPTED, Outcome.ACCEPTED]
    with pytest.raises(UnreadableItemError):
        await metering.read_totals(policy.scope_key, LABELS, account.day, live=True)
    await store.delete(Delete(USAGE_AGG_SHARDED, key))
    metering = new_metering(store, clock)  # which shares no reading of a moment ago
    for one in (policy, other):
        totals = await metering.read_totals(one.scope_key, LABELS, account.day, live=True)
        assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
