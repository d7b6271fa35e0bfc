"""A store that does not answer is neither a grant nor a denial: its error is raised."""

import uuid
from collections.abc import AsyncIterator

import pytest

from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ThrottledError,
)
from pricekeeper.limiter import Limit, Limiter
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import open_store

DAILY = Limit.per_day("n", 100)


@pytest.fixture
async def hooked(clock: ManualClock) -> AsyncIterator[Hooked]:
    opened = await open_store(SqliteLocation(MEMORY), clock=clock)
    await opened.create_tables()
    yield Hooked(opened)
    await opened.close()


def failing(hooked: Hooked, error: Exception) -> None:
    async def fail(_: str) -> None:
        raise error

    hooked.before = fail


UNAVAILABLE = [
    StoreUnavailableError("away"),
    ThrottledError("too much"),
    OutcomeUnknownError("no reply"),
]
NOT_UNAVAILABLE = [
    ContendedError("others were quicker"),
    StoreClosedError("closed"),
    StoreMisconfiguredError("no permission"),
    InvalidOperationError("a bug"),
    ZeroDivisionError("a bug"),
]


@pytest.mark.parametrize("error", UNAVAILABLE, ids=lambda error: type(error).__name__)
async def test_deny_is_the_default_and_raises_what_happened(
    hooked: Hooked, clock: ManualClock, error: Exception
) -> None:
    """Nobody is admitted, and nobody is told to wait for a bucket that was not asked."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    failing(hooked, error)
    with pytest.raises(type(error)):
        await limiter.acquire("e", "r", {"n": 1})
    with pytest.raises(type(error)):
        await limiter.try_acquire("e", "r", {"n": 1}, lease_id=uuid.uuid4())

    assert limiter.meter.denied == 0


@pytest.mark.parametrize("error", NOT_UNAVAILABLE, ids=lambda error: type(error).__name__)
async def test_other_failures_are_never_allowed(
    hooked: Hooked, clock: ManualClock, error: Exception
) -> None:
    """Contention, permissions and mistakes raise, too."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    failing(hooked, error)
    with pytest.raises(type(error)):
        await limiter.acquire("e", "r", {"n": 1})

    assert limiter.meter.denied == 0
