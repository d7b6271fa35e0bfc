"""An embedded store in a file of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pricekeeper.clock import ManualClock
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.telemetry import StoreMeter


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def meter() -> StoreMeter:
    return StoreMeter()


@pytest.fixture
async def store(path: str, clock: ManualClock, meter: StoreMeter) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, clock=clock, meter=meter)
    await opened.create_tables()
    yield opened
    await opened.close()
