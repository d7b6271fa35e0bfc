"""Limits the values of a tag that have totals of their own: the first ones of each day.

An item for each key and day has their short hashes (``TAGVALUES#{org}#{day}`` / tag key, in
UsageAggSharded). It is changed before a total of a new value is written, and only grows. So every
aggregator and every later fold counts a value under the same heading: its own, or `OTHER`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import structlog

from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    UnreadableItemError,
)
from pricekeeper.metering.aggregation_report import Tally
from pricekeeper.metering.counters import Counters
from pricekeeper.metering.facets import Facet, SumsByFacet, tag_sort_key
from pricekeeper.metering.items import day_expires_at_epoch
from pricekeeper.metering.meter import FoldMeter
from pricekeeper.storage import ITEM_ABSENT, Item, Key, Put, Store, TypedItem, attr
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.storage.values import EXPIRY

VALUES_MAX: Final = 1_000
HASH_BYTES: Final = 8
FACETS_A_TURN: Final = 1_000
OTHER: Final = "(other)"
"""All values beyond the first `VALUES_MAX`."""
ATTEMPTS_MAX: Final = 10
REMEMBERED_MAX: Final = 256
OVER_MAX: Final = 10_000
"""Reported keys and days; a forgotten one is reported again."""

_HASHES, _REV = "hashes", "rev"
_ALWAYS: Final = frozenset({"", OTHER})
"""Values without a hash."""
_log = structlog.get_logger(__name__)


class TagDay(NamedTuple):
    """A tag key of an organisation, on one of its days."""

    org_id: str
    key: str
    day: str


class TagValues:
    """Decides which values of tags have totals of their own."""

    def __init__(
        self, store: Store, retention_days: int, meter: FoldMeter, *, values_max: int = VALUES_MAX
    ) -> None:
        self._store = store
        self._retention_days = retention_days
        self._meter = meter
        self._values_max = values_max
        self._known: BoundedCache[TagDay, frozenset[bytes]] = BoundedCache(REMEMBERED_MAX)
        self._over: BoundedCache[TagDay, bool] = BoundedCache(OVER_MAX)

    async def register_values(self, found: SumsByFacet, tally: Tally) -> SumsByFacet:
        """Register new values; further ones count as `OTHER`, unreadable ones in ``tally``."""
        seen: dict[TagDay, dict[str, None]] = {}
        for number, facet in enumerate(found):
            if number % FACETS_A_TURN == 0:
                await asyncio.sleep(0)  # let other requests have their turn
            if (tag := facet.tag) is not None:
                values = seen.setdefault(TagDay(facet.org_id, tag.key, facet.day), {})
                if tag.value not in _ALWAYS:
                    values[tag.value] = None
        apart: dict[TagDay, frozenset[bytes]] = {}
        for tag_day, values in seen.items():
            try:
                apart[tag_day] = await self._register(tag_day, values)
            except UnreadableItemError as error:
                tally.fail(1, error)
        limited: SumsByFacet = {}
        for number, (facet, sums) in enumerate(found.items()):
            if number % FACETS_A_TURN == 0:
                await asyncio.sleep(0)
            under = self._choose_facet(facet, apart)
            if under is not None:
                _add(limited.setdefault(under, {}), sums)
        return limited

    def _choose_facet(self, facet: Facet, apart: Mapping[TagDay, frozenset[bytes]]) -> Facet | None:
        """``None`` if its values can't be read."""
        tag = facet.tag
        if tag is None or tag.value in _ALWAYS:
            return facet
        tag_day = TagDay(facet.org_id, tag.key, facet.day)
        known = apart.get(tag_day)
        if known is None:
            return None
        if _hash(tag.value) in known:
            return facet
        self._report(tag_day)
        return facet._replace(sk=tag_sort_key(tag.key, facet.day, tag.hour, OTHER))

    async def _register(self, tag_day: TagDay, values: Iterable[str]) -> frozenset[bytes]:
        wanted = [_hash(value) for value in values]
        known = self._known.get(tag_day) or frozenset()
        if len(known) >= self._values_max or known.issuperset(wanted):
            return known
        for _ in range(ATTEMPTS_MAX):
            item = await self._store.get(USAGE_AGG_SHARDED, tag_values_key(*tag_day))
            stored = _values_from(item)
            known = frozenset(stored)
            new = [one for one in dict.fromkeys(wanted) if one not in known]
            new = new[: max(0, self._values_max - len(known))]
            if new:
                expires = day_expires_at_epoch(tag_day.day, self._retention_days)
                put = _values_put(tag_values_key(*tag_day), item, [*stored, *new], expires)
                try:
                    await self._store.put(put)
                except (ConditionFailedError, OutcomeUnknownError):
                    continue
                known |= frozenset(new)
            self._known.put(tag_day, known)
            return known
        raise ContendedError(f"the values of {tag_day.key} on {tag_day.day} kept changing")

    def _report(self, tag_day: TagDay) -> None:
        if tag_day not in self._over:
            self._over.put(tag_day, True)  # noqa: FBT003
            self._meter.tags_over += 1
            _log.warning("tag_values_over", **tag_day._asdict(), values_max=self._values_max)


def tag_values_key(org_id: str, key: str, day: str) -> Key:
    """The key of a tag's registered values of that day."""
    return Key(f"TAGVALUES#{org_id}#{day}", key)


def _values_from(item: Mapping[str, Any] | None) -> list[bytes]:
    if item is None:
        return []
    hashes = item.get(_HASHES)
    if type(hashes) is not bytes or len(hashes) % HASH_BYTES:
        raise TypedItem(USAGE_AGG_SHARDED, item).report_unreadable(f"{_HASHES} must be hashes")
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]


def _values_put(
    key: Key, stored: Item | None, hashes: Iterable[bytes], expires_at_epoch: int
) -> Put:
    """Write the values, on condition that the stored ones are those that were read."""
    rev = 0 if stored is None else TypedItem(USAGE_AGG_SHARDED, stored).whole(_REV, 0)
    item: Item = {
        **key.attributes,
        _HASHES: b"".join(hashes),
        _REV: rev + 1,
        EXPIRY: expires_at_epoch,
    }
    return Put(USAGE_AGG_SHARDED, item, ITEM_ABSENT if stored is None else attr(_REV).eq(rev))


def _hash(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=HASH_BYTES).digest()


def _add(sums: dict[int, Counters], more: Mapping[int, Counters]) -> None:
    for tick, counters in more.items():
        have = sums.get(tick)
        sums[tick] = counters if have is None else have + counters
