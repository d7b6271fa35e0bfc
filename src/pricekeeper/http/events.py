"""The stream of events: what happens, told while it happens, as server-sent events.

Each event has a name, one line of JSON, and an id by which a client that was cut off goes on
(``Last-Event-ID``). A comment comes every ten seconds in which nothing else does, so that nobody on
the way takes the connection for dead. With it comes the id of how far the stream is.

The credentials are checked anew, in the store, with every heartbeat: a token or key that has ended
ends the stream. A client that does not read is cut off, by its own connection or by its listener.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from pricekeeper.activity.listening import HEARTBEAT_MS, FeedPosition, Listener, Missed, News, Quiet
from pricekeeper.errors import InvalidValueError, NotFoundError, PriceKeeperError
from pricekeeper.http.gate import check_again
from pricekeeper.http.operation import Answer, Call
from pricekeeper.usecases import events as cases
from pricekeeper.usecases.spend import Viewer
from pricekeeper.wire.activity import ResetEvent
from pricekeeper.wire.values import Response

RETRY_MS: Final = 2_000
"""After how long a client that was cut off comes again."""
_MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx keeps events until it has a page of them
)
_LAST_ID: Final = "last_event_id"
_encode: Final = msgspec.json.Encoder().encode


async def stream_events(call: Call) -> Answer:
    """What happens from now on, or since `Last-Event-ID`, to whom the caller covers."""
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


class EventStream:
    """One stream, from its beginning to its end."""

    def __init__(
        self, call: Call, viewer: Viewer, listener: Listener, opened: AsyncExitStack
    ) -> None:
        self._call = call
        self._viewer = viewer
        self._listener = listener
        self._opened = opened

    async def parts(self) -> AsyncIterator[bytes]:
        """The events as they go out."""
        clock = self._call.services.clock
        checked_at_ms = clock.monotonic_ms()
        yield b"retry: %d\nid: %s\n\n" % (RETRY_MS, self._listener.position.text.encode())
        while news := await self._listener.read():
            if clock.monotonic_ms() - checked_at_ms >= HEARTBEAT_MS:
                checked_at_ms = clock.monotonic_ms()
                if not await self._is_still_admitted():
                    self._listener.close("credentials")
                    return
            part = b"".join(self._written(one) for one in news)
            if part:
                yield part

    def leave(self) -> None:
        """End it: nobody reads it any more."""
        self._listener.close("left")

    async def close(self) -> None:
        """Give back what it holds."""
        await self._opened.aclose()

    async def _is_still_admitted(self) -> bool:
        """Whether the credentials still count; if that can't be read, they don't."""
        try:
            await check_again(self._call)
        except PriceKeeperError:
            return False
        return True

    def _written(self, news: News) -> bytes:
        """What happened, as it goes out; nothing, if it is not for this viewer."""
        if isinstance(news, Quiet):
            return b": \nid: %s\n\n" % news.position.text.encode()
        if isinstance(news, Missed):
            return _event(cases.RESET, ResetEvent(news.reason), news.position)
        seen = cases.tell(news.event, self._viewer)
        return b"" if seen is None else _event(*seen, news.position)


def _event(name: str, response: Response, position: FeedPosition) -> bytes:
    """One event. JSON has no line breaks in it, so its data is one line."""
    return b"event: %s\nid: %s\ndata: %s\n\n" % (
        name.encode(),
        position.text.encode(),
        _encode(response),
    )


def _position(call: Call) -> FeedPosition | None:
    """From where to go on, as the header says or, for who can't send one, the query."""
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
