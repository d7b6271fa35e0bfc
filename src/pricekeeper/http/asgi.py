"""ASGI's types, its lifespan protocol, and a caller that has left."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[MutableMapping[str, Any]]]
"""What an application opens at its start; its value becomes the state of every request."""


class CallerLeftError(Exception):
    """The caller closed the connection before its request was complete."""


async def run_lifespan(lifespan: Lifespan, scope: Scope, receive: Receive, send: Send) -> None:
    """Keep the lifespan open from the server's start until its end."""
    phase = "startup"
    await receive()
    try:
        async with lifespan() as state:
            scope["state"].update(state)
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()
    except BaseException:
        await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
        raise
    await send({"type": "lifespan.shutdown.complete"})
