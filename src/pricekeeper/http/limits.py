"""The API's own rate limits, kept by the product's own limiter.

Each client, key or address has a bucket per kind of request. Tokens are fetched ahead in blocks,
so that most requests are decided in memory. If the store does not answer, requests are let
through here: whatever they want from the store will say so itself. What apps send all day
(`IN_MEMORY`) is limited by each process for itself, see `pricekeeper.http.memory_limits`.

Who has yet to prove to be a client counts as the client it claims to be, at the address it comes
from: nobody is kept out by what others send in its name from elsewhere. But an address that
fails too often counts as one, whatever it claims, so that making up names does not help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from pricekeeper.errors import RateLimitExceededError
from pricekeeper.http.memory_limits import MemoryLimits
from pricekeeper.limiter import Denial, Limit, Limiter, LimitStatus, Standing

LIMIT: Final = "requests"
FAILURES: Final = "failures"
MINUTE_MS: Final = 60_000
IN_MEMORY: Final = frozenset({"usage", "batch", "limits", "force_check"})
"""Kinds that are limited without the store."""
BLOCKS_PER_MINUTE: Final = 60
"""A block is about a second's worth, so that a crash loses no more than that."""

BLOCK_MAX: Final = 1_000
CALLERS_MAX: Final = 10_000
"""Callers whose requests are kept ready."""

Headers = tuple[tuple[bytes, bytes], ...]
_UNLIMITED: Final[Headers] = ()


class _Caller:
    """One caller's requests of one kind, and what it was told of them in this second."""

    __slots__ = ("headers", "standing", "told_epoch")

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        self.headers: Headers = ()
        self.told_epoch = 0


class ApiLimits:
    """What each caller may do a minute; kinds that are not in the mapping are not limited."""

    def __init__(self, limiter: Limiter, per_minute: Mapping[str, int]) -> None:
        self.limiter = limiter
        self.decisions: Counter[tuple[str, str]] = Counter()
        """Requests by kind and outcome: ``granted``, ``denied``, or ``unlimited`` because the store
        did not answer."""
        limits = {kind: Limit(LIMIT, count, count, MINUTE_MS) for kind, count in per_minute.items()}
        self._limits = {kind: limits[kind] for kind in limits if kind not in IN_MEMORY}
        self._memory = MemoryLimits({kind: limits[kind] for kind in limits if kind in IN_MEMORY})
        self._callers: dict[tuple[str, str], _Caller] = {}
        self._strained_until_ms: dict[str, int] = {}

    def claimant(self, client_id: str | None, address: str, now_ms: int) -> str:
        """As whom to count a request that claims to be from that client."""
        if client_id is None or self._strained_until_ms.get(address, 0) > now_ms:
            return f"address/{address}"
        return f"client/{client_id}/{address}"

    async def note_failure(self, address: str, now_ms: int) -> None:
        """Count refused credentials; raises `RateLimitExceededError` if there were too many."""
        try:
            await self.admit(FAILURES, f"address/{address}", now_ms)
        except RateLimitExceededError as error:
            if len(self._strained_until_ms) >= CALLERS_MAX:
                self._strained_until_ms.clear()
            self._strained_until_ms[address] = now_ms + (error.retry_after_ms or MINUTE_MS)
            raise

    def admit_at_once(self, kind: str | None, caller: str, now_ms: int) -> Headers | None:
        """Take one request that was fetched ahead; ``None`` if there is none: then `admit`."""
        if kind is not None and kind in self._memory:
            taken = self._memory.take(kind, caller, now_ms)
            if isinstance(taken, Denial):
                return None
            self.decisions[kind, "granted"] += 1
            return _headers(taken, now_ms)
        if kind is None or kind not in self._limits:
            return _UNLIMITED
        known = self._callers.get((kind, caller))
        if known is None or not known.standing.take_at_once():
            return None
        self.decisions[kind, "granted"] += 1
        now_epoch = now_ms // 1000
        if known.told_epoch != now_epoch:
            known.headers = _headers(known.standing.limits()[LIMIT], now_ms)
            known.told_epoch = now_epoch
        return known.headers

    async def admit(self, kind: str | None, caller: str, now_ms: int) -> Headers:
        """Take one request; raises `RateLimitExceededError` if there is none left."""
        if kind is not None and kind in self._memory:
            taken = self._memory.take(kind, caller, now_ms)
            if isinstance(taken, Denial):
                self.decisions[kind, "denied"] += 1
                raise RateLimitExceededError(taken.violations)
            self.decisions[kind, "granted"] += 1
            return _headers(taken, now_ms)
        limit = self._limits.get(kind) if kind is not None else None
        if limit is None or kind is None:
            return _UNLIMITED
        outcome = await self._caller(kind, caller, limit).standing.take()
        if isinstance(outcome, Denial):
            self.decisions[kind, "denied"] += 1
            raise RateLimitExceededError(outcome.violations)
        self.decisions[kind, "unlimited" if outcome.unlimited else "granted"] += 1
        if outcome.unlimited:
            return ((b"ratelimit-limit", b"%d" % limit.capacity),)
        return _headers(outcome.limits[LIMIT], now_ms)

    def told(self, kind: str | None, caller: str, now_ms: int) -> Headers:
        """How a limit stands, for who has just been refused."""
        if kind is not None and kind in self._memory:
            return _headers(self._memory.status(kind, caller, now_ms), now_ms)
        known = self._callers.get((kind or "", caller))
        return () if known is None else _headers(known.standing.limits()[LIMIT], now_ms)

    def _caller(self, kind: str, caller: str, limit: Limit) -> _Caller:
        known = self._callers.get((kind, caller))
        if known is None:
            if len(self._callers) >= CALLERS_MAX:
                del self._callers[next(iter(self._callers))]  # one, not everybody's
            known = self._callers[kind, caller] = _Caller(
                self.limiter.standing(
                    f"api/{caller}",
                    kind,
                    {LIMIT: 1},
                    limits=[limit],
                    on_unavailable="allow",
                    prefetch=max(1, min(BLOCK_MAX, limit.capacity // BLOCKS_PER_MINUTE)),
                )
            )
        return known


def _headers(status: LimitStatus, now_ms: int) -> Headers:
    reset_secs = -(-max(0, status.full_at_ms - now_ms) // 1000)
    return (
        (b"ratelimit-limit", b"%d" % status.limit.capacity),
        (b"ratelimit-remaining", b"%d" % max(0, status.remaining)),
        (b"ratelimit-reset", b"%d" % reset_secs),
    )
