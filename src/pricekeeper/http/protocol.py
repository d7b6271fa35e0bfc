"""uvicorn's protocol, with bounds on what a peer may send, hold and leave unread.

Bounded are request lines, headers, chunk lines, trailers, the arrival of a request, and the wait
for a reader. A peer beyond a bound gets a problem, if possible, and its connection ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
import structlog
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pricekeeper.errors import OverloadedError
from pricekeeper.http.connections import LISTENERS, connections_of
from pricekeeper.http.exchange import BEGIN, Exchange, apply_forwarded
from pricekeeper.http.known_head import KnownHead, KnownRequest, remember_head
from pricekeeper.http.problems import status_of
from pricekeeper.http.refusals import (
    GOAWAY,
    HTTP_2_CODE,
    HTTP_2_HINT,
    PREFACE_BYTES,
    PREFACE_ERROR,
    SETTINGS,
    Http2Refusal,
    refusal,
)

HEAD_BYTES_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 100
"""Includes trailers."""
HEAD_PIECES_MAX: Final = 1_024
"""Reads with parts of a head. For each, the parser copies half a header again."""
CHUNK_LINE_BYTES: Final = 16
"""Framing allowed for each chunk of a body. More of it counts as head."""
PIPELINED_MAX: Final = 16
"""Waiting requests of one connection."""
ARRIVAL_SECS_MAX: Final = 30
"""From the first byte of a request to the last."""
UNREAD_SECS_MAX: Final = 30
"""How long an answer may wait for its reader."""
KERNEL_BUFFER_BYTES: Final = 128 * 1024
"""Kernel send buffer for a slow reader; the default grows to megabytes per connection."""
_LOOK_EVERY_SECS: Final = 5
_NO_ROOM: Final = 503

_log = structlog.get_logger(__name__)


class _HeadRefusedError(Exception):
    """The head is too large or, if the error has a text, malformed."""


class ProblemProtocol(HttpToolsProtocol):
    """One connection."""

    cycle: Exchange

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._all = connections_of(self.app_state)
        self._arriving_since: float | None = None
        """``None`` between requests."""
        self._whole = False
        """Whether a request became complete in the current piece of data."""
        self._accepted: deque[Exchange] = deque()
        """Unanswered requests. The first is in progress."""
        self._is_new = True
        self._known: KnownHead | None = None
        """A request with the same head is not parsed."""
        self._urls = (b"", b"")
        """Paths of the last two parsed heads. A head is remembered when its path repeats: a
        capture's path never does, and captures alternate with authorizations."""
        self._begun = 0
        self._unstarted: Exchange | None = None
        """The request whose head came in the current piece of data."""
        self._waits = False
        """Whether `Connections` counts this connection as waiting for its peer."""
        self._fields = 0
        self._hosts = 0
        self._head_bytes = 0
        self._head_ended = False
        self._gathered_bytes = 0
        self._gathered_pieces = 0
        self._held_head_bytes = 0
        self._body_bytes = 0
        self._body_parts = 0
        """Parts in which the parser delivered them."""
        self._unread_since: float | None = None
        self._idle_since = 0.0
        self._deaf = False
        """Whether further data is ignored."""
        self._watch: asyncio.TimerHandle | None = None
        self._proxies = (
            self.app.trusted_hosts if isinstance(self.app, ProxyHeadersMiddleware) else None
        )
        """Their X-Forwarded headers are trusted."""
        self._http2: Http2Refusal | None = None
        """Set if the connection began with the preface of HTTP/2."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        self._arriving_since = self.loop.time()
        self._watch = self.loop.call_later(_LOOK_EVERY_SECS, self._look)
        if self._all.enter(self):
            self._note_waiting()
        else:
            self._refuse_for_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._all.leave(self)
        self._hold_head(0)
        for accepted in self._accepted:
            accepted.give_up()
        self._accepted.clear()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        known = self._known
        is_between = (self._arriving_since is None or self._is_new) and not self._accepted
        self._is_new = False
        request = known.request_of(data) if is_between and known is not None else None
        if request is not None:
            self._take_known(request)
        elif self._http2 is not None:
            self._refuse_http2(self._http2, data)
        else:
            self._parse(data, is_between=is_between)

    def _parse(self, data: bytes, *, is_between: bool) -> None:
        """Refuse a request that grows without becoming complete."""
        if self._arriving_since is None:
            self._arriving_since = self.loop.time()
            self._head_ended = False
            self._stop_waiting()
        self._whole = False
        self._begun = self._body_bytes = self._body_parts = 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # We stay with HTTP/1.1.
            self._deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._start()
            self._refuse_unparsed(error, data)
            return
        if is_between and self._whole and self._begun == 1 and self.cycle.keep_alive:
            if self._known is None or self.url in self._urls:
                scope = {**self.scope, "state": self.app_state}
                self._known = remember_head(data, scope, self._head_bytes, self._body_bytes)
            self._urls = (self.url, self._urls[0])
        self._start()
        if self._is_at_work():
            self._gathered_bytes = self._gathered_pieces = 0
            self._stop_waiting()
        elif not self._note_part(len(data)):
            return
        if self._all.held_bytes > self._all.held_bytes_max:
            self._all.limit_bytes(self)

    def _take_known(self, request: KnownRequest) -> None:
        self._stop_waiting()
        self._head_ended = True
        scope, body, head_bytes, is_same = request
        exchange = self._exchange_of(scope, head_bytes + len(body), keep_alive=True)
        exchange.body, exchange.more_body = body, False
        if is_same:  # values from another head may not apply
            exchange.known = self._known
        self._accepted.append(exchange)
        self.cycle = self._unstarted = exchange
        self._start()
        if self._all.held_bytes > self._all.held_bytes_max:
            self._all.limit_bytes(self)

    def _start(self) -> None:
        exchange, self._unstarted = self._unstarted, None
        if exchange is None:
            return
        begin = self.app_state.get(BEGIN)
        if begin is None:
            self._start_asgi_task(exchange, self.app)
        else:
            begin(exchange)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun += 1
        if self._arriving_since is None:  # came in the same piece of data as the end of another one
            self._arriving_since = self.loop.time()
        self._fields = self._hosts = self._head_bytes = 0
        self._head_ended = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuse too many headers before they are stored. Trailers count, and are dropped."""
        self._fields += 1
        self._head_bytes += len(name) + len(value)
        if self._fields > FIELDS_MAX or self._head_bytes > HEAD_BYTES_MAX:
            raise _HeadRefusedError
        if not self._head_ended:
            name = name.lower()
            self.headers.append((name, value))
            if name == b"host":
                self._hosts += 1
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        self._head_bytes += len(self.url)
        if self._head_bytes > HEAD_BYTES_MAX or len(self.pipeline) >= PIPELINED_MAX:
            raise _HeadRefusedError
        before = self.cycle
        exchange = self._make_exchange()
        self.cycle = exchange
        if before is None or before.response_complete:
            self._unstarted = exchange
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))
        self._head_ended = True
        self._hold_head(0)
        self._accepted.append(exchange)

    def _make_exchange(self) -> Exchange:
        scope, version = self.scope, self.parser.get_http_version()
        if self._hosts != 1 and version != "1.0":
            raise _HeadRefusedError("send exactly one Host header")
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        exchange = self._exchange_of(scope, self._head_bytes, keep_alive=keep_alive)
        exchange.waiting_for_100_continue = self.expect_100_continue
        return exchange

    def _exchange_of(self, scope: Any, held_bytes: int, *, keep_alive: bool) -> Exchange:
        if self._proxies is not None:
            scope["client"], scope["scheme"] = self.client, self.scheme
            apply_forwarded(scope, self._proxies)
        return Exchange(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.server_state.default_headers,
            self.on_response_complete,
            self.tasks,
            connections=self._all,
            offer_place=self._note_waiting,
            keep_alive=keep_alive,
            held_bytes=held_bytes,
        )

    def on_body(self, body: bytes) -> None:
        count, cycle = len(body), self.cycle
        self._body_bytes += count
        self._body_parts += 1
        if cycle.response_complete:
            return
        self._accepted[-1].hold(count)
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if cycle is not self._unstarted:
            cycle.wake()

    def on_message_complete(self) -> None:
        self._arriving_since = None
        self._whole = True
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            if self.cycle is not self._unstarted:
                self.cycle.wake()

    def on_response_complete(self) -> None:
        """Begin the next request. `_look` closes a connection that stays idle."""
        self._accepted.popleft()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._idle_since = self.loop.time()
            if self.pipeline:
                self._unstarted = cast("Exchange", self.pipeline.pop()[0])
                self._start()
        if not self._accepted:
            self._note_waiting()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        """Close between requests; an incomplete request was not accepted."""
        listeners = self.app_state.get(LISTENERS)
        if listeners is not None:
            listeners.close()
        if self._arriving_since is None:
            super().shutdown()
        elif self._stop_taking():
            self.transport.close()

    def make_room(self) -> None:
        """Close the connection to free its place or its bytes."""
        if self.transport.get_write_buffer_size():
            self._abort_unread()
        elif self._accepted or self._gathered_bytes:
            if self._arriving_since is None:
                self._drop_last()
            self._refuse_for_room()
        elif self._stop_taking():
            self.transport.close()  # between requests, where clients expect it
        self._hold_head(0)

    def _hold_head(self, count: int) -> None:
        self._all.held_bytes += count - self._held_head_bytes
        self._held_head_bytes = count

    def _is_at_work(self) -> bool:
        """Whether every request that came is complete, and one is not answered yet."""
        return self._arriving_since is None and bool(self._accepted)

    def _note_part(self, count: int) -> bool:
        """Check a piece of an incomplete request; returns whether to continue."""
        if self._whole or self._arriving_since is None:
            self._gathered_bytes = self._gathered_pieces = 0
        else:
            excused = self._body_bytes + self._body_parts * CHUNK_LINE_BYTES
            self._gathered_bytes = max(0, self._gathered_bytes + count - excused)
            self._gathered_pieces = 0 if self._body_parts else self._gathered_pieces + 1
            if not self._head_ended:
                self._hold_head(self._gathered_bytes)
        if self._gathered_bytes > HEAD_BYTES_MAX or self._gathered_pieces > HEAD_PIECES_MAX:
            self._refuse_head()
            return False
        self._note_waiting()
        if self._arriving_since is not None:
            self._all.note_part(self)
        else:
            self._idle_since = self.loop.time()
        return True

    def _note_waiting(self) -> None:
        if not self._waits:
            self._waits = True
            self._all.note_waiting(self)

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._all.stop_waiting(self)

    def _look(self) -> None:
        """Close if the peer does not read, stalls a request, or is idle."""
        self._watch = self.loop.call_later(_LOOK_EVERY_SECS, self._look)
        now = self.loop.time()
        if not self.transport.get_write_buffer_size():
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since >= UNREAD_SECS_MAX:
            self._abort_unread()
            return
        since = self._arriving_since
        if since is not None:
            if now - since >= ARRIVAL_SECS_MAX:
                self._refuse(408, "REQUEST_TIMEOUT", "the request took too long to arrive")
        elif not self._accepted and now - self._idle_since >= self.timeout_keep_alive:
            self.transport.close()

    def _abort_unread(self) -> None:
        """An orderly close would wait for the reader."""
        self._deaf = True
        self._count("ANSWER_NOT_READ")
        self.transport.abort()

    def _refuse_unparsed(self, error: httptools.HttpParserError, data: bytes) -> None:
        cause, newest = error.__context__, cast("Exchange | None", self.cycle)
        if str(error) == PREFACE_ERROR and newest is None:
            self._begin_http2(data[PREFACE_BYTES - self._gathered_bytes :])
        elif not isinstance(cause, _HeadRefusedError):
            self._refuse(400, "INVALID_REQUEST", "this is not a valid HTTP/1.1 request")
        elif cause.args:
            self._refuse(400, "INVALID_REQUEST", str(cause))
        elif len(self.pipeline) >= PIPELINED_MAX:
            self._stop_taking()  # accepted requests are answered; the client may reconnect
        else:
            self._refuse_head()

    def _begin_http2(self, data: bytes) -> None:
        self._http2 = Http2Refusal()
        self._gathered_bytes = 0
        self._count(HTTP_2_CODE)
        if not self._all.has_logged_http2:
            self._all.has_logged_http2 = True
            _log.warning("http2_refused", hint=HTTP_2_HINT)
        self.transport.write(SETTINGS)
        self._refuse_http2(self._http2, data)

    def _refuse_http2(self, http2: Http2Refusal, data: bytes) -> None:
        """Answer the first request, once it has begun.

        Closing is left to the client or `_look`: if we closed here, the kernel would drop the
        answer when more of the request arrives.
        """
        answer = http2.answer(data)
        if answer is None:
            return
        self._deaf = True
        self._arriving_since = None
        self._idle_since = self.loop.time()
        self.transport.write(answer)

    def _refuse_head(self) -> None:
        self._refuse(431, "HEADERS_TOO_LARGE", "the request line or its headers are too large")

    def _refuse_for_room(self) -> None:
        status, code = status_of(OverloadedError)
        self._refuse(status, code or OverloadedError.code, "too much is waiting; try again")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Stop reading, and send a problem if no other answer has begun."""
        if self._deaf or self.transport.is_closing():
            return
        self._count(OverloadedError.code if status == _NO_ROOM else code)
        answered = self._head_ended and self.cycle is not None and self.cycle.response_complete
        if not self._stop_taking():
            return
        if self._http2 is not None:
            self.transport.write(GOAWAY)
        elif not (answered and self._arriving_since is not None):
            self.transport.write(refusal(status, code, detail))
        self.transport.close()

    def _stop_taking(self) -> bool:
        """Stop reading; returns whether no request is left to answer.

        An incomplete request was not accepted. The last answer closes the connection.
        """
        self._deaf = True
        if self._accepted and self._arriving_since is not None and self._head_ended:
            self._drop_last()
        if not self._accepted:
            return True
        self._accepted[-1].keep_alive = False
        return False

    def _drop_last(self) -> None:
        """Drop the request with an incomplete body, unless its answer has begun."""
        last = self._accepted[-1]
        if last.response_started:
            return
        self._accepted.pop()
        if self.pipeline and self.pipeline[0][0] is last:  # newest on the left
            self.pipeline.popleft()
        last.give_up()

    def _count(self, code: str) -> None:
        metrics = self.app_state.get("metrics")
        if metrics is not None:
            metrics.note_problem(code)
