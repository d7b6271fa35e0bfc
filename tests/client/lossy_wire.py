"""A wire that loses or keeps replies: the request is applied, and its sender gets no answer."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class LossyWire:
    """Passes bytes on between clients and a server; requests are counted."""

    def __init__(self, server: str) -> None:
        place = urlsplit(server)
        self._server = (place.hostname or "", place.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._to_lose: list[bytes] = []
        self._kept = threading.Event()
        self.is_keeping = False
        """Whether replies are kept back instead of closing the connection."""
        self.requests: list[bytes] = []
        """The first bytes of each request."""
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose(self, *paths: str) -> None:
        """Lose the replies to the next requests whose path ends so."""
        self._to_lose += [path.encode() for path in paths]

    def asked(self, path: str) -> int:
        """How many requests for such a path came by."""
        return sum(path.encode() in line for line in self.requests)

    def close(self) -> None:
        self._kept.set()
        self._listener.close()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                is_lost = threading.Event()
                ways = ((client, server, True), (server, client, False))
                for source, target, requests in ways:
                    arguments = (source, target, requests, is_lost)
                    threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, requests: bool, lost: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65_536):
                if requests:
                    self._note(part, lost)
                elif lost.is_set():
                    self.lost += 1
                    if self.is_keeping:
                        self._kept.wait()
                    break
                target.sendall(part)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _note(self, part: bytes, lost: threading.Event) -> None:
        line = part.split(b"\r\n", 1)[0]
        if not line.endswith(b"HTTP/1.1"):
            return  # the rest of a body
        with self._lock:
            self.requests.append(line)
            path = line.split(b" ")[1]
            for wanted in self._to_lose:
                if path.endswith(wanted):
                    self._to_lose.remove(wanted)
                    lost.set()
                    return


@contextlib.contextmanager
def lossy_wire(server: str) -> Iterator[LossyWire]:
    wire = LossyWire(server)
    try:
        yield wire
    finally:
        wire.close()
