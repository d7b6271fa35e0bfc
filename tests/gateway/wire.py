"""Plain sockets on both sides of the gateway.

A caller that hides nothing, and an upstream that does exactly what a test says.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httptools

from gateway.world import App, World

PATIENCE_SECS = 20


@dataclass
class Received:
    """A request as it came to an upstream."""

    head: bytes
    body: bytes

    @property
    def path(self) -> str:
        return self.head.split(b" ")[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.split(b"\r\n")[1:]
        pairs = (line.decode("latin-1").split(": ", 1) for line in lines if line)
        return {name.lower(): value for name, value in pairs}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[["Upstream", socket.socket, Received], None]


@dataclass
class Upstream:
    """A server that answers each request as the test's function does."""

    answer: Answer
    port: int = 0
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    peers: list[socket.socket] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, peer: socket.socket) -> None:
        """Answer on one connection until either side closes it."""
        with peer, peer.makefile("rb") as reader:
            while request := read_request(reader):
                self.requests.append(request)
                try:
                    self.answer(self, peer, request)
                except OSError:
                    return
                if self.over.is_set() or peer.fileno() < 0:
                    return

    def take(self, peer: socket.socket) -> None:
        """Serve a new connection in a thread of its own."""
        self.peers.append(peer)
        self.connections += 1
        thread = threading.Thread(target=self.serve, args=(peer,))
        self.threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Hang up on everybody, and wait until all that was under way has ended."""
        self.over.set()
        for peer in self.peers:
            hang_up(peer)
        for thread in self.threads:
            thread.join(PATIENCE_SECS)

    def begin(self, answer: Answer) -> None:
        """Answer otherwise from now on."""
        self.answer, self.requests, self.connections = answer, [], 0
        self.over, self.peers, self.threads = threading.Event(), [], []


def read_request(reader: Any) -> Received | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        try:
            line = reader.readline()
        except (OSError, ValueError):
            return None
        if not line:
            return None
        head += line
    received = Received(head[:-4], b"")
    received.body = reader.read(int(received.headers.get("content-length", "0")))
    return received


@contextmanager
def running_upstream(answer: Answer) -> Iterator[Upstream]:
    """The upstream on a free port, with a thread for each connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        upstream = Upstream(answer, listening.getsockname()[1])

        def accept() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                upstream.take(peer)

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield upstream
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            upstream.end()


def hang_up(peer: socket.socket, *, reset: bool = False) -> None:
    """Close a connection in both directions, in order or by a reset."""
    try:
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            socket.close(peer.detach())  # at once, also if a file is made of it
        else:
            peer.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    peer.close()


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer in one piece."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def sending(data: bytes) -> Answer:
    """Answer each request with these bytes."""
    return lambda _, peer, __: peer.sendall(data)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Caller:
    """A connection to the gateway, byte by byte."""

    def __init__(self, world: World, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_SECS)
        self.socket.connect(world.address)
        self._host = "{}:{}".format(*world.address)

    def send(self, app: App, path: str, body: Any, *lines: str, version: str = "1.1") -> None:
        """One request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [
            f"POST /bedrock{path} HTTP/{version}",
            f"host: {self._host}",
            f"authorization: Bearer {app.pair}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *lines,
        ]
        self.socket.sendall(("\r\n".join(head) + "\r\n\r\n").encode() + data)

    def read_until(self, sign: bytes) -> bytes:
        """What comes, up to and with that."""
        found = b""
        while sign not in found:
            part = self.socket.recv(65_536)
            assert part, found
            found += part
        return found

    def read_all(self) -> bytes:
        """What comes until the end of the connection."""
        found = b""
        while True:
            try:
                part = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return found
            if not part:
                return found
            found += part

    def hang_up(self, *, reset: bool = False) -> None:
        hang_up(self.socket, reset=reset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Parsed:
    """Answers as llhttp, the strictest of parsers, reads them."""

    def __init__(self, data: bytes) -> None:
        self.statuses: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.whole = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.headers.append({})
        self.bodies.append(b"")

    def on_header(self, name: bytes, value: bytes) -> None:
        assert name.decode() not in self.headers[-1], name
        self.headers[-1][name.decode()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())
        self.whole += 1
