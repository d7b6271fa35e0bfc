"""A separate listener for monitoring: metrics, and health under overload.

It answers from its own thread, or with several workers from their parent process, so a busy event
loop does not delay it.

- ``/healthz``: alive if the loop of every worker turned within `ALIVE_MS_MAX`.
- ``/readyz``: the service's own answer, asked on its public port.
- ``/metrics``: open to all, or with the metrics token if one is set.

Each worker leaves a heartbeat a few times a second: in memory for its own process, in a file for
its parent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final, Protocol, TypeAlias

import msgspec

from pricekeeper.clock import Clock
from pricekeeper.errors import NotFoundError, PriceKeeperError
from pricekeeper.http.edge import JSON
from pricekeeper.http.gate import require_metrics_token
from pricekeeper.http.incoming import Receive, Scope, Send
from pricekeeper.http.metrics import CONTENT_TYPE, Metrics, exposition_of, exposition_of_workers
from pricekeeper.http.operation import SECURITY
from pricekeeper.http.problems import MethodNotAllowedError, problem_of
from pricekeeper.wire.identity import Health

PATIENCE_SECS: Final = 2
"""For the service to answer or to update its counts."""
NO_ANSWER: Final = "the service does not answer on its own port"
READY_BYTES_MAX: Final = 64 * 1024
_PATHS: Final = ("/healthz", "/readyz", "/metrics")
_METHODS: Final = ("GET", "HEAD")
_PROBLEM: Final = b"application/problem+json"
_ASK: Final = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Watched(Protocol):
    """The watched workers: one in this process, or several processes."""

    def read_heartbeats_ms(self) -> Sequence[int | None]: ...

    async def read_exposition(self) -> bytes | None:
        """``None`` if no worker runs yet."""
        ...


class OneWorker:
    """The worker of this process. Its lifespan sets what exists only while it runs."""

    def __init__(self) -> None:
        self._beat_ms: int | None = None
        self.running: tuple[asyncio.AbstractEventLoop, Metrics] | None = None
        """The loop and the metrics of the worker, while it runs."""

    @contextmanager
    def showing(self, metrics: Metrics) -> Iterator[None]:
        self.running = asyncio.get_running_loop(), metrics
        try:
            yield
        finally:
            self.running = None

    def beat(self, now_ms: int) -> None:
        self._beat_ms = now_ms

    def read_heartbeats_ms(self) -> Sequence[int | None]:
        return (self._beat_ms,)

    async def read_exposition(self) -> bytes | None:
        """The worker's counts; not updated if it is too busy."""
        if self.running is None:
            return None
        loop, metrics = self.running
        here = asyncio.get_running_loop()
        refreshed: asyncio.Future[None] = here.create_future()

        def refresh() -> None:
            metrics.refresh()
            here.call_soon_threadsafe(_finish, refreshed)

        try:
            loop.call_soon_threadsafe(refresh)
        except RuntimeError:
            return None
        await asyncio.wait([refreshed], timeout=PATIENCE_SECS)
        return await asyncio.to_thread(exposition_of, metrics.registry)


@dataclass(frozen=True, slots=True)
class SeveralWorkers:
    """Worker processes that share a folder with this one."""

    folder: Path
    pids: Callable[[], Sequence[int]]

    def read_heartbeats_ms(self) -> Sequence[int | None]:
        return [read_heartbeat(self.folder, pid) for pid in self.pids()]

    async def read_exposition(self) -> bytes:
        """The sum of what the workers wrote within the last seconds."""
        return await asyncio.to_thread(exposition_of_workers, self.folder)


class MetricsListener:
    """The ASGI application of the listener."""

    def __init__(
        self, watched: Watched, service: tuple[str, int], token: str | None, clock: Clock
    ) -> None:
        self._watched = watched
        self._service = service
        self._token = token
        self._clock = clock
        self._scraping = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        request_id = token_hex(16)
        more: Sequence[tuple[bytes, bytes]] = ()
        try:
            status, media_type, body = await self._answer(scope)
        except PriceKeeperError as error:
            problem = problem_of(error, 0)
            status, media_type, body = problem.status, _PROBLEM, problem.body(request_id)
            more = problem.headers
        headers = [
            (b"content-type", media_type),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
            *SECURITY,
            *more,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope) -> tuple[int, bytes, bytes]:
        path = scope["path"]
        if path not in _PATHS:
            raise NotFoundError("path")
        if scope["method"] not in _METHODS:
            raise MethodNotAllowedError(_METHODS)
        if path == "/healthz":
            return _health_answer(*self._health())
        if path == "/readyz":
            status, health = await self._read_readiness()
            return status, JSON.encode(), msgspec.json.encode(health)
        authorization = dict(scope["headers"]).get(b"authorization")
        given = None if authorization is None else authorization.decode("latin-1")
        if self._token is not None:
            require_metrics_token(given, self._token)
        async with self._scraping:
            text = await self._watched.read_exposition()
        return _health_answer(503, "starting") if text is None else (200, CONTENT_TYPE, text)

    def _health(self) -> tuple[int, str]:
        now_ms = self._clock.monotonic_ms()
        begun = [beat for beat in self._watched.read_heartbeats_ms() if beat is not None]
        if not begun:
            return 503, "starting"
        stuck = now_ms - min(begun) > ALIVE_MS_MAX
        return (503, "stuck") if stuck else (200, "alive")

    async def _read_readiness(self) -> tuple[int, Health]:
        """Ask the service, which caches its answer for a second."""
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                head, _, body = (await _ask_service(*self._service)).partition(b"\r\n\r\n")
                health = msgspec.json.decode(body, type=Health)
        except (OSError, TimeoutError, msgspec.DecodeError):
            return 503, Health("unavailable", NO_ANSWER)
        return (200 if head.startswith(b"HTTP/1.1 200 ") else 503), health


async def _ask_service(host: str, port: int) -> bytes:
    """Ask the service on its own port, as a load balancer would."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_ASK)
        received = bytearray()
        while len(received) < READY_BYTES_MAX and (part := await reader.read(READY_BYTES_MAX)):
            received += part
        return bytes(received)
    finally:
        writer.close()


def _health_answer(status: int, text: str) -> tuple[int, bytes, bytes]:
    return status, JSON.encode(), msgspec.json.encode(Health(text))


def _finish(waited_for: asyncio.Future[None]) -> None:
    if not waited_for.done():
        waited_for.set_result(None)


BEAT_MS: Final = 250
ALIVE_MS_MAX: Final = 10_000
"""A loop that has not turned for so long is stuck."""

_DIGITS: Final = 20


Heartbeat: TypeAlias = Callable[[int], None]
"""Leaves a heartbeat, by the monotonic clock that all processes of a machine share."""


class HeartbeatInFile:
    """For another process: a file in the folder, named by this process's id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def beat(self, now_ms: int) -> None:
        if self._file is None:
            path = _path(self._folder, os.getpid())
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.pwrite(self._file, b"%0*d" % (_DIGITS, now_ms), 0)  # in place, so it never grows


def read_heartbeat(folder: Path, pid: int) -> int | None:
    """When the process left its last heartbeat; ``None`` if it left none."""
    try:
        text = _path(folder, pid).read_bytes()
    except FileNotFoundError:
        return None
    return int(text) if len(text) == _DIGITS else None


async def beat_forever(heartbeat: Heartbeat, clock: Clock) -> None:
    """Leave a heartbeat from the event loop, every `BEAT_MS`."""
    while True:
        heartbeat(clock.monotonic_ms())
        await clock.sleep_ms(BEAT_MS)


def _path(folder: Path, pid: int) -> Path:
    return folder / f"heartbeat-{pid}"
