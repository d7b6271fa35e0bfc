"""Authorizations that nobody settles are charged at what they hold, when their time is over.

The process that granted an authorization remembers when it expires (`open_list`). For those of
processes that are gone, a sweep visits the regions that are marked (`regions`). Any process can
sweep, also one that serves nobody: it needs the store alone.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, NamedTuple, Self

import structlog

from pricekeeper.authorizations.authorization import State
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.items import Marker
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.reading import Seen
from pricekeeper.authorizations.regions import VISITS_MS
from pricekeeper.authorizations.settling import Expire
from pricekeeper.clock import Clock
from pricekeeper.concurrency import in_groups
from pricekeeper.errors import OverloadedError, StoreError
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.position import region_of
from pricekeeper.metering import WindowSpend
from pricekeeper.metering.posting import Poster
from pricekeeper.storage import Store

EXPIRY_INTERVAL_MS: Final = 1_000
SWEEP_INTERVAL_MS: Final = 60_000
EXPIRED_AT_ONCE: Final = 100
SELDOM_MS: Final = 600_000
"""How often an instance sweeps whose totals another process aggregates."""

_log = structlog.get_logger(__name__)


class Swept(NamedTuple):
    """What a sweep has done."""

    expired: int = 0
    """Authorizations that were charged at their hold."""
    failed: int = 0
    """Regions that could not be visited."""


class Expiry:
    """Expires what is due: of this process, and of those that are gone."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @classmethod
    def on_store(cls, store: Store, clock: Clock, retention_days: int) -> Self:
        """What sweeps in a process that grants nothing, and that nobody watches."""
        random = Random()  # noqa: S311  # spreads, no secret
        measure = WindowSpend(store, clock).read_spend
        ledger = Ledger(store, clock, measure, retention_days=retention_days, randomness=random)
        poster = Poster(store, clock, random, retention_days=retention_days, ledger=ledger)
        return cls(Desk(store, clock, ledger, poster, AuthorizationMeter()))

    async def expire_due(self) -> int:
        """Charge what this process has granted, and nobody has settled in time, at its hold."""
        due = self._desk.open.take_due(self._desk.clock.now_ms())
        for some in in_groups(due, EXPIRED_AT_ONCE):
            done = await asyncio.gather(
                *(self._expire(one.org_id, self._desk.seen(one)) for one in some),
                return_exceptions=True,
            )
            for failure in done:
                if isinstance(failure, (StoreError, OverloadedError)):  # a sweep finds it
                    _log.warning("expiry_failed", error=failure.code)
                elif isinstance(failure, BaseException):
                    raise failure
        return len(due)

    async def sweep(self) -> Swept:
        """Charge what processes that are gone have left.

        What fails for one region waits for the next sweep, and the others are visited.
        """
        expired, failed = 0, 0
        for visit in range(len(VISITS_MS)):
            for marker in await self._desk.regions.read_due(visit):
                try:
                    expired += await self._visit(marker, visit)
                except (StoreError, OverloadedError) as error:
                    failed += 1
                    _log.warning(
                        "sweep_failed",
                        org_id=marker.org_id,
                        region=marker.region,
                        error=error.code,
                    )
        return Swept(expired, failed)

    async def run_forever(self, sweep_interval_ms: int = SWEEP_INTERVAL_MS) -> None:
        """Expire what is due every second, and sweep now and then; a failure waits for the next."""
        clock = self._desk.clock
        swept_at_ms = clock.monotonic_ms()
        while True:
            await clock.sleep_ms(EXPIRY_INTERVAL_MS)
            try:
                await self.expire_due()
                if clock.monotonic_ms() - swept_at_ms >= sweep_interval_ms:
                    swept_at_ms = clock.monotonic_ms()
                    await self.sweep()
            except StoreError as error:
                _log.warning("expiry_failed", error=error.code)

    async def close(self) -> None:
        """Carry out what was accepted, then stop."""
        await self._desk.close()

    async def _visit(self, marker: Marker, visit: int) -> int:
        """Charge what has expired in a region, and be done with it if nothing is open any more."""
        org_id, region, _ = marker
        expired, some_open, some_unsettled = 0, False, False
        async for seen in self._desk.regions.read(org_id, region):
            one, state = seen.authorization, seen.authorization.state
            if state is State.OPEN and one.expires_at_ms <= self._desk.clock.now_ms():
                state = await self._expire(org_id, seen)
                expired += 1
            some_open |= state is State.OPEN
            some_unsettled |= state is State.UNSETTLED
        if not some_open:
            await self._desk.regions.note_visited(marker, visit, some_unsettled=some_unsettled)
        return expired

    async def _expire(self, org_id: str, seen: Seen) -> State:
        """Charge it at its hold, if nobody has settled it; returns what has become of it."""
        authorization = seen.authorization
        await self._desk.regions.note_unsettled(org_id, region_of(authorization.id))
        settled = await self._desk.submit(org_id, Expire(), seen).future
        if settled.changed:
            grant = authorization.grant
            _log.warning(
                "authorization_unsettled",
                client_id=grant.terms.client_id,
                authorization_id=authorization.shown_id,
                label=grant.terms.label,
                held_usd_picos=grant.held_usd_picos,
            )
        return settled.authorization.state
