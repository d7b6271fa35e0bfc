"""HTTP/1.1 for calls to Bedrock: a request is sent whole, a reply is read as it comes.

A general client takes two thirds of a plain relay's time. Here a request is one write, its reply is
read by the server's parser, and one timer checks all connections.

A request is sent once. The error says whether it was certainly not sent (`NotSentError`) or may
have been (`ReplyBrokenError`).

Bounds: one connection for each request under way (`gateway/sharing.py` bounds those),
`HEAD_BYTES_MAX` of a head, and `UNREAD_BYTES_MAX` of an unread reply; then reading stops.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import httptools

HEAD_BYTES_MAX: Final = 64 * 1024
UNREAD_BYTES_MAX: Final = 128 * 1024
PIECE_BYTES: Final = 1 << 18
"""A longer body is written in pieces, so that other work can run in between."""
LOOK_SECS: Final = 5
"""The interval at which silent and unused connections are checked."""
CLOSING_TURNS_MAX: Final = 100
_INFORMATIONAL: Final = range(100, 200)
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Without one of these, a reply ends when its connection is closed."""

Take: TypeAlias = Callable[[bytes], bool]
"""Gets bytes of a body as they come; returns whether it has taken them."""


class NotSentError(Exception):
    """No connection could be made: the request certainly was not sent."""


class ReplyBrokenError(Exception):
    """The request may have been received, and no complete answer has come back."""


class Waits(NamedTuple):
    """How long a client waits, in seconds."""

    connect: float
    silence: float
    unused: float


class HttpReply:
    """The answer to a request; its body is read as it comes."""

    __slots__ = ("_connection", "_error", "_parts", "_take", "_waiting", "begun",
                 "is_whole", "raw_headers",
                 "size", "status")  # fmt: skip

    def __init__(self, connection: _Connection) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when its head has come."""
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        """In their order, with names in lower case."""
        self.size = 0
        self._connection: _Connection | None = connection
        self._parts: list[bytes] = []
        self.is_whole = False
        self._error: ReplyBrokenError | TimeoutError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._take: Take | None = None

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; the first of duplicates."""
        found: dict[str, str] = {}
        for name, value in self.raw_headers:
            found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        return found

    async def head(self) -> HttpReply:
        """Raises `ReplyBrokenError` or `TimeoutError`; the request may have been sent."""
        try:
            await self.begun
        except BaseException:
            self.close()
            raise
        return self

    async def read(self, take: Take | None = None) -> bytes:
        """The next bytes of the body; empty at its end.

        ``take`` gets what comes while this waits, without waking the waiting task: a stream has
        hundreds of parts. Bytes that it has taken are not returned.

        Raises `ReplyBrokenError` or `TimeoutError` if the body ends in the middle.
        """
        while not self._parts and not self.is_whole:
            if self._error is not None:
                raise self._error
            self._waiting, self._take = asyncio.get_running_loop().create_future(), take
            try:
                await self._waiting
            finally:
                self._waiting = self._take = None
        parts, self._parts = self._parts, []
        self.size = 0
        if self._connection is not None:
            self._connection.resume()
        return _joined(parts)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.raw_headers = status, headers
        if not self.begun.done():
            self.begun.set_result(None)

    def add(self, parts: Sequence[bytes]) -> None:
        if self._take is not None:
            if self._take(_joined(parts)):
                return
            self._take = None
        self._parts += parts
        self.size += sum(map(len, parts))
        self._wake()

    def end(self) -> None:
        self._connection, self.is_whole = None, True
        self._wake()

    def fail(self, error: ReplyBrokenError | TimeoutError) -> None:
        self._connection, self._error = None, error
        if not self.begun.done():
            self.begun.set_exception(error)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _Connection(asyncio.Protocol):
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._come: list[bytes] = []
        """Parts of a body in the data that is being parsed."""
        self.on_body = self._come.append
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: HttpReply | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._has_length = False
        self._keeps_alive = False
        self._is_reading = True
        self._is_writing = False
        self._written: asyncio.Future[None] | None = None
        self.since = self._loop.time()

    @property
    def is_usable(self) -> bool:
        transport = self._transport
        return transport is not None and self._reply is None and not transport.is_closing()

    def is_due(self, now: float, waits: Waits) -> bool:
        """Whether it was silent or unused for too long. A paused reader is not silence."""
        if self._reply is None:
            return now - self.since >= waits.unused
        return self._is_reading and now - self.since >= waits.silence

    def begin(self) -> HttpReply:
        self._reply = HttpReply(self)
        self.since = self._loop.time()
        return self._reply

    async def send(self, reply: HttpReply, head: bytes, body: bytes) -> None:
        try:
            if len(body) <= PIECE_BYTES:
                self._write(head + body)
            else:
                await self._write_pieces(reply, head, body)
        except BaseException:
            reply.begun.cancel()
            self.close()
            raise

    async def _write_pieces(self, reply: HttpReply, head: bytes, body: bytes) -> None:
        self._is_writing = True
        self._write(head)
        for start in range(0, len(body), PIECE_BYTES):
            if reply.begun.done():
                return
            self._write(body[start : start + PIECE_BYTES])
            self.since = self._loop.time()
            if self._written is not None:
                await asyncio.wait((self._written, reply.begun), return_when="FIRST_COMPLETED")
        self._is_writing = False

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def resume(self) -> None:
        if not self._is_reading and self._transport is not None:
            self._is_reading = True
            self.since = self._loop.time()
            self._transport.resume_reading()

    def expire(self) -> None:
        self._break(TimeoutError("nothing came for too long"))
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._client.note_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        reply = self._reply
        if reply is not None and reply.begun.done() and exc is None and not self._has_length:
            self._end()
        self._break(ReplyBrokenError("the connection was closed" if exc is None else str(exc)))
        self.resume_writing()
        self._client.note_lost(self)

    def pause_writing(self) -> None:
        if self._written is None:
            self._written = self._loop.create_future()

    def resume_writing(self) -> None:
        written, self._written = self._written, None
        if written is not None and not written.done():
            written.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.since = self._loop.time()
        try:
            self._parser.feed_data(data)
            self._hand_over()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._hand_over()
            self._break(ReplyBrokenError(f"what came is no answer: {error}"))
            self.close()

    def on_message_begin(self) -> None:
        if self._reply is None:
            raise ReplyBrokenError("there is an answer too many")
        self._headers, self._head_bytes, self._has_length = [], 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ReplyBrokenError("its head is too large")
        name = name.lower()
        if name in _LENGTHS:
            self._has_length = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._reply is not None and status not in _INFORMATIONAL:
            self._keeps_alive = self._parser.should_keep_alive() and not self._is_writing
            self._reply.begin(status, self._headers)
            self._headers = []  # drop trailers

    def on_message_complete(self) -> None:
        self._hand_over()
        if self._reply is not None and self._reply.begun.done():  # more than a hint follows
            self._end()

    def _hand_over(self) -> None:
        if not self._come:
            return
        reply, come = self._reply, self._come.copy()
        self._come.clear()
        if reply is not None:
            reply.add(come)
            if reply.size > UNREAD_BYTES_MAX and self._is_reading and self._transport is not None:
                self._is_reading = False
                self._transport.pause_reading()

    def _end(self) -> None:
        """The next request can use the connection, if it is kept alive."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.end()
            self.resume()
            if not self._keeps_alive:
                self.close()
            self._client.note_free(self)

    def _break(self, error: ReplyBrokenError | TimeoutError) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.fail(error)
            self._client.note_free(self)


class HttpClient:
    """Sends requests to one server, on connections that are used again."""

    def __init__(self, url: str, waits: Waits) -> None:
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_secure else 80)
        self._waits = waits
        self._all: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        # Lazy: reading the machine's certificates takes longest.
        return ssl.create_default_context()

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        """Send one request; its reply has yet to begin.

        Raises `NotSentError`, or `ReplyBrokenError` or `TimeoutError` if it may have been sent.
        """
        head = _head(path, headers, len(body))
        connection = self._take_idle() or await self._connect()
        reply = connection.begin()
        await connection.send(reply, head, body)
        return reply

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._all):
            connection.close()
        for _ in range(CLOSING_TURNS_MAX):
            if not self._all:
                break
            await asyncio.sleep(0)

    def note_made(self, connection: _Connection) -> None:
        self._all.add(connection)
        if self._timer is None:
            self._look_later()

    def note_free(self, connection: _Connection) -> None:
        if connection.is_usable:
            self._idle.append(connection)

    def note_lost(self, connection: _Connection) -> None:
        self._all.discard(connection)

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop, waits = asyncio.get_running_loop(), self._waits
        failure: Exception = NotSentError(f"{self._host} has no address")
        try:
            async with asyncio.timeout(waits.connect):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            raise NotSentError(f"{self._host} can't be found: {error}") from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:  # each has its part of the time
            try:
                async with asyncio.timeout(waits.connect / len(addresses)):
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self),
                        address,
                        self._port,
                        ssl=self._trust if self._is_secure else None,
                        server_hostname=self._host if self._is_secure else None,
                    )
            except (OSError, TimeoutError) as error:
                failure = error
                continue
            if connection.is_usable:
                return connection
        raise NotSentError(str(failure) or type(failure).__name__) from failure

    def _look_later(self) -> None:
        secs = min(LOOK_SECS, self._waits.silence, self._waits.unused)
        self._timer = asyncio.get_running_loop().call_later(secs, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._all):
            if connection.is_due(now, self._waits):
                connection.expire()
        self._idle = [connection for connection in self._idle if connection.is_usable]
        self._timer = None
        if self._all:
            self._look_later()


def _joined(parts: Sequence[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _head(path: str, headers: Mapping[str, str], length: int) -> bytes:
    """Raises `NotSentError` if a header would add a line."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    lines = [f"POST {path} HTTP/1.1", *lines, f"content-length: {length}"]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise NotSentError("a header has more than one line")
    return text.encode() + b"\r\n\r\n"
