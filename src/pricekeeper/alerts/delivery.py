"""Delivers alerts: at least once to each channel, with one idempotency key.

A lease admits one instance at a time to a channel. The oldest alert is sent first. An unreachable
channel is tried again after a wait that doubles up to 15 minutes, with jitter; one that refuses an
alert still gets the others. After a day an alert is given up, with a log line and a metric.

Bounds: `SLOTS` channels at once, so a dead one does not delay others; one attempt of
`webhook.ATTEMPT_SECS` at a time, at most `LEASE_MS`; `items.PENDING_MAX` alerts for a channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import structlog

from pricekeeper.alerts import items
from pricekeeper.alerts.alert import DeliveryState
from pricekeeper.alerts.channel import ChannelKind
from pricekeeper.alerts.channels import Channels, OpenChannel
from pricekeeper.alerts.items import Queued, Receiver, Waiting
from pricekeeper.alerts.meter import AlertMeter
from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff, wait_or_wake
from pricekeeper.errors import (
    ConditionFailedError,
    DeliveryError,
    OutcomeUnknownError,
    ReasonCode,
    StoreError,
    TransactionCancelledError,
    UnreadableItemError,
)
from pricekeeper.storage import Query, Store, query_items, readable
from pricekeeper.storage.tables import ALERTS
from pricekeeper.values import id_minted_ms

INTERVAL_MS: Final = 5_000
SLOTS: Final = 64
LEASE_MS: Final = 60_000
MARGIN_MS: Final = 15_000
"""In this last part of its lease an instance begins no attempt."""
SENT_AT_ONCE: Final = 20
BACKOFF: Final = Backoff(10_000, 15 * 60_000)
GIVE_UP_MS: Final = 24 * 3_600_000

Send: TypeAlias = Callable[[OpenChannel, str, bytes], Awaitable[None]]

_log = structlog.get_logger(__name__)


class _Round(NamedTuple):
    failed: bool
    oldest_ms: int | None = None
    """Of the oldest alert that could not be delivered."""


class Courier:
    """Delivers queued alerts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        channels: Channels,
        destinations: Mapping[ChannelKind, Send],
        *,
        meter: AlertMeter | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels
        self._destinations = destinations
        self._random = randomness or random.Random()  # noqa: S311  # spreads attempts, no secret
        self.meter = meter or AlertMeter()
        self._busy: dict[Receiver, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Check the queues now, because something was decided here."""
        self._wake.set()

    async def run_forever(self, interval_ms: int = INTERVAL_MS) -> None:
        try:
            while True:
                try:
                    await self.start_due()
                except StoreError as error:
                    _log.warning("alert_outbox_unread", code=error.code)
                self._wake.clear()
                await wait_or_wake(self._clock.sleep_ms(interval_ms), self._wake)
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def run_once(self) -> None:
        await self.start_due()
        await asyncio.gather(*self._busy.values())

    async def start_due(self) -> None:
        now_ms = self._clock.now_ms()
        found = query_items(self._store, Query(ALERTS, items.OUTBOX))
        read = [readable(items.waiting_from, item) async for item in found]
        waiting = [one for one in read if one is not None]
        ages = [now_ms - one.oldest_ms for one in waiting if one.oldest_ms is not None]
        self.meter.outbox_age_secs = max(0, *ages, 0) // 1000
        self.meter.outbox_channels = len(waiting)
        for one in sorted(waiting, key=lambda one: one.due_ms):
            is_free = one.receiver not in self._busy and one.leased_until_ms <= now_ms
            if one.due_ms <= now_ms and is_free and len(self._busy) < SLOTS:
                self._busy[one.receiver] = asyncio.create_task(
                    self._serve(one), name="pricekeeper-alerts"
                )

    async def _serve(self, waiting: Waiting) -> None:
        try:
            await self._serve_leased(waiting.receiver)
        except StoreError as error:
            _log.warning("alert_delivery_put_off", channel=waiting.receiver.key, code=error.code)
        finally:
            del self._busy[waiting.receiver]

    async def _serve_leased(self, receiver: Receiver) -> None:
        lease = secrets.token_hex(8)
        now_ms = self._clock.now_ms()
        until_ms = now_ms + LEASE_MS
        try:
            leased = await self._store.update(items.lease_update(receiver, lease, now_ms, until_ms))
        except ConditionFailedError:
            return
        done = await self._send_all(receiver, until_ms - MARGIN_MS)
        await self._release(items.waiting_from(leased), lease, done)

    async def _release(self, waiting: Waiting, lease: str, done: _Round) -> None:
        now_ms, failures = self._clock.now_ms(), 0
        if done.failed:
            failures = waiting.failures + 1
            now_ms += BACKOFF.pause_ms(failures, self._random.randrange)
        update = items.release_update(
            waiting.receiver, lease, due_ms=now_ms, failures=failures, oldest_ms=done.oldest_ms
        )
        try:
            left = items.waiting_from(await self._store.update(update))
            if left.pending <= 0:
                await self._store.delete(items.emptied_delete(waiting.receiver))
        except ConditionFailedError:  # the lease has expired, or an alert was added
            return

    async def _send_all(self, receiver: Receiver, until_ms: int) -> _Round:
        """Send oldest first, until the queue is empty, an attempt fails, or time is up."""
        try:
            channel = await self._channels.open(receiver)
        except DeliveryError as unopened:
            return await self._fail(receiver, unopened)
        failed, oldest_ms, after = False, None, ""
        while True:
            page = await self._store.query(items.queue_query(receiver, SENT_AT_ONCE, after))
            for item in page.items:
                if self._clock.now_ms() >= until_ms:
                    return _Round(failed, oldest_ms)
                queued = items.queued_from(receiver, item)
                error = await self._send(queued, channel)
                if error is not None:
                    failed, oldest_ms = True, oldest_ms or id_minted_ms(queued.alert_id)
                    if not error.is_refused:
                        return _Round(failed, oldest_ms)
            after = page.after
            if not after:
                return _Round(failed, oldest_ms)

    async def _fail(self, receiver: Receiver, error: DeliveryError) -> _Round:
        page = await self._store.query(items.queue_query(receiver, SENT_AT_ONCE))
        oldest_ms = None
        for item in page.items:
            queued = items.queued_from(receiver, item)
            if not await self._give_up_if_old(queued, error):
                oldest_ms = oldest_ms or id_minted_ms(queued.alert_id)
        _log.warning("alert_delivery_failed", channel=receiver.key, error=str(error))
        return _Round(failed=True, oldest_ms=oldest_ms)

    async def _send(self, queued: Queued, channel: OpenChannel | None) -> DeliveryError | None:
        """Send one alert and settle it; returns the error if it must be tried again."""
        item = await self._store.get(ALERTS, queued.key)
        if item is None or channel is None:
            why = "the channel was removed" if channel is None else "the alert has expired"
            await self._settle(queued, DeliveryState.GIVEN_UP, why)
            return None
        kind, named = channel.channel.kind, _named(queued)
        try:
            alert = items.alert_from(item)
            await self._destinations[kind](channel, queued.alert_id, alert.body)
        except UnreadableItemError:
            await self._settle(queued, DeliveryState.GIVEN_UP, "it can't be read")
        except DeliveryError as error:
            self.meter.failed[kind.value] += 1
            _log.warning("alert_delivery_failed", **named, error=str(error))
            return None if await self._give_up_if_old(queued, error, kind) else error
        else:
            self.meter.delivered[kind.value] += 1
            _log.info("alert_delivered", **named)
            await self._settle(queued, DeliveryState.DELIVERED)
        return None

    async def _give_up_if_old(
        self, queued: Queued, error: DeliveryError, kind: ChannelKind | None = None
    ) -> bool:
        """Give up an alert that has waited too long; returns whether it did."""
        if self._clock.now_ms() - id_minted_ms(queued.alert_id) < GIVE_UP_MS:
            return False
        self.meter.given_up["unknown" if kind is None else kind.value] += 1
        _log.error("alert_given_up", **_named(queued), error=str(error))
        await self._settle(queued, DeliveryState.GIVEN_UP, str(error))
        return True

    async def _settle(self, queued: Queued, state: DeliveryState, error: str | None = None) -> None:
        """Remove an alert from the queue. If the reply is lost, it may be delivered again."""
        writes = items.settle_writes(queued, state, self._clock.now_ms(), error)
        try:
            await self._store.transact(writes)
        except OutcomeUnknownError:
            return
        except TransactionCancelledError as cancelled:
            if cancelled.reasons[0].code is ReasonCode.CONDITION_FAILED:
                return  # another instance did it
            with contextlib.suppress(TransactionCancelledError, OutcomeUnknownError):
                await self._store.transact(writes[:-1])  # the alert itself has expired


def _named(queued: Queued) -> dict[str, str]:
    return {"alert_id": queued.alert_id, "channel": queued.receiver.key}
