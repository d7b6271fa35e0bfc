"""Finds some items of each kind in a table, without reading the whole table.

The store has no call that scans a table, so this follows known keys: the organisations and their
apps, the newest ticks of the journal, today's lists. An item that no other one names is read by its
key. Bounds: `ORGS_MAX` organisations with `APPS_MAX` apps each, `TICKS_MAX` ticks,
`PAGES_MAX` items of a lane, and `READS_MAX` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import msgspec

from pricekeeper.activity.items import WATCHED
from pricekeeper.admin_keys.items import PARTITION as ADMIN_KEYS
from pricekeeper.alerts.items import LIST, OUTBOX, alert_key, listed_owner, waiting_from
from pricekeeper.audit.items import BEGINNINGS, HEADS, TIMELINE
from pricekeeper.authorizations.items import HOLDS, PERIOD_DIGITS, UNSETTLED
from pricekeeper.budgets import ACCOUNTS
from pricekeeper.client_ids import Client
from pricekeeper.credentials.items import CLAIMABLE
from pricekeeper.days import MS_PER_DAY, org_day
from pricekeeper.errors import UnreadableItemError
from pricekeeper.ledger.items import first_chapter, head_key
from pricekeeper.metering.facets import MS_PER_HOUR
from pricekeeper.metering.items import CHECKPOINT, partition_from, partitions_query
from pricekeeper.metering.journal import address_of, records_on
from pricekeeper.metering.journal_items import (
    REPAIR,
    TICKS,
    PostedRegion,
    postings_from,
    tick_markers_query,
    ticks_from,
    void_marker_key,
)
from pricekeeper.sessions.items import slots_query
from pricekeeper.storage import Item, Key, Query, Store, Table
from pricekeeper.storage import tables as t
from pricekeeper.tenants.items import INCARNATION, INDEX_PK, app_of, apps_query, org_partition
from pricekeeper.tenants.recounts import recounts_query
from pricekeeper.ticks import partition_of, region_at
from pricekeeper.values import OrgId

ORGS_MAX: Final = 20
APPS_MAX: Final = 20
TICKS_MAX: Final = 10
PAGES_MAX: Final = 50
READS_MAX: Final = 1_000
VISITS: Final = 3
"""Of the sweep, to a region."""
PERIODS_MAX: Final = 12
"""Of three days each."""
_PARTS_OF_LANES: Final = {"page": "0", "sheet": "s", "outcomes": "o", "void note": "v"}
"""The starts of sort keys in a lane of the journal."""

Place: TypeAlias = Query | Key
Places: TypeAlias = AsyncIterator[tuple[str, Place]]
"""Where items of a kind may be."""


class _Known(NamedTuple):
    """An organisation or app, and its item."""

    client: Client
    item: Item

    @property
    def entity(self) -> str:
        """The name of its buckets, as `Policy.bucket_entity`."""
        life = self.item.get(INCARNATION)
        return f"{self.client.client_id}@{life}" if life else self.client.client_id


class TableItems:
    """Some items of a store's tables: at most ``limit`` of each kind."""

    def __init__(
        self, store: Store, *, limit: int, now_ms: int, model_ids: tuple[str, ...]
    ) -> None:
        self._store = store
        self._limit = limit
        self._now_ms = now_ms
        self._model_ids = model_ids

    async def find(self, table: Table) -> list[Item]:
        """Items in the order of their keys; an unreadable item on the way ends the search."""
        found: dict[Key, Item] = {}
        kinds: Counter[str] = Counter()
        reads = 0
        with suppress(UnreadableItemError):
            async for kind, place in self._places(table):
                room = self._limit - kinds[kind]
                if room <= 0:
                    continue
                reads += 1
                if reads > READS_MAX:
                    break
                for item in await self._read(table, place, room):
                    key = table.key_of(item)
                    kinds[kind] += key not in found
                    found[key] = item
        return [found[key] for key in sorted(found, key=lambda one: (one.pk, one.sk or ""))]

    def _places(self, table: Table) -> Places:
        places: Mapping[str, Callable[[], Places]] = {
            t.CONFIG.name: self._config,
            t.STICKY_STATE.name: self._sticky_state,
            t.USAGE_AGG_SHARDED.name: self._usage,
            t.DAILY_TOTAL.name: self._daily_total,
            t.PRICING_CACHE.name: self._pricing_cache,
            t.REVOKED_TOKENS.name: self._revoked_tokens,
            t.SECRET_RETRIEVAL_TOKENS.name: self._retrieval_tokens,
            t.REQUEST_DEDUP.name: self._request_dedup,
            t.SESSIONS.name: self._sessions,
            t.RATE_BUCKETS.name: self._rate_buckets,
            t.ALERTS.name: self._alerts,
            t.AUDIT_TRAIL.name: self._audit_trail,
            t.ACTIVITY.name: self._activity,
        }
        return places[table.name]()

    async def read_key(self, table: Table, pk: str, sort: str | None) -> list[Item]:
        """The item of a key, or the first ones of a partition."""
        if sort is None and table.sorted:
            return await self._read(table, Query(table, pk), self._limit)
        return await self._read(table, Key(pk, sort), 1)

    async def _read(self, table: Table, place: Place, limit: int) -> list[Item]:
        if isinstance(place, Key):
            item = await self._store.get(table, place)
            return [] if item is None else [item]
        page = await self._store.query(msgspec.structs.replace(place, limit=limit))
        return list(page.items)

    async def _orgs(self) -> list[OrgId]:
        index = await self._read(t.CONFIG, Query(t.CONFIG, INDEX_PK), ORGS_MAX)
        return [OrgId(str(item["SK"])) for item in index]

    async def _clients(self) -> AsyncIterator[_Known]:
        """Organisations, each with its apps."""
        for org_id in await self._orgs():
            org = Client(org_id)
            for item in await self._read(
                t.CONFIG, Query(t.CONFIG, org_partition(org), prefix="ORG"), 1
            ):
                yield _Known(org, item)
            for item in await self._read(t.CONFIG, apps_query(org, "", 1), APPS_MAX):
                yield _Known(app_of(org_id, str(item["SK"])), item)

    async def _config(self) -> Places:
        async for known in self._clients():
            pk = org_partition(known.client)
            yield "ORG", Query(t.CONFIG, pk, prefix="ORG")
            yield "APP", Query(t.CONFIG, pk, prefix="APP#")
            yield "channels", Query(t.CONFIG, pk, prefix="ALERTS")
        for pk in (INDEX_PK, ADMIN_KEYS, BEGINNINGS, "ALERTS", "STORE"):
            yield pk, Query(t.CONFIG, pk)
        for sort_key in ("THROUGH", "LEASE"):
            yield sort_key, Key("EXPORT", sort_key)

    async def _sticky_state(self) -> Places:
        async for known in self._clients():
            scope, app_id = org_partition(known.client), known.client.app_id
            pk = scope if app_id is None else f"{scope}#APP#{app_id}"
            yield "DAY", Query(t.STICKY_STATE, pk, descending=True)

    async def _postings(self) -> list[PostedRegion]:
        """The regions of the newest ticks."""
        newest = Query(t.USAGE_AGG_SHARDED, TICKS, descending=True)
        found: list[PostedRegion] = []
        for tick in ticks_from(await self._read(t.USAGE_AGG_SHARDED, newest, TICKS_MAX)):
            query = tick_markers_query(tick)
            found += postings_from(await self._read(t.USAGE_AGG_SHARDED, query, ORGS_MAX))
        return found

    async def _usage(self) -> Places:
        table, newest = t.USAGE_AGG_SHARDED, Query(t.USAGE_AGG_SHARDED, TICKS, descending=True)
        yield "AGGREGATOR", CHECKPOINT[1]
        yield TICKS, newest
        yield REPAIR, Query(table, REPAIR)
        for tick in ticks_from(await self._read(table, newest, TICKS_MAX)):
            yield "TICK", tick_markers_query(tick)
        for visit in range(VISITS):
            yield HOLDS, Query(table, f"{HOLDS}{visit}")
        period = int(region_at(self._now_ms)[:PERIOD_DIGITS], 16)
        for number in range(period, period - PERIODS_MAX, -1):
            yield UNSETTLED, Query(table, f"{UNSETTLED}{number:0{PERIOD_DIGITS}x}")
        for org_id in await self._orgs():
            yield "LOG", head_key(org_id)
            yield "ACCOUNTS", partitions_query(org_id)
            for day in self._days():
                yield "TAGVALUES", Query(table, f"TAGVALUES#{org_id}#{day}")
        for day in self._days():
            yield "SPENT", Query(table, f"SPENT#{day}")
        async for pk in self._lanes():
            for kind, prefix in _PARTS_OF_LANES.items():
                yield kind, Query(table, pk, prefix=prefix, descending=True)

    async def _lanes(self) -> AsyncIterator[str]:
        """Partitions of the journal: of the newest records, and of each log."""
        for posting in await self._postings():
            for lane in range(posting.lanes):
                yield partition_of(posting.org_id, posting.region, lane)
        for org_id in await self._orgs():
            for item in await self._read(t.USAGE_AGG_SHARDED, head_key(org_id), 1):
                yield partition_of(org_id, first_chapter(item).region, 0)

    async def _daily_total(self) -> Places:
        for org_id in await self._orgs():
            listed = await self._read(t.USAGE_AGG_SHARDED, partitions_query(org_id), APPS_MAX)
            for partition in filter(None, map(partition_from, listed)):
                for prefix in ("DAY#", "HOUR#", "TAG#"):
                    yield prefix, Query(t.DAILY_TOTAL, partition.pk, prefix=prefix)

    async def _pricing_cache(self) -> Places:
        for model_id in self._model_ids:
            yield "price", Query(t.PRICING_CACHE, model_id, descending=True)

    async def _revoked_tokens(self) -> Places:
        """No other item names them."""
        for kind, place in tuple[tuple[str, Place], ...]():
            yield kind, place

    async def _retrieval_tokens(self) -> Places:
        async for known in self._clients():
            if isinstance(key := known.item.get(CLAIMABLE), str):
                yield "token", Key(key)

    async def _request_dedup(self) -> Places:
        for posting in await self._postings():
            for lane in range(posting.lanes):
                pk = partition_of(posting.org_id, posting.region, lane)
                notes = Query(t.USAGE_AGG_SHARDED, pk, prefix="v")
                for note in await self._read(t.USAGE_AGG_SHARDED, notes, PAGES_MAX):
                    yield "VOID", void_marker_key(posting.org_id, str(note["SK"])[1:])[1]
                pages = Query(t.USAGE_AGG_SHARDED, pk)
                for page in await self._read(t.USAGE_AGG_SHARDED, pages, PAGES_MAX):
                    for record in records_on(page) if "n" in page else ():
                        if address_of(record.request_id) is None:
                            yield "REQ", Key(f"ORG#{posting.org_id}#REQ#{record.request_id}")

    async def _sessions(self) -> Places:
        async for known in self._clients():
            yield "SLOT", slots_query(known.client.client_id)

    async def _rate_buckets(self) -> Places:
        table = t.RATE_BUCKETS
        yield "RECOUNTS", recounts_query()
        async for known in self._clients():
            yield "bucket", Query(table, known.entity)
            yield "accounts", Query(table, known.entity + ACCOUNTS, prefix="ALL")
            yield "accounts of a tag", Query(table, known.entity + ACCOUNTS, prefix="TAG#")
            yield "api", Query(table, f"api/client/{known.client.client_id}")

    async def _alerts(self) -> Places:
        table = t.ALERTS
        for pk in (LIST, OUTBOX, "CLAIMS"):
            yield pk, Query(table, pk, descending=True)
        newest = Query(table, LIST, descending=True)
        for line in await self._read(table, newest, self._limit):
            owner = listed_owner(line)
            yield "alert", alert_key(owner, str(line["SK"]))
            yield "KEYS", Query(table, f"{owner.key}#KEYS")
        for queue in await self._read(table, Query(table, OUTBOX), ORGS_MAX):
            receiver = waiting_from(queue).receiver
            yield "TO", Query(table, f"{receiver.owner.key}#TO#{receiver.name}")

    async def _audit_trail(self) -> Places:
        table = t.AUDIT_TRAIL
        yield HEADS, Query(table, HEADS)
        yield TIMELINE, Query(table, TIMELINE, descending=True)
        for head in await self._read(table, Query(table, HEADS), ORGS_MAX):
            yield "CHAIN", Query(table, f"CHAIN#{head['SK']}", descending=True)

    async def _activity(self) -> Places:
        table = t.ACTIVITY
        yield WATCHED, Query(table, WATCHED)
        for org_id in ("ALL", *await self._orgs()):
            yield "FEED", Query(table, f"FEED#{org_id}", descending=True)
            yield "DENIALS", Query(table, f"DENIALS#{org_id}", descending=True)
            yield "FLIPS", Query(table, f"FLIPS#{org_id}", descending=True)
        hour = self._now_ms // MS_PER_HOUR
        for number in range(hour, hour - 24, -1):
            yield "DENIED", Query(table, f"DENIED#{number}")

    def _days(self) -> list[str]:
        """The days that it may be today, and yesterday."""
        return [org_day("UTC", self._now_ms + shift * MS_PER_DAY) for shift in (1, 0, -1)]
