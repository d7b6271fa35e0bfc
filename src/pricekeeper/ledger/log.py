"""The log of one organisation in the store: reads, continues and files it.

A writer first reads the log to its end, then appends the next sheet on condition that its number is
free. So each sheet is decided on all sheets before it: no locks, and nothing to recover after a
crash. After a lost reply, the nonce of the sheet tells who wrote it. A late sheet is refused if its
place is taken; otherwise it is the next one.

No sheet is decided behind an unreadable one: all requests that need this log fail until it is
repaired.

A chapter ends after `SHEETS_MAX` sheets or `CHAPTER_MS` and is filed (`filing`); the log then
begins behind it. Bounds: `SENDINGS_MAX` sendings of one sheet, `READINGS_MAX` readings of accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    OutcomeUnknownError,
    ReasonCode,
    StoreError,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.ledger.book import KEYS_MAX, Book, OpenAccounts
from pricekeeper.ledger.draft import NONCE_BYTES, Draft, Send
from pricekeeper.ledger.filing import Filer
from pricekeeper.ledger.items import (
    first_chapter,
    head_key,
    head_put,
    head_update,
    number_of,
    position_key,
    sheet_put,
    sheets_query,
)
from pricekeeper.ledger.meter import LedgerMeter
from pricekeeper.ledger.position import (
    NUMBERS_MAX,
    SALT_BITS,
    Chapter,
    Position,
    begin_chapter,
)
from pricekeeper.ledger.sheet import Sheet, is_written_by, sheet_attributes, sheet_from
from pricekeeper.storage import Item, Key, Put, Store, Write, query_items
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.ticks import TICK_MS

SHEETS_MAX: Final = 1_024
CHAPTER_MS: Final = 15 * 60_000
UNUSED_MS: Final = 20 * 86_400_000
"""An older chapter is not continued: its sheets expire some day."""
STALE_MS: Final = 60_000
"""After this time without a look, a process first reads the log's beginning."""
FILE_AFTER_MS: Final = 60_000
"""How long a chapter is left to the process that sealed it."""
SENDINGS_MAX: Final = 6
BACKOFF: Final = Backoff(20, 500)
READINGS_MAX: Final = 4
KEPT_MARGIN_DAYS: Final = 2
_SECS_PER_DAY: Final = 86_400

_log = structlog.get_logger(__name__)


class SheetTakenError(Exception):
    """Another writer has written the sheet; the book has it now."""


class OrgLog:
    """One organisation's log, as far as this process knows it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Random,
        meter: LedgerMeter,
        org_id: str,
        *,
        retention_days: int,
        sheets_max: int = SHEETS_MAX,
        note_others: Callable[[Collection[str]], None],
    ) -> None:
        """``note_others`` gets the authorizations that other processes have changed."""
        self._store = store
        self._clock = clock
        self._random = random
        self._meter = meter
        self._retention_days = retention_days
        self._sheets_max = sheets_max
        self._note_others = note_others
        self.org_id = org_id
        self.known: Book | None = None
        """``None`` before the first reading."""
        self.synced_ms = 0
        """When the book was last known to be the whole log, on the monotonic clock."""
        self._losses = 0
        self.others = 0
        self._lock = asyncio.Lock()
        self._filer = Filer(store, clock, org_id, self.expires_at_epoch)
        self._filing: asyncio.Task[None] | None = None

    @property
    def book(self) -> Book:
        if self.known is None:
            raise LookupError("the log was not read")
        return self.known

    async def read(self) -> Book:
        async with self._lock:
            await self._read()
            return self.book

    async def prepare(self, keys: Collection[Key] = ()) -> Draft:
        """Begin the next sheet, which needs the items of these accounts.

        A chapter that is long enough is sealed.
        """
        async with self._lock:
            if self.known is None or self._clock.monotonic_ms() - self.synced_ms > STALE_MS:
                await self._read()
            await self._seal_if_long()
        await self.read_items(keys)
        return Draft(self.book, self._clock.now_ms(), self._random.randbytes(NONCE_BYTES))

    async def read_items(self, keys: Collection[Key]) -> None:
        missing = self.book.unread(keys)
        for _ in range(READINGS_MAX):
            if not missing:
                return
            for key, known in (await self._read_accounts(missing)).items():
                self.book.remember(key, known)
            missing = [key for key in keys if self.book.accounts(key) is None]
        raise ContendedError("chapters were filed while accounts were read; try again")

    async def find_items(self, keys: Collection[Key]) -> dict[Key, OpenAccounts]:
        """Possibly more than the book has room for."""
        for _ in range(READINGS_MAX):
            missing = self.book.unread(keys)
            found = await self._read_accounts(missing) if missing else {}
            if len(found) == len(missing):
                if len(keys) <= KEYS_MAX:
                    for key, one in found.items():
                        self.book.remember(key, one)
                for key in keys:
                    known = self.book.accounts(key)
                    if known is not None:
                        found[key] = known
                if len(found) == len(keys):  # else one was forgotten meanwhile
                    return found
        raise ContendedError("chapters were filed while accounts were read; try again")

    async def append(
        self, draft: Draft, operations: Sequence[Write] = (), send: Send | None = None
    ) -> None:
        """Write the draft as the next sheet, with its operations.

        Raises `SheetTakenError` if another writer came first, and `TransactionCancelledError` if an
        operation was refused. ``send`` applies the transaction instead of the store.
        """
        async with self._lock:
            if draft.book is not self.known or draft.position != draft.book.next:
                raise SheetTakenError  # it was read on meanwhile
            sheet = draft.sheet()
            attributes = {**draft.attributes, **sheet_attributes(self.org_id, sheet)}
            await self._write(draft.position, sheet, attributes, operations, send)

    def file_in_background(self) -> None:
        book = self.known
        if book is None or self._filing is not None or len(book.chapters) == 1:
            return
        sealed_ms = book.chapters[0].sealed_ms or 0
        if self._clock.monotonic_ms() - sealed_ms >= FILE_AFTER_MS:
            self._begin_filing(book)

    async def close(self) -> None:
        if self._filing is not None:
            await asyncio.wait([self._filing])

    def expires_at_epoch(self, now_ms: int) -> int:
        region_secs = (now_ms - now_ms % TICK_MS) // 1000
        return region_secs + (self._retention_days + KEPT_MARGIN_DAYS) * _SECS_PER_DAY

    async def _read_accounts(self, keys: Sequence[Key]) -> dict[Key, OpenAccounts]:
        """Read these items; nothing if it is uncertain which chapters they contain."""
        book, generation = self.book, self.book.generation
        found = await self._store.batch_get([(RATE_BUCKETS, key) for key in keys])
        if self.known is not book or book.generation != generation:
            return {}  # a chapter may be neither in them nor here
        pairs = zip(keys, found, strict=True)
        return {key: book.with_unfiled(key, item) for key, item in pairs}

    async def _read(self) -> None:
        """Read on to the end; read all of it if the log has moved past the known part."""
        now_ms, book = self._clock.monotonic_ms(), self.known
        if book is None or now_ms - self.synced_ms > STALE_MS:
            first = await self._find_first()
            if book is None or first.name > book.next.chapter.name:
                self.known = book = Book(self.org_id, first)
            else:
                book.drop_before(first)  # others have filed them
        await self._catch_up(book)

    async def _find_first(self) -> Chapter:
        """The first unfiled chapter; begin a log if there is none."""
        item = await self._store.get(USAGE_AGG_SHARDED, head_key(self.org_id))
        if item is None:
            first = begin_chapter(self._clock.now_ms(), self._random.getrandbits(SALT_BITS))
            try:
                await self._store.put(head_put(self.org_id, first))
            except ConditionFailedError as refused:
                item = dict(refused.item or {})
            except OutcomeUnknownError:
                item = await self._store.get(USAGE_AGG_SHARDED, head_key(self.org_id))
                if item is None:
                    raise
            else:
                return first
        return first_chapter(item)

    async def _catch_up(self, book: Book) -> None:
        began_ms = self._clock.monotonic_ms()
        chapter: Chapter | None = None
        while chapter != book.next.chapter:  # a seal leads on to the next one
            chapter = book.next.chapter
            async for item in query_items(self._store, sheets_query(self.org_id, book.next)):
                await self._fold_passed_by(book, number_of(item))
                self._fold_found(book, item)
                if book.next.chapter != chapter:
                    break
        self.synced_ms = began_ms

    async def _fold_passed_by(self, book: Book, until: int) -> None:
        """Add the sheets before one that was found.

        A query is no snapshot: it may miss a sheet written while it ran. A sheet that a read by key
        misses, too, has expired.
        """
        chapter = book.next.chapter
        passed_by = [Position(chapter, number) for number in range(book.next.number, until)]
        if passed_by:
            keys = [(USAGE_AGG_SHARDED, position_key(self.org_id, one)) for one in passed_by]
            for item in filter(None, await self._store.batch_get(keys)):
                self._fold_found(book, item)

    def _fold_found(self, book: Book, item: Mapping[str, Any]) -> None:
        number = number_of(item)
        if number != book.next.number:
            book.next = Position(book.next.chapter, number)
        sheet = sheet_from(self.org_id, item)
        book.fold(sheet, self._clock.monotonic_ms())
        self._note_others(sheet.outcomes)
        self.others += 1
        self._meter.sheets_read += 1

    async def _write(
        self,
        position: Position,
        sheet: Sheet,
        attributes: Item,
        operations: Sequence[Write],
        send: Send | None,
    ) -> None:
        put = sheet_put(
            self.org_id, position, attributes, self.expires_at_epoch(sheet.written_at_ms)
        )
        lost: OutcomeUnknownError | None = None
        for sending in range(SENDINGS_MAX):
            if sending:
                await self._clock.sleep_ms(BACKOFF.pause_ms(sending, self._random.randrange))
            try:
                await self._send(put, operations, send)
            except ConditionFailedError as refused:
                await self._accept_or_learn(refused.item, sheet)
            except TransactionCancelledError as cancelled:
                own, *others = cancelled.reasons
                if own.code is not ReasonCode.CONDITION_FAILED:
                    raise TransactionCancelledError(others) from cancelled
                await self._accept_or_learn(own.item, sheet)
            except OutcomeUnknownError as unknown:
                lost = unknown
                item = await self._look_at(position)
                if item is None:
                    continue
                await self._accept_or_learn(item, sheet)
            except StoreUnavailableError as failure:
                if lost is None:
                    raise
                raise lost from failure
            break
        else:
            raise lost or OutcomeUnknownError("the sheet was not written")
        self.synced_ms = self._clock.monotonic_ms()
        self.book.fold(sheet, self.synced_ms)
        self._losses = 0
        self._meter.sheets_written += 1

    async def _send(self, put: Put, operations: Sequence[Write], send: Send | None) -> None:
        if send is not None:
            await send((put, *operations))
        elif operations:
            await self._store.transact((put, *operations))
        else:
            await self._store.put(put)

    async def _accept_or_learn(self, item: Mapping[str, Any] | None, sheet: Sheet) -> None:
        """Accept our sheet of an earlier sending, or add the sheet of another writer.

        After two losses in a row, the sheets behind it are read as well.
        """
        if is_written_by(item, sheet.nonce):
            return
        self._meter.lost_races += 1
        self._losses += 1
        if item is not None:
            self._fold_found(self.book, item)
        if item is None or self._losses > 1:
            with contextlib.suppress(StoreError):  # then the next sheet is refused, and learns it
                await self._catch_up(self.book)
        raise SheetTakenError

    async def _look_at(self, position: Position) -> Item | None:
        try:
            return await self._store.get(USAGE_AGG_SHARDED, position_key(self.org_id, position))
        except StoreUnavailableError:
            return None

    async def _seal_if_long(self) -> None:
        book, now_ms = self.book, self._clock.now_ms()
        chapter, number = book.next.chapter, book.next.number
        age_ms = now_ms - chapter.began_ms
        if number < self._sheets_max and age_ms < CHAPTER_MS:
            return
        following = chapter.following(now_ms, self._random.getrandbits(SALT_BITS))
        if following is None:
            if number < NUMBERS_MAX - 1:
                return
            raise StoreUnavailableError("the log has too many sheets for a minute")
        sheet = Sheet(self._random.randbytes(NONCE_BYTES), now_ms, next=following)
        moves: tuple[Write, ...] = ()
        if age_ms >= UNUSED_MS:
            # Sheets of it may have expired, so readers no longer find its end.
            await self._filer.file_all(book.chapters)
            moves = (head_update(self.org_id, book.chapters[0].chapter, following),)
        attributes = sheet_attributes(self.org_id, sheet)
        try:
            await self._write(book.next, sheet, attributes, moves, None)
        except SheetTakenError:
            return
        except TransactionCancelledError:  # another writer has continued the log
            self.known = None
            await self._read()
            return
        if moves:
            book.drop_before(following)
        else:
            self._begin_filing(book)

    def _begin_filing(self, book: Book) -> None:
        if self._filing is None:
            self._filing = asyncio.create_task(self._file_sealed(book), name="pricekeeper-filing")
            self._filing.add_done_callback(self._end_filing)

    def _end_filing(self, filing: asyncio.Task[None]) -> None:
        self._filing = None
        failure = None if filing.cancelled() else filing.exception()
        if isinstance(failure, Exception):  # else the process ends
            _log.error("filing_failed", org_id=self.org_id, exc_info=failure)

    async def _file_sealed(self, book: Book) -> None:
        """File the sealed chapters in order, and move the log's beginning behind them."""
        while book.sealed():
            sums, following = book.chapters[0], book.chapters[1].chapter
            try:
                await self._filer.file_all([sums])
                with contextlib.suppress(ConditionFailedError):  # another process has done it
                    await self._store.update(head_update(self.org_id, sums.chapter, following))
            except StoreError as error:  # it is tried again later
                _log.warning("filing_failed", org_id=self.org_id, error=error.code)
                sums.sealed_ms = self._clock.monotonic_ms()
                return
            book.drop_before(following)
            self._meter.chapters_filed += 1
