"""Stopping in the right order: readiness ends first, then the server, then the store.

When the process is asked to stop, it goes on serving for a moment while `/readyz` already says no,
so that a load balancer has the time to look elsewhere. A second signal stops at once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

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
