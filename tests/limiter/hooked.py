"""A real store that a test can interrupt just before and just after a call."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from limiter.forwarding_store import ForwardingStore
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.storage import Store, Write

_T = TypeVar("_T")


class Hooked(ForwardingStore):
    """Forwards every call. ``before`` may run other requests, move the clock, or raise."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.replies_to_lose = 0
        """The next writes that are applied but raise `OutcomeUnknownError`."""

    async def _read(self, name: str, send: Callable[[], Awaitable[_T]]) -> _T:
        if self.before is not None:
            await self.before(name)
        return await send()

    async def _write(
        self, name: str, operations: Sequence[Write], send: Callable[[], Awaitable[_T]]
    ) -> _T:
        del operations
        result = await self._read(name, send)
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            raise OutcomeUnknownError("the reply was lost")
        return result


def once(hook: Callable[[], Awaitable[object]]) -> Callable[[str], Awaitable[None]]:
    """Run the hook before the next call only."""
    pending = [hook]

    async def before(_: str) -> None:
        if pending:
            await pending.pop()()

    return before
