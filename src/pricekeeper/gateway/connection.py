"""What the gateway and the server tell each other beyond what ASGI has words for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

ABORT: Final = "pricekeeper.abort"
"""The type of the message that ends a connection whose answer can't be finished."""


class Exchange(Protocol):
    """A request and its answer, for what can be done at once; ASGI's messages are awaited."""

    def take_body(self) -> bytes | None:
        """The body, if all of it is here; ``None`` if it has to be received."""
        ...

    def let_go(self) -> None:
        """Count what has come of the request no longer: somebody else does."""
        ...

    def offer_place(self) -> None:
        """Let the server close the connection for a new one until the answer is written."""
        ...

    def write_whole(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write an answer; whether that was done. If its reader is slow, it has to be sent."""
        ...

    @property
    def is_read_slowly(self) -> bool:
        """Whether its reader has to be waited for before more is written."""
        ...

    def write_part(self, part: bytes) -> None:
        """Write what has come of an answer that was begun, if its reader is not slow."""
        ...

    def watch(self, on_left: Callable[[], None]) -> None:
        """Have that called if the caller leaves before its answer is whole, or has left already."""
        ...
