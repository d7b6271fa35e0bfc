"""Tables made once, by any number of creators."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest
from structlog.testing import capture_logs

from fault_proxy import Canned, Fault, FaultProxy
from pricekeeper.errors import StoreMisconfiguredError, StoreUnavailableError
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import Key, enable_expiry, find_tables_without_expiry
from pricekeeper.storage.dynamodb.client import Limits
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


async def test_what_is_there_is_looked_at_once(store: DynamoDbStore, proxy: FaultProxy) -> None:
    """One call a table, without the permission to create tables that a template made."""
    await store.create_tables()
    looked_at = [(seen.action, seen.request["TableName"]) for seen in proxy.seen]
    assert len(looked_at) == len(set(looked_at)) == len(ALL_TABLES)
    assert {action for action, _ in looked_at} == {"DescribeTable"}


async def test_a_table_that_another_creator_is_making_is_finished(
    fresh: Opener, fresh_prefix: str, proxy: FaultProxy, dynamodb_local: str, clock: TestClock
) -> None:
    """The creator may crash before that; a process that waits for the table does it."""
    await (await fresh(dynamodb_local)).create_tables()
    store = await fresh(proxy.endpoint, clock=clock)
    creating = Canned({"Table": {"TableStatus": "CREATING"}}, 200)
    proxy.next("DescribeTable", *[Fault.NONE] * ALL_TABLES.index(SESSIONS), creating)
    await store.create_tables()
    asked = [one.request["TableName"] for one in proxy.seen if one.action == "DescribeTimeToLive"]
    assert asked == [fresh_prefix + SESSIONS.name]


@pytest.mark.parametrize("fault", [Fault.THROTTLE, Fault.CLOSE_BEFORE, Fault.SERVER_ERROR_BEFORE])
async def test_a_start_waits_for_a_store_that_keeps_failing_and_says_for_what(
    opener: Opener, proxy: FaultProxy, prefix: str, clock: TestClock, fault: Fault
) -> None:
    """Longer than one request would; tables that were found are not described again."""
    store = await opener(proxy.endpoint, clock=clock, limits=Limits(start_wait_ms=60_000))
    proxy.next("DescribeTable", Fault.NONE, *[fault] * 25)
    with capture_logs() as logs:
        await store.create_tables()
    assert proxy.attempts("DescribeTable") == len(ALL_TABLES) + 25
    assert {(one["event"], one["log_level"], one["waiting_for"]) for one in logs} == {
        ("waiting_for_store", "warning", f"DescribeTable of {prefix}{ALL_TABLES[1].name}")
    }
    assert 1 < len(logs) <= 25


async def test_a_start_waits_while_the_store_is_down(
    opener: Opener, proxy: FaultProxy, clock: TestClock
) -> None:
    """It comes up while we wait, and the service with it."""
    store = await opener(proxy.endpoint, clock=clock, limits=Limits(start_wait_ms=60_000))
    await proxy.down()

    async def come_up() -> None:
        if sum(clock.pauses_ms) > 20_000 and clock.before_waking is not None:
            clock.before_waking = None
            await proxy.up()

    clock.before_waking = come_up
    await store.create_tables()
    assert proxy.attempts("DescribeTable") == len(ALL_TABLES)
    assert 20_000 < sum(clock.pauses_ms) < 60_000


async def test_a_start_does_not_wait_for_ever(
    opener: Opener, proxy: FaultProxy, prefix: str, clock: TestClock
) -> None:
    store = await opener(proxy.endpoint, clock=clock, limits=Limits(start_wait_ms=60_000))
    await proxy.down()
    with pytest.raises(StoreUnavailableError) as given_up:
        await store.create_tables()
    assert f"60 s for DescribeTable of {prefix}Config" in str(given_up.value)
    assert 60_000 <= sum(clock.pauses_ms) < 90_000


async def test_without_patience_a_store_that_is_down_is_told_after_one_request(
    opener: Opener, proxy: FaultProxy, clock: TestClock
) -> None:
    """A command does not wait: its caller may have typed the wrong endpoint."""
    store = await opener(proxy.endpoint, clock=clock)
    await proxy.down()
    with pytest.raises(StoreUnavailableError):
        await store.create_tables()
    assert sum(clock.pauses_ms) < 15_000


async def test_a_start_does_not_wait_for_a_permission(
    opener: Opener, proxy: FaultProxy, clock: TestClock
) -> None:
    """Only an operator can help there."""
    store = await opener(proxy.endpoint, clock=clock, limits=Limits(start_wait_ms=60_000))
    proxy.next("DescribeTable", Canned({"__type": "x#AccessDeniedException"}))
    with pytest.raises(StoreMisconfiguredError):
        await store.create_tables()
    assert clock.pauses_ms == []


async def test_expiry_is_looked_at_and_switched_on_by_command(
    fresh: Opener, fresh_prefix: str, dynamodb_local: str, clock: TestClock
) -> None:
    """A restored table has lost it; a start does not look for that."""
    store = await fresh(dynamodb_local)
    await store.create_tables()
    off = {"Enabled": False, "AttributeName": "expires_at_epoch"}
    name = fresh_prefix + SESSIONS.name
    await ask(dynamodb_local, "UpdateTimeToLive", TableName=name, TimeToLiveSpecification=off)
    location = DynamoDbLocation("us-east-1", fresh_prefix, dynamodb_local)
    await store.create_tables()
    assert await find_tables_without_expiry(location, clock=clock) == [SESSIONS.name]
    await enable_expiry(location, clock=clock)
    assert await find_tables_without_expiry(location, clock=clock) == []


async def test_creators_at_once(fresh: Opener, dynamodb_local: str) -> None:
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
    prefix: str, proxy: FaultProxy, clock: TestClock, description: dict[str, str]
) -> None:
    canned = Canned({"TimeToLiveDescription": description}, 200)
    proxy.next("DescribeTimeToLive", canned, canned)
    proxy.next("UpdateTimeToLive", Canned({"__type": "x#ValidationException"}))
    location = DynamoDbLocation("us-east-1", prefix, proxy.endpoint)
    with pytest.raises(StoreMisconfiguredError, match="expire"):
        await enable_expiry(location, clock=clock)


async def test_tables_that_nobody_made(fresh: Opener, dynamodb_local: str, key: Key) -> None:
    store = await fresh(dynamodb_local)
    with pytest.raises(StoreMisconfiguredError):
        await store.get(CONFIG, key)
