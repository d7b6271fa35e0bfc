"""Alerts done wrong, in the ways they are done wrong elsewhere or nearly were here.

Each of these takes one line of defence away, and the simulation must catch every one of them.
`docs/proof.md` lists them, with the seed that does.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from pricekeeper.alerts import deciding, delivery, items, watching
from pricekeeper.alerts.alert import Alert, DeliveryState, Finding
from pricekeeper.alerts.deciding import Decider
from pricekeeper.alerts.delivery import Courier
from pricekeeper.alerts.items import Queued
from pricekeeper.alerts.watching import Watcher
from pricekeeper.errors import StoreError
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.facets import Facet
from pricekeeper.storage import Write
from pricekeeper.values import new_request_id

Patch = pytest.MonkeyPatch


def decided_without_condition(patch: Patch) -> None:
    """A finding without a decision is decided, also if another process decides it meanwhile."""
    real = items.decision_writes

    def writes(*args: Any) -> list[Write]:
        first, *rest = real(*args)
        return [msgspec.structs.replace(first, condition=None), *rest]

    patch.setattr(deciding, "decision_writes", writes)


def told_after_the_decision(patch: Patch) -> None:
    """What waits for channels is written in a second transaction."""
    real = Decider._decide

    async def decide(self: Decider, finding: Finding) -> Alert | None:
        store = self._store

        class InTwo:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def transact(self, writes: list[Write]) -> None:
                await store.transact(writes[:3])
                if writes[3:]:
                    await store.transact(writes[3:])

        in_two: Any = InTwo()
        self._store = in_two
        try:
            return await real(self, finding)
        finally:
            self._store = store

    patch.setattr(Decider, "_decide", decide)


def failures_are_swallowed(patch: Patch) -> None:
    """A look that fails does not keep the checkpoint from moving on."""
    real = Watcher.look

    async def look(self: Watcher, org_id: str, totals: Mapping[Facet, Counters]) -> None:
        with contextlib.suppress(StoreError):
            await real(self, org_id, totals)

    patch.setattr(Watcher, "look", look)


def seen_before_it_is_decided(patch: Patch) -> None:
    """Totals count as looked at before anything was decided about them."""
    real = Watcher.look

    async def look(self: Watcher, org_id: str, totals: Mapping[Facet, Counters]) -> None:
        unseen = {
            facet: total
            for facet, total in totals.items()
            if self._seen.get(facet) != total.cost_usd_picos
        }
        known = dict.fromkeys(unseen, 0)
        copied = type(self._seen)(watching.SEEN_MAX)
        for facet, total in unseen.items():
            self._seen.put(facet, total.cost_usd_picos)
        self._seen, kept = copied, self._seen
        try:
            await real(self, org_id, {facet: unseen[facet] for facet in known})
        finally:
            self._seen = kept

    patch.setattr(Watcher, "look", look)


def settled_before_it_is_sent(patch: Patch) -> None:
    """An alert leaves the queue when its delivery begins."""
    real = Courier._send

    async def send(self: Courier, queued: Queued, channel: Any) -> Any:
        await self._settle(queued, DeliveryState.DELIVERED)
        return await real(self, queued, channel)

    patch.setattr(Courier, "_send", send)


def lease_without_end(patch: Patch) -> None:
    """A dead process keeps its lease."""
    patch.setattr(delivery, "LEASE_MS", 10**12)


def another_key_for_each_attempt(patch: Patch) -> None:
    """Each attempt has an idempotency key of its own."""
    real = Courier._send

    async def send(self: Courier, queued: Queued, channel: Any) -> Any:
        destinations = self._destinations

        async def send_anew(to: Any, alert_id: str, body: bytes) -> None:
            del alert_id
            await destinations[to.channel.kind](to, new_request_id(0), body)

        self._destinations = dict.fromkeys(destinations, send_anew)
        try:
            return await real(self, queued, channel)
        finally:
            self._destinations = destinations

    patch.setattr(Courier, "_send", send)


def windows_share_an_identity(patch: Patch) -> None:
    """Every window of a budget has the same identity."""
    real = Finding.digest.fget  # type: ignore[attr-defined]

    def digest(self: Finding) -> str:
        cut = (*self.identity[:2], self.identity[-1])
        made: str = real(msgspec.structs.replace(self, identity=cut))
        return made

    patch.setattr(Finding, "digest", property(digest))


BROKEN: dict[str, Callable[[Patch], None]] = {
    made.__name__.replace("_", " "): made
    for made in (
        decided_without_condition,
        told_after_the_decision,
        failures_are_swallowed,
        seen_before_it_is_decided,
        settled_before_it_is_sent,
        lease_without_end,
        another_key_for_each_attempt,
        windows_share_an_identity,
    )
}
CAUGHT_BY = {
    "decided without condition": 7,
    "told after the decision": 7,
    "failures are swallowed": 140,
    "seen before it is decided": 5,
    "settled before it is sent": 1,
    "lease without end": 5,
    "another key for each attempt": 1,
    "windows share an identity": 1,
}
