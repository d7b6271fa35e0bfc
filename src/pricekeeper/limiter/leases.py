"""A lease, and how to hold one: for the length of a block, or until it is released.

If the caller stops waiting for a lease that is then granted, the lease is given back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any

from pricekeeper.errors import PriceKeeperError, RateLimitExceededError
from pricekeeper.limiter.bucket import Denial, LimitStatus
from pricekeeper.limiter.completion import Completion
from pricekeeper.limiter.lease_accounts import LeaseAccount
from pricekeeper.limiter.meter import LimiterMeter
from pricekeeper.limiter.requests import parse_id


class Lease:
    """Tokens that were taken. Made by a limiter; ``granted`` tells it from a `Denial`."""

    __slots__ = (
        "_account",
        "_completion",
        "_id",
        "_limits",
        "entity",
        "granted_at_ms",
        "resource",
        "unlimited",
    )

    def __init__(
        self,
        account: LeaseAccount,
        completion: Completion,
        *,
        lease_id: str | None,
        entity: str,
        resource: str,
        granted_at_ms: int,
        limits: Callable[[], Mapping[str, LimitStatus]],
        unlimited: bool = False,
    ) -> None:
        self._account = account
        self._completion = completion
        self._id = lease_id
        self._limits: Callable[[], Mapping[str, LimitStatus]] | Mapping[str, LimitStatus] = limits
        self.entity = entity
        self.resource = resource
        self.granted_at_ms = granted_at_ms
        """The reading of this instance's clock that the grant was decided by."""
        self.unlimited = unlimited
        """Whether it was granted without reading a bucket, because the store did not answer."""

    @property
    def id(self) -> str:
        """Its name: the caller's, or one that is made up when it is first read."""
        if self._id is None:
            self._id = str(uuid.uuid4())
        return self._id

    @property
    def limits(self) -> Mapping[str, LimitStatus]:
        """Each limit right after the grant; where parents share one, the scarcest.

        Computed when it is first read, since most leases out of memory are never asked for it.
        """
        if callable(self._limits):
            self._limits = self._limits()
        return self._limits

    @property
    def granted(self) -> bool:
        """``True``; a denial says ``False``."""
        return True

    @property
    def held(self) -> Mapping[str, int]:
        """The tokens it holds, by limit."""
        return self._account.held

    async def adjust(
        self, delta: Mapping[str, int], *, adjustment_id: uuid.UUID | str | None = None
    ) -> None:
        """Take more than was estimated, or give some back. It can't be denied.

        This may put a balance below zero; then nobody gets tokens until it has refilled. A debt
        ends at its bound: what a bucket can't bear is not taken, and ``held`` shows how much was.
        The same ``adjustment_id`` changes the lease once, however often it is sent.
        """
        known = None if adjustment_id is None else parse_id(adjustment_id, "adjustment_id")
        await self._completion.complete(self._account.change(dict(delta), known))

    async def release(self) -> None:
        """Give everything back. Releasing again does nothing."""
        await self._completion.complete(self._account.release())


class Acquisition:
    """An acquire that is about to happen: ``await`` it, or hold it in an ``async with``.

    Leaving the block by an exception, cancellation among them, gives everything back;
    leaving it otherwise keeps what was used.
    """

    def __init__(
        self,
        *,
        take_from_memory: Callable[[], Lease | None],
        attempt: Callable[[], Coroutine[Any, Any, Lease | Denial]],
        completion: Completion,
        meter: LimiterMeter,
        named: bool,
    ) -> None:
        self._take_from_memory = take_from_memory
        self._attempt = attempt
        self._completion = completion
        self._meter = meter
        self._named = named
        self._lease: Lease | None = None

    def __await__(self) -> Generator[Any, None, Lease]:
        return self.obtain(undo=not self._named).__await__()

    async def __aenter__(self) -> Lease:
        self._lease = await self.obtain(undo=True)
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._lease is None:
            return
        try:
            await self._completion.complete(self._roll_back(self._lease))
        except PriceKeeperError as failure:
            error.add_note(f"and its lease could not be given back: {failure}")

    async def try_obtain(self) -> Lease | Denial:
        """Acquire the lease; a denial is returned, not raised.

        A lease with a name outlives a cancellation: its caller can ask for it again.
        """
        return await self._obtain_in_task(undo=not self._named)

    async def obtain(self, *, undo: bool) -> Lease:
        """Acquire the lease; with ``undo`` it is given back if the caller stops waiting."""
        outcome = await self._obtain_in_task(undo=undo)
        if isinstance(outcome, Denial):
            raise RateLimitExceededError(outcome.violations)
        return outcome

    async def _obtain_in_task(self, *, undo: bool) -> Lease | Denial:
        if lease := self._take_from_memory():
            return lease
        return await self._completion.complete(self._attempt(), self._undo if undo else None)

    async def _undo(self, outcome: Lease | Denial) -> None:
        if isinstance(outcome, Lease):
            await self._roll_back(outcome)

    async def _roll_back(self, lease: Lease) -> None:
        self._meter.rolled_back += 1
        try:
            await lease.release()
        except PriceKeeperError:
            self._meter.refunds_lost += 1
            raise
