"""Items that the port can't even hold: beside them, neighbours are counted and read as ever.

DynamoDB lets another program write fractions and types of its own into our tables; a SQLite file
may hold bytes that nobody can decode. Both come in one reply with the items of others.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import botocore.session
import pytest

from contract.conftest import ShiftedClock
from metering.conftest import CATALOGUE, COST_USD_PICOS, LABELS, PREMIUM, a_policy, a_usage
from pricekeeper.errors import UnreadableItemError
from pricekeeper.metering import Aggregator, Metering, Outcome, org_day, scope_key
from pricekeeper.metering.counters import Account
from pricekeeper.metering.items import counter_key, total_key
from pricekeeper.pricing import PriceBook
from pricekeeper.settings import DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Delete, Key, Put, Store, Table
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.telemetry import STRANGE_ITEMS
from pricekeeper.tenants import Policy

Damage: TypeAlias = Callable[[Table, Key], Awaitable[None]]

FRACTION = {"cost_usd_picos": {"N": "1.5"}, "tags": {"NS": ["1"]}}


@pytest.fixture(params=["sqlite-file", "dynamodb-local"])
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    if request.param == "sqlite-file":
        return SqliteLocation(str(tmp_path / "store.db"))
    endpoint: str = request.getfixturevalue("dynamodb_local")
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


@pytest.mark.parametrize("kind", ["total", "shard"])
async def test_the_neighbour_is_aggregated_and_read(
    metering: Metering, store: Store, clock: ShiftedClock, damage: Damage, kind: str
) -> None:
    """One account of four is damaged: three totals are right, and one is never nothing."""
    day = org_day("UTC", clock.now_ms())
    policies = [a_policy() for _ in range(4)]
    for policy in policies:
        await metering.record(policy, a_usage())
    broken, *others = policies
    account = Account(scope_key(broken), PREMIUM, day)
    empty = await _empty_shard(store, account)
    place = total_key(account) if kind == "total" else (USAGE_AGG_SHARDED, empty)
    before = STRANGE_ITEMS.counts[place[0].name]
    await damage(*place)

    report = await Aggregator(store, clock).run_once()

    assert (report.failed, report.unreadable) == (0, 1)
    assert STRANGE_ITEMS.counts[place[0].name] > before
    for policy in others:
        totals = await metering.totals(scope_key(policy), LABELS, day)
        assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
    if kind == "total":
        totals = await metering.totals(scope_key(broken), LABELS, day)
        assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
    else:
        with pytest.raises(UnreadableItemError):
            await metering.totals(scope_key(broken), LABELS, day)
    again = await Aggregator(store, clock).run_once()
    assert again.since_last_ms is not None, "the run is complete without the strange account"


async def _empty_shard(store: Store, account: Account) -> Key:
    for shard in range(8):
        key = counter_key(account, shard)
        if await store.get(USAGE_AGG_SHARDED, key) is None:
            return key
    raise AssertionError(json.dumps(account))


class FirstShardFirst(random.Random):
    """Chooses the first shard, and another one each time after that."""

    def __init__(self) -> None:
        super().__init__(0)
        self.chosen = 0

    def randrange(self, *bounds: int) -> int:  # type: ignore[override]
        self.chosen += 1
        return (self.chosen - 1) % bounds[0]


async def test_a_record_goes_to_a_shard_that_can_take_it(
    policy: Policy, store: Store, clock: ShiftedClock
) -> None:
    """A counter that is none takes nothing; the record is counted beside it, its neighbour too."""
    book = PriceBook(store, clock, CATALOGUE)
    metering = Metering(store, clock, book, randomness=FirstShardFirst())
    account = Account(scope_key(policy), PREMIUM, org_day("UTC", clock.now_ms()))
    key, other = counter_key(account, 0), a_policy()
    await store.put(Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, "requests": "many"}))

    both = await asyncio.gather(
        metering.record(policy, a_usage()), metering.record(other, a_usage())
    )

    assert [one.outcome for one in both] == [Outcome.ACCEPTED, Outcome.ACCEPTED]
    with pytest.raises(UnreadableItemError):
        await metering.totals(scope_key(policy), LABELS, account.day, live=True)
    await store.delete(Delete(USAGE_AGG_SHARDED, key))
    for one in (policy, other):
        totals = await metering.totals(scope_key(one), LABELS, account.day, live=True)
        assert totals[PREMIUM].cost_usd_picos == COST_USD_PICOS
    await metering.close()
