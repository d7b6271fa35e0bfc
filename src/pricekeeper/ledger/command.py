"""What a worker is asked for: it is decided on the log, and written on its next sheet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from pricekeeper.concurrency import error_copy
from pricekeeper.errors import CancellationReason
from pricekeeper.ledger.draft import Draft
from pricekeeper.storage import Key, Write

_T = TypeVar("_T")
Send: TypeAlias = Callable[[Sequence[Write]], Awaitable[None]]
"""Applies operations, all or nothing, as `Store.transact` does."""


class Decision(Enum):
    """What a command has come to."""

    WRITES = "it has put something into the draft"
    ANSWERED = "its caller has an answer, and nothing is to be written"
    DENIED = "it is to be denied, if what it was decided on is not old"
    WAITS = "it has asked for an errand"


class Command(Generic[_T]):
    """Something to be decided on the log of an organisation, and to be written to it."""

    keys: Collection[Key] = ()
    """The items of accounts that it is decided on."""
    name: str = ""
    """What only one command of a sheet may be about; empty if there can't be another."""
    operations: Sequence[Write] = ()
    """What is to be applied together with the sheet, in one transaction; set when it is decided."""
    send: Send | None = None
    """Who applies its operations, if it is not the store alone; then it has a sheet of its own."""
    lingers: bool = False
    """Whether nobody waits for it, so that it may wait for others to share their sheet."""
    result: _T
    """What it is answered with once it is written; set when it is decided."""

    _future: asyncio.Future[_T] | None = None
    is_answered = False
    """Whether there is an answer, or why there is none; somebody may have left before that."""

    @property
    def future(self) -> asyncio.Future[_T]:
        """The answer, for whoever waits for it; to be asked for before there is one."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be done for it: it has an answer, or its caller has left."""
        return self.is_answered or self.is_abandoned

    @property
    def is_abandoned(self) -> bool:
        """Whether its caller has left."""
        return self._future is not None and self._future.cancelled()

    def decide(self, draft: Draft) -> Decision:
        """Put into the draft what is to be written, or answer. Raises what refuses it."""
        raise NotImplementedError

    def note_written(self) -> None:
        """Answer: what it has put into the draft is written."""
        self.answer(self.result)

    def deny(self) -> None:
        """Answer: what denies it is not old."""
        raise NotImplementedError

    def note_refused(self, reasons: Sequence[CancellationReason]) -> None:
        """Learn why its own operations were refused. It is decided anew, unless it has answered."""
        raise NotImplementedError

    def answer(self, outcome: _T) -> None:
        """Set the outcome, unless the caller was cancelled: what was decided stands."""
        self.is_answered = True
        if self._future is not None and not self._future.done():
            self._future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Let the caller know, unless it has an answer."""
        if self.is_over:
            return
        self.is_answered = True
        if self._future is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._future.cancel()
        else:
            self._future.set_exception(error_copy(error))


AnyCommand: TypeAlias = Command[Any]
