"""Decides alerts, each once, and queues them for their channels.

The first writer of a finding's key decides it. Alert and queue entries are in the same transaction,
so a crash leaves a decision that will be delivered, or none. After a lost reply the next check
finds the key, or decides.

Bounds: `KNOWN_MAX` cached decisions; any other costs a read. A channel with `items.PENDING_MAX`
waiting alerts gets no more; these are listed as unsent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

import structlog

from pricekeeper.alerts.alert import Alert, Finding, Owner, alert_body, split
from pricekeeper.alerts.channels import Channels
from pricekeeper.alerts.items import Receiver, decision_writes, key_key
from pricekeeper.alerts.meter import AlertMeter
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import ContendedError, ReasonCode, TransactionCancelledError
from pricekeeper.storage import Store
from pricekeeper.storage.tables import ALERTS
from pricekeeper.values import new_request_id

KNOWN_MAX: Final = 50_000
_FIRST_RECEIVER: Final = 3
"""Index of the first receiver's writes in a decision; each receiver has two."""
Observer: TypeAlias = Callable[[Alert], None]

_log = structlog.get_logger(__name__)


class Decider:
    """Turns findings into alerts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        channels: Channels,
        meter: AlertMeter | None = None,
        observe: Observer = lambda _: None,
    ) -> None:
        """``observe`` is called with each alert that is decided here."""
        self._store = store
        self._clock = clock
        self._channels = channels
        self._observe = observe
        self.meter = meter or AlertMeter()
        self._known: BoundedCache[tuple[Owner, str], bool] = BoundedCache(KNOWN_MAX)

    async def decide(self, findings: Iterable[Finding]) -> list[Alert]:
        """Decide the new findings; returns the alerts that were decided here."""
        fresh = {
            (finding.owner, finding.digest): finding
            for finding in findings
            if (finding.owner, finding.digest) not in self._known
        }
        if not fresh:
            return []
        keys = [(ALERTS, key_key(*known)) for known in fresh]
        decided: list[Alert] = []
        for known, item in zip(fresh, await self._store.batch_get(keys), strict=True):
            alert = None if item is not None else await self._decide(fresh[known])
            self._known.put(known, True)  # noqa: FBT003
            if alert is not None:
                decided.append(alert)
        return decided

    async def _decide(self, finding: Finding) -> Alert | None:
        now_ms = self._clock.now_ms()
        alert = Alert(new_request_id(now_ms), now_ms, finding)
        receivers = await self._channels.find_receivers(finding)
        full: set[Receiver] = set()
        for _ in range(len(receivers) + 1):
            room = [one for one in receivers if one not in full]
            try:
                await self._store.transact(decision_writes(alert, alert_body(alert), room, full))
            except TransactionCancelledError as cancelled:
                refused = [
                    reason.code is ReasonCode.CONDITION_FAILED for reason in cancelled.reasons
                ]
                if refused[0]:
                    return None
                full |= {
                    one
                    for one, is_full in zip(room, refused[_FIRST_RECEIVER + 1 :: 2], strict=True)
                    if is_full
                }
                continue
            self._tell(alert, room, full)
            return alert
        raise ContendedError("an alert could not be written")

    def _tell(
        self, alert: Alert, receivers: Collection[Receiver], full: Collection[Receiver]
    ) -> None:
        finding = alert.finding
        self.meter.decided[finding.kind.value] += 1
        _log.info(
            "alert_decided",
            alert_id=alert.id,
            kind=finding.kind.value,
            org_id=finding.owner.org_id,
            app_id=finding.party.app_id,
            title=split(finding.title).plain,
            channels=len(receivers),
        )
        for one in full:
            _log.error("alert_unsent", alert_id=alert.id, channel=one.key, reason="queue full")
        self._observe(alert)
