"""Appends events to the feeds that are watched.

Every process appends its events to the feeds of the organisation and of all, if these are watched.
Items are numbered without gaps: each is put on condition that the next number is free. So all
readers see one order and notice gaps. Events that can't be written, or have no room, mark the feed
as incomplete. Events of a killed process are lost.

Bounds: `BYTES_MAX` of an item, `APPEND_ATTEMPTS` of one append, `AT_ONCE` appends at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import structlog

from pricekeeper.activity.buffer import EventBuffer, OrgNews, Taken
from pricekeeper.activity.event import AlertNotice, Denial, Event, Flip, encode
from pricekeeper.activity.items import (
    ALL,
    WATCHED,
    FeedItem,
    epoch_from,
    feed_put,
    newest_query,
    watch_put,
)
from pricekeeper.activity.meter import FeedMeter
from pricekeeper.clock import Clock
from pricekeeper.concurrency import gather_in_groups
from pricekeeper.errors import ConditionFailedError, ContendedError, OutcomeUnknownError, StoreError
from pricekeeper.storage import Key, Query, Store, query_items, readable
from pricekeeper.storage.tables import ACTIVITY

FLUSH_MS: Final = 700
"""The longest time in which events are combined."""
FLUSH_SPREAD_MS: Final = 100
BYTES_MAX: Final = 48 * 1024
EVENT_BYTES_LEAST: Final = 128
"""With less room than this, no further event is tried."""
APPEND_ATTEMPTS: Final = 24
"""As many processes may append at the same moment."""
AT_ONCE: Final = 8
_NONCE_BYTES: Final = 8

_log = structlog.get_logger(__name__)


_Outcome = Enum("_Outcome", ["WRITTEN", "TAKEN", "UNKNOWN"])


class _Append(NamedTuple):
    audience: str
    epoch: int
    events: tuple[Event, ...]
    is_complete: bool


class Feed:
    """The events of one process, and their writer."""

    def __init__(self, store: Store, clock: Clock, *, is_on: bool = True) -> None:
        self._store = store
        self._clock = clock
        self.is_on = is_on
        self._buffer = EventBuffer()
        self.news_of: Callable[[str], OrgNews | None] = self._buffer.of if is_on else _find_none
        """``None`` if there is no room or no feed."""
        self._heads: dict[tuple[str, int], int] = {}
        self._incomplete: set[str] = set()
        self._all_incomplete = False
        self.meter = FeedMeter()

    def note_denial(self, denial: Denial) -> None:
        if (news := self.news_of(denial.org_id)) is not None:
            news.note_denial(denial)

    def note_flip(self, flip: Flip) -> None:
        if (news := self.news_of(flip.org_id)) is not None:
            news.note_flip(flip)

    def note_alert(self, alert: AlertNotice) -> None:
        """An alert of the deployment is for the feed of all."""
        if (news := self.news_of(alert.org_id or ALL)) is not None:
            news.note_alert(alert)

    async def flush(self) -> None:
        await self.publish(self.take())

    def take(self) -> Taken:
        return self._buffer.take()

    async def publish(self, taken: Taken) -> None:
        """Append these events, and marks for those that failed before, to the watched feeds."""
        news, is_complete = taken
        if is_complete and not (news or self._incomplete or self._all_incomplete):
            return
        try:
            watched = await self._read_watched()
        except StoreError as error:
            self._note_failure(error)
            self._all_incomplete = True
            return
        self._incomplete = (
            set(watched) if self._all_incomplete else self._incomplete & watched.keys()
        )
        self._all_incomplete = False
        self._heads = {key: number for key, number in self._heads.items() if key in watched.items()}
        now_ms, due = self._clock.now_ms(), list[_Append]()
        for audience, epoch in watched.items():
            events, is_all = _events_for(audience, news, now_ms)
            is_whole = is_complete and is_all and audience not in self._incomplete
            if events or not is_whole:
                due.append(_Append(audience, epoch, events, is_whole))
        await gather_in_groups(self._write, due, AT_ONCE)

    async def watch(self, audience: str) -> int:
        """Mark the feed as watched for `WATCH_SECS`; returns its last number.

        After an unwatched time its numbers continue after a gap, so that earlier readers know that
        events may be missing.
        """
        is_watched = await self._extend_watch(audience) is not None
        head = await self._read_head(audience)
        if is_watched and head is not None:
            return head
        now_ms = self._clock.now_ms()
        epoch = now_ms if head is None else max(now_ms, head + 2)
        # An empty item, from which numbers count. If it is there, another process put it.
        first = FeedItem(epoch, (), is_complete=True, written_at_ms=now_ms, nonce=_new_nonce())
        await self._put(audience, first)
        await self._store.put(watch_put(audience, epoch, now_ms))
        return epoch

    async def keep_watched(self, audience: str, *, is_idle: bool) -> None:
        """Extend the mark. An idle feed gets an empty item, so that it keeps its numbers."""
        epoch = await self._extend_watch(audience)
        if epoch is None:
            await self.watch(audience)
        elif is_idle:
            await self.append(audience, epoch, ())

    async def _extend_watch(self, audience: str) -> int | None:
        """Returns the epoch of a watched feed; ``None`` if it is not watched."""
        item = await self._store.get(ACTIVITY, Key(WATCHED, audience))
        if item is None:
            return None
        epoch = epoch_from(item)
        await self._store.put(watch_put(audience, epoch, self._clock.now_ms()))
        return epoch

    async def append(
        self, audience: str, epoch: int, events: tuple[Event, ...], *, is_complete: bool = True
    ) -> None:
        nonce = _new_nonce()
        number = self._heads.get((audience, epoch))
        for _ in range(APPEND_ATTEMPTS):
            now_ms = self._clock.now_ms()
            if number is None:
                number = await self._read_head(audience) or max(epoch, now_ms)
            item = FeedItem(number + 1, events, is_complete, now_ms, nonce)
            outcome = await self._put(audience, item)
            if outcome is _Outcome.TAKEN:
                self.meter.contended += 1
                number = None
            elif outcome is _Outcome.WRITTEN:
                self._heads[audience, epoch] = number + 1
                self.meter.written += 1
                return
        raise ContendedError("other processes kept appending to this feed")

    async def _write(self, due: _Append) -> None:
        audience, epoch, events, is_complete = due
        try:
            await self.append(audience, epoch, events, is_complete=is_complete)
        except StoreError as error:
            self._note_failure(error)
            self._incomplete.add(audience)
        else:
            self._incomplete.discard(audience)

    async def _put(self, audience: str, item: FeedItem) -> _Outcome:
        """Put the item, unless its number is taken.

        If the outcome is unknown, a copy may still arrive. So the same number is tried until its
        item is known: under another number the events could appear twice.
        """
        try:
            await self._store.put(feed_put(audience, item))
        except (ConditionFailedError, OutcomeUnknownError) as error:
            if error.item is None:
                return _Outcome.UNKNOWN
            is_ours = error.item.get("nonce") == item.nonce
            return _Outcome.WRITTEN if is_ours else _Outcome.TAKEN
        return _Outcome.WRITTEN

    async def _read_head(self, audience: str) -> int | None:
        page = await self._store.query(newest_query(audience))
        return next((int(item["SK"]) for item in page.items), None)

    async def _read_watched(self) -> dict[str, int]:
        watched: dict[str, int] = {}
        async for item in query_items(self._store, Query(ACTIVITY, WATCHED)):
            epoch = readable(epoch_from, item)
            if epoch is not None:  # else the next extension repairs it
                watched[str(item["SK"])] = epoch
        return watched

    def _note_failure(self, error: StoreError) -> None:
        self.meter.failed += 1
        _log.warning("feed_not_written", error=error.code)


def _find_none(_: str) -> None:
    return None


def _new_nonce() -> bytes:
    return secrets.token_bytes(_NONCE_BYTES)


def _events_for(
    audience: str, news: Mapping[str, OrgNews], now_ms: int
) -> tuple[tuple[Event, ...], bool]:
    concerned = news
    if audience != ALL:
        concerned = {audience: news[audience]} if audience in news else {}
    events, fits = _cropped(own.events(org_id, now_ms) for org_id, own in concerned.items())
    return events, fits and all(own.is_complete for own in concerned.values())


def _cropped(groups: Iterable[tuple[Event, ...]]) -> tuple[tuple[Event, ...], bool]:
    found: list[Event] = []
    room, fits = BYTES_MAX, True
    for events in groups:
        if room < EVENT_BYTES_LEAST:
            return tuple(found), False
        for event in events:
            size = len(encode((event,)))
            if size > room:
                fits = False
                continue
            room -= size
            found.append(event)
    return tuple(found), fits
