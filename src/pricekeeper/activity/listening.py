"""Passes each feed on to the listeners of a process, which reads it once for all of them.

A listener gets every item in order, from its start or from the named position. If events are
missing, it gets `Missed` and continues. While a feed has a listener, it is marked as watched and
read every `POLL_MS`.

Bounds: `listeners_max` listeners of a process and `CALLER_MAX` of one caller; `WAITING_MAX` queued
items, then the listener is closed; `RESUMED_MAX` items with `RESUMED_BYTES_MAX` bytes for a
listener that resumes.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeAlias

import structlog

from pricekeeper.activity.event import Event
from pricekeeper.activity.feed import Feed
from pricekeeper.activity.items import FEED_SECS, FeedItem, feed_item_from, feed_query
from pricekeeper.activity.meter import FeedMeter
from pricekeeper.clock import Clock
from pricekeeper.concurrency import SingleFlight
from pricekeeper.errors import (
    InvalidValueError,
    OverloadedError,
    RateLimitExceededError,
    StoreError,
    UnreadableItemError,
    Violation,
)
from pricekeeper.storage import Store, query_items
from pricekeeper.wire.activity import MissedReason

POLL_MS: Final = 700
WATCH_MS: Final = 25_000
"""How often the mark of a watched feed is extended."""
HEARTBEAT_MS: Final = 10_000
"""The interval at which a silent feed sends `Quiet`."""
CALLER_MAX: Final = 32
WAITING_MAX: Final = 64
RESUMED_MAX: Final = 500
RESUMED_BYTES_MAX: Final = 256 * 1024
RETRY_MS: Final = 5_000
_KEPT_ALIVE_MS: Final = FEED_SECS * 1000 // 2
_POSITION: Final = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,6}))?")

_log = structlog.get_logger(__name__)


class FeedPosition(NamedTuple):
    """The progress of a listener: a whole item, or some events of it."""

    number: int
    events: int | None = None

    @classmethod
    def parse(cls, text: str) -> FeedPosition:
        found = _POSITION.fullmatch(text)
        if found is None:
            raise InvalidValueError("Last-Event-ID", "must be the id of an event of this stream")
        return cls(int(found[1]), None if found[2] is None else int(found[2]))

    @property
    def text(self) -> str:
        return str(self.number) if self.events is None else f"{self.number}.{self.events}"


class Arrived(NamedTuple):
    """An event, and the position after it."""

    position: FeedPosition
    event: Event


class Missed(NamedTuple):
    """Events are missing before this position."""

    position: FeedPosition
    reason: MissedReason


class Quiet(NamedTuple):
    """No event came up to this position."""

    position: FeedPosition


News: TypeAlias = Arrived | Missed | Quiet


class Listener:
    """One listener of a feed."""

    def __init__(self, position: FeedPosition, streams: Counter[str]) -> None:
        """``streams`` counts why listeners end."""
        self.position = position
        self._streams = streams
        self._waiting: deque[FeedItem | News] = deque()
        self._waiting_max = WAITING_MAX
        self._wake = asyncio.Event()
        self.end: str | None = None
        """``None`` while it is open."""

    def put(self, waiting: FeedItem | News) -> None:
        """Queue an item; a listener that is too slow is closed."""
        if len(self._waiting) >= self._waiting_max:
            self.close("slow")
        elif self.end is None:
            self._waiting.append(waiting)
            self._wake.set()

    def note_quiet(self) -> None:
        if not self._waiting:
            self.put(Quiet(self.position))

    def begin(self, position: FeedPosition, followed: list[FeedItem] | None) -> None:
        """Begin after a named position; ``None`` if it has expired. What is queued comes later."""
        if followed is None:
            self._waiting.appendleft(Missed(self.position, "TOO_LATE"))
        else:
            self.position = position
            self._waiting_max += len(followed)
            self._waiting.extendleft(reversed(followed))
        self._wake.set()

    def close(self, end: str) -> None:
        if self.end is None:
            self.end = end
            self._streams[end] += 1
            self._waiting.clear()
        self._wake.set()

    async def read(self) -> list[News]:
        """Wait for the next events; an empty list means that it has ended."""
        while self.end is None:
            while self._waiting:
                waiting = self._waiting.popleft()
                news = self._news_of(waiting) if isinstance(waiting, FeedItem) else [waiting]
                if news:
                    return news
            self._wake.clear()
            await self._wake.wait()
        return []

    def _news_of(self, item: FeedItem) -> list[News]:
        number, sent = self.position
        if item.number < number or (item.number == number and sent is None):
            return []
        is_gap = item.number > number + 1 or (item.number == number + 1 and sent is not None)
        sent = sent or 0 if item.number == number else 0
        news: list[News] = []
        if is_gap or not item.is_complete:
            reason: MissedReason = "TOO_LATE" if is_gap else "TOO_MUCH"
            news.append(Missed(FeedPosition(item.number, sent), reason))
        self.position = FeedPosition(item.number)
        for index, event in enumerate(item.events[sent:], start=sent + 1):
            is_last = index == len(item.events)
            position = self.position if is_last else FeedPosition(item.number, index)
            news.append(Arrived(position, event))
        return news


class _Channel:
    def __init__(self, audience: str, number: int, now_ms: int) -> None:
        self.audience = audience
        self.number = number
        self.heard_at_ms = now_ms
        """The last event; this and the next two are on the monotonic clock."""
        self.watched_at_ms = now_ms
        self.quiet_at_ms = now_ms
        self.listeners: set[Listener] = set()


class Listeners:
    """The listeners of a process."""

    def __init__(self, store: Store, clock: Clock, feed: Feed, *, listeners_max: int) -> None:
        self._store = store
        self._clock = clock
        self._feed = feed
        self._listeners_max = listeners_max
        self._callers: Counter[str] = Counter()
        self._channels: dict[str, _Channel] = {}
        self._opening: SingleFlight[str, _Channel] = SingleFlight("pricekeeper-watch")
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.meter: FeedMeter = feed.meter

    def __len__(self) -> int:
        return self._callers.total()

    @asynccontextmanager
    async def listen(
        self, audience: str, caller: str, position: FeedPosition | None = None
    ) -> AsyncIterator[Listener]:
        """Listen from now on, or after a position. Raises `RateLimitExceededError`."""
        self._take_room(caller)
        try:
            listener = await self._join(audience, position)
            self.meter.streams["opened"] += 1
            try:
                yield listener
            finally:
                self._leave(audience, listener)
                listener.close("left")
        finally:
            self._give_room_back(caller)

    def close(self) -> None:
        """Close all listeners and accept no more."""
        self._is_closed = True
        for channel in self._channels.values():
            for listener in channel.listeners:
                listener.close("closing")

    async def wait_closed(self) -> None:
        self.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_room(self, caller: str) -> None:
        if self._is_closed:
            raise OverloadedError("the service is stopping")
        if len(self) >= self._listeners_max or self._callers[caller] >= CALLER_MAX:
            self.meter.streams["refused"] += 1
            violation = Violation(caller, "events", "listeners", 1, 0, RETRY_MS)
            raise RateLimitExceededError([violation])
        self._callers[caller] += 1

    def _give_room_back(self, caller: str) -> None:
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]

    async def _join(self, audience: str, position: FeedPosition | None) -> Listener:
        """Join the channel before reading what followed the position, so that nothing is missed."""
        while True:
            channel = self._channels.get(audience)
            if channel is not None:
                break
            await self._opening.run(audience, lambda: self._open(audience))
        listener = Listener(FeedPosition(channel.number), self.meter.streams)
        channel.listeners.add(listener)
        if self._is_closed:
            listener.close("closing")
        if position is not None:
            try:
                listener.begin(position, await self._read_from(audience, position))
            except BaseException:
                self._leave(audience, listener)
                raise
        return listener

    def _leave(self, audience: str, listener: Listener) -> None:
        channel = self._channels.get(audience)
        if channel is not None:
            channel.listeners.discard(listener)

    async def _open(self, audience: str) -> _Channel:
        number = await self._feed.watch(audience)
        channel = _Channel(audience, number, self._clock.monotonic_ms())
        self._channels[audience] = channel
        task = asyncio.create_task(self._pass_on(channel), name="pricekeeper-events")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return channel

    async def _pass_on(self, channel: _Channel) -> None:
        try:
            while True:
                await self._clock.sleep_ms(POLL_MS)
                if not channel.listeners:
                    return
                try:
                    await self._read_next(channel)
                    await self._keep_watched(channel)
                except StoreError as error:
                    _log.warning("feed_not_read", error=error.code)
                self._note_quiet(channel)
        finally:
            if self._channels.get(channel.audience) is channel:
                del self._channels[channel.audience]
            for listener in channel.listeners:
                listener.close("closing")

    async def _read_next(self, channel: _Channel) -> None:
        query = feed_query(channel.audience, channel.number)
        async for stored in query_items(self._store, query):
            try:
                item = feed_item_from(stored)
            except UnreadableItemError:  # listeners get `Missed` for the gap
                continue
            channel.number = item.number
            channel.heard_at_ms = self._clock.monotonic_ms()
            for listener in channel.listeners:
                listener.put(item)

    async def _keep_watched(self, channel: _Channel) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - channel.watched_at_ms < WATCH_MS:
            return
        channel.watched_at_ms = now_ms
        is_idle = now_ms - channel.heard_at_ms >= _KEPT_ALIVE_MS
        await self._feed.keep_watched(channel.audience, is_idle=is_idle)

    def _note_quiet(self, channel: _Channel) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - channel.quiet_at_ms >= HEARTBEAT_MS:
            channel.quiet_at_ms = now_ms
            for listener in channel.listeners:
                listener.note_quiet()

    async def _read_from(self, audience: str, position: FeedPosition) -> list[FeedItem] | None:
        """That item and those that followed; ``None`` if it has expired, or they are too many."""
        found: list[FeedItem] = []
        room = RESUMED_BYTES_MAX
        async for stored in query_items(self._store, feed_query(audience, position.number - 1)):
            try:
                found.append(feed_item_from(stored))
            except UnreadableItemError:
                return None
            room -= len(stored["events"])
            if found[0].number != position.number or len(found) > RESUMED_MAX or room < 0:
                return None
        return found or None
