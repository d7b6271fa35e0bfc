"""The ledger: the balances of accounts, and the log by which they change.

All changes of an organisation's accounts go through its log (`log`), by one worker in each process
(`worker`). So the log determines the balance at every instant, and decisions use all of it.

An account is opened once in its window, with the window's spend so far by the journal. For up to 30
s, instances that do not know a new budget count without it; a recount adds that (`recounting`).

Bounds: `LOGS_MAX` logs, `OPEN_MAX` accounts and `OPENED_MAX` sets of them are remembered; a
forgotten one is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, TypeAlias, TypeVar

from pricekeeper.budgets import AccountMemory, Balance, BudgetAccount
from pricekeeper.budgets.items import partition_query, spend
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, SingleFlight
from pricekeeper.errors import CancellationReason, TransactionCancelledError
from pricekeeper.ledger.book import Book, OpenAccounts
from pricekeeper.ledger.draft import AnyCommand, Command, Decision, Draft, Send
from pricekeeper.ledger.log import SHEETS_MAX, OrgLog
from pricekeeper.ledger.meter import LedgerMeter
from pricekeeper.ledger.worker import Worker
from pricekeeper.storage import Key, Store, Write, query_items

LOGS_MAX: Final = 5_000
OPEN_MAX: Final = 50_000
OPENED_MAX: Final = 2_000
RETENTION_DAYS: Final = 90
PARTITION_ITEMS_MAX: Final = 100_000
_T = TypeVar("_T")
AccountKey: TypeAlias = tuple[Key, str]
Measure: TypeAlias = Callable[[Sequence[BudgetAccount]], Awaitable[Mapping[BudgetAccount, int]]]
"""Sums the journal's records in each of these accounts, in pico-dollars."""


class Ledger:
    """The logs of organisations, and their accounts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        measure: Measure,
        *,
        retention_days: int = RETENTION_DAYS,
        randomness: Random | None = None,
        sheets_max: int = SHEETS_MAX,
    ) -> None:
        self._store = store
        self._clock = clock
        self._measure = measure
        self._retention_days = retention_days
        self._sheets_max = sheets_max
        self.random = randomness or Random()  # noqa: S311  # spreads, no secret
        self.meter = LedgerMeter()
        self.observers: list[Callable[[Iterable[str]], None]] = []
        self._workers: BoundedCache[str, Worker] = BoundedCache(LOGS_MAX)
        self._busy: dict[str, Worker] = {}
        self.accounts_for = AccountMemory().find
        """Cached; reads no store."""
        self._open: BoundedCache[AccountKey, bool] = BoundedCache(OPEN_MAX)
        self._opened: BoundedCache[int, tuple[BudgetAccount, ...]] = BoundedCache(OPENED_MAX)
        """Sets of accounts that were all open, by the identity of the result of `accounts_for`."""
        self._opening: SingleFlight[AccountKey, None] = SingleFlight("pricekeeper-budget-open")

    def were_opened(self, accounts: tuple[BudgetAccount, ...]) -> bool:
        return self._opened.peek(id(accounts)) is accounts

    async def open_for_calls(self, accounts: tuple[BudgetAccount, ...]) -> None:
        await self.open_all(accounts)
        self._opened.put(id(accounts), accounts)

    async def open_all(self, accounts: Iterable[BudgetAccount]) -> None:
        for account in accounts:
            key = (account.key, account.id)
            if self._open.get(key) is None:
                await self._opening.run(key, partial(self._open_one, account))

    def are_open(self, accounts: Iterable[BudgetAccount]) -> bool:
        return all((account.key, account.id) in self._open for account in accounts)

    def forget(self, accounts: Iterable[BudgetAccount]) -> None:
        """Check again whether these are open: one was found closed."""
        self._opened.clear()
        for account in accounts:
            self._open.pop((account.key, account.id))

    async def read(self, accounts: Collection[BudgetAccount]) -> dict[BudgetAccount, Balance]:
        """Closed accounts are opened."""
        await self.open_all(accounts)
        found = await self.read_open(accounts)
        return {account: found.get(account, Balance()) for account in accounts}

    async def read_open(self, accounts: Collection[BudgetAccount]) -> dict[BudgetAccount, Balance]:
        found: dict[BudgetAccount, Balance] = {}
        for org_id in dict.fromkeys(account.org_id for account in accounts):
            mine = [account for account in accounts if account.org_id == org_id]
            items = await self.read_items(org_id, dict.fromkeys(one.key for one in mine))
            for account in mine:
                balance = items[account.key].balance(account.id)
                if balance is not None:
                    found[account] = balance
        return found

    async def read_items(self, org_id: str, keys: Collection[Key]) -> dict[Key, OpenAccounts]:
        if not keys:
            return {}
        log = self.log_of(org_id)
        await log.read()
        return await log.find_items(dict.fromkeys(keys))

    async def read_partition(
        self, org_id: str, pk: str, prefix: str = "", items_max: int = PARTITION_ITEMS_MAX
    ) -> dict[Key, OpenAccounts]:
        book = await self.read_book(org_id)
        keys = {
            key for key in book.unfiled_keys() if key.pk == pk and (key.sk or "").startswith(prefix)
        }
        async for item in query_items(self._store, partition_query(pk, prefix)):
            keys.add(Key(str(item["PK"]), str(item["SK"])))
            if len(keys) >= items_max:
                break
        listed = sorted(keys, key=lambda key: key.sk or "")[:items_max]
        found = await self.read_items(org_id, listed)
        return {key: found[key] for key in listed}

    def log_of(self, org_id: str) -> OrgLog:
        return self._worker_of(org_id).log

    def known_book(self, org_id: str) -> Book | None:
        """``None`` before the first reading."""
        worker = self._workers.peek(org_id)
        return None if worker is None else worker.log.known

    async def read_book(self, org_id: str) -> Book:
        return await self.log_of(org_id).read()

    def submit(self, org_id: str, command: AnyCommand, *, follows: bool = False) -> None:
        """A command that ``follows`` from an accepted one is never refused for lack of room."""
        self._worker_of(org_id).submit(command, follows=follows)

    async def carry_out(self, org_id: str, command: Command[_T]) -> _T:
        self.submit(org_id, command)
        return await command.future

    async def post(
        self, org_id: str, debits: Debits, operations: Sequence[Write], send: Send | None = None
    ) -> None:
        """Apply operations together with spending from accounts, all or nothing."""
        await self.carry_out(org_id, PostRecords(debits, operations, send))

    async def close(self) -> None:
        while self._busy:
            for worker in self._busy.values():
                worker.hurry()
            tasks = [worker.task for worker in self._busy.values()]
            await asyncio.wait(filter(None, tasks))
        for org_id in list(self._workers):
            known = self._workers.peek(org_id)
            if known is not None:
                await known.log.close()

    def _note_others(self, authorization_ids: Collection[str]) -> None:
        for observer in self.observers:
            observer(authorization_ids)

    def _worker_of(self, org_id: str) -> Worker:
        worker = self._busy.get(org_id) or self._workers.get(org_id)
        if worker is None:
            log = OrgLog(
                self._store,
                self._clock,
                self.random,
                self.meter,
                org_id,
                retention_days=self._retention_days,
                sheets_max=self._sheets_max,
                note_others=self._note_others,
            )
            worker = Worker(log, self._clock, self.random, self._busy)
            self._workers.put(org_id, worker)
        return worker

    async def _open_one(self, account: BudgetAccount) -> None:
        items = await self.read_items(account.org_id, [account.key])
        if items[account.key].balance(account.id) is None:
            spent = (await self._measure([account]))[account]
            await self.carry_out(account.org_id, OpenAccount(account, spent))
        self._open.put((account.key, account.id), True)  # noqa: FBT003


Debits: TypeAlias = Sequence[tuple[Collection[BudgetAccount], int]]


class AccountNotOpenError(Exception):
    """An account to spend from is not open; open it, and try again."""


class OpenAccount(Command[None]):
    """Opens an account with its window's spend so far, unless it is open."""

    result = None

    def __init__(self, account: BudgetAccount, spent_usd_picos: int) -> None:
        self.keys = (account.key,)
        self._account = account
        self._spent_usd_picos = spent_usd_picos

    def decide(self, draft: Draft) -> Decision:
        """Before this, no command spends from the account."""
        account = self._account
        if draft.balance(account.key, account.id) is not None:
            self.answer(None)
            return Decision.ANSWERED
        draft.open(account.key, account.id, spend(self._spent_usd_picos))
        return Decision.WRITES


class PostRecords(Command[None]):
    """Spends from accounts in the transaction that applies some operations."""

    result = None

    def __init__(
        self, debits: Debits, operations: Sequence[Write], send: Send | None = None
    ) -> None:
        self.keys = dict.fromkeys(account.key for accounts, _ in debits for account in accounts)
        self.operations = operations
        self.send = send
        self._debits = debits

    def decide(self, draft: Draft) -> Decision:
        """Spend it, even beyond the budgets: it was used already."""
        debits = [(one, picos) for accounts, picos in self._debits for one in accounts]
        for account, _ in debits:
            if draft.balance(account.key, account.id) is None:
                self.fail(AccountNotOpenError(account.name))
                return Decision.ANSWERED
        for account, picos in debits:
            draft.add(account.key, account.id, spend(picos))
        return Decision.WRITES

    def note_refused(self, reasons: Sequence[CancellationReason]) -> None:
        self.fail(TransactionCancelledError(reasons))
