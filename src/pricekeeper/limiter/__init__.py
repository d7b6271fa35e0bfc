"""How fast: token buckets in a store, shared by any number of instances."""

from pricekeeper.limiter.bucket import Debit, Denial, LimitStatus
from pricekeeper.limiter.leases import Lease
from pricekeeper.limiter.limits import Limit, LimitsSource, limit_of
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.limiter.returns import negated
from pricekeeper.limiter.service import Limiter, PreparedRequest
from pricekeeper.limiter.taker import Answer, DeniedDebit, Taker, denied_debits
from pricekeeper.limiter.upkeep import Repaired

__all__ = [
    "Answer",
    "Debit",
    "Denial",
    "DeniedDebit",
    "Lease",
    "Limit",
    "LimitStatus",
    "Limiter",
    "LimiterMeter",
    "LimitsSource",
    "PreparedRequest",
    "Repaired",
    "Taker",
    "denied_debits",
    "limit_of",
    "negated",
]
