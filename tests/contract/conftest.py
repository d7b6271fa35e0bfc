"""The stores that the contract is checked on, behind one fixture."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pricekeeper.clock import SystemClock
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Key, Store, open_store
from pricekeeper.telemetry import StoreMeter

STORES = ("sqlite-memory", "sqlite-file", "dynamodb-local")


class ShiftedClock(SystemClock):
    """Real time that a test can move ahead, while pauses between retries stay real."""

    __slots__ = ("shift_ms",)

    def __init__(self) -> None:
        self.shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def now_epoch(self) -> int:
        return self.now_ms() // 1000


class Place:
    """Keys that no other test has used: the engine's tables outlive a test."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex

    def key(self, pk: str = "a", sk: str = "1") -> Key:
        return Key(f"{self.run}#{pk}", sk)

    def pk(self, pk: str = "a") -> str:
        return f"{self.run}#{pk}"


@pytest.fixture(scope="session")
def table_prefix() -> str:
    return f"contract-{uuid.uuid4().hex[:8]}-"


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    if request.param == "sqlite-memory":
        return SqliteLocation(MEMORY)
    if request.param == "sqlite-file":
        return SqliteLocation(str(tmp_path / "store.db"))
    endpoint: str = request.getfixturevalue("dynamodb_local")
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


@pytest.fixture
def at() -> Place:
    return Place()
