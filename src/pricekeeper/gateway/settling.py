"""Settles calls: captures them, gives them back, or leaves them charged at their hold.

An answer waits only until its cost is known, not until its capture is written. Until then the call
is held at its maximum; a process that is killed in between leaves it charged and marked. A
settlement that the store refuses is repeated in the background a few times; then the call stays
held, and is unsettled when it expires.

If an administrator voids a call under way, its hold goes back, and its usage becomes a record of
its own, because Bedrock bills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex
from typing import Final

import msgspec
import structlog

from pricekeeper.authorizations import Authorization, State
from pricekeeper.bedrock import Usage
from pricekeeper.bootstrap import Services
from pricekeeper.concurrency.deadline import Deadlines
from pricekeeper.errors import (
    ConflictError,
    DeadlineExceededError,
    OverloadedError,
    PriceKeeperError,
    StoreError,
)
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.metering import Usage as UsageRecord
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Policy
from pricekeeper.values import derived_request_id

ATTEMPTS_MAX: Final = 5
PAUSE_MS: Final = 200
"""Before the first repetition; it doubles with each."""
SECS_MAX: Final = 5
"""For the settlement before an answer: a caller that times out would pay again."""
_PASSING: Final = (StoreError, OverloadedError, DeadlineExceededError, TimeoutError)
log = structlog.get_logger("pricekeeper.gateway")

Work = Callable[[], Awaitable[int | None]]


class Settlements:
    """Settles the calls of one gateway."""

    def __init__(
        self, services: Services, meter: GatewayMeter, region: str, deadlines: Deadlines
    ) -> None:
        self._services = services
        self._meter = meter
        self._region = region
        self._deadlines = deadlines
        self._salt = token_hex()
        """Secret, so that only this process can make the ids of its records."""
        self._under_way: set[asyncio.Task[None]] = set()

    async def capture(
        self, policy: Policy, authorization: Authorization, usage: Usage | None, model_id: str
    ) -> int | None:
        """Returns the cost, if it is known at once. Without usage the call stays charged."""
        if usage is None:
            self.leave()
            return None
        record = UsageRecord(
            request_id="", model_label="", calling_region=self._region, **usage.record(model_id)
        )
        again = partial(self._capture, policy, authorization, record)
        try:
            cost_usd_picos = self._services.authorizations.recording.begin_capture(
                policy, authorization, record, partial(self._put_off, again)
            )
        except _PASSING as error:
            self._put_off(again, error)
            return None
        if cost_usd_picos is None:
            return await self._settle(again)
        return cost_usd_picos // PICOS_PER_MICRO

    async def _capture(
        self, policy: Policy, authorization: Authorization, record: UsageRecord
    ) -> int:
        authorizations, own_id = self._services.authorizations, authorization.id
        try:
            captured = await authorizations.capture(policy, own_id, record, by_gateway=True)
        except ConflictError:
            if (await authorizations.find(policy, own_id)).state is not State.VOIDED:
                raise
            return await self._count_voided(policy, authorization, record)
        return captured.recorded.receipt.cost_usd_picos // PICOS_PER_MICRO

    async def _count_voided(
        self, policy: Policy, authorization: Authorization, record: UsageRecord
    ) -> int:
        """Count the usage of a call that was voided meanwhile; the same id counts once."""
        grant = authorization.grant
        record = msgspec.structs.replace(
            record,
            request_id=derived_request_id(grant.authorized_at_ms, self._salt + authorization.id),
            model_label=grant.terms.label,
            timestamp_ms=grant.authorized_at_ms,
            tags=grant.tags,
        )
        recorded = await self._services.authorizations.recording.record(policy, record)
        log.warning(
            "counted_though_voided",
            authorization_id=authorization.shown_id,
            request_id=record.request_id,
        )
        return recorded.receipt.cost_usd_picos // PICOS_PER_MICRO

    async def void(self, policy: Policy, authorization: Authorization, reason: str) -> None:
        void = partial(self._services.authorizations.void, by_gateway=True)
        await self._settle(partial(void, policy, authorization.id, reason))

    def leave(self) -> None:
        self._meter.unsettled += 1

    async def close(self) -> None:
        await self._services.authorizations.close()
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _settle(self, work: Work) -> int | None:
        try:
            with self._deadlines.begin(SECS_MAX):
                return await work()
        except _PASSING as error:
            self._put_off(work, error)
        except PriceKeeperError as error:
            self._note_refused(error)
        return None

    def _note_refused(self, error: BaseException) -> None:
        self.leave()
        log.warning("settlement_refused", error=_named(error))

    def _put_off(self, work: Work, error: BaseException) -> None:
        """Settle the call later; `_capture` knows what a conflict means."""
        if not isinstance(error, (*_PASSING, ConflictError)):
            self._note_refused(error)
            return
        task = asyncio.get_running_loop().create_task(self._settle_later(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        log.warning("settlement_put_off", error=_named(error))

    async def _settle_later(self, work: Work) -> None:
        for attempt in range(ATTEMPTS_MAX):
            await self._services.clock.sleep_ms(PAUSE_MS << attempt)
            try:
                with self._deadlines.begin(SECS_MAX):
                    await work()
            except _PASSING as error:
                log.warning("settlement_failed", attempt=attempt, error=_named(error))
            except PriceKeeperError as error:
                self._note_refused(error)
                return
            else:
                return
        self.leave()


def _named(error: BaseException) -> str:
    name = error.code if isinstance(error, PriceKeeperError) else type(error).__name__
    return f"{name}: {error}"
