"""The sheet that some commands are about to write, and what each sees of the others. No I/O.

Commands are decided one after the other. Each sees the accounts with all that those before it have
put into the draft, so all of them together never take more than there is.

A command that can't be decided yet asks for an **errand**: something to be read or marked first.
Then nothing is written, the errands are run, and the commands are decided anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import NOTHING
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import CancellationReason
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.position import ON_SHEET_MAX
from pricekeeper.ledger.sheet import ItemChange, Sheet
from pricekeeper.storage import Item, Key, Value, Write

SHEET_BYTES_MAX: Final = 200_000
"""Of what commands put on a sheet; an item has room for twice as much."""
NONCE_BYTES: Final = 6
_T = TypeVar("_T")
Errand: TypeAlias = Callable[[], Awaitable[None]]
Fail: TypeAlias = Callable[[BaseException], None]
"""Tells whoever has asked for an errand that it has failed."""
Tell: TypeAlias = Callable[[str, list[_T]], None]
"""Is told of an organisation what the commands of one sheet have gathered; it must not raise."""


class Draft:
    """What one sheet is to say."""

    def __init__(self, book: Book, now_ms: int, nonce: bytes) -> None:
        self.book = book
        self.position = book.next
        self.prefix = book.next.prefix
        self.sort_key = self.prefix + book.next.chapter.salt
        self.now_ms = now_ms
        """When it is written: the one reading of the clock for all that is decided together."""
        self.nonce = nonce
        self.outcomes: dict[str, str] = {}
        self.names: dict[str, int] = {}
        self.attributes: Item = {}
        self.errands: dict[Hashable, tuple[Errand, list[Fail]]] = {}
        self.found: set[Hashable] = set()
        """What a command has looked up that holds for all others of this draft, too."""
        self._before: dict[tuple[Key, str], Balance] = {}
        """What the accounts had that something is added to."""
        self._running: dict[tuple[Key, str], Balance] = {}
        """What they have with that."""
        self._opened: dict[Key, list[str]] = {}
        self._mends: dict[Key, int] = {}
        self._shared: dict[Hashable, object] = {}
        self._gathered: dict[Tell[Any], list[Any]] = {}
        self.revision = 0
        """How often anything was put into it."""
        self._numbers = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether other commands should wait for the next sheet."""
        return self._bytes > SHEET_BYTES_MAX or self._numbers >= ON_SHEET_MAX

    def balance(self, key: Key, account_id: str) -> Balance | None:
        """What an account has with all that was decided; ``None`` if it is not open.

        Raises `UnreadableItemError` if that can't be read.
        """
        running = self._running.get((key, account_id))
        return self.book.balance(key, account_id) if running is None else running

    def mends(self, key: Key) -> int:
        """How often accounts of an item were set right."""
        known = self.book.accounts(key)
        return self._mends.get(key, 0) + (0 if known is None else known.mends)

    def add(self, key: Key, account_id: str, change: Balance) -> Balance:
        """Add to an account; returns what it has then."""
        account = (key, account_id)
        before = self._running.get(account)
        if before is None:
            before = self._before[account] = self.book.balance(key, account_id) or NOTHING
        after = self._running[account] = before + change
        self.revision += 1
        return after

    def add_if_open(self, key: Key, account_id: str, change: Balance) -> None:
        """Add to an account that may not be open."""
        if (key, account_id) in self._running or self.balance(key, account_id) is not None:
            self.add(key, account_id, change)

    def open(self, key: Key, account_id: str, spent: Balance) -> None:
        """Open an account that is not, with what was spent before."""
        self.add(key, account_id, spent)
        self._opened.setdefault(key, []).append(account_id)

    def mend(self, key: Key, account_id: str, change: Balance) -> None:
        """Add what is missing in an account."""
        self.add(key, account_id, change)
        self._mends[key] = self._mends.get(key, 0) + 1

    def outcome(self, authorization_id: str) -> str | None:
        """What has become of an authorization, as far as unfiled sheets and this one say."""
        text = self.outcomes.get(authorization_id)
        return self.book.outcome(authorization_id) if text is None else text

    def settle(self, authorization_id: str, outcome: str) -> None:
        """Say what becomes of an authorization."""
        self.revision += 1
        self.outcomes[authorization_id] = outcome
        self._bytes += 20 + len(outcome)

    def name(self, number: int, name: str) -> None:
        """Let an id that a caller gave stand for what has that number."""
        self.revision += 1
        self.names[name] = number
        self._bytes += 20

    def take_number(self) -> int:
        """A number for something that stands on the sheet."""
        number, self._numbers = self._numbers, self._numbers + 1
        return number

    def put(self, name: str, value: Value) -> None:
        """Put an attribute on the sheet; the same one twice is there once."""
        if name not in self.attributes:
            self._bytes += len(name) + (len(value) if isinstance(value, (bytes, str)) else 8)
        self.revision += 1
        self.attributes[name] = value

    def share(self, name: Hashable, make: Callable[[], _T]) -> _T:
        """Something that the commands of this draft share, made by the first of them."""
        return cast("_T", self._shared.setdefault(name, make()))

    def gather(self, tell: Tell[_T], one: _T) -> None:
        """Have that told once the sheet is written, together with what others gather for it."""
        gathered = self._gathered.get(tell)
        if gathered is None:
            self._gathered[tell] = [one]
        else:
            gathered.append(one)

    def tell_gathered(self) -> None:
        """Tell what was gathered: the sheet is written."""
        for tell, gathered in self._gathered.items():
            tell(self.book.org_id, gathered)

    def ask(self, name: Hashable, errand: Errand, fail: Fail) -> None:
        """Have something done before it is decided who asks; the same errand is run once."""
        self.errands.setdefault(name, (errand, []))[1].append(fail)

    def sheet(self) -> Sheet:
        """The sheet as everybody will read it."""
        changed: dict[Key, dict[str, Balance]] = {}
        for account, after in self._running.items():
            key, account_id = account
            changed.setdefault(key, {})[account_id] = after - self._before[account]
        changes = {
            key: ItemChange(accounts, tuple(self._opened.get(key, ())), self._mends.get(key, 0))
            for key, accounts in changed.items()
        }
        return Sheet(self.nonce, self.now_ms, changes, self.outcomes, self.names)


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
