"""One request and its answer, written whole or in parts.

uvicorn writes head and body separately, and checks each header with two regular expressions. Here a
complete answer is one write, and counting line ends finds an injected header. If the body is
complete and the reader is quick, `take_body` and `write_whole` avoid ASGI's awaits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from uvicorn.middleware.proxy_headers import _TrustedHosts
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from pricekeeper.gateway.caller import ABORT
from pricekeeper.gateway.caller import Exchange as GatewaysExchange
from pricekeeper.http.connections import Connections
from pricekeeper.http.known_head import KnownHead

BEGIN: Final = "begin"
"""Key in the server's state of `serving.Shell.begin`."""
_CLOSE: Final = (b"connection", b"close")
_CLOSING: Final = b"connection: close\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


def render_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Render headers. Raises if a value contains a line end."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers):
        raise RuntimeError("a header has more than one line")
    return lines


def apply_forwarded(scope: Any, proxies: _TrustedHosts) -> None:
    """Take client and scheme from the X-Forwarded headers of a trusted proxy."""
    client = scope["client"]
    if (client[0] if client else None) not in proxies:
        return
    addresses, scheme = [], b""
    for name, value in scope["headers"]:
        if name == b"x-forwarded-for":
            addresses.append(value)
        elif name == b"x-forwarded-proto":
            scheme = value.strip()
    if scheme in {b"http", b"https"}:
        scope["scheme"] = scheme.decode()
    if addresses:
        stated = proxies.get_trusted_client_address(b",".join(addresses).decode("latin-1"))
        if stated[0]:
            scope["client"] = stated


class Exchange(RequestResponseCycle):
    """uvicorn's cycle of a request, without the parts that most requests don't need."""

    known: KnownHead | None = None
    """Set if the same head came before with another length of the body."""
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
        held_bytes: int,
    ) -> None:
        """``held_bytes``, of its head and body, are held until it is answered."""
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
        self.held_bytes = held_bytes
        connections.held_bytes += held_bytes
        self.waiting_for_100_continue = False
        self.body: bytes | bytearray = bytearray()  # type: ignore[assignment]

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        event = self._arrival
        if event is None:
            event = self._arrival = asyncio.Event()
            if self.body or not self.more_body or self.disconnected or self.response_complete:
                event.set()
        return event

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work in a task. A stopping server waits for it, even if the caller has left."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_done)

    def _note_done(self, task: asyncio.Task[None]) -> None:
        """Log a failed task; close the connection if its request was not answered."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.response_complete:
            self.transport.close()
        if error is not None:
            self.logger.error("a request was left without its answer or its log line: %r", error)

    def wake(self) -> None:
        if self._arrival is not None:
            self._arrival.set()

    def give_up(self) -> None:
        self.let_go()
        if not self.response_complete:
            self.disconnected = True
            if self._on_left is not None:
                self._on_left()
        self.wake()

    def peek_body(self) -> bytes | None:
        """``None`` if the body is incomplete."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        return bytes(self.body)

    def watch(self, on_left: Callable[[], None]) -> None:
        """Call ``on_left`` if the caller leaves before its answer ends, or has left."""
        self._on_left = on_left
        self.flow.resume_reading()  # a paused connection does not notice its end
        if self.disconnected:
            on_left()

    def take_body(self) -> bytes | None:
        """``None`` if the handler must receive the body."""
        body = self.peek_body()
        if body is not None:
            self.body = bytearray()
        return body

    def hold(self, count: int) -> None:
        self.held_bytes += count
        self._connections.held_bytes += count

    def let_go(self) -> None:
        self._connections.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def write_whole(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """``False`` if its reader is slow, so that `send` must wait for it."""
        return self.write_lines(status, self._lines_of(headers), body)

    def write_lines(self, status: int, lines: bytes, body: bytes) -> bool:
        if self.flow.write_paused or self.response_started:
            return False
        if not self.disconnected:
            self._begin(status, lines)
            self._write_body(body)
        return True

    async def drain(self) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()

    async def send(self, message: Any) -> None:
        await self.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._begin(message["status"], self._lines_of(message["headers"]))
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

    def _lines_of(self, wanted: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Without ``connection: close``, which `_begin` adds."""
        headers = [*wanted]
        if _CLOSE in headers:
            headers.remove(_CLOSE)
            self.keep_alive = False
        return render_lines(headers)

    def _begin(self, status: int, lines: bytes) -> None:
        default, close = self.default_headers, b"" if self.keep_alive else _CLOSING
        before = render_lines(default) if default else b""
        self._head = b"%b%b%b%b\r\n" % (STATUS_LINE[status], before, lines, close)
        self.response_started = True
        self.waiting_for_100_continue = False

    def _write_body(self, body: bytes) -> None:
        self.transport.write(self._head if self.scope["method"] == "HEAD" else self._head + body)
        self._end()

    def _end(self) -> None:
        self.let_go()
        self.response_complete = True
        self.wake()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    @property
    def is_read_slowly(self) -> bool:
        """Whether more may be written only after waiting for the reader."""
        return self.flow.write_paused

    def write_part(self, part: bytes) -> None:
        if not self._in_parts:
            self._in_parts = True
            # HTTP/1.0 has no chunks: the end of the connection ends the answer.
            self._in_chunks = self.scope["http_version"] != "1.0"
            if self._in_chunks:
                self._head = self._head[:-2] + b"transfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%b\r\n" % (len(part), part) if part and self._in_chunks else part
        if self._head or chunk:
            self.transport.write(self._head + chunk)
        self._head = b""

    def _break_off(self) -> None:
        """End an answer so that its reader notices that it is incomplete."""
        self.disconnected = True
        if self._in_chunks:
            self.transport.close()  # without the last chunk
        else:
            self.transport.abort()


if TYPE_CHECKING:

    def _is_what_the_gateway_uses(exchange: Exchange) -> GatewaysExchange:
        """The gateway gets it by the scope, which has no types."""
        return exchange
