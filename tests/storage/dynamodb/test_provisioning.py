"""Tables made once, by any number of creators."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest

from fault_proxy import Canned, Fault, FaultProxy
from pricekeeper.errors import StoreMisconfiguredError
from pricekeeper.storage import Key
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import ALL_TABLES, CONFIG, SESSIONS
from storage.dynamodb.conftest import Opener, TestClock

EXPIRING = sum(table.expires for table in ALL_TABLES)


@pytest.fixture
def fresh_prefix() -> str:
    return f"fresh-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
async def fresh(fresh_prefix: str) -> AsyncIterator[Opener]:
    """Opens stores that have no tables yet."""
    async with AsyncExitStack() as stack:
        yield Opener(fresh_prefix, stack)


async def ask(endpoint: str, action: str, **request: object) -> dict[str, object]:
    headers = {
        "X-Amz-Target": f"DynamoDB_20120810.{action}",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKID/20260101/us-east-1/dynamodb/"
        "aws4_request, SignedHeaders=host, Signature=00",
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(endpoint, data=json.dumps(request), headers=headers) as response,
    ):
        reply: dict[str, object] = await response.json(content_type=None)
        return reply


async def test_all_tables_are_ready_to_use(
    fresh: Opener, fresh_prefix: str, dynamodb_local: str, key: Key
) -> None:
    """Billed by the request, with items that expire where they should."""
    store = await fresh(dynamodb_local)
    await store.create_tables()
    assert await store.get(CONFIG, key) is None
    for table in ALL_TABLES:
        name = fresh_prefix + table.name
        told = await ask(dynamodb_local, "DescribeTimeToLive", TableName=name)
        status = told["TimeToLiveDescription"]["TimeToLiveStatus"]  # type: ignore[index]
        assert status == ("ENABLED" if table.expires else "DISABLED")
        described = await ask(dynamodb_local, "DescribeTable", TableName=name)
        billing = described["Table"]["BillingModeSummary"]["BillingMode"]  # type: ignore[index]
        assert billing == "PAY_PER_REQUEST"


async def test_what_is_there_is_only_looked_at(store: DynamoDbStore, proxy: FaultProxy) -> None:
    """So that nobody needs the permission to create what a template has made."""
    await store.create_tables()
    assert {seen.action for seen in proxy.seen} == {"DescribeTable", "DescribeTimeToLive"}


async def test_creators_at_once(fresh: Opener, dynamodb_local: str) -> None:
    """Whoever is slower finds it done."""
    stores = [await fresh(dynamodb_local) for _ in range(4)]
    await asyncio.gather(*(store.create_tables() for store in stores))
    assert await stores[0].get(CONFIG, Key("a", "b")) is None


async def test_lost_replies(fresh: Opener, proxy: FaultProxy) -> None:
    """Making a table again is finding it made, and the same goes for expiry."""
    proxy.next("CreateTable", *[Fault.CLOSE_AFTER, Fault.NONE] * 2, Fault.THROTTLE)
    proxy.next("UpdateTimeToLive", *[Fault.CLOSE_AFTER, Fault.NONE] * 2)
    proxy.next("DescribeTable", Fault.CLOSE_AFTER)
    store = await fresh(proxy.endpoint)
    await store.create_tables()
    assert proxy.attempts("CreateTable") == len(ALL_TABLES) + 3
    assert proxy.attempts("UpdateTimeToLive") == EXPIRING + 2


async def test_waiting_until_a_table_is_active(
    fresh: Opener, proxy: FaultProxy, clock: TestClock
) -> None:
    """It may take a while until a new table can be seen, and more until it can be used."""
    missing = Canned({"__type": "x#ResourceNotFoundException"})
    creating = Canned({"Table": {"TableStatus": "CREATING"}}, 200)
    store = await fresh(proxy.endpoint, clock=clock)
    proxy.next("DescribeTable", *[Fault.NONE] * len(ALL_TABLES), missing, creating, creating)
    await store.create_tables()
    assert clock.pauses_ms == [500, 500, 500]


async def test_a_table_with_another_key_is_told(
    fresh: Opener, fresh_prefix: str, dynamodb_local: str
) -> None:
    """Rather than found out by the first write."""
    await ask(
        dynamodb_local,
        "CreateTable",
        TableName=fresh_prefix + SESSIONS.name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    store = await fresh(dynamodb_local)
    with pytest.raises(StoreMisconfiguredError, match="another key"):
        await store.create_tables()


@pytest.mark.parametrize(
    "description",
    [
        {"TimeToLiveStatus": "ENABLED", "AttributeName": "other"},
        {"TimeToLiveStatus": "DISABLING", "AttributeName": "expires_at_epoch"},
    ],
    ids=["other", "disabling"],
)
async def test_a_table_that_expires_otherwise_is_told(
    store: DynamoDbStore, proxy: FaultProxy, description: dict[str, str]
) -> None:
    """An operator decided that; we do not undo it."""
    canned = Canned({"TimeToLiveDescription": description}, 200)
    proxy.next("DescribeTimeToLive", canned, canned)
    proxy.next("UpdateTimeToLive", Canned({"__type": "x#ValidationException"}))
    with pytest.raises(StoreMisconfiguredError, match="expire"):
        await store.create_tables()


async def test_tables_that_nobody_made(fresh: Opener, dynamodb_local: str, key: Key) -> None:
    """The first call says so."""
    store = await fresh(dynamodb_local)
    with pytest.raises(StoreMisconfiguredError):
        await store.get(CONFIG, key)
