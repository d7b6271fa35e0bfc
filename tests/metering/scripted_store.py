"""A real store whose commits meet what a test has written down for them, one after another."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.errors import OutcomeUnknownError, StoreError
from pricekeeper.storage import Item, Store, Update, Write

Step: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Is handed the sending of a commit, and does with it what it likes."""


class ScriptedStore(FaultyStore):
    """``sent`` has every commit that was requested.

    A commit is a transaction, or the update of a page of the journal.
    """

    def __init__(self, store: Store, *script: Step) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.script = deque(script)
        self.sent: list[Sequence[Write]] = []
        self.in_flight = 0
        self.in_flight_max = 0

    async def transact(self, operations: Sequence[Write]) -> None:
        fixed = tuple(operations)

        async def send() -> None:
            await self._store.transact(fixed)

        await self._commit(fixed, send)

    async def update(self, operation: Update) -> Item:
        if "#J#" not in operation.key.pk:
            return await super().update(operation)

        async def send() -> None:
            await self._store.update(operation)

        await self._commit((operation,), send)
        return {}  # the writer of a page does not look at its result

    async def _commit(
        self, operations: Sequence[Write], send: Callable[[], Awaitable[None]]
    ) -> None:
        self.sent.append(operations)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            await (self.script.popleft()(send) if self.script else send())
        finally:
            self.in_flight -= 1


def fails(error: StoreError) -> Step:
    """Not applied; the caller gets the error."""

    async def step(_: Callable[[], Awaitable[None]]) -> None:
        raise error

    return step


async def reply_lost(send: Callable[[], Awaitable[None]]) -> None:
    """Applied, or cancelled; the caller can't tell."""
    try:
        await send()
    finally:
        raise OutcomeUnknownError("scripted: the reply was lost")


async def request_lost(_: Callable[[], Awaitable[None]]) -> None:
    """Not applied; the caller can't tell."""
    raise OutcomeUnknownError("scripted: the request was lost")


class Late:
    """Not applied yet; the caller can't tell. It arrives when the test says so."""

    def __init__(self) -> None:
        self.arrive: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, send: Callable[[], Awaitable[None]]) -> None:
        self.arrive = send
        raise OutcomeUnknownError("scripted: no reply")


class Held:
    """Under way until it is let go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, send: Callable[[], Awaitable[None]]) -> None:
        self.reached.set()
        await self.let_go.wait()
        await send()
