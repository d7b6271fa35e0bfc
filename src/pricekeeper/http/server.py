"""How uvicorn serves the application: by whoever runs it, on whatever socket.

Accepting connections as quickly as they come.

libuv, below uvloop, accepts one connection from a listening socket in one turn of the event loop.
Under load a turn takes some milliseconds, so that a few hundred connections a second were accepted,
and a new one, a health check for example, waited for seconds behind those of a flood. The same
socket under several descriptors is looked at that many times in a turn.

Stopping in the right order: readiness ends first, then the server, then the store.

When the process is asked to stop, it goes on serving for a moment while `/readyz` already says no,
so that a load balancer has the time to look elsewhere. A second signal stops at once.

The garbage collector of a process that serves: no long pauses between requests.

A full collection looks at every container object there is. Most of them are modules, types and
functions that live as long as the process; with them it took up to 60 ms, in which the event loop
stands still, and under load collections took a sixth of the processor. So what is there at the
start is left out for good, and young objects are looked at less often: nearly all of them are
freed by their reference counts anyway.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from types import FrameType
from typing import Any, Final, Literal

import uvicorn

GRACEFUL_SECS: Final = 30
SILENT_SECS_MAX: Final = 30
"""How long a worker may be silent before it is killed and replaced. uvicorn's own 5 s end workers
that are only slow: on a machine that is busy they never come up."""
_MAPPED_BITS: Final = 96
_PROTOCOL: Final = "pricekeeper.http.protocol:ProblemProtocol"


def server_config(
    app: Any,
    *,
    workers: int = 1,
    factory: bool = False,
    lifespan: Literal["on", "off"] = "on",
    trusted_proxies: str = "",
    graceful_secs: int = GRACEFUL_SECS,
) -> uvicorn.Config:
    """How the application is served, on whatever socket."""
    return uvicorn.Config(
        app,
        factory=factory,
        workers=workers,
        loop="uvloop",
        http=_PROTOCOL,
        ws="none",
        lifespan=lifespan,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=_believed(trusted_proxies) or None,
        timeout_graceful_shutdown=graceful_secs,
        timeout_worker_healthcheck=SILENT_SECS_MAX,
    )


def _believed(trusted_proxies: str) -> str:
    """The same proxies; those of IPv4 also in their IPv6-mapped form."""
    if trusted_proxies == "*":
        return trusted_proxies
    networks = [ip_network(one) for one in trusted_proxies.split(",") if one]
    mapped = [
        f"::ffff:{network.network_address}/{_MAPPED_BITS + network.prefixlen}"
        for network in networks
        if network.version == 4  # noqa: PLR2004 - it reads better as the number everybody knows
    ]
    return ",".join([*map(str, networks), *mapped])


ACCEPTS_PER_TURN: Final = 16


def accepting_sockets(listening: socket.socket) -> list[socket.socket]:
    """The socket, and copies of its descriptor, for a server to accept from all of them."""
    return [listening, *(listening.dup() for _ in range(ACCEPTS_PER_TURN - 1))]


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def install_drain_handlers(
    draining: asyncio.Event, pause_secs: int, on_drain: Callable[[], None]
) -> Iterator[None]:
    """Put ourselves in front of the server's own signal handlers.

    ``on_drain`` is called at once: for what would keep the server from ending.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # embedded somewhere: whoever runs the loop stops it
        return
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    def drain(number: int, frame: FrameType | None) -> None:
        pass_on = before[number]
        if not callable(pass_on):
            return
        loop.call_soon_threadsafe(on_drain)
        if draining.is_set() or not pause_secs:
            draining.set()
            pass_on(number, frame)
            return
        draining.set()
        loop.call_soon_threadsafe(loop.call_later, pause_secs, pass_on, number, frame)

    for number in _SIGNALS:
        signal.signal(number, drain)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])


THRESHOLDS: Final = (10_000, 20, 20)
"""New objects before the youngest are looked at (a millisecond), and how often with older ones."""


def collect_garbage_less_often() -> None:
    """Also leave out what exists now for good. Call it once, when all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
