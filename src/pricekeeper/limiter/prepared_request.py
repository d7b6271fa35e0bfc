"""A request that is checked once and then made many times, as quickly as possible.

What it takes is spent for good: a caller that wants tokens back asks for a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pricekeeper.limiter.bucket import Denial, LimitStatus
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.leases import Acquisition, Lease
from pricekeeper.limiter.prefetch import Pool
from pricekeeper.limiter.requests import CheckedRequest


class PreparedRequest:
    """Made by `Limiter.prepare`."""

    __slots__ = ("_acquisition", "_cache", "_pool", "_request")

    def __init__(
        self,
        request: CheckedRequest,
        *,
        cache: BucketCache,
        pool: Pool,
        acquisition: Callable[[CheckedRequest], Acquisition],
    ) -> None:
        self._request = request
        self._cache = cache
        self._pool = pool
        self._acquisition = acquisition

    def take_at_once(self) -> bool:
        """Take what was fetched ahead, if that is enough; returns whether it was."""
        return self._pool.spend(self._request) is not None

    async def take(self) -> Lease | Denial:
        """Take the tokens from memory or from the buckets; a denial is returned, not raised."""
        return await self._acquisition(self._request).try_obtain()

    def limits(self) -> Mapping[str, LimitStatus]:
        """The state of the limits in this instance's cache; prefetched tokens count as taken."""
        return self._cache.statuses(self._request.nonempty_debits, self._cache.clock.now_ms())
