"""One request and its answer, written whole, or in parts as they come.

uvicorn writes the head of an answer and its body apart, and checks each header with two regular
expressions. Nearly every answer of ours is whole when it is sent, so head and body go out in one
write, and one count of line ends finds a header that would bring a line of its own. The gateway's
streams go out in chunks, each when it comes.

Nearly every body is whole when its handler asks for it, too. ASGI has messages for both, which are
awaited one by one. `take_body` and `write_whole` do the same at once where nobody has to wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from pricekeeper.gateway.connection import ABORT
from pricekeeper.http.connections import Connections
from pricekeeper.http.known_head import KnownHead

EXCHANGE: Final = "pricekeeper.exchange"
"""The name in the scope of a request under which its exchange is. Whoever reads it takes it out:
the two would keep each other alive until the garbage collector comes."""
BEGIN: Final = "begin"
"""The name in the server's state under which a connection finds what begins requests at once."""
_CLOSE: Final = (b"connection", b"close")
_CLOSING: Final = b"connection: close\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


def render_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The headers as they go out. Raises if one would bring a line of its own."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers):
        raise RuntimeError("a header has more than one line")
    return lines


class Exchange(RequestResponseCycle):
    """uvicorn's cycle of a request, without what most requests need not have made."""

    held_bytes = 0
    """What the request holds until it is answered: of its head, and of its body so far."""
    admitted: Any = None
    """What the gate has admitted before there was a task for it; the shell goes on with that."""
    known: KnownHead | None = None
    """Its head, if that has come before, but for the length of the body."""
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    _arrival: asyncio.Event | None = None
    _on_left: Callable[[], None] | None = None
    _head = b""
    _in_parts = False
    _in_chunks = False

    def __init__(
        self,
        scope: Any,
        transport: asyncio.Transport,
        flow: FlowControl,
        logger: logging.Logger,
        default_headers: list[tuple[bytes, bytes]],
        on_response: Callable[[], None],
        tasks: set[asyncio.Task[None]],
        *,
        connections: Connections,
        offer_place: Callable[[], None],
        keep_alive: bool,
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.logger = logger
        self.default_headers = default_headers
        self.on_response = on_response
        self._tasks = tasks
        self._connections = connections
        self.offer_place = offer_place
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = False
        self.body: bytes | bytearray = bytearray()  # type: ignore[assignment]

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """What whoever receives waits for; it is made when somebody has to."""
        event = self._arrival
        if event is None:
            event = self._arrival = asyncio.Event()
            if self.body or not self.more_body or self.disconnected or self.response_complete:
                event.set()
        return event

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Work on the request in a task. A server that ends waits for it, whoever has left."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_done)

    def _note_done(self, task: asyncio.Task[None]) -> None:
        """Let nobody wait for an answer that does not come: what should have made it has failed."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.response_complete:
            self.transport.close()
        if error is not None:
            self.logger.error("a request was left without its answer or its log line: %r", error)

    def wake(self) -> None:
        """Let whoever waits for more of the request look again."""
        if self._arrival is not None:
            self._arrival.set()

    def give_up(self) -> None:
        """Let its handler know that there is nobody to answer."""
        if not self.response_complete:
            self.disconnected = True
            if self._on_left is not None:
                self._on_left()
        self.wake()

    def peek_body(self) -> bytes | None:
        """The body, if all of it is here, which is left where it is."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        return bytes(self.body)

    def watch(self, on_left: Callable[[], None]) -> None:
        """Have that called if the caller leaves before its answer is whole, or has left already."""
        self._on_left = on_left
        self.flow.resume_reading()  # nobody learns of the end of what is not read
        if self.disconnected:
            on_left()

    def take_body(self) -> bytes | None:
        """The body, if all of it is here; ``None`` if it has to be received."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        body, self.body = bytes(self.body), bytearray()
        return body

    def hold(self, count: int) -> None:
        """Count so many bytes more of the request."""
        self.held_bytes += count
        self._connections.held_bytes += count

    def let_go(self) -> None:
        """Count its bytes no longer: it is answered, or somebody else counts them."""
        self._connections.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def write_whole(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write an answer; returns whether it did. If its reader is slow, it has to be sent."""
        if self.flow.write_paused or self.response_started:
            return False
        if not self.disconnected:
            self._begin(status, headers)
            self._write_body(body)
        return True

    def write_lines(self, status: int, lines: bytes, body: bytes) -> bool:
        """As `write_whole`, with the headers as the lines that go out."""
        if self.flow.write_paused or self.response_started:
            return False
        if not self.disconnected:
            self._begin_lines(status, lines)
            self._write_body(body)
        return True

    async def send(self, message: Any) -> None:
        """Take the start of an answer, and then its body, and write them."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._begin(message["status"], message["headers"])
        elif message["type"] == "http.response.body" and not self.response_complete:
            if self._in_parts or message.get("more_body", False):
                self.write_part(message["body"])
                if message.get("more_body", False):
                    return
                if self._in_chunks:
                    self.transport.write(_LAST_CHUNK)
                self._end()
            else:
                self._write_body(message["body"])
        elif message["type"] == ABORT:
            self._break_off()
        else:
            raise RuntimeError(f"{message['type']} does not come here")

    def _begin(self, status: int, wanted: Iterable[tuple[bytes, bytes]]) -> None:
        headers = [*wanted]
        if _CLOSE in headers:
            headers.remove(_CLOSE)
            self.keep_alive = False
        self._begin_lines(status, render_lines(headers))

    def _begin_lines(self, status: int, lines: bytes) -> None:
        """Make the head; it is written with the first of the body."""
        default, close = self.default_headers, b"" if self.keep_alive else _CLOSING
        before = render_lines(default) if default else b""
        self._head = b"%b%b%b%b\r\n" % (STATUS_LINE[status], before, lines, close)
        self.response_started = True
        self.waiting_for_100_continue = False

    def _write_body(self, body: bytes) -> None:
        """Write head and body of an answer that is whole."""
        self.transport.write(self._head if self.scope["method"] == "HEAD" else self._head + body)
        self._end()

    def _end(self) -> None:
        self.response_complete = True
        self.wake()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    @property
    def is_read_slowly(self) -> bool:
        """Whether its reader has to be waited for before more is written."""
        return self.flow.write_paused

    def write_part(self, part: bytes) -> None:
        """Write what has come of an answer whose length nobody knows."""
        if not self._in_parts:
            self._in_parts = True
            # HTTP/1.0 has no chunks; there the end of the connection is the end of the answer.
            self._in_chunks = self.scope["http_version"] != "1.0"
            if self._in_chunks:
                self._head = self._head[:-2] + b"transfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%b\r\n" % (len(part), part) if part and self._in_chunks else part
        if self._head or chunk:
            self.transport.write(self._head + chunk)
        self._head = b""

    def _break_off(self) -> None:
        """End an answer so that its reader knows that something is missing."""
        self.disconnected = True
        if self._in_chunks:
            self.transport.close()  # after what was written; the last chunk never comes
        else:
            self.transport.abort()
