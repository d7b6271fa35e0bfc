"""What calls of the gateway use while they are under way, and each client's share.

A call holds one place from its head to the end of its answer, and its bytes until they are sent.
One client alone may hold a third of the places and bytes, two clients of different organisations a
quarter each, and so on: there is always room for one more. A call above its share waits for up to
`WAIT_SECS`, before anything is reserved. Clients take turns in planning calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from pricekeeper.concurrency import BoundedCache, FairSlots, Places
from pricekeeper.errors import OverloadedError
from pricekeeper.gateway.caller import Exchange
from pricekeeper.telemetry import Family, counted
from pricekeeper.telemetry.families import Kind
from pricekeeper.tenants import Policy

PLANNED_AT_ONCE: Final = 8
"""Per turn of the event loop; each takes a millisecond at most."""
WAIT_SECS: Final = 2
REFUSALS_A_SEC: Final = 200
"""An organisation's refusals above this rate wait; each costs about 0.3 ms."""
PACED_SECS_MAX: Final = 20
"""A refusal with a longer wait is sent at once; 4,096 connections wait no longer."""
WAITING_PART: Final = 8
"""The calls that may be under way, divided by this, may wait for a place."""
ORGS_MAX: Final = 1_000
"""Organisations with metrics of their own; the others share one name."""
_OTHER: Final = ("other", "")
CALLS: Final = "calls"
BYTES: Final = "bytes"
JUDGING: Final = "judging"
COUNTS: Final = "counts"
_LABELS: Final = ("org", "org_id", "of")
_USED: Final = Family(
    "pricekeeper_gateway_share_used",
    "Calls under way, bytes held for them, long bodies that are judged, prompts that are counted.",
    _LABELS,
    Kind.LEVEL,
)
_WAITS: Final = Family(
    "pricekeeper_gateway_share_waits",
    "Waits for a share of calls or bytes, or for the process that judges long bodies.",
    _LABELS,
)
_REFUSALS: Final = Family(
    "pricekeeper_gateway_share_refusals",
    "Calls that were refused because their client held its share of calls, bytes or counts.",
    _LABELS,
)

_Line = tuple[str, str, str]


@dataclass(slots=True)
class ShareMeter:
    """By organisation (name and id) and resource."""

    used: Counter[_Line] = counted(_USED, factory=Counter)
    waits: Counter[_Line] = counted(_WAITS, factory=Counter)
    refusals: Counter[_Line] = counted(_REFUSALS, factory=Counter)

    orgs: set[tuple[str, str]] = field(default_factory=set)

    def name_of(self, policy: Policy) -> tuple[str, str]:
        org = (policy.org_name, policy.org_id)
        if org not in self.orgs:
            if len(self.orgs) >= ORGS_MAX:
                return _OTHER
            self.orgs.add(org)
        return org


class Sharing:
    """What all calls of one gateway use."""

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        self.meter = ShareMeter()
        waiting_max = max(1, calls_max // WAITING_PART)
        self.places = {
            CALLS: Places(calls_max, waiting_max, WAIT_SECS),
            BYTES: Places(bytes_max, waiting_max, WAIT_SECS),
        }
        self._turns = FairSlots(PLANNED_AT_ONCE)
        self._refusal_due: BoundedCache[str, float] = BoundedCache(ORGS_MAX)

    async def pace_refusal(self, policy: Policy, exchange: Exchange | None) -> None:
        """Wait until the next refusal of the organisation is due.

        Otherwise a client that repeats refused calls could keep the worker busy. Meanwhile the
        server may close its connection to make room for a new one.
        """
        now = asyncio.get_running_loop().time()
        due = max(now, self._refusal_due.get(policy.org_id) or now)
        if due > now + PACED_SECS_MAX:
            return
        self._refusal_due.put(policy.org_id, due + 1 / REFUSALS_A_SEC)
        left = asyncio.Event()
        if exchange is not None and due > now:
            exchange.offer_place()
            exchange.watch(left.set)
        with suppress(TimeoutError):
            await asyncio.wait_for(left.wait(), due - now)

    async def take_turn(self, policy: Policy) -> None:
        """Wait until the client may use the processor in this turn of the event loop."""
        await self._turns.acquire(policy.org_id, policy.client_id)
        asyncio.get_running_loop().call_soon(self._turns.release)


class CallShare:
    """What one call holds; `close` gives it back."""

    def __init__(self, sharing: Sharing, policy: Policy) -> None:
        self._sharing = sharing
        self._policy = policy
        self._org = sharing.meter.name_of(policy)
        self._held: dict[str, int] = {}
        self.has_waited = False
        """After its client was identified."""

    @contextmanager
    def using(self, of: str, *, waits: bool = False) -> Iterator[None]:
        line, meter = (*self._org, of), self._sharing.meter
        meter.waits[line] += waits
        meter.used[line] += 1
        try:
            yield
        finally:
            meter.used[line] -= 1

    def note_refusal(self, of: str) -> None:
        self._sharing.meter.refusals[*self._org, of] += 1

    async def take(self, of: str, count: int) -> None:
        """Hold ``count`` in all; raises `OverloadedError` if the share has no room in time."""
        more = count - self._held.get(of, 0)
        if more <= 0:
            return
        policy, meter = self._policy, self._sharing.meter
        places, client_id = self._sharing.places[of], policy.client_id
        line = (*self._org, of)
        if not places.take_at_once(policy.org_id, client_id, more):
            self.has_waited = True
            meter.waits[line] += 1
            try:
                await places.take(policy.org_id, client_id, more)
            except OverloadedError:
                self.note_refusal(of)
                raise
        self._held[of] = count
        meter.used[line] += more

    def keep(self, of: str, count: int) -> None:
        less = self._held.get(of, 0) - count
        if less <= 0:
            return
        policy = self._policy
        self._held[of] = count
        self._sharing.places[of].give_back(policy.org_id, policy.client_id, less)
        self._sharing.meter.used[*self._org, of] -= less

    def close(self) -> None:
        for of in self._held:
            self.keep(of, 0)
