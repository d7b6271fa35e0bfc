"""The stream of events, as server-sent events.

A disconnected client resumes from an event's id (``Last-Event-ID``). After ten silent seconds a
comment keeps proxies from closing the connection, and the store checks the credentials again: an
ended token or key ends the stream. A client that does not read is disconnected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import msgspec

from pricekeeper.activity.listening import HEARTBEAT_MS, FeedPosition, Listener, Missed, News, Quiet
from pricekeeper.errors import InvalidValueError, NotFoundError, PriceKeeperError
from pricekeeper.http.gate import check_again
from pricekeeper.http.operation import Answer, Call
from pricekeeper.usecases import activity as cases
from pricekeeper.usecases.spend import Viewer
from pricekeeper.wire.activity import ResetEvent
from pricekeeper.wire.values import Response

RETRY_MS: Final = 2_000
"""The wait of a client before it reconnects."""
_MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers a page of events
)
_LAST_ID: Final = "last_event_id"
_encode: Final = msgspec.json.Encoder().encode


async def stream_events(call: Call) -> Answer:
    """Stream the events from now on or since `Last-Event-ID`."""
    listeners = call.services.activity.listeners
    if not call.services.activity.feed.is_on:
        raise NotFoundError("events")
    position = _position(call)
    if call.request.scope["method"] == "HEAD":
        return Answer(200, b"", _HEADERS, _MEDIA_TYPE.encode())
    viewer = call.viewer
    opened = AsyncExitStack()
    listener = await opened.enter_async_context(
        listeners.listen(cases.audience_of(viewer), call.caller_name, position)
    )
    stream = EventStream(call, viewer, listener, opened)
    return Answer(200, None, _HEADERS, _MEDIA_TYPE.encode(), stream=stream)


@dataclass(frozen=True, slots=True)
class EventStream:
    """One stream of events."""

    call: Call
    viewer: Viewer
    listener: Listener
    opened: AsyncExitStack

    async def parts(self) -> AsyncIterator[bytes]:
        clock = self.call.services.clock
        checked_at_ms = clock.monotonic_ms()
        yield b"retry: %d\nid: %s\n\n" % (RETRY_MS, self.listener.position.text.encode())
        while news := await self.listener.read():
            if clock.monotonic_ms() - checked_at_ms >= HEARTBEAT_MS:
                checked_at_ms = clock.monotonic_ms()
                if not await self._is_still_admitted():
                    self.listener.close("credentials")
                    return
            part = b"".join(self._written(one) for one in news)
            if part:
                yield part

    def leave(self) -> None:
        self.listener.close("left")

    async def close(self) -> None:
        await self.opened.aclose()

    async def _is_still_admitted(self) -> bool:
        """False also if that can't be read."""
        try:
            await check_again(self.call)
        except PriceKeeperError:
            return False
        return True

    def _written(self, news: News) -> bytes:
        """The encoded event; empty if the viewer may not see it."""
        if isinstance(news, Quiet):
            return b": \nid: %s\n\n" % news.position.text.encode()
        if isinstance(news, Missed):
            return _event(cases.RESET, ResetEvent(news.reason), news.position)
        seen = cases.tell(news.event, self.viewer)
        return b"" if seen is None else _event(*seen, news.position)


def _event(name: str, response: Response, position: FeedPosition) -> bytes:
    """JSON contains no line breaks, so its data is one line."""
    return b"event: %s\nid: %s\ndata: %s\n\n" % (
        name.encode(),
        position.text.encode(),
        _encode(response),
    )


def _position(call: Call) -> FeedPosition | None:
    asked = call.query.get(_LAST_ID)
    given = call.request.header(b"last-event-id") or asked
    if given is None:
        return None
    try:
        return FeedPosition.parse(given)
    except InvalidValueError:
        raise InvalidValueError(
            _LAST_ID, "must be the id of an event of this stream, such as 1768000000000"
        ) from None
