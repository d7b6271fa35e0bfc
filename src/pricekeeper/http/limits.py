"""The API's own rate limits, kept by the product's own limiter.

Each client, key or address has a bucket per kind of request. Tokens are fetched ahead in blocks,
so that most requests are decided in memory. If the store does not answer, requests are let
through here: whatever they want from the store will say so itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from pricekeeper.errors import RateLimitExceededError
from pricekeeper.limiter import Denial, Lease, Limit, Limiter

LIMIT: Final = "requests"
MINUTE_MS: Final = 60_000
BLOCKS_PER_MINUTE: Final = 60
"""A block is about a second's worth, so that a crash loses no more than that."""

BLOCK_MAX: Final = 1_000
CALLERS_MAX: Final = 10_000
"""Callers whose requests are kept ready."""

Headers = tuple[tuple[bytes, bytes], ...]


class ApiLimits:
    """What each caller may do a minute; kinds that are not in the mapping are not limited."""

    def __init__(self, limiter: Limiter, per_minute: Mapping[str, int]) -> None:
        self.limiter = limiter
        self.decisions: Counter[tuple[str, str]] = Counter()
        """Requests by kind and outcome: ``granted``, ``denied``, or ``unlimited`` because the store
        did not answer."""
        self._limits = {
            kind: (Limit(LIMIT, count, count, MINUTE_MS),) for kind, count in per_minute.items()
        }
        self._standing: dict[tuple[str, str], Callable[[], Awaitable[Lease | Denial]]] = {}

    async def admit(self, kind: str | None, caller: str, now_ms: int) -> Headers:
        """Take one request; raises `RateLimitExceededError` if there is none left."""
        limits = self._limits.get(kind) if kind is not None else None
        if limits is None or kind is None:
            return ()
        count = limits[0].capacity
        attempt = self._standing.get((kind, caller))
        if attempt is None:
            if len(self._standing) >= CALLERS_MAX:
                self._standing.clear()
            attempt = self._standing[kind, caller] = self.limiter.standing(
                f"api/{caller}",
                kind,
                {LIMIT: 1},
                limits=limits,
                on_unavailable="allow",
                prefetch=max(1, min(BLOCK_MAX, count // BLOCKS_PER_MINUTE)),
            )
        outcome = await attempt()
        if isinstance(outcome, Denial):
            self.decisions[kind, "denied"] += 1
            raise RateLimitExceededError(outcome.violations)
        self.decisions[kind, "unlimited" if outcome.unlimited else "granted"] += 1
        return _headers(outcome, count, now_ms)


def _headers(lease: Lease, count: int, now_ms: int) -> Headers:
    status = lease.limits.get(LIMIT)
    if status is None:
        return ((b"ratelimit-limit", b"%d" % count),)
    reset_secs = -(-max(0, status.full_at_ms - now_ms) // 1000)
    return (
        (b"ratelimit-limit", b"%d" % count),
        (b"ratelimit-remaining", b"%d" % max(0, status.remaining)),
        (b"ratelimit-reset", b"%d" % reset_secs),
    )
