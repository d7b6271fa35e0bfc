"""What the tests of activity share: every store, with nothing in its tables that is another's."""

import uuid
from collections.abc import AsyncIterator

import pytest

from activity.happenings import ORG
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.settings import MEMORY, DynamoDbLocation, SqliteLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from stores import STORES

__all__ = ["ORG"]


@pytest.fixture
def clock() -> ManualClock:
    """Starts at a full minute of today: an engine removes expired items by its own clock."""
    return ManualClock(SystemClock().now_ms() // 60_000 * 60_000)


@pytest.fixture
def meter() -> StoreMeter:
    return StoreMeter()


@pytest.fixture(params=STORES)
async def store(
    request: pytest.FixtureRequest, tmp_path: str, clock: ManualClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    location: SqliteLocation | DynamoDbLocation = SqliteLocation(MEMORY)
    if request.param == "sqlite-file":
        location = SqliteLocation(f"{tmp_path}/store.db")
    elif request.param == "dynoxide":
        endpoint = request.getfixturevalue("dynoxide")
        location = DynamoDbLocation("us-east-1", f"activity-{uuid.uuid4().hex[:8]}-", endpoint)
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    meter.clear()
    yield opened
    await opened.close()
