"""A store that does not answer is neither a grant nor a denial: its error is raised."""

import uuid

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

DAILY = Limit.per_day("n", 100)


ERRORS = [
    StoreUnavailableError("no connection"),
    ThrottledError("too much"),
    OutcomeUnknownError("no reply"),
    ContendedError("others were quicker"),
    StoreClosedError("closed"),
    StoreMisconfiguredError("no permission"),
    InvalidOperationError("a bug"),
    ZeroDivisionError("a bug"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_of_the_store_is_raised(
    hooked: Hooked, clock: ManualClock, error: Exception
) -> None:
    """No request is granted, and none is denied by a bucket that was not read."""
    limiter = Limiter(hooked, clock=clock, limits=[DAILY])

    async def fail(_: str) -> None:
        raise error

    hooked.before = fail
    with pytest.raises(type(error)):
        await limiter.acquire("e", "r", {"n": 1})
    with pytest.raises(type(error)):
        await limiter.try_acquire("e", "r", {"n": 1}, lease_id=uuid.uuid4())

    assert limiter.meter.denied == 0
