"""A request that is checked once and then made many times, as quickly as possible.

What it takes is spent for good: a caller that wants tokens back asks for a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pricekeeper.limiter.bucket import Denial, LimitStatus, scarcest
from pricekeeper.limiter.bucket_cache import BucketCache
from pricekeeper.limiter.items import bucket_key
from pricekeeper.limiter.leases import Acquisition, Lease
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.limiter.prefetch import Pool
from pricekeeper.limiter.requests import CheckedRequest


class PreparedRequest:
    """Made by `Limiter.prepare`."""

    __slots__ = ("_acquisition", "_cache", "_meter", "_pool", "_request")

    def __init__(
        self,
        request: CheckedRequest,
        *,
        cache: BucketCache,
        pool: Pool,
        meter: LimiterMeter,
        acquisition: Callable[[CheckedRequest], Acquisition],
    ) -> None:
        self._request = request
        self._cache = cache
        self._pool = pool
        self._meter = meter
        self._acquisition = acquisition

    def take_at_once(self) -> bool:
        """Take what was fetched ahead, if that is enough; if not, nothing was taken."""
        request = self._request
        if request.prefetch == 1 or self._pool.spend(request.kind, request.tokens) is None:
            return False
        self._meter.granted += 1
        self._meter.prefetched += 1
        return True

    async def take(self) -> Lease | Denial:
        """Take the tokens from memory or from the buckets; a denial is returned, not raised."""
        return await self._acquisition(self._request).decide()

    def limits(self) -> Mapping[str, LimitStatus]:
        """The state of the limits in this instance's cache; prefetched tokens count as taken."""
        takes = self._request.takes
        buckets = [self._cache.recall(bucket_key(debit.entity, debit.resource)) for debit in takes]
        return scarcest(takes, buckets, self._cache.clock.now_ms())
