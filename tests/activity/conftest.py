"""What the tests of activity share: every store, with nothing in its tables that is another's."""

import uuid
from collections.abc import AsyncIterator

import pytest

from activity.happenings import ORG
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.settings import StoreLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from stores import location, meter

__all__ = ["ORG", "location", "meter"]


@pytest.fixture
def clock() -> ManualClock:
    """Starts at a full minute of today: an engine removes expired items by its own clock."""
    return ManualClock(SystemClock().now_ms() // 60_000 * 60_000)


@pytest.fixture
def table_prefix() -> str:
    return f"activity-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
async def store(
    location: StoreLocation, clock: ManualClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    meter.clear()
    yield opened
    await opened.close()
