"""Those who wait for records to be written: a task for one record or for many, or no task at all.

A future and a switch of tasks cost as much as pricing a record. So the records of a batch have one
future together, and a record that was begun without a task has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pricekeeper.metering.submission import Posted, Submission, Waiter
from pricekeeper.metering.usage import Usage
from pricekeeper.tenants import Policy


class Outcomes:
    """What became of the records of one caller, who waits for all of them."""

    __slots__ = ("_done", "_known", "_missing")

    def __init__(self, count: int) -> None:
        self._known: list[Posted | BaseException] = [LookupError("nobody knows yet")] * count
        self._missing = count
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not count:
            self._done.set_result(None)

    def waiter(self, number: int) -> Waiter:
        """What is to be told of the record of that number."""
        return partial(self._note, number)

    async def wait(self) -> list[Posted | BaseException]:
        """Wait until all are known. Cancelling withdraws the caller, not the records."""
        await self._done
        return self._known

    def _note(self, number: int, outcome: Posted | BaseException) -> None:
        self._known[number] = outcome
        self._missing -= 1
        if not self._missing and not self._done.done():  # else its caller was cancelled
            self._done.set_result(None)


class RecordUnderWay:
    """A record for which no task waits: what is called once it is settled asks for the answer."""

    __slots__ = ("_on_settled", "outcome", "policy", "submission", "usage")

    def __init__(
        self,
        policy: Policy,
        usage: Usage,
        submission: Submission,
        on_settled: Callable[[RecordUnderWay], None],
    ) -> None:
        self.policy = policy
        self.usage = usage
        self.submission = submission
        self.outcome: Posted | BaseException | None = None
        """What became of it, once it is settled."""
        self._on_settled = on_settled

    def settle(self, outcome: Posted | BaseException) -> None:
        """Note what became of it, and tell whoever began it."""
        self.outcome = outcome
        self._on_settled(self)
