"""Denials, written behind the answers and listed later.

A denial writes nothing by itself, and a flood of them must not become a flood of writes. So each
process combines its denials by minute (`activity.denial`) and writes a group soon after its first
denial, then every `AGAIN_MS` while it grows. A group is written as a whole, so a write that is sent
twice changes nothing. What was noted and not written when a process is killed is lost.

Bounds: `GROUPS_MAX` groups of an organisation and minute, beyond which denials count as ``other``;
`PENDING_MAX` groups of a process that are not written for good; `WRITES_MAX` of one round. A group
that the store has not taken for `GIVEN_UP_MS` is given up.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import structlog

from pricekeeper.activity.denial import MINUTE_MS, Denial, Group, GroupKey, minute_of
from pricekeeper.activity.items import KEPT_DAYS, SECS_PER_DAY, DenialKey, denials_put, denied_put
from pricekeeper.activity.meter import DenialMeter
from pricekeeper.clock import Clock
from pricekeeper.errors import StoreError
from pricekeeper.storage import Store

GROUPS_MAX: Final = 32
SERIES_MAX: Final = 1_000
PENDING_MAX: Final = 20_000
WRITES_MAX: Final = 256
AT_ONCE: Final = 8
AGAIN_MS: Final = 10_000
GIVEN_UP_MS: Final = 300_000
OTHER: Final = "other"
"""The model of denials that had no group of their own; they have no example either."""
_PROCESS_BYTES: Final = 4
_DIGEST_BYTES: Final = 6

_log = structlog.get_logger(__name__)


class _Pending:
    """A group of this process, and what of it is written."""

    __slots__ = ("group", "key", "written", "written_at_ms")

    def __init__(self, key: DenialKey, group: Group) -> None:
        self.key = key
        self.group = group
        self.written = 0
        """How many denials the store knows of."""
        self.written_at_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether it is to be written: at first, after a while, and at the end of its minute."""
        if self.written == self.group.count:
            return False
        over = minute_of(now_ms) > self.key.minute
        return not self.written or over or now_ms - self.written_at_ms >= AGAIN_MS

    def is_done(self, now_ms: int) -> bool:
        """Whether nothing more comes, and everything is written."""
        return minute_of(now_ms) > self.key.minute and self.written == self.group.count

    def is_hopeless(self, now_ms: int) -> bool:
        """Whether the store has not taken it for so long that it is given up."""
        return now_ms - (self.key.minute + 1) * MINUTE_MS > GIVEN_UP_MS


class Denier(NamedTuple):
    """Under what denials are counted in the metrics."""

    org_id: str
    app_id: str | None
    model: str
    kind: str


OTHERS: Final = Denier("", None, OTHER, OTHER)
"""Stands for whatever is beyond `SERIES_MAX`."""


class DenialLog:
    """Notes denials, and writes them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._process = secrets.token_hex(_PROCESS_BYTES)
        self._pending: dict[tuple[str, int, GroupKey], _Pending] = {}
        self._groups: Counter[tuple[str, int]] = Counter()
        """How many groups each organisation has in a minute."""
        self.totals: Counter[Denier] = Counter()
        """How many this process has noted; at most `SERIES_MAX` are told apart."""
        self.names: dict[tuple[str, str | None], tuple[str, str | None]] = {}
        """What people call the organisations and apps among these."""
        self.meter = DenialMeter()

    def note(self, denial: Denial, org_name: str, app_name: str | None) -> None:
        """Count a denial; it is written soon."""
        denier = Denier(denial.org_id, denial.app_id, denial.model, denial.kind)
        if denier not in self.totals and len(self.totals) >= SERIES_MAX:
            denier = OTHERS
        else:
            self.names[denial.org_id, denial.app_id] = org_name, app_name
        self.totals[denier] += 1
        minute = minute_of(denial.at_ms)
        pending = self._pending.get((denial.org_id, minute, denial.key))
        if pending is None:
            pending = self._begin(denial, minute)
        if pending is not None:
            pending.group.add(denial.at_ms)

    async def flush(self) -> None:
        """Write what is due; what the store does not take now is tried again."""
        now_ms = self._clock.now_ms()
        due = (one for one in self._pending.values() if one.is_due(now_ms))
        await self._write_all(list(islice(due, WRITES_MAX)))
        self._forget(now_ms)

    async def close(self) -> None:
        """Write all that is not written yet, once."""
        left = [one for one in self._pending.values() if one.written < one.group.count]
        await self._write_all(left)

    def _begin(self, denial: Denial, minute: int) -> _Pending | None:
        """A new group, with nothing in it yet; that of all others, if there is no room for it."""
        org, key, why = (denial.org_id, minute), denial.key, denial.why
        if len(self._pending) >= PENDING_MAX:
            self.meter.lost += 1
            return None
        if self._groups[org] >= GROUPS_MAX:
            self.meter.combined += 1
            key, why = GroupKey(None, OTHER, OTHER, OTHER, ()), {}
            known = self._pending.get((*org, key))
            if known is not None:
                return known
        else:
            self._groups[org] += 1
        at_ms = denial.at_ms
        group = Group(key.app_id, key.kind, key.model, key.code, 0, at_ms, at_ms, why)
        pending = _Pending(DenialKey(*org, digest_of(key), self._process), group)
        self._pending[*org, key] = pending
        return pending

    async def _write_all(self, some: Sequence[_Pending]) -> None:
        for start in range(0, len(some), AT_ONCE):
            await asyncio.gather(*(self._write(one) for one in some[start : start + AT_ONCE]))

    async def _write(self, pending: _Pending) -> None:
        now_ms, count = self._clock.now_ms(), pending.group.count
        expires = pending.key.minute * 60 + KEPT_DAYS * SECS_PER_DAY
        try:
            if not pending.written:
                await self._store.put(denied_put(pending.key, expires))
            await self._store.put(denials_put(pending.key, pending.group, expires))
        except StoreError as error:
            self.meter.failed += 1
            _log.warning("denials_not_written", error=error.code)
            return
        self.meter.written += 1
        pending.written, pending.written_at_ms = count, now_ms

    def _forget(self, now_ms: int) -> None:
        """Let go of what is written for good, and of what the store never takes."""
        for key, pending in list(self._pending.items()):
            hopeless = pending.is_hopeless(now_ms)
            if pending.is_done(now_ms) or hopeless:
                self.meter.lost += hopeless and not pending.is_done(now_ms)
                del self._pending[key]
        oldest = minute_of(now_ms) - 1
        for org in [one for one in self._groups if one[1] < oldest]:
            del self._groups[org]


def digest_of(key: GroupKey) -> str:
    """What names a group among those of its minute, the same in every process."""
    text = repr((key.app_id, str(key.kind), key.model, key.code, key.obstacles))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
