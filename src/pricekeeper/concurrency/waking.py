"""Waits for an event, but not longer than a sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def wait_or_wake(sleep: Coroutine[Any, Any, None], wake: asyncio.Event) -> None:
    """Wait until the sleep ends or the event is set; both waits have ended on return."""
    waits = [asyncio.create_task(sleep), asyncio.create_task(wake.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
