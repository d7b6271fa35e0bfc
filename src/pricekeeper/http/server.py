"""How a process serves: uvicorn's settings, sockets, signals and garbage collector.

libuv, below uvloop, accepts one connection per listening socket and turn of the event loop, so a
health check would wait behind a flood. Several descriptors of one socket let a turn accept that
many.

After the first stop signal the process serves for a moment while ``/readyz`` says no, so that a
load balancer can redirect. A second signal stops it at once.

A full garbage collection took up to 60 ms. So objects that exist at the start are left out, and
young objects are checked less often: reference counts free most of them.
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
"""A silent worker is replaced after this time. uvicorn's default of 5 s ends slow starters."""
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
    """The settings that uvicorn serves the application with."""
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
    """The trusted proxies; IPv4 networks also in their IPv6-mapped form."""
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
    """The socket and duplicates of its descriptor, to accept from all of them."""
    return [listening, *(listening.dup() for _ in range(ACCEPTS_PER_TURN - 1))]


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def install_drain_handlers(
    draining: asyncio.Event, pause_secs: int, on_drain: Callable[[], None]
) -> Iterator[None]:
    """Handle stop signals before the server's own handlers.

    ``on_drain`` ends what would keep the server from stopping.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # the owner of the loop stops it
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
"""New objects per collection of the youngest generation; collections per one of an older one."""


def collect_garbage_less_often() -> None:
    """Exclude existing objects, and collect new ones less often. Call it after all imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
