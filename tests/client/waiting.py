"""Waiting for what happens in the background, for at most as long as a busy machine needs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

PATIENCE_SECS: Final = 30
_PAUSE_SECS: Final = 0.02


async def until(is_met: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll until it is true, on the event loop."""
    ends_at = time.monotonic() + PATIENCE_SECS
    while True:
        met = is_met()
        if met if isinstance(met, bool) else await met:
            return
        if time.monotonic() > ends_at:
            raise AssertionError(f"it did not happen within {PATIENCE_SECS} s")
        await asyncio.sleep(_PAUSE_SECS)


def wait_until(is_met: Callable[[], bool]) -> None:
    """Poll until it is true, without an event loop."""
    ends_at = time.monotonic() + PATIENCE_SECS
    while not is_met():
        if time.monotonic() > ends_at:
            raise AssertionError(f"it did not happen within {PATIENCE_SECS} s")
        time.sleep(_PAUSE_SECS)
