"""A wire that can stop: a store behind it accepts connections and answers nothing.

Data sent while it hangs is held back and arrives when the wire works again, perhaps after its
sender has given up: a late write.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class HangingProxy:
    """Passes bytes on between a client and a server, while it is not told to hang."""

    def __init__(self, server: str) -> None:
        place = urlsplit(server)
        self._server = (place.hostname or "", place.port or 0)
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        self.held = threading.Event()
        """Set when something was sent that is held back."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def is_hanging(self) -> bool:
        return not self._goes_on.is_set()

    def hang(self) -> None:
        self.held.clear()
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def close(self) -> None:
        self.go_on()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else it would accept again
        self._listener.close()
        self._accepting.join()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    arguments = (source, target, source is client)
                    threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65_536):
                if requests and not self._goes_on.is_set():
                    self.held.set()
                self._goes_on.wait()
                with contextlib.suppress(OSError):
                    target.sendall(part)
            self._goes_on.wait()
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def hanging_proxy(server: str) -> Iterator[HangingProxy]:
    proxy = HangingProxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
