"""A draft: the next sheet, and what each command sees of the others. No I/O.

Commands are decided one after the other. Each sees the accounts with the changes of those before
it, so together they never spend more than there is.

A command that can't be decided yet requests an **errand**: a read or a mark. Then nothing is
written, the errands run, and the commands are decided again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import NOTHING
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import CancellationReason
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.position import ON_SHEET_MAX
from pricekeeper.ledger.sheet import ItemChange, Sheet
from pricekeeper.storage import Item, Key, Write

SHEET_BYTES_MAX: Final = 200_000
"""Put by commands; an item has room for twice as much."""
NONCE_BYTES: Final = 6
_T = TypeVar("_T")
Errand: TypeAlias = Callable[[], Awaitable[None]]
Fail: TypeAlias = Callable[[BaseException], None]
Tell: TypeAlias = Callable[[str, list[_T]], None]
"""Gets what the commands of one sheet have gathered. Must not raise."""


class Draft:
    """The content of one sheet."""

    def __init__(self, book: Book, now_ms: int, nonce: bytes) -> None:
        self.book = book
        self.position = book.next
        self.now_ms = now_ms
        """The one reading of the clock for all commands."""
        self.nonce = nonce
        self.outcomes: dict[str, str] = {}
        self.names: dict[str, int] = {}
        self.attributes: Item = {}
        self.errands: dict[Hashable, tuple[Errand, list[Fail]]] = {}
        self.found: set[Hashable] = set()
        self._before: dict[tuple[Key, str], Balance] = {}
        self._running: dict[tuple[Key, str], Balance] = {}
        self._opened: dict[Key, list[str]] = {}
        self._mends: dict[Key, int] = {}
        self._shared: dict[Hashable, object] = {}
        self._gathered: dict[Tell[Any], list[Any]] = {}
        self.revision = 0
        self._numbers = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes > SHEET_BYTES_MAX or self._numbers >= ON_SHEET_MAX

    def balance(self, key: Key, account_id: str) -> Balance | None:
        """Return a balance with the changes; ``None`` if not open. Raises `UnreadableItemError`."""
        running = self._running.get((key, account_id))
        return self.book.balance(key, account_id) if running is None else running

    def mends(self, key: Key) -> int:
        known = self.book.accounts(key)
        return self._mends.get(key, 0) + (0 if known is None else known.mends)

    def add(self, key: Key, account_id: str, change: Balance) -> Balance:
        account = (key, account_id)
        before = self._running.get(account)
        if before is None:
            before = self._before[account] = self.book.balance(key, account_id) or NOTHING
        after = self._running[account] = before + change
        self.revision += 1
        return after

    def add_if_open(self, key: Key, account_id: str, change: Balance) -> None:
        if (key, account_id) in self._running or self.balance(key, account_id) is not None:
            self.add(key, account_id, change)

    def open(self, key: Key, account_id: str, spent: Balance) -> None:
        self.add(key, account_id, spent)
        self._opened.setdefault(key, []).append(account_id)

    def mend(self, key: Key, account_id: str, change: Balance) -> None:
        self.add(key, account_id, change)
        self._mends[key] = self._mends.get(key, 0) + 1

    def outcome(self, authorization_id: str) -> str | None:
        text = self.outcomes.get(authorization_id)
        return self.book.outcome(authorization_id) if text is None else text

    def settle(self, authorization_id: str, outcome: str) -> None:
        self.revision += 1
        self.outcomes[authorization_id] = outcome
        self._bytes += 20 + len(outcome)

    def name(self, number: int, name: str) -> None:
        """Let a caller's own id stand for the authorization of that number."""
        self.revision += 1
        self.names[name] = number
        self._bytes += 20

    def take_number(self) -> int:
        number, self._numbers = self._numbers, self._numbers + 1
        return number

    def put(self, attributes: Mapping[str, bytes]) -> None:
        for name, value in attributes.items():
            if name not in self.attributes:
                self._bytes += len(name) + len(value)
        self.revision += 1
        self.attributes.update(attributes)

    def share(self, name: Hashable, make: Callable[[], _T]) -> _T:
        """Return what the first command of this draft made under this name."""
        return cast("_T", self._shared.setdefault(name, make()))

    def gather(self, tell: Tell[_T], one: _T) -> None:
        """Pass ``one`` to ``tell`` once the sheet is written, with others for the same function."""
        self._gathered.setdefault(tell, []).append(one)

    def tell_gathered(self) -> None:
        for tell, gathered in self._gathered.items():
            tell(self.book.org_id, gathered)

    def ask(self, name: Hashable, errand: Errand, fail: Fail) -> None:
        """Request an errand before the next decision; equal errands run once."""
        self.errands.setdefault(name, (errand, []))[1].append(fail)

    def sheet(self) -> Sheet:
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


class Decision(Enum):
    """The result of deciding a command."""

    WRITES = "it has changed the draft"
    ANSWERED = "its caller has an answer, and it writes nothing"
    DENIED = "it is denied, unless it was decided on old data"
    WAITS = "it waits for an errand"


class Command(Generic[_T]):
    """Something to decide on an organisation's log, and to write to it."""

    keys: Collection[Key] = ()
    name: str = ""
    """At most one command of a sheet has this name, unless it is empty."""
    operations: Sequence[Write] = ()
    """Applied with the sheet in one transaction; set by the decision."""
    send: Send | None = None
    """Applies its operations instead of the store; it then has a sheet of its own."""
    lingers: bool = False
    """No caller waits, so it may wait for a shared sheet."""
    result: _T
    """Set by the decision; the answer once it is written."""

    _future: asyncio.Future[_T] | None = None
    is_answered = False
    """Its caller may have left before."""

    @property
    def future(self) -> asyncio.Future[_T]:
        """Request it before the answer is set."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    @property
    def is_over(self) -> bool:
        return self.is_answered or self.is_abandoned

    @property
    def is_abandoned(self) -> bool:
        return self._future is not None and self._future.cancelled()

    def decide(self, draft: Draft) -> Decision:
        """Put its changes into the draft, or answer. Raises an error to refuse it."""
        raise NotImplementedError

    def note_written(self) -> None:
        self.answer(self.result)

    def deny(self) -> None:
        raise NotImplementedError

    def note_refused(self, reasons: Sequence[CancellationReason]) -> None:
        """Take the refusal of its operations. It is decided again, unless it answers."""
        raise NotImplementedError

    def answer(self, outcome: _T) -> None:
        """Set the result, unless the caller was cancelled; the decision stays."""
        self.is_answered = True
        if self._future is not None and not self._future.done():
            self._future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
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
