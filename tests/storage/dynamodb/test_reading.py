"""Batches and pages put together from any portions of the engine."""

from random import Random

import pytest

from fault_proxy import Fault, FaultProxy
from pricekeeper.errors import ThrottledError
from pricekeeper.storage import Key, Put, Query, Table, Write
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.storage.tables import CONFIG, SESSIONS
from pricekeeper.telemetry import StoreMeter
from storage.dynamodb.conftest import TestClock


async def fill(store: DynamoDbStore, pk: str, sort_keys: list[str], table: Table = CONFIG) -> None:
    puts: list[Write] = [Put(table, {"PK": pk, "SK": sk}) for sk in sort_keys]
    for start in range(0, len(puts), 100):
        await store.transact(puts[start : start + 100])


@pytest.mark.parametrize(
    "faults", [[Fault.HALF], [Fault.HALF] * 6, [Fault.HALF, Fault.CLOSE_AFTER]]
)
async def test_unprocessed_keys_are_asked_for_again(
    store: DynamoDbStore, direct: DynamoDbStore, proxy: FaultProxy, key: Key, faults: list[Fault]
) -> None:
    """From several tables, until nothing is left; the answers keep their places."""
    present = [f"{n:03}" for n in range(0, 140, 2)]
    for table in (CONFIG, SESSIONS):
        await fill(direct, key.pk, present, table)
    proxy.next("BatchGetItem", *faults)
    places = [(table, Key(key.pk, f"{n:03}")) for n in range(140) for table in (CONFIG, SESSIONS)]
    found = await store.batch_get(places)
    assert [item is not None for item in found] == [place[1].sk in present for place in places]
    assert all(
        item is None or item["SK"] == place[1].sk for item, place in zip(found, places, strict=True)
    )


async def test_unprocessed_for_ever(
    store: DynamoDbStore, proxy: FaultProxy, clock: TestClock, key: Key
) -> None:
    """An engine that never gets on is a throttling one; pauses grow in between."""
    proxy.next("BatchGetItem", *[Fault.HALF] * 100)
    with pytest.raises(ThrottledError):
        await store.batch_get([(CONFIG, key)])
    assert proxy.attempts("BatchGetItem") == 8
    assert len(clock.pauses_ms) == 7


async def test_a_place_asked_for_twice_is_fetched_once(
    store: DynamoDbStore, meter: StoreMeter, key: Key
) -> None:
    """DynamoDB refuses repeated keys; we pay for one."""
    await fill(store, key.pk, ["1"])
    meter.clear()
    found = await store.batch_get([(CONFIG, key)] * 150)
    assert found == [{"PK": key.pk, "SK": "1"}] * 150
    assert meter.attempts == {"BatchGetItem": 1}
    assert meter.read_half_units == {"Config": 2}


async def test_any_query_is_what_it_says(direct: DynamoDbStore, key: Key) -> None:
    """Random ranges, prefixes and starting points, inside the range and out, both directions."""
    random = Random(5)
    letters = "ab~é𝄞"
    words = ["".join(random.choices(letters, k=random.randint(1, 3))) for _ in range(60)]
    held = sorted(set(words))
    await fill(direct, key.pk, held)
    for _ in range(200):
        prefix = random.choice([*words, "", "", "b"])[:2] if random.random() < 0.4 else ""
        first = random.choice([*words, ""]) if not prefix else ""
        last = random.choice([*words, ""]) if not prefix else ""
        after = random.choice([*words, "", "", "zz", "\0"])
        descending, limit = random.random() < 0.5, random.choice([1, 3, 10, 1000])
        matching = [
            sk
            for sk in (reversed(held) if descending else held)
            if sk.startswith(prefix) and first <= sk and (not last or sk <= last)
            if not after or (sk < after if descending else sk > after)
        ]
        query = Query(CONFIG, key.pk, prefix, first, last, after, limit, descending)
        page = await direct.query(query)
        assert [item["SK"] for item in page.items] == matching[:limit], query
        assert page.after == (matching[limit - 1] if len(matching) > limit else ""), query


async def test_expired_items_do_not_cost_a_request_each(
    store: DynamoDbStore, clock: TestClock, meter: StoreMeter, key: Key
) -> None:
    expires = clock.now_epoch() + 60
    for start in range(0, 500, 100):
        await store.transact(
            [
                Put(SESSIONS, {"PK": key.pk, "SK": f"{n:03}", "expires_at_epoch": expires})
                for n in range(start, start + 100)
            ]
        )
    await store.put(Put(SESSIONS, {"PK": key.pk, "SK": "999"}))
    clock.shift_ms += 60_000
    meter.clear()
    page = await store.query(Query(SESSIONS, key.pk, limit=1))
    assert [item["SK"] for item in page.items] == ["999"]
    assert page.after == ""
    assert meter.attempts["Query"] == 8
