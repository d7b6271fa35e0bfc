"""How fast: token buckets in a store, shared by any number of instances."""

from pricekeeper.limiter.bucket import Denial, LimitStatus
from pricekeeper.limiter.leases import Acquisition, Lease
from pricekeeper.limiter.limits import Limit, LimitsSource
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.limiter.prepared_request import PreparedRequest
from pricekeeper.limiter.requests import OnUnavailable
from pricekeeper.limiter.service import Limiter
from pricekeeper.limiter.upkeep import Repaired

__all__ = [
    "Acquisition",
    "Denial",
    "Lease",
    "Limit",
    "LimitStatus",
    "Limiter",
    "LimiterMeter",
    "LimitsSource",
    "OnUnavailable",
    "PreparedRequest",
    "Repaired",
]
