"""Authorizations that nobody settles are charged at what they hold, when their time is over.

The process that granted an authorization remembers when it expires (`open_list`). For those of
processes that are gone, a sweep visits the regions that are marked (`regions`). Any process can
sweep, also one that serves nobody: it needs the store alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple, Self

import structlog

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.commands import Settle
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.items import region_of
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.open_list import OpenList
from pricekeeper.authorizations.regions import VISITS_MS
from pricekeeper.authorizations.settling import Expire
from pricekeeper.authorizations.worker import Workers
from pricekeeper.clock import Clock
from pricekeeper.errors import OverloadedError, StoreError
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

    def __init__(
        self,
        desk: Desk,
        workers: Workers,
        open_list: OpenList,
        on_change: Callable[[str, Authorization], None],
    ) -> None:
        """``on_change`` is told of each authorization that is charged here."""
        self._desk = desk
        self._workers = workers
        self._open = open_list
        self._on_change = on_change

    @classmethod
    def on_store(cls, store: Store, clock: Clock, retention_days: int) -> Self:
        """What sweeps in a process that grants nothing, and that nobody watches."""
        random = Random()  # noqa: S311  # spreads, no secret
        poster = Poster(store, clock, random, retention_days=retention_days)
        desk = Desk(store, clock, poster, random, AuthorizationMeter())
        return cls(desk, Workers(desk), OpenList(), lambda _, __: None)

    async def expire_due(self) -> int:
        """Charge what this process has granted, and nobody has settled in time, at its hold."""
        due = self._open.take_due(self._desk.clock.now_ms())
        for start in range(0, len(due), EXPIRED_AT_ONCE):
            some = due[start : start + EXPIRED_AT_ONCE]
            done = await asyncio.gather(
                *(self._expire(one.org_id, one.authorization) for one in some),
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
            for org_id, region in await self._desk.regions.read_due(visit):
                try:
                    expired += await self._visit(org_id, region, visit)
                except (StoreError, OverloadedError) as error:
                    failed += 1
                    _log.warning("sweep_failed", org_id=org_id, region=region, error=error.code)
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
        await self._workers.close()

    async def _visit(self, org_id: str, region: str, visit: int) -> int:
        """Charge what has expired in a region, and be done with it if nothing is open any more."""
        expired, some_open, some_unsettled = 0, False, False
        async for one in self._desk.regions.read(org_id, region):
            state = one.state
            if state is State.OPEN and one.expires_at_ms <= self._desk.clock.now_ms():
                state = await self._expire(org_id, one)
                expired += 1
            some_open |= state is State.OPEN
            some_unsettled |= state is State.UNSETTLED
        if not some_open:
            await self._desk.regions.note_visited(
                org_id, region, visit, some_unsettled=some_unsettled
            )
        return expired

    async def _expire(self, org_id: str, authorization: Authorization) -> State:
        """Charge it at its hold, if nobody has settled it; returns what has become of it."""
        await self._desk.regions.note_unsettled(org_id, region_of(authorization.id))
        command = Settle(Expire(), authorization, self._desk.new_nonce())
        self._workers.submit(org_id, command)
        settled = await command.future
        if settled.changed:
            self._on_change(org_id, settled.authorization)
            grant = authorization.grant
            _log.warning(
                "authorization_unsettled",
                client_id=grant.client_id,
                authorization_id=authorization.shown_id,
                label=grant.label,
                held_usd_picos=grant.held_usd_picos,
            )
        return settled.authorization.state
