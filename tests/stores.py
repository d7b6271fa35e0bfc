"""The stores that most tests run on, behind one fixture."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pricekeeper.clock import SystemClock
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Item, Key, Store, Table, open_store
from pricekeeper.telemetry import StoreMeter

STORES = ("sqlite-memory", "sqlite-file", "dynoxide")
"""Of the two engines, which the contract holds to one meaning, the one that costs less."""


class ShiftedClock(SystemClock):
    """Real time that a test can move ahead, while pauses between retries stay real."""

    __slots__ = ("shift_ms",)

    def __init__(self) -> None:
        self.shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def now_epoch(self) -> int:
        return self.now_ms() // 1000


@pytest.fixture(scope="session")
def table_prefix() -> str:
    return f"contract-{uuid.uuid4().hex[:8]}-"


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    return location_of(request.param, request, tmp_path, table_prefix)


def location_of(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str
) -> StoreLocation:
    """The store of that name; an engine is started for it if there is none yet."""
    if name == "sqlite-memory":
        return SqliteLocation(MEMORY)
    if name == "sqlite-file":
        return SqliteLocation(str(tmp_path / "store.db"))
    endpoint: str = request.getfixturevalue(name.replace("-", "_"))
    return DynamoDbLocation("us-east-1", table_prefix, endpoint)


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def meter() -> StoreMeter:
    return StoreMeter()


@pytest.fixture
async def store(
    location: StoreLocation, clock: ShiftedClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    yield opened
    await opened.close()


async def stored(store: Store, table: Table, key: Key) -> Item:
    """Read an item that must exist."""
    item = await store.get(table, key)
    assert item is not None
    return item
