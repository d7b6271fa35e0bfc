"""Writes records into the journal exactly once, through every failure of the store.

Records whose ids have a time share one plain update of their page. A refused update returns the
page, which tells the fate of each record:

- There, with our nonce: an earlier sending was applied.
- There, with the same fingerprint: a duplicate; with another: the id was reused.
- Its place is taken by an authorization (`RequestIdReusedError`).
- Not there: on a full page it goes to a child, otherwise it is sent again without the others.

If the outcome is unknown, the same write is sent again; the first that arrives counts. An id
without a time gets a moment first (`metering.moments`). A record that is spent from budgets goes in
one transaction with a sheet of the log. The tick and region of a page are marked first
(`metering.marking`).

Bounds: `SENDINGS_MAX` sendings of one write, with the pauses of `BACKOFF`; `ID_DIGITS` levels of
pages; `MARKED_MAX` remembered marks and `FULL_MAX` full pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    InvalidOperationError,
    PriceKeeperError,
    RequestIdReusedError,
    StoreError,
    TransactionCancelledError,
    UnreadableItemError,
)
from pricekeeper.ledger import AccountNotOpenError, Ledger
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.journal import (
    ID_DIGITS,
    PAGE_DIGITS,
    Address,
    is_full,
    record_on,
    taken_for,
)
from pricekeeper.metering.journal_items import PostedRegion, page_key, page_update
from pricekeeper.metering.marking import Marks, is_late
from pricekeeper.metering.moments import Moments
from pricekeeper.metering.receipt import Receipt
from pricekeeper.metering.submission import Posted, Submission
from pricekeeper.storage import Item, Key, Store, Write
from pricekeeper.storage.tables import USAGE_AGG_SHARDED
from pricekeeper.ticks import region_at

FULL_MAX: Final = 256
Settled: TypeAlias = tuple[Submission, "Posted | PriceKeeperError"]
Settle: TypeAlias = Callable[[Sequence[Settled]], None]


class TakenPlace(NamedTuple):
    """A record's place that is taken by an authorization."""

    authorization_id: str


class Poster:
    """Writes records that wait together: those of a page, or those whose ids have no time.

    ``settle`` gets the records of one write whose outcome is known. An exception concerns the
    others.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        randomness: Random,
        *,
        retention_days: int = RETENTION_DAYS,
        ledger: Ledger | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ledger = ledger
        self.marks = Marks(store, clock, randomness, retention_days)
        self.moments = Moments(store, clock, self.marks)
        self._full: BoundedCache[Key, Item] = BoundedCache(FULL_MAX)

    async def post(self, submissions: Sequence[Submission], settle: Settle) -> None:
        nonce = self.marks.new_nonce()
        if submissions[0].address is None:
            placed = await self._give_moments(submissions, settle)
            await self._post_on_pages(placed, PAGE_DIGITS, nonce, settle)
        else:
            await self._post_on_page(submissions, PAGE_DIGITS, nonce, settle)

    async def _give_moments(
        self, submissions: Sequence[Submission], settle: Settle
    ) -> list[Submission]:
        """Give each a place; answer those for which that fails, and return the others."""
        placed: list[Submission] = []
        ids = [one.request_id for one in submissions]
        for one, address in zip(
            submissions, await self.moments.mint(submissions[0].org_id, ids), strict=True
        ):
            if isinstance(address, StoreError):
                settle([(one, address)])
            else:
                one.address = address
                placed.append(one)
        return placed

    async def read_receipts(
        self, org_id: str, lanes: int, addresses: Mapping[str, Address | None]
    ) -> dict[str, Receipt | TakenPlace | StoreError]:
        """The receipts and taken places of these request ids; for an unreadable one its error."""
        places = await self.moments.complete(org_id, addresses)
        found: dict[str, Receipt | TakenPlace | StoreError] = {
            request_id: one for request_id, one in places.items() if isinstance(one, StoreError)
        }
        wanted = {request_id: one for request_id, one in places.items() if isinstance(one, Address)}
        for depth in range(PAGE_DIGITS, ID_DIGITS + 1):
            keys = {
                request_id: (USAGE_AGG_SHARDED, page_at(org_id, lanes, address, depth))
                for request_id, address in wanted.items()
            }
            distinct = list(dict.fromkeys(keys.values()))
            if not distinct:
                break
            pages = dict(zip(distinct, await self._store.batch_get(distinct), strict=True))
            deeper: dict[str, Address] = {}
            for request_id, address in wanted.items():
                page = pages[keys[request_id]]
                if page is None:
                    continue
                try:
                    there = _look_in(page, address)
                    if isinstance(there, Receipt):
                        await self.marks.request_repair_if_late(org_id, [there])
                    if there is not None:
                        found[request_id] = there
                    elif is_full(page):
                        deeper[request_id] = address
                except StoreError as error:
                    found[request_id] = error
            wanted = deeper
        return found

    async def _post_on_page(
        self,
        submissions: Sequence[Submission],
        depth: int,
        nonce: bytes,
        settle: Settle,
        *,
        doubt: bool = False,
    ) -> None:
        left, sendings = list(submissions), self.marks.sendings(doubt=doubt)
        key = page_at(left[0].org_id, left[0].lanes, left[0].place, depth)
        while left:
            try:
                page = self._full.get(key) or await self._write_page(key, left, nonce, settle)
            except StoreError as failure:
                if isinstance(failure, InvalidOperationError) and len(left) > 1:
                    await self._divide(left, depth, nonce, settle, doubt=sendings.doubt)
                    return
                await sendings.fail(failure)
                continue
            if page is None:
                return
            missing = await self._settle_counted([(one, page) for one in left], nonce, settle)
            if missing and is_full(page):
                self._full.put(key, page)
                await self._post_on_pages(missing, depth + 1, nonce, settle)
                return
            if len(missing) == len(left):
                await sendings.fail(ContendedError("a page with room refused a record"))
            left = missing

    async def _write_page(
        self, key: Key, left: Sequence[Submission], nonce: bytes, settle: Settle
    ) -> Item | None:
        """Write the records and answer them; if the page refuses them, return the page."""
        first = left[0]
        posting = PostedRegion(first.org_id, first.place.region, first.lanes)
        sent_at_ms = self._clock.now_ms()
        await self.marks.mark(posting, sent_at_ms)
        # A moment may be older than the pages that are kept.
        expires = self.marks.expires_at_epoch(max(posting.region, region_at(sent_at_ms)))
        written = [one.written(nonce, sent_at_ms) for one in left]
        update = page_update(key, written, expires)
        try:
            if not await self._spend(left, [update]):
                await self._store.update(update)
        except ConditionFailedError as refusal:
            return dict(refusal.item or {})
        except TransactionCancelledError as cancelled:
            return dict(cancelled.reasons[0].item or {})
        await self._settle_own(left, nonce, sent_at_ms, settle)
        return None

    async def _spend(self, submissions: Sequence[Submission], writes: Sequence[Write]) -> bool:
        """``False`` if nothing is to be spent. Raises `ContendedError` after opening an account."""
        accounts = [account for one in submissions for account in one.budget_accounts]
        if not accounts or self._ledger is None:
            return False
        debits = [
            (one.budget_accounts, one.cost_usd_picos) for one in submissions if one.budget_accounts
        ]
        try:
            await self._ledger.post(submissions[0].org_id, debits, writes)
        except AccountNotOpenError as error:
            self._ledger.forget(accounts)
            await self._ledger.open_all(accounts)
            raise ContendedError(f"an account was not open: {error}") from error
        return True

    async def _divide(
        self,
        left: list[Submission],
        depth: int,
        nonce: bytes,
        settle: Settle,
        *,
        doubt: bool,
    ) -> None:
        """Send the halves apart: one record that the store refuses must not fail the others."""
        middle = len(left) // 2
        for half in (left[:middle], left[middle:]):
            try:
                await self._post_on_page(half, depth, nonce, settle, doubt=doubt)
            except StoreError as error:
                settle([(one, error) for one in half if one.waiting])

    async def _post_on_pages(
        self, submissions: Sequence[Submission], depth: int, nonce: bytes, settle: Settle
    ) -> None:
        """Write them to their pages of that depth. A failure concerns its own page."""
        pages: dict[str, list[Submission]] = {}
        for one in submissions:
            pages.setdefault(one.place.digits[:depth], []).append(one)
        failures = await asyncio.gather(
            *(self._post_on_page(page, depth, nonce, settle) for page in pages.values()),
            return_exceptions=True,
        )
        for page, failure in zip(pages.values(), failures, strict=True):
            if isinstance(failure, StoreError):
                settle([(one, failure) for one in page if one.waiting])
            elif failure is not None:
                raise failure

    async def _settle_own(
        self, submissions: Sequence[Submission], nonce: bytes, sent_at_ms: int, settle: Settle
    ) -> None:
        receipts = [one.receipt(nonce, sent_at_ms) for one in submissions]
        if is_late(sent_at_ms, self._clock.now_ms()):
            await self.marks.request_repair_if_late(submissions[0].org_id, receipts)
        settle(
            [
                (one, Posted(receipt, accepted=True))
                for one, receipt in zip(submissions, receipts, strict=True)
            ]
        )

    async def _settle_counted(
        self,
        looked_at: Iterable[tuple[Submission, Mapping[str, Any] | None]],
        nonce: bytes,
        settle: Settle,
    ) -> list[Submission]:
        """Answer records that are counted, once no total can lack them; return the others."""
        missing: list[Submission] = []
        counted: list[tuple[Submission, Posted]] = []
        own = nonce.hex()
        for one, item in looked_at:
            try:
                there = None if item is None else _look_in(item, one.place)
            except UnreadableItemError as error:  # it is unknown whether it was counted
                settle([(one, error)])
                continue
            if there is None:
                missing.append(one)
            elif isinstance(there, TakenPlace):
                settle([(one, RequestIdReusedError(one.request_id, there.authorization_id))])
            else:
                counted.append((one, Posted(there, there.commit_id == own)))
        if counted:
            org_id = counted[0][0].org_id
            await self.marks.request_repair_if_late(
                org_id, [posted.receipt for _, posted in counted]
            )
            settle(counted)
        return missing


def _look_in(page: Mapping[str, Any], address: Address) -> Receipt | TakenPlace | None:
    taken = taken_for(page, address.name)
    if taken is not None:
        return TakenPlace(taken)
    record = record_on(page, address.name)
    return None if record is None else record.receipt


def page_at(org_id: str, lanes: int, address: Address, depth: int) -> Key:
    """The key of the page of that depth on which the record may be."""
    return page_key(org_id, address.region, address.lane(lanes), address.digits[:depth])
