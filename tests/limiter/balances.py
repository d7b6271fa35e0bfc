"""The balance of a bucket: as a peek shows it, and by taking until a denial."""

from pricekeeper.limiter import Limiter


async def left(limiter: Limiter, entity: str, resource: str = "r") -> int:
    return (await limiter.peek(entity, resource))["n"].remaining


async def spree(limiter: Limiter, entity: str) -> int:
    """Count the tokens granted before the first denial."""
    granted = 0
    while (await limiter.try_acquire(entity, "r", {"n": 1})).granted:
        granted += 1
        assert granted < 1_000, "it is granted for ever"
    return granted
