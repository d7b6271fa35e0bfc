"""A webhook on loopback in a thread, for tests that talk to a server in another process."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Posted:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 200
    """The answer sent."""

    @property
    def json(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.body)
        return made


@dataclass
class Hook:
    """Where alerts are posted to."""

    url: str
    status: int = 200
    requests: list[Posted] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None
    """Called after a request was read, while its sender waits."""


@contextmanager
def running_hook() -> Iterator[Hook]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            taken = Posted(self.path, headers, body, hook.status)
            hook.requests.append(taken)
            hook.before_answer()
            with contextlib.suppress(OSError):  # the sender may be dead
                self.send_response(taken.status)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook = Hook(f"http://127.0.0.1:{server.server_port}/a-secret-path")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
