"""uvicorn's protocol, with bounds on what a peer may send, hold and leave unread.

A body is bounded where it is read. What is not a body, the request line, headers, chunk lines and
trailers, is gathered by the parser for as long as it comes; a caller who sends half a request may
take any time over the other half; and who sends many requests need not read a single answer. Here
all of that ends, with a problem like any other where one can still be told. What all connections
may hold together is the business of `Connections`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
import structlog
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pricekeeper.errors import OverloadedError
from pricekeeper.http.connections import LISTENERS, connections_of
from pricekeeper.http.exchange import BEGIN, EXCHANGE, Exchange
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
"""Headers, and trailers with them."""
HEAD_PIECES_MAX: Final = 1_024
"""Reads that bring nothing but a head: the parser copies half a header again with each of them."""
CHUNK_LINE_BYTES: Final = 16
"""What a chunk of a body may have around it, before it counts as more head."""
PIPELINED_MAX: Final = 16
"""Requests of one connection that wait while another one is being answered."""
ARRIVAL_SECS_MAX: Final = 30
"""From the first byte of a request to the last."""
UNREAD_SECS_MAX: Final = 30
"""How long an answer may wait for its reader."""
KERNEL_BUFFER_BYTES: Final = 128 * 1024
"""What the kernel keeps for a slow reader; left to itself, it goes up to megabytes for each."""
_LOOK_EVERY_SECS: Final = 5
_NO_ROOM: Final = 503

_log = structlog.get_logger(__name__)


class _HeadRefusedError(Exception):
    """Stops the parser in the middle of a head, which is too large or, with a text, is wrong."""


class ProblemProtocol(HttpToolsProtocol):
    """One connection."""

    cycle: Exchange
    """The newest request."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._all = connections_of(self.app_state)
        self._arriving_since: float | None = None
        """When the request that is not here yet began; nothing, between requests."""
        self._whole = False
        """Whether a request became whole in the piece that is being parsed."""
        self._accepted: deque[Exchange] = deque()
        """Handed over and not answered yet; the first is the one that is being answered."""
        self._is_new = True
        """Whether nothing has come yet."""
        self._known: KnownHead | None = None
        """A head that has come before, if it need not be parsed to be known again."""
        self._urls = (b"", b"")
        """Where the last two requests went whose heads were parsed. Another head is remembered only
        if it comes again: those of captures never do, and stand between those of authorizations."""
        self._begun = 0
        """How many requests began in the piece that is being parsed."""
        self._unstarted: Exchange | None = None
        """The request whose head has come in the piece that is being parsed."""
        self._waits = False
        """Whether it is the peer's turn, as `Connections` has been told."""
        self._fields = 0
        self._hosts = 0
        self._head_bytes = 0
        self._head_ended = False
        self._gathered_bytes = 0
        """What has come of a request, without its body."""
        self._gathered_pieces = 0
        self._held_head_bytes = 0
        self._body_bytes = 0
        """Of bodies, in the piece that is being parsed."""
        self._body_parts = 0
        """In how many parts the parser gave us those bytes."""
        self._unread_since: float | None = None
        self._idle_since = 0.0
        """When the last answer was written."""
        self._deaf = False
        """Whether nothing more is taken from this peer."""
        self._watch: asyncio.TimerHandle | None = None
        self._http2: Http2Refusal | None = None
        """Reads what comes, if the connection began with the preface of HTTP/2."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin if there is room, and look now and then whether it gets anywhere."""
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
        """Stop looking; whoever is still at work for this peer is told that it has left."""
        if self._watch is not None:
            self._watch.cancel()
        self._all.leave(self)
        self._all.held_bytes -= self._held_head_bytes
        for accepted in self._accepted:
            accepted.let_go()
            accepted.give_up()
        self._held_head_bytes = 0
        self._accepted.clear()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a request whose head is known, or parse what has come."""
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
        """Parse; refuse what gathers without ever being whole."""
        if self._arriving_since is None:
            self._arriving_since = self.loop.time()
            self._head_ended = False
            self._stop_waiting()
        self._whole = False
        self._begun = self._body_bytes = self._body_parts = 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # We stay with HTTP/1.1. What follows would be in the other language.
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
        if self._is_at_work():  # as nearly always
            self._gathered_bytes = self._gathered_pieces = 0
            self._stop_waiting()
        elif not self._note_part(len(data)):
            return
        if self._all.held_bytes > self._all.held_bytes_max:
            self._all.limit_bytes(self)

    def _take_known(self, request: KnownRequest) -> None:
        """Take a whole request without parsing its head, which is like the one before."""
        self._stop_waiting()
        self._head_ended = True
        scope, body, head_bytes, is_same = request
        exchange = self._exchange_of(scope, keep_alive=True)
        exchange.body, exchange.more_body = body, False
        if is_same:  # else what was worked out of the other may not be true of it
            exchange.known = self._known
        exchange.hold(head_bytes + len(body))
        self._accepted.append(exchange)
        self.cycle = self._unstarted = exchange
        self._start()
        if self._all.held_bytes > self._all.held_bytes_max:
            self._all.limit_bytes(self)

    def _start(self) -> None:
        """Begin to work on a request that has come, at once if that can be, else in a task."""
        exchange, self._unstarted = self._unstarted, None
        if exchange is None:
            return
        begin = self.app_state.get(BEGIN)
        if begin is None or not begin(exchange):
            self._start_task(exchange)

    def _start_task(self, exchange: Exchange) -> None:
        exchange.scope[EXCHANGE] = exchange  # type: ignore[typeddict-unknown-key]
        self._start_asgi_task(exchange, self.app)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun += 1
        if self._arriving_since is None:  # it began in the same piece as another one ended
            self._arriving_since = self.loop.time()
        self._fields = self._hosts = self._head_bytes = 0
        self._head_ended = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuse too many before they are listed; a trailer counts, and is nobody's header."""
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
        """Hand the request over, if it is not too large and not too many are before it."""
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
        self._all.held_bytes -= self._held_head_bytes
        self._held_head_bytes = 0
        exchange.hold(self._head_bytes)
        self._accepted.append(exchange)

    def _make_exchange(self) -> Exchange:
        """What uvicorn makes of a head, for answers that are written whole."""
        scope, version = self.scope, self.parser.get_http_version()
        if self._hosts != 1 and version != "1.0":
            raise _HeadRefusedError("host: has to be sent, and once")
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        exchange = self._exchange_of(
            scope, keep_alive=version != "1.0" and self.parser.should_keep_alive()
        )
        exchange.waiting_for_100_continue = self.expect_100_continue
        return exchange

    def _exchange_of(self, scope: Any, *, keep_alive: bool) -> Exchange:
        """One request of this connection and its answer."""
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
        cycle.wake()

    def on_message_complete(self) -> None:
        self._arriving_since = None
        self._whole = True
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.wake()

    def on_response_complete(self) -> None:
        """Go on with the next request. `_look` closes a connection on which none comes."""
        self._accepted.popleft().let_go()
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
        """The peer reads."""
        self._unread_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        """End between requests; one that is not whole yet was never accepted.

        A stream would go on for ever: all of them are ended.
        """
        listeners = self.app_state.get(LISTENERS)
        if listeners is not None:
            listeners.close()
        if self._arriving_since is None:
            super().shutdown()
        elif self._stop_taking():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer to bytes that are no HTTP."""
        self._refuse(400, "INVALID_REQUEST", msg or "this is not HTTP")

    def make_room(self) -> None:
        """Close: the place is needed, or what is held."""
        if self.transport.get_write_buffer_size():
            self._abort_unread()
        elif self._accepted or self._gathered_bytes:
            if self._arriving_since is None:  # whole, but its handler has not seen that yet
                self._drop_last()
            self._refuse_for_room()
        elif self._stop_taking():
            self.transport.close()  # between requests, where a peer expects it
        self._all.held_bytes -= self._held_head_bytes
        self._held_head_bytes = 0

    def _is_at_work(self) -> bool:
        """Whether all that has come was whole, and is not answered yet."""
        return self._arriving_since is None and bool(self._accepted)

    def _note_part(self, count: int) -> bool:
        """Look at a piece of so many bytes that was no whole request; returns whether to go on."""
        if self._whole or self._arriving_since is None:
            self._gathered_bytes = self._gathered_pieces = 0
        else:
            excused = self._body_bytes + self._body_parts * CHUNK_LINE_BYTES
            self._gathered_bytes = max(0, self._gathered_bytes + count - excused)
            self._gathered_pieces = 0 if self._body_parts else self._gathered_pieces + 1
            if not self._head_ended:
                self._all.held_bytes += self._gathered_bytes - self._held_head_bytes
                self._held_head_bytes = self._gathered_bytes
        if self._gathered_bytes > HEAD_BYTES_MAX or self._gathered_pieces > HEAD_PIECES_MAX:
            self._refuse_head()
            return False
        self._note_waiting()
        if self._arriving_since is not None:
            self._all.note_part(self)
        else:
            self._idle_since = self.loop.time()  # its answer came before the last of its body
        return True

    def _note_waiting(self) -> None:
        """It is the peer's turn."""
        if not self._waits:
            self._waits = True
            self._all.note_waiting(self)

    def _stop_waiting(self) -> None:
        """It is our turn, or the peer has begun anew."""
        if self._waits:
            self._waits = False
            self._all.stop_waiting(self)

    def _look(self) -> None:
        """Cut off who does not read, does not finish what it began to send, or sends no more."""
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
        """End at once: closing in order would wait for the reader."""
        self._deaf = True
        self._count("ANSWER_NOT_READ")
        self.transport.abort()

    def _refuse_unparsed(self, error: httptools.HttpParserError, data: bytes) -> None:
        """Refuse what the parser could not read; the piece that it ended in is ``data``."""
        cause, newest = error.__context__, cast("Exchange | None", self.cycle)
        if str(error) == PREFACE_ERROR and newest is None:  # nothing came before it
            self._begin_http2(data[PREFACE_BYTES - self._gathered_bytes :])
        elif not isinstance(cause, _HeadRefusedError):
            self.send_400_response("Invalid HTTP request received.")
        elif cause.args:
            self.send_400_response(str(cause))
        elif len(self.pipeline) >= PIPELINED_MAX:
            self._stop_taking()  # what was accepted is answered; then the peer may come again
        else:
            self._refuse_head()

    def _begin_http2(self, data: bytes) -> None:
        """The caller speaks HTTP/2; what came after its preface is frames."""
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

        The caller closes the connection, or `_look` does so later. Closing here could lose the
        answer: the kernel drops it if more of the request arrives.
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
        """Take nothing more, and tell why if no answer of ours is on its way."""
        if self._deaf or self.transport.is_closing():
            return
        self._count(OverloadedError.code if status == _NO_ROOM else code)
        answered = self._head_ended and self.cycle is not None and self.cycle.response_complete
        if not self._stop_taking():
            return
        if self._http2 is not None:
            self.transport.write(GOAWAY)
        elif not (answered and self._arriving_since is not None):  # else it has its answer
            self.transport.write(refusal(status, code, detail))
        self.transport.close()

    def _stop_taking(self) -> bool:
        """Take nothing more from this peer; returns whether nothing is left to be answered.

        A request that is not whole was not accepted. Those before it are answered, and the last
        answer closes the connection.
        """
        self._deaf = True
        if self._accepted and self._arriving_since is not None and self._head_ended:
            self._drop_last()
        if not self._accepted:
            return True
        self._accepted[-1].keep_alive = False
        return False

    def _drop_last(self) -> None:
        """Forget the request whose body has not come, unless its answer has begun."""
        last = self._accepted[-1]
        if last.response_started:
            return
        self._accepted.pop()
        if self.pipeline and self.pipeline[0][0] is last:  # the newest is on the left
            self.pipeline.popleft()
        last.let_go()
        last.give_up()

    def _count(self, code: str) -> None:
        metrics = self.app_state.get("metrics")
        if metrics is not None:
            metrics.note_problem(code)
