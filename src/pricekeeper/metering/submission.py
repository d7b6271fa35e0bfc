"""A checked and priced record on its way into the journal, and its waiting callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from pricekeeper.budgets import BudgetAccount
from pricekeeper.metering.counters import COUNTER_NAMES, Account, Counters
from pricekeeper.metering.journal import (
    Address,
    JournalEntry,
    StoredTerms,
    Terms,
    encode_entry,
    flags_of,
    name_on_sheet,
    receipt_of,
    weight_of,
)
from pricekeeper.metering.journal_items import Written
from pricekeeper.metering.receipt import Receipt
from pricekeeper.metering.usage import Usage
from pricekeeper.pricing import TokenUsage
from pricekeeper.tenants import Policy


class Posted(NamedTuple):
    """The receipt of a counted record, and whether this submission counted it."""

    receipt: Receipt
    accepted: bool


Waiter: TypeAlias = Callable[[Posted | BaseException], None]
"""Gets the record's outcome or error, once. Must not raise."""


class Submission(msgspec.Struct, eq=False):
    """A record that is ready to be written, and its waiters."""

    org_id: str
    request_id: str
    address: Address | None
    """``None`` if the id has no time and, so far, no moment."""
    lanes: int
    fingerprint: bytes
    terms: Terms
    stored_terms: StoredTerms
    account: Account
    happened_at_ms: int
    is_error: bool
    price_estimated: bool
    cost_usd_picos: int
    tokens: TokenUsage
    budget_accounts: tuple[BudgetAccount, ...] = ()
    """The budgets that it is spent from, in the write that counts it."""
    waiting: list[Waiter] = []
    """The first submitted it; the others sent a duplicate meanwhile."""
    _entry: JournalEntry | None = None

    @property
    def weight(self) -> int:
        return weight_of(self.stored_terms)

    def receipt(self, nonce: bytes, sent_at_ms: int) -> Receipt:
        lane = 0 if self.address is None else self.address.lane(self.lanes)
        return receipt_of(self.entry(nonce, sent_at_ms), self.terms, lane)

    def written_on_sheet(self, number: int, nonce: bytes, sent_at_ms: int) -> Written:
        return self._written(name_on_sheet(number), nonce, sent_at_ms)

    def written(self, nonce: bytes, sent_at_ms: int) -> Written:
        return self._written(self.place.name, nonce, sent_at_ms)

    @property
    def place(self) -> Address:
        if self.address is None:
            raise LookupError("a record whose id has no moment yet is on no page")
        return self.address

    def entry(self, nonce: bytes, sent_at_ms: int) -> JournalEntry:
        made = self._entry
        if made is None or made.nonce != nonce or made.sent_at_ms != sent_at_ms:
            made = self._entry = self._make_entry(nonce, sent_at_ms)
        return made

    def _written(self, name: str, nonce: bytes, sent_at_ms: int) -> Written:
        data = encode_entry(self.entry(nonce, sent_at_ms))
        return Written(name, data, self.stored_terms)

    def _make_entry(self, nonce: bytes, sent_at_ms: int) -> JournalEntry:
        tokens = self.tokens
        return JournalEntry(
            self.fingerprint,
            nonce,
            sent_at_ms,
            sent_at_ms - self.happened_at_ms,
            self.stored_terms.ref,
            flags_of(is_error=self.is_error, is_estimated=self.price_estimated),
            self.cost_usd_picos,
            tokens.input_tokens,
            tokens.output_tokens,
            tokens.cache_read_tokens,
            tokens.cache_write_5m_tokens,
            tokens.cache_write_1h_tokens,
            self.request_id if self.address is None or self.address.is_hashed else "",
        )


class RecordOnSheet(NamedTuple):
    """A record that a sheet of the log counts, and its client's policy."""

    policy: Policy
    submission: Submission


def sum_by_account(submissions: Iterable[Submission]) -> dict[Account, Counters]:
    """Sum these records by account."""
    sums: dict[Account, list[int]] = {}
    for one in submissions:
        row, tokens = sums.get(one.account), one.tokens
        if row is None:
            row = sums[one.account] = [0] * len(COUNTER_NAMES)
        row[0] += one.cost_usd_picos
        row[1] += tokens.input_tokens
        row[2] += tokens.output_tokens
        row[3] += tokens.cache_read_tokens
        row[4] += tokens.cache_write_5m_tokens + tokens.cache_write_1h_tokens
        row[5] += 1
        row[6] += one.is_error
    return {account: Counters.of_amounts(row) for account, row in sums.items()}


class Outcomes:
    """The outcomes of one caller's records, which it awaits together."""

    __slots__ = ("_done", "_known", "_missing")

    def __init__(self, count: int) -> None:
        self._known: list[Posted | BaseException] = [LookupError("not settled")] * count
        self._missing = count
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not count:
            self._done.set_result(None)

    def waiter(self, number: int) -> Waiter:
        return partial(self._note, number)

    async def wait(self) -> list[Posted | BaseException]:
        """Wait for all. Cancelling withdraws the caller, not the records."""
        await self._done
        return self._known

    def _note(self, number: int, outcome: Posted | BaseException) -> None:
        self._known[number] = outcome
        self._missing -= 1
        if not self._missing and not self._done.done():  # else its caller was cancelled
            self._done.set_result(None)


class RecordUnderWay(msgspec.Struct, eq=False):
    """A record without a waiting task; ``on_settled`` is called instead."""

    policy: Policy
    usage: Usage
    submission: Submission
    on_settled: Callable[[RecordUnderWay], None]
    outcome: Posted | BaseException | None = None

    def settle(self, outcome: Posted | BaseException) -> None:
        self.outcome = outcome
        self.on_settled(self)
