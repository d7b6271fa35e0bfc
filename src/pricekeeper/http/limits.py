"""The API's own rate limits, kept by the product's own limiter.

Each client, key or address has a bucket per kind of request. Tokens are fetched ahead in blocks, so
most requests are decided in memory. If the store does not answer, requests are admitted: their own
use of the store fails by itself. Requests that apps send all day (`IN_MEMORY`) are limited by each
process for itself (`http.memory_limits`).

A client's bucket is charged only with requests that proved to be the client's. A wrong credential
is charged to its address. An address with too many failures is barred for a while: right
credentials still work, and the bar decides which error wrong ones get and how often weak secrets
are compared. Wrong provisioning keys are counted apart; while an address is barred for these, no
key from it is compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import (
    ContendedError,
    OutcomeUnknownError,
    RateLimitExceededError,
    StoreClosedError,
    StoreUnavailableError,
    UnreadableItemError,
)
from pricekeeper.http.memory_limits import MemoryLimits
from pricekeeper.limiter import Denial, Limit, Limiter, LimitStatus, PreparedRequest

LIMIT: Final = "requests"
FAILURES: Final = "failures"
MINUTE_MS: Final = 60_000
IN_MEMORY: Final = frozenset(
    ("usage", "batch", "limits", "force_check", "authorize", "capture", "reports", "events")
)
BLOCKS_PER_MINUTE: Final = 60
"""A block is about a second's worth, so a crash loses no more."""

BLOCK_MAX: Final = 1_000
HOLD_MS: Final = 1_000
"""How long a prefetched token stays in memory."""
CALLERS_MAX: Final = 10_000
"""Callers with prefetched tokens."""

Headers = tuple[tuple[bytes, bytes], ...]
_UNLIMITED: Final[Headers] = ()
_NOBODY: Final = "unknown"
_NO_KEY: Final = re.compile(r"[^A-Za-z0-9.:_-]")
"""Characters that no address has; a proxy may forward anything."""
_ADDRESS_LENGTH_MAX: Final = 64
_NETWORK_BITS: Final = 64
"""An IPv6 subscriber has at least such a network, with 2**64 addresses to guess from."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_IPV4_BITS: Final = 0xFFFF_FFFF


def sanitized(address: str | None) -> str:
    """The address in a form that can be part of a key."""
    return _NO_KEY.sub("_", address)[:_ADDRESS_LENGTH_MAX] if address else _NOBODY


def network_of(address: str | None) -> str:
    """The address to count failures for: an IPv4 address itself, of IPv6 its /64 network."""
    try:
        parsed = ip_address((address or "").partition("%")[0])
    except ValueError:
        return sanitized(address)
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        if parsed in _NAT64:  # a translator put all of IPv4 into one network
            return str(ip_address(int(parsed) & _IPV4_BITS))
        network = ip_network((parsed, _NETWORK_BITS), strict=False)
        return f"{network.network_address}_{_NETWORK_BITS}"
    return str(parsed)


class _Bar:
    """Bars an address for at most a minute at a time."""

    __slots__ = ("since_ms", "until_ms", "violations")

    def __init__(self, refused: RateLimitExceededError, now_ms: int) -> None:
        self.violations = refused.violations
        self.since_ms = now_ms
        self.until_ms = now_ms + min(refused.retry_after_ms or MINUTE_MS, MINUTE_MS)

    def error(self, now_ms: int) -> RateLimitExceededError | None:
        """The refusal with the rest of the wait; ``None`` if not barred."""
        if not self.since_ms <= now_ms < self.until_ms:
            return None
        left_ms = self.until_ms - now_ms
        return RateLimitExceededError(
            [replace(violation, retry_after_ms=left_ms) for violation in self.violations]
        )


@dataclass(slots=True)
class _Caller:
    request: PreparedRequest
    headers: Headers = ()
    headers_epoch: int = 0


class ApiLimits:
    """The requests of each caller per minute; kinds outside of the mapping are not limited."""

    def __init__(self, limiter: Limiter, per_minute: Mapping[str, int]) -> None:
        self.limiter = limiter
        self.decisions: Counter[tuple[str, str]] = Counter()
        """By kind and outcome. ``unlimited``: the store did not answer."""
        limits = {kind: Limit(LIMIT, count, count, MINUTE_MS) for kind, count in per_minute.items()}
        self._limits = {kind: limits[kind] for kind in limits if kind not in IN_MEMORY}
        self._memory = MemoryLimits({kind: limits[kind] for kind in limits if kind in IN_MEMORY})
        self._capacities = {
            kind: (b"ratelimit-limit", b"%d" % limits[kind].capacity)
            for kind in limits.keys() & IN_MEMORY
        }
        self._callers: BoundedCache[tuple[str, str], _Caller] = BoundedCache(CALLERS_MAX)
        self._bars: BoundedCache[str, _Bar] = BoundedCache(CALLERS_MAX)

    def bar_of(
        self, address: str | None, now_ms: int, *, of_keys: bool = False
    ) -> RateLimitExceededError | None:
        """The refusal of an address that failed too often, else ``None``."""
        bar = self._bars.get(_failure_key(address, of_keys=of_keys))
        return None if bar is None else bar.error(now_ms)

    async def note_failure(
        self, address: str | None, now_ms: int, *, of_keys: bool = False
    ) -> Headers:
        """Charge a failure; raises `RateLimitExceededError` if the address had too many.

        A barred address is refused from memory, so a flood does not reach the store.
        """
        barred = self.bar_of(address, now_ms, of_keys=of_keys)
        if barred is not None:
            self.decisions[FAILURES, "denied"] += 1
            raise barred
        caller = _failure_key(address, of_keys=of_keys)
        try:
            return await self.admit(FAILURES, caller, now_ms)
        except RateLimitExceededError as refused:
            self._bars.put(caller, _Bar(refused, now_ms))
            raise

    async def count_guess(self, address: str | None, now_ms: int) -> None:
        """Charge a failure, which is answered in the same way if the address had too many."""
        with suppress(RateLimitExceededError):
            await self.note_failure(address, now_ms)

    def failure_headers(
        self, address: str | None, now_ms: int, *, of_keys: bool = False
    ) -> Headers:
        return self.refusal_headers(FAILURES, _failure_key(address, of_keys=of_keys), now_ms)

    def admit_at_once(self, kind: str | None, caller: str, now_ms: int) -> Headers | None:
        """Take one prefetched request; ``None`` if there is none: then call `admit`."""
        if kind is None:
            return _UNLIMITED
        if kind in self._capacities:
            taken = self._memory.take(kind, caller, now_ms)
            if taken is None:
                return None
            self.decisions[kind, "granted"] += 1
            return self._memory_headers(kind, taken)
        if kind not in self._limits:
            return _UNLIMITED
        known = self._callers.get((kind, caller))
        if known is None or not known.request.take_at_once():
            return None
        self.decisions[kind, "granted"] += 1
        now_epoch = now_ms // 1000
        if known.headers_epoch != now_epoch:
            known.headers = _headers(known.request.limits()[LIMIT], now_ms)
            known.headers_epoch = now_epoch
        return known.headers

    async def admit(self, kind: str | None, caller: str, now_ms: int) -> Headers:
        """Take one request; raises `RateLimitExceededError` if there is none left."""
        if kind is not None and kind in self._capacities:
            headers = self.admit_at_once(kind, caller, now_ms)
            if headers is None:
                self.decisions[kind, "denied"] += 1
                raise RateLimitExceededError([self._memory.violation(kind, caller)])
            return headers
        limit = self._limits.get(kind) if kind is not None else None
        if limit is None or kind is None:
            return _UNLIMITED
        try:
            outcome = await self._caller(kind, caller, limit).request.take()
        except (ContendedError, StoreClosedError):
            raise
        except (StoreUnavailableError, OutcomeUnknownError, UnreadableItemError):
            self.limiter.meter.unlimited += 1
            self.decisions[kind, "unlimited"] += 1
            return ((b"ratelimit-limit", b"%d" % limit.capacity),)
        if isinstance(outcome, Denial):
            self.decisions[kind, "denied"] += 1
            raise RateLimitExceededError(outcome.violations)
        self.decisions[kind, "granted"] += 1
        return _headers(outcome[LIMIT], now_ms)

    def refusal_headers(self, kind: str | None, caller: str, now_ms: int) -> Headers:
        """The headers with the state of a limit, for a refused caller."""
        if kind is not None and kind in self._capacities:
            state = self._memory.take(kind, caller, now_ms, 0)
            return () if state is None else self._memory_headers(kind, state)
        known = self._callers.get((kind or "", caller))
        return () if known is None else _headers(known.request.limits()[LIMIT], now_ms)

    def _memory_headers(self, kind: str, state: tuple[int, int]) -> Headers:
        return (
            self._capacities[kind],
            (b"ratelimit-remaining", b"%d" % state[0]),
            (b"ratelimit-reset", b"%d" % state[1]),
        )

    def _caller(self, kind: str, caller: str, limit: Limit) -> _Caller:
        known = self._callers.get((kind, caller))
        if known is None:
            known = _Caller(
                self.limiter.prepare(
                    f"api/{caller}",
                    kind,
                    {LIMIT: 1},
                    limits=[limit],
                    ahead=max(1, min(BLOCK_MAX, limit.capacity // BLOCKS_PER_MINUTE)) - 1,
                )
            )
            self._callers.put((kind, caller), known)
        return known


def _failure_key(address: str | None, *, of_keys: bool) -> str:
    """Wrong provisioning keys are counted apart."""
    return f"address/{network_of(address)}{'/keys' if of_keys else ''}"


def _headers(status: LimitStatus, now_ms: int) -> Headers:
    reset_secs = -(-max(0, status.full_at_ms - now_ms) // 1000)
    return (
        (b"ratelimit-limit", b"%d" % status.limit.capacity),
        (b"ratelimit-remaining", b"%d" % max(0, status.remaining)),
        (b"ratelimit-reset", b"%d" % reset_secs),
    )
