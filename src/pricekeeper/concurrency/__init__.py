"""Small pieces that many rooms need, each of them once.

A bounded cache, a wait before another attempt, and one execution that several callers share. They
know nothing of what they are used for, and read no clock.
"""

from pricekeeper.concurrency.backoff import full_jitter_ms
from pricekeeper.concurrency.cache import BoundedCache
from pricekeeper.concurrency.single_flight import SingleFlight

__all__ = ["BoundedCache", "SingleFlight", "full_jitter_ms"]
