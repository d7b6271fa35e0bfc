"""Charges authorizations that were not settled in time at their hold.

An expired authorization reads as unsettled without a visit (`Authorization.at`); a visit moves its
hold in the budgets. A process expires its own grants (`settler`). Grants of dead processes are in
marked regions (`reading`):

- A starting process visits each marked region, and again when something in it expires. It leaves
  the marks, since a live process may still grant there.
- A sweep, of any process, visits regions that are a few minutes old, and removes the marks.

Bounds: a start visits `LEFT_MAX` regions, `VISITS_AT_ONCE` in a row; sweeps find the others.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple, Self

import structlog

from pricekeeper.authorizations.authorization import Authorization, Expire, State
from pricekeeper.authorizations.items import Marker
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.reading import VISITS_MS, Seen
from pricekeeper.authorizations.settler import Settler
from pricekeeper.clock import Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.errors import OverloadedError, PriceKeeperError, StoreError
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.position import region_of
from pricekeeper.limiter import Limiter
from pricekeeper.metering import WindowSpend
from pricekeeper.metering.posting import Poster
from pricekeeper.storage import Store

EXPIRY_INTERVAL_MS: Final = 1_000
SWEEP_INTERVAL_MS: Final = 60_000
EXPIRED_AT_ONCE: Final = 100
LEFT_MAX: Final = 1_000
VISITS_AT_ONCE: Final = 20
REVISIT_AFTER_MS: Final = 5_000
"""How long after the next expiry a region is visited again: a live process charges first."""
SELDOM_MS: Final = 600_000
"""The interval of sweeps in an instance whose totals another process aggregates."""

_log = structlog.get_logger(__name__)


class Swept(NamedTuple):
    """What a sweep has done."""

    expired: int = 0
    failed: int = 0


class Visited(NamedTuple):
    """What a visit has done and found."""

    expired: int
    next_due_ms: int | None
    some_unsettled: bool


class Expiry:
    """Expires what is due, of this process and of dead ones."""

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._left: list[tuple[int, Marker]] | None = None

    @classmethod
    def on_store(cls, store: Store, clock: Clock, retention_days: int) -> Self:
        """For a process that sweeps and grants nothing."""
        random = Random()  # noqa: S311  # spreads, no secret
        measure = WindowSpend(store, clock).read_spend
        ledger = Ledger(store, clock, measure, retention_days=retention_days, randomness=random)
        poster = Poster(store, clock, random, retention_days=retention_days, ledger=ledger)
        tokens = Limiter(store, clock=clock).taker
        return cls(Settler(store, clock, ledger, poster, AuthorizationMeter(), tokens))

    async def expire_due(self) -> int:
        due = self._settler.take_due()
        for done in await self._expire_all(due):
            if isinstance(done, (StoreError, OverloadedError)):  # a sweep finds it
                _log.warning("expiry_failed", error=done.code)
            elif isinstance(done, BaseException):
                raise done
        return len(due)

    async def visit_left(self) -> int:
        """Visit the regions that are due; a failed one is due again after `SWEEP_INTERVAL_MS`."""
        regions, clock = self._settler.regions, self._settler.clock
        if self._left is None:
            self._left = [(0, marker) for marker in (await regions.read_fresh())[:LEFT_MAX]]
        expired = 0
        for _ in range(VISITS_AT_ONCE):
            now_ms = clock.now_ms()
            if not self._left or self._left[0][0] > now_ms:
                break
            _, marker = heapq.heappop(self._left)
            try:
                visited = await self._visit(marker)
            except (StoreError, OverloadedError) as error:
                _note_failed(marker, error)
                visited = Visited(0, now_ms + SWEEP_INTERVAL_MS, some_unsettled=False)
            expired, next_due_ms = expired + visited.expired, visited.next_due_ms
            if next_due_ms is not None:
                heapq.heappush(self._left, (next_due_ms + REVISIT_AFTER_MS, marker))
        return expired

    async def sweep(self) -> Swept:
        expired, failed = 0, 0
        for visit in range(len(VISITS_MS)):
            for marker in await self._settler.regions.read_due(visit):
                try:
                    visited = await self._visit(marker)
                    if visited.next_due_ms is None:
                        await self._settler.regions.note_visited(
                            marker, visit, some_unsettled=visited.some_unsettled
                        )
                except (StoreError, OverloadedError) as error:
                    failed += 1
                    _note_failed(marker, error)
                else:
                    expired += visited.expired
        return Swept(expired, failed)

    async def run_forever(self, sweep_interval_ms: int = SWEEP_INTERVAL_MS) -> None:
        """Expire every second and sweep now and then; after a failure the next turn tries again."""
        clock = self._settler.clock
        swept_at_ms = clock.monotonic_ms()
        while True:
            try:
                await self.expire_due()
                await self.visit_left()
                if clock.monotonic_ms() - swept_at_ms >= sweep_interval_ms:
                    swept_at_ms = clock.monotonic_ms()
                    await self.sweep()
            except StoreError as error:
                _log.warning("expiry_failed", error=error.code)
            await clock.sleep_ms(EXPIRY_INTERVAL_MS)

    async def close(self) -> None:
        await self._settler.close()

    async def _visit(self, marker: Marker) -> Visited:
        now_ms = self._settler.clock.now_ms()
        due: list[tuple[str, Seen]] = []
        after: list[Authorization] = []
        async for seen in self._settler.reader.read_region(marker.org_id, marker.region):
            if seen.authorization.at(now_ms).state is seen.authorization.state:
                after.append(seen.authorization)
            else:
                due.append((marker.org_id, seen))
        for done in await self._expire_all(due):
            if isinstance(done, BaseException):
                raise done
            after.append(done)
        open_until_ms = (one.expires_at_ms for one in after if one.state is State.OPEN)
        some_unsettled = any(one.state is State.UNSETTLED for one in after)
        return Visited(len(due), min(open_until_ms, default=None), some_unsettled)

    async def _expire_all(
        self, due: Sequence[tuple[str, Seen]]
    ) -> list[Authorization | BaseException]:
        done: list[Authorization | BaseException] = []
        for some in in_groups(due, EXPIRED_AT_ONCE):
            done += await asyncio.gather(
                *(self._expire(org_id, seen) for org_id, seen in some), return_exceptions=True
            )
        return done

    async def _expire(self, org_id: str, seen: Seen) -> Authorization:
        authorization = seen.authorization
        await self._settler.regions.note_unsettled(org_id, region_of(authorization.id))
        settled = await self._settler.submit(org_id, Expire(), seen).future
        if settled.changed:
            grant = authorization.grant
            _log.warning(
                "authorization_unsettled",
                client_id=grant.terms.client_id,
                authorization_id=authorization.shown_id,
                label=grant.terms.label,
                held_usd_picos=grant.held_usd_picos,
            )
        return settled.authorization


def _note_failed(marker: Marker, error: PriceKeeperError) -> None:
    _log.warning("sweep_failed", org_id=marker.org_id, region=marker.region, error=error.code)
