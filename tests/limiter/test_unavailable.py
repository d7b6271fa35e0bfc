"""What happens when the store does not answer is a choice; nothing else is taken for that."""

import uuid
from collections.abc import AsyncIterator

import pytest

from limiter.hooked import Hooked
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    InvalidValueError,
    OutcomeUnknownError,
    RateLimitExceededError,
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


@pytest.mark.parametrize("error", UNAVAILABLE, ids=lambda error: type(error).__name__)
async def test_allow_grants_a_lease_that_holds_nothing(
    hooked: Hooked, clock: ManualClock, error: Exception
) -> None:
    """It can be used like any other, and makes no tokens when it is given back."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY], on_unavailable="allow")
    await limiter.acquire("e", "r", {"n": 40})
    failing(hooked, error)
    lease = await limiter.acquire("e", "r", {"n": 10})
    hooked.before = None
    await lease.adjust({"n": 5})
    await lease.release()

    assert (lease.unlimited, lease.held, lease.limits) == (True, {}, {})
    assert limiter.meter.unlimited == 1
    assert (await limiter.peek("e", "r"))["n"].remaining == 60


@pytest.mark.parametrize("error", NOT_UNAVAILABLE, ids=lambda error: type(error).__name__)
async def test_other_failures_are_never_allowed(
    hooked: Hooked, clock: ManualClock, error: Exception
) -> None:
    """Contention, permissions and mistakes raise, whatever was chosen."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY], on_unavailable="allow")
    failing(hooked, error)
    with pytest.raises(type(error)):
        await limiter.acquire("e", "r", {"n": 1})

    assert limiter.meter.unlimited == 0


async def test_one_acquire_may_choose_for_itself(hooked: Hooked, clock: ManualClock) -> None:
    """Either way."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])
    failing(hooked, StoreUnavailableError("away"))

    assert (await limiter.acquire("e", "r", {"n": 1}, on_unavailable="allow")).unlimited
    with pytest.raises(StoreUnavailableError):
        await limiter.acquire("e", "r", {"n": 1}, on_unavailable="deny")
    with pytest.raises(InvalidValueError):
        await limiter.acquire("e", "r", {"n": 1}, on_unavailable="perhaps")  # type: ignore[arg-type]


async def test_a_denial_stays_a_denial(hooked: Hooked, clock: ManualClock) -> None:
    """Allowing when the store is away does not allow when the bucket is empty."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY], on_unavailable="allow")
    await limiter.acquire("e", "r", {"n": 100})
    with pytest.raises(RateLimitExceededError):
        await limiter.acquire("e", "r", {"n": 1})
