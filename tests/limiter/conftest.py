"""Fixtures of the limiter's tests: every store, on a clock that a test moves."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.settings import MEMORY, SqliteLocation, StoreLocation
from pricekeeper.storage import Store, open_store
from pricekeeper.telemetry import StoreMeter
from stores import location, meter, table_prefix

__all__ = ["location", "meter", "table_prefix"]

RPM = Limit.per_minute("rpm", 60)
TPM = Limit.per_minute("tpm", 100_000)


@pytest.fixture
def clock() -> ManualClock:
    """Start at the real time, because an engine removes what expired by its own clock."""
    return ManualClock(time.time_ns() // 1_000_000)


@pytest.fixture
async def store(
    location: StoreLocation, clock: ManualClock, meter: StoreMeter
) -> AsyncIterator[Store]:
    opened = await open_store(location, clock=clock, meter=meter)
    await opened.create_tables()
    meter.clear()
    yield opened
    await opened.close()


@pytest.fixture
async def hooked(clock: ManualClock) -> AsyncIterator[Hooked]:
    """Open a store in memory that a test can reach into."""
    opened = await open_store(SqliteLocation(MEMORY), clock=clock)
    await opened.create_tables()
    yield Hooked(opened)
    await opened.close()


@pytest.fixture
def entity() -> str:
    """Name an entity that no other test has used: the engine's tables outlive a test."""
    return f"org-{uuid.uuid4()}/app"


@pytest.fixture
def make(store: Store, clock: ManualClock) -> Callable[..., Limiter]:
    """Make an instance of a limiter; instances share the store and nothing else."""

    def made(limits: Sequence[Limit] = (RPM, TPM), **options: object) -> Limiter:
        options = {"jitter": lambda _: 0, **options}  # nothing moves the clock while they pause
        return Limiter(store, clock=clock, limits=limits, **options)  # type: ignore[arg-type]

    return made


@pytest.fixture
def limiter(make: Callable[..., Limiter]) -> Limiter:
    return make()
