"""Writes what happened into the feeds that somebody watches.

Every process notes what it does and, a moment later, appends it to the feed of the organisation and
to the feed of all, if these are watched anywhere. If nobody watches, nothing is written.

The items of a feed are numbered without gaps: each is put at the number behind the last one, if
nothing is there yet. So a feed has one order for all who read it, whoever wrote what, and a reader
that finds the next number knows that it has missed nothing. What can't be written, or has no room,
is told as incomplete, so that readers look for themselves. What a process had noted when it was
killed is told by nobody.

Bounds: `BYTES_MAX` of an item, `APPEND_ATTEMPTS` of one append, `AT_ONCE` appends under way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import structlog

from pricekeeper.activity.buffer import EventBuffer, OrgNews, Taken
from pricekeeper.activity.denial import Denial
from pricekeeper.activity.event import AlertNotice, Event, Flip, encode_events
from pricekeeper.activity.items import (
    ALL,
    FeedItem,
    epoch_from,
    feed_put,
    newest_query,
    watch_key,
    watch_put,
    watched_query,
)
from pricekeeper.activity.meter import FeedMeter
from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    StoreError,
    UnreadableItemError,
)
from pricekeeper.storage import Store, query_items
from pricekeeper.storage.tables import ACTIVITY

FLUSH_MS: Final = 700
"""How long what happened waits to be told together, at most."""
FLUSH_SPREAD_MS: Final = 100
BYTES_MAX: Final = 48 * 1024
EVENT_BYTES_LEAST: Final = 128
"""With less room than that, nothing more is tried."""
APPEND_ATTEMPTS: Final = 24
"""As many processes may append at the same moment, and each finds its number."""
AT_ONCE: Final = 8
_NONCE_BYTES: Final = 8

_log = structlog.get_logger(__name__)


_Outcome = Enum("_Outcome", ["WRITTEN", "TAKEN", "UNKNOWN"])


class _Telling(NamedTuple):
    """What is to be told to an audience."""

    audience: str
    epoch: int
    events: tuple[Event, ...]
    is_complete: bool


class Feed:
    """What one process has to tell, and the writing of it."""

    def __init__(self, store: Store, clock: Clock, *, is_on: bool = True) -> None:
        self._store = store
        self._clock = clock
        self.is_on = is_on
        """Whether anything is told at all."""
        self._buffer = EventBuffer()
        self._heads: dict[tuple[str, int], int] = {}
        """The last number that is known of each watched feed."""
        self._untold: set[str] = set()
        """The watched feeds to which something could not be told."""
        self._all_untold = False
        self.meter = FeedMeter()

    def news_of(self, org_id: str) -> OrgNews | None:
        """Where to note what happens at an organisation; ``None`` if it is told to nobody."""
        return self._buffer.of(org_id) if self.is_on else None

    def note_denial(self, denial: Denial) -> None:
        """Note a call that was denied."""
        if (news := self.news_of(denial.org_id)) is not None:
            news.note_denial(denial)

    def note_flip(self, flip: Flip) -> None:
        """Note that another label is recommended from now on."""
        if (news := self.news_of(flip.org_id)) is not None:
            news.note_flip(flip)

    def note_alert(self, alert: AlertNotice) -> None:
        """Note that somebody is told something; what is about the deployment, all are told."""
        if (news := self.news_of(alert.org_id or ALL)) is not None:
            news.note_alert(alert)

    async def flush(self) -> None:
        """Append what happened to the feeds that are watched."""
        await self.publish(self.take())

    def take(self) -> Taken:
        """Take everything that was noted, to publish it."""
        return self._buffer.take()

    async def publish(self, taken: Taken) -> None:
        """Append these events, and those that failed before, to the feeds that are watched."""
        news, is_complete = taken
        if is_complete and not (news or self._untold or self._all_untold):
            return
        try:
            watched = await self._read_watched()
        except StoreError as error:
            self._note_failure(error)
            self._all_untold = True
            return
        self._untold = set(watched) if self._all_untold else self._untold & watched.keys()
        self._all_untold = False
        self._heads = {key: number for key, number in self._heads.items() if key in watched.items()}
        now_ms = self._clock.now_ms()
        tellings = [
            _Telling(audience, epoch, events, is_complete and is_all)
            for audience, epoch in watched.items()
            for events, is_all in [_events_for(audience, news, now_ms)]
        ]
        due = [one for one in tellings if one.events or self._lacks_something(one)]
        for start in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._tell(one) for one in due[start : start + AT_ONCE]))

    async def watch(self, audience: str) -> int:
        """Say that somebody watches this feed from now on; returns its last number.

        To be said again before `WATCH_SECS` are over. If nobody has watched for a while, nothing
        was written meanwhile. Then the numbers go on with a gap, so that whoever watched before
        that knows that something may be missing.
        """
        is_watched = await self._is_watched_on(audience) is not None
        head = await self._read_head(audience)
        if is_watched and head is not None:
            return head
        now_ms = self._clock.now_ms()
        epoch = now_ms if head is None else max(now_ms, head + 2)
        await self._begin(audience, epoch, now_ms)
        await self._store.put(watch_put(audience, epoch, now_ms))
        return epoch

    async def keep_watched(self, audience: str, *, is_idle: bool) -> None:
        """Say it again, for whoever watches already.

        A feed that is idle gets an item with nothing in it, so that it keeps its numbers.
        """
        epoch = await self._is_watched_on(audience)
        if epoch is None:
            await self.watch(audience)
        elif is_idle:
            await self.append(audience, epoch, ())

    async def _is_watched_on(self, audience: str) -> int | None:
        """Say that a feed is watched on, if it is; returns its epoch."""
        item = await self._store.get(ACTIVITY, watch_key(audience))
        if item is None:
            return None
        epoch = epoch_from(item)
        await self._store.put(watch_put(audience, epoch, self._clock.now_ms()))
        return epoch

    async def append(
        self, audience: str, epoch: int, events: tuple[Event, ...], *, is_complete: bool = True
    ) -> None:
        """Put the events behind the last item of the feed."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        number = self._heads.get((audience, epoch))
        for _ in range(APPEND_ATTEMPTS):
            now_ms = self._clock.now_ms()
            if number is None:
                number = await self._read_head(audience) or max(epoch, now_ms)
            outcome = await self._put(
                audience, FeedItem(number + 1, events, is_complete, now_ms, nonce)
            )
            if outcome is _Outcome.TAKEN:
                self.meter.contended += 1
                number = None
            elif outcome is _Outcome.WRITTEN:
                self._heads[audience, epoch] = number + 1
                self.meter.written += 1
                return
        raise ContendedError("other processes kept appending to this feed")

    async def _tell(self, telling: _Telling) -> None:
        audience, epoch, events, _ = telling
        try:
            is_complete = not self._lacks_something(telling)
            await self.append(audience, epoch, events, is_complete=is_complete)
        except StoreError as error:
            self._note_failure(error)
            self._untold.add(audience)
        else:
            self._untold.discard(audience)

    def _lacks_something(self, telling: _Telling) -> bool:
        """Whether its audience has to look for itself."""
        return not telling.is_complete or telling.audience in self._untold

    async def _begin(self, audience: str, number: int, now_ms: int) -> None:
        """Put an item with nothing in it, from which whoever watches can count on."""
        item = FeedItem(number, (), True, now_ms, secrets.token_bytes(_NONCE_BYTES))  # noqa: FBT003
        await self._put(audience, item)  # if it is taken, somebody else has begun

    async def _put(self, audience: str, item: FeedItem) -> _Outcome:
        """Put the item, unless its number is taken.

        If the outcome is unknown, a copy may still arrive. Then the same number has to be tried
        again, until it is known whose item is there: at another number it could be told twice.
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
        """The last number of a feed; ``None`` if it has none."""
        page = await self._store.query(newest_query(audience))
        return next((int(item["SK"]) for item in page.items), None)

    async def _read_watched(self) -> dict[str, int]:
        """The feeds that are watched, each with its epoch."""
        watched: dict[str, int] = {}
        async for item in query_items(self._store, watched_query()):
            try:
                watched[str(item["SK"])] = epoch_from(item)
            except UnreadableItemError:  # reported; whoever watches says so again
                continue
        return watched

    def _note_failure(self, error: StoreError) -> None:
        self.meter.failed += 1
        _log.warning("feed_not_written", error=error.code)


def _events_for(
    audience: str, news: Mapping[str, OrgNews], now_ms: int
) -> tuple[tuple[Event, ...], bool]:
    """What is told to an audience, and whether that is everything."""
    concerned = news
    if audience != ALL:
        concerned = {audience: news[audience]} if audience in news else {}
    events, fits = _cropped(own.events(org_id, now_ms) for org_id, own in concerned.items())
    return events, fits and all(own.is_complete for own in concerned.values())


def _cropped(groups: Iterable[tuple[Event, ...]]) -> tuple[tuple[Event, ...], bool]:
    """As many of the events as an item has room for, and whether that is all of them."""
    found: list[Event] = []
    room, fits = BYTES_MAX, True
    for events in groups:
        if room < EVENT_BYTES_LEAST:
            return tuple(found), False
        for event in events:
            size = len(encode_events((event,)))
            if size > room:
                fits = False
                continue
            room -= size
            found.append(event)
    return tuple(found), fits
