"""What refused writes cost: AWS bills them, and does not say so in the reply."""

import uuid
from collections.abc import AsyncIterator

import pytest

from pricekeeper.errors import ConditionFailedError, TransactionCancelledError
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import (
    ITEM_ABSENT,
    ITEM_EXISTS,
    Delete,
    Key,
    Put,
    Set,
    Store,
    Update,
    Write,
    open_store,
)
from pricekeeper.storage.tables import CONFIG, SESSIONS
from pricekeeper.telemetry import StoreMeter
from stores import ShiftedClock


@pytest.fixture
async def store(dynoxide: str, meter: StoreMeter) -> AsyncIterator[Store]:
    location = DynamoDbLocation("us-east-1", f"units-{uuid.uuid4().hex[:8]}-", dynoxide)
    opened = await open_store(location, clock=ShiftedClock(), meter=meter)
    await opened.create_tables()
    yield opened
    await opened.close()


@pytest.fixture
def meter() -> StoreMeter:
    return StoreMeter()


def units(meter: StoreMeter) -> dict[str, int]:
    return {table: half // 2 for table, half in meter.write_half_units.items()}


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [(10, 10, 1), (10, 3_000, 3), (3_000, 10, 3), (1_500, 3_000, 3)],
)
async def test_a_refused_put_costs_by_the_larger_item(
    store: Store, meter: StoreMeter, there: int, wanted: int, expected: int
) -> None:
    """The one that is there, or the one that was to be written."""
    await store.put(Put(CONFIG, {"PK": "a", "SK": "b", "text": "x" * there}))
    meter.clear()
    with pytest.raises(ConditionFailedError):
        await store.put(Put(CONFIG, {"PK": "a", "SK": "b", "text": "x" * wanted}, ITEM_ABSENT))
    assert units(meter) == {"Config": expected}


@pytest.mark.parametrize(("there", "expected"), [(None, 1), (10, 1), (5_000, 5)])
async def test_refused_updates_and_deletes_cost_by_what_is_there(
    store: Store, meter: StoreMeter, there: int | None, expected: int
) -> None:
    """And one unit if nothing is."""
    key = Key("a", "b")
    if there is not None:
        await store.put(Put(CONFIG, {"PK": "a", "SK": "b", "text": "x" * there}))
    meter.clear()
    unmet = ITEM_EXISTS if there is None else ITEM_ABSENT
    with pytest.raises(ConditionFailedError):
        await store.update(Update(CONFIG, key, (Set("n", 1),), unmet))
    with pytest.raises(ConditionFailedError):
        await store.delete(Delete(CONFIG, key, unmet))
    assert units(meter) == {"Config": 2 * expected}


async def test_a_cancelled_transaction_costs_what_it_would_have(
    store: Store, meter: StoreMeter
) -> None:
    """Two units for each KB of each operation, also of those whose conditions held."""
    await store.put(Put(CONFIG, {"PK": "a", "SK": "b"}))
    operations: list[Write] = [
        Put(CONFIG, {"PK": "a", "SK": "b"}, ITEM_ABSENT),
        Put(SESSIONS, {"PK": "a", "SK": "b", "text": "x" * 2_500}),
        Update(CONFIG, Key("a", "c"), (Set("n", 1),)),
    ]
    meter.clear()
    with pytest.raises(TransactionCancelledError):
        await store.transact(operations)
    refused = units(meter)
    meter.clear()
    await store.transact(operations[1:])
    applied = units(meter)
    assert applied == {"Sessions": 6, "Config": 2}
    assert refused == {"Sessions": 6, "Config": 4}
