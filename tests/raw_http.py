"""Bytes over a connection, without a client that would put them in order."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


@contextmanager
def connected(url: str, *sent: bytes, receives: int | None = None) -> Iterator[socket.socket]:
    """A connection over which these pieces were sent, one segment each.

    The peer's kernel receives ``receives`` bytes unread.
    """
    place = urlsplit(url)
    with socket.socket() as raw:
        if receives is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.settimeout(20)
        raw.connect((place.hostname or "", place.port or 0))
        with suppress(ConnectionError):  # it may have closed before the end
            for data in sent:
                raw.sendall(data)
        yield raw


def received(raw: socket.socket) -> bytes:
    """Everything until the connection is closed or reset."""
    data = bytearray()
    with suppress(ConnectionError):
        while part := raw.recv(65536):
            data += part
    return bytes(data)
