"""The attempts to carry out some commands together, until each is answered.

The commands are decided on the accounts and buckets as they were last seen (`decision`), and one
transaction is sent. What was seen may be old. Every operation carries the condition under which its
decision is right, and a refusal brings the item along, from which it is decided again. Nobody is
denied by what may be old: it is read anew first.

If a reply is lost, the authorizations say by their nonces whether the transaction was applied. If
it arrives later, its conditions are those of the next attempt, so one of the two is refused.

Bounds: `ATTEMPTS_MAX` attempts with up to `PAUSE_MS_MAX` between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.authorizations.books import Balances, Books, BucketKey, BucketStep
from pricekeeper.authorizations.commands import (
    Authorize,
    Command,
    Repeated,
    Settle,
    Settled,
    answer,
    fail,
    items_of,
)
from pricekeeper.authorizations.decision import Denied, Granted, Wanted, decide
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.items import region_of, sheet_key
from pricekeeper.authorizations.pace import Pace
from pricekeeper.authorizations.refunds import Refunds
from pricekeeper.authorizations.settling import Capture, Changed, settle
from pricekeeper.authorizations.sheet import SheetRoom, find_on
from pricekeeper.authorizations.transaction import (
    OnAccounts,
    OnBucket,
    OnSheet,
    Step,
    make_transaction,
)
from pricekeeper.budgets import check_accounts
from pricekeeper.budgets.items import USED, spend
from pricekeeper.concurrency import full_jitter_ms
from pricekeeper.errors import (
    CancellationReason,
    ConflictError,
    ContendedError,
    InvalidOperationError,
    OutcomeUnknownError,
    PriceKeeperError,
    ReasonCode,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.limiter.bucket import Bucket, Debit, Normal, expected
from pricekeeper.limiter.items import bucket_of
from pricekeeper.limiter.writes import normal
from pricekeeper.metering.journal import (
    ID_DIGITS,
    authorization_id_of,
    entry_on,
    is_full,
    region_at,
    taken_for,
    tick_of,
)
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.posting import TakenPlace, is_late
from pricekeeper.metering.receipt import receipt_taken_for
from pricekeeper.storage import Key
from pricekeeper.storage.tables import USAGE_AGG_SHARDED

ATTEMPTS_MAX: Final = 16
PAUSE_MS_FIRST: Final = 4
PAUSE_MS_MAX: Final = 128
_AT_ONCE: Final = 2
"""Attempts without a pause before them."""


class Attempts:
    """The attempts to carry out some commands together."""

    def __init__(
        self,
        desk: Desk,
        org_id: str,
        refunds: Refunds,
        pace: Pace,
        commands: Sequence[Command],
    ) -> None:
        self._desk = desk
        self._org_id = org_id
        self._refunds = refunds
        self._pace = pace
        self._left = list(commands)
        self._is_fresh = False
        self._doubt = False
        self._knows_places = not any(
            isinstance(one, Authorize) and one.place is not None for one in commands
        )
        self._stale_terms: list[tuple[Debit, Normal]] = []

    async def run(self) -> None:
        for attempt in range(ATTEMPTS_MAX):
            await self._pause(attempt)
            try:
                await self._attempt()
            except (OutcomeUnknownError, ContendedError) as failure:
                self._pace.note_others()
                self._doubt |= isinstance(failure, OutcomeUnknownError)
                await self._look_again()
            except InvalidOperationError as failure:
                await self._divide(failure)
                return
            except StoreError as failure:
                raise self._error_of(failure) from failure
            if not self._left:
                return
        raise self._error_of(ContendedError("other writers kept winning"))

    def _name_all(self) -> None:
        """Give those that want to go their numbers on sheets; they keep them, whatever happens."""
        sheet, number, room = "", 0, SheetRoom()
        for command in self._left:
            if isinstance(command, Settle) or command.id:
                continue
            wanted = command.wanted
            terms = wanted.candidates[0].stored_terms
            if not room.take(terms, wanted.asked_as, wanted.tags) or not sheet:
                sheet, number, room = self._desk.new_sheet(), 0, SheetRoom()
                room.take(terms, wanted.asked_as, wanted.tags)
            command.id = authorization_id_of(sheet, number)
            number += 1

    async def _attempt(self) -> None:
        desk = self._desk
        self._name_all()
        books = await self._open_books()
        granted, changed = self._decide_all(books)
        if not granted and not changed:
            await self._settle_terms()
            if self._left:
                self._forget()  # some are denied, by what may be old
                await self._look_up_places()
            return
        self._is_fresh = False
        sent_at_ms = books.now_ms
        buckets = books.plan_buckets()
        for region in {region_of(command.id) for command, _ in granted}:
            await desk.regions.mark(self._org_id, region)
        captured = [command for command, _ in changed if command.submission is not None]
        for posting in dict.fromkeys(map(_posting, captured)):
            await desk.poster.mark(posting, sent_at_ms)
        steps = make_transaction(
            self._org_id,
            books,
            buckets,
            granted,
            changed,
            sent_at_ms=sent_at_ms,
            expires_at_epoch=desk.poster.expires_at_epoch(region_at(sent_at_ms)),
        )
        try:
            await self.send(steps)
        except TransactionCancelledError as cancelled:
            await self._note_refusals(steps, cancelled.reasons)
            return
        except OutcomeUnknownError:
            self._refunds.note_lost(key for key, one in buckets.items() if one.given_back)
            raise
        except InvalidOperationError:
            if len(self._left) == 1:
                await check_accounts(desk.store, books.changes.keys())
            raise
        given_back = {key: one.given_back for key, one in buckets.items()}
        self._refunds.note_written(books.owed, given_back)
        self._note_written(books, buckets)
        if captured and is_late(tick_of(sent_at_ms), desk.clock.now_ms()):
            submissions = [one.submission for one in captured if one.submission is not None]
            receipts = [one.receipt(b"", sent_at_ms) for one in submissions]
            await desk.poster.repair_late(self._org_id, receipts)
        self._answer(granted, changed)

    async def send(self, steps: Sequence[Step]) -> None:
        """Send all of it as one transaction."""
        clock = self._desk.clock
        began_ms = clock.monotonic_ms()
        await self._desk.store.transact([step.operation for step in steps])
        self._pace.note_sent(clock.monotonic_ms() - began_ms)

    def _decide_all(
        self, books: Books
    ) -> tuple[list[tuple[Authorize, Granted]], list[tuple[Settle, Changed]]]:
        """Decide what is left on the books; answers what needs no write."""
        granted: list[tuple[Authorize, Granted]] = []
        denied: list[tuple[Authorize, Denied]] = []
        changed: list[tuple[Settle, Changed]] = []
        for command in self._left:
            if isinstance(command, Settle):
                change = self._decide_settlement(command, books)
                if change is not None:
                    accounts = [
                        one for one in change.after.grant.accounts if one.id not in command.without
                    ]
                    books.add(accounts, change.change)
                    _debit_since(books, command)
                    changed.append((command, change))
        books.owed = self._refunds.with_those_of(command for command, _ in changed)
        for command in self._left:
            if isinstance(command, Authorize):
                if command.existing is not None:
                    _answer_existing(command, command.existing)
                    continue
                decided = decide(books, command.wanted, command.id, command.nonce)
                if isinstance(decided, Granted):
                    granted.append((command, decided))
                else:
                    denied.append((command, decided))
        if self._is_fresh and self._knows_places and not granted and not changed:
            for command, denial in denied:
                self._desk.meter.denied += 1
                self._stale_terms += _stale_terms(books, command.wanted)
                answer(command.future, denial)
        self._drop_answered()
        return granted, changed

    def _decide_settlement(self, command: Settle, books: Books) -> Changed | None:
        seen = command.seen
        if is_own_change(command, seen):
            answer(command.future, Settled(seen, changed=True))
            return None
        try:
            change = settle(command.action, seen, books.now_ms, command.nonce)
        except PriceKeeperError as refused:
            fail(command, refused)
            return None
        if change is None:
            answer(command.future, Settled(seen, changed=False))
        return change

    async def _open_books(self) -> Books:
        """The books of all that is left, from memory or, where there is nothing, from the store."""
        keys, buckets = set[Key](), set[BucketKey]()
        for command in self._left:
            if isinstance(command, Authorize):
                for candidate in command.wanted.candidates:
                    keys |= candidate.keys
                    buckets |= candidate.bucket_keys
        items, seen, is_fresh = await self._recall(keys, buckets)
        self._is_fresh |= is_fresh
        return Books(items, seen, self._desk.clock.now_ms())

    async def _recall(
        self, keys: set[Key], buckets: set[BucketKey]
    ) -> tuple[dict[Key, Balances | None], dict[BucketKey, Bucket | None], bool]:
        """From memory; among others all of it is read, which is cheaper than to be refused."""
        desk = self._desk
        if not self._pace.must_look or not (keys or buckets):
            return await desk.recall(keys, buckets)
        items = {key: desk.seen_balances(key) for key in keys}
        seen = {key: desk.seen_bucket(key) for key in buckets}
        desk.forget([*keys, *buckets])
        found = await desk.recall(keys, buckets)
        self._pace.note_look()
        if any(items[key] not in (None, item) for key, item in found[0].items()) or any(
            seen[key] not in (None, bucket) for key, bucket in found[1].items()
        ):
            self._pace.note_others()
        return found

    def _forget(self) -> None:
        """Read everything anew that somebody may be denied by."""
        for command in self._left:
            for items in items_of(command):
                self._desk.forget(items)

    async def _note_refusals(
        self, steps: Sequence[Step], reasons: Sequence[CancellationReason]
    ) -> None:
        """Learn from a refusal what is there now."""
        self._desk.meter.lost_races += 1
        self._pace.note_others()
        elsewhere: list[Authorize] = []
        for step, reason in zip(steps, reasons, strict=False):
            if reason.code is not ReasonCode.CONDITION_FAILED:
                continue
            concern, item = step.concern, reason.item
            if isinstance(concern, OnAccounts):
                self._desk.note_item(concern.key, item)
                self._drop_gone(concern.key, item)
            elif isinstance(concern, OnBucket):
                self._desk.note_bucket(concern.key, bucket_of(item))
            elif isinstance(concern, OnSheet):
                for command in concern.commands:
                    _note_found(command, item)
            elif self._note_place(concern.command, item or {}):
                elsewhere.append(concern.command)
        self._drop_answered()
        await self._read_existing(elsewhere)

    def _note_place(self, command: Authorize, item: Mapping[str, Any]) -> bool:
        """The caller's own id stands for something, or its page is full; whether it is granted."""
        place = command.place
        if place is None:
            return False
        address = place.address
        taken = receipt_taken_for(item) if address is None else taken_for(item, address.name)
        if taken is not None:
            command.id = taken
            return True
        if address is None or entry_on(item, address.name) is not None:
            fail(command, ConflictError("authorization_id", "is that of a usage record"))
        elif is_full(item) and command.depth < ID_DIGITS:
            command.depth += 1
        return False

    def _drop_gone(self, key: Key, item: Mapping[str, Any] | None) -> None:
        """Leave out accounts of windows that are long over, which nobody needs any more."""
        for command in self._left:
            if isinstance(command, Settle):
                command.without.update(
                    account.id
                    for account in (*command.seen.grant.accounts, *command.since)
                    if Key(account.pk, account.sk) == key
                    and (item is None or USED + account.id not in item)
                )

    async def _look_again(self) -> None:
        """After a lost reply: read what became of the authorizations, and forget the books."""
        self._forget()
        with contextlib.suppress(StoreError):  # then the next attempt is refused, and learns it
            await self._read_existing(
                [command for command in self._left if isinstance(command, Authorize)]
            )
            await self._read_seen([one for one in self._left if isinstance(one, Settle)])

    async def _look_up_places(self) -> None:
        """Nobody is denied what was granted under the same id a moment ago."""
        granted: list[Authorize] = []
        for command in self._left:
            if isinstance(command, Authorize) and command.place is not None:
                _, address, lanes = command.place
                asked_as = command.place.request_id
                found = await self._desk.poster.find(self._org_id, lanes, {asked_as: address})
                there = found.get(asked_as)
                if isinstance(there, TakenPlace):
                    command.id = there.authorization_id
                    granted.append(command)
        await self._read_existing(granted)
        self._knows_places = True

    async def _read_existing(self, commands: Sequence[Authorize]) -> None:
        found = await self._read_all([command.id for command in commands])
        for command in commands:
            command.existing = found.get(command.id)

    async def _read_seen(self, commands: Sequence[Settle]) -> None:
        found = await self._read_all([command.seen.id for command in commands])
        for command in commands:
            command.seen = found.get(command.seen.id) or command.seen

    async def _read_all(self, ids: Iterable[str]) -> dict[str, Authorization | None]:
        """Those of these authorizations that are there, by their ids."""
        keys = {one: sheet_key(self._org_id, one) for one in ids}
        wanted = list(dict.fromkeys(keys.values()))
        if not wanted:
            return {}
        items = await self._desk.store.batch_get([(USAGE_AGG_SHARDED, key) for key in wanted])
        sheets = dict(zip(wanted, items, strict=True))
        return {one: find_on(sheets[key], one) for one, key in keys.items()}

    def _note_written(self, books: Books, buckets: Mapping[BucketKey, BucketStep]) -> None:
        """Remember the items as they are now, as far as that is known."""
        for key, changes in books.changes.items():
            self._desk.note_changes(key, changes)
        for bucket_key, one in buckets.items():
            seen = self._desk.seen_bucket(bucket_key)
            self._desk.note_bucket(bucket_key, expected(one.step, seen, one.debit))

    def _answer(
        self,
        granted: Sequence[tuple[Authorize, Granted]],
        changed: Sequence[tuple[Settle, Changed]],
    ) -> None:
        for command, grant in granted:
            self._desk.meter.granted += 1
            if command.future.cancelled() and not command.wanted.asked_as:
                self._desk.give_up(self._org_id, grant.authorization)
            answer(command.future, grant)
        for settlement, change in changed:
            self._desk.meter.settled[change.after.state.value] += 1
            answer(settlement.future, Settled(change.after, changed=True))
        self._drop_answered()

    async def _settle_terms(self) -> None:
        """Let limits that have changed reach the buckets that have denied a call."""
        for debit, step in self._stale_terms:
            with contextlib.suppress(StoreError):  # the next denial tries again
                item = await self._desk.store.update(normal(debit, step))
                self._desk.note_bucket((debit.entity, debit.resource), bucket_of(item))
        self._stale_terms = []

    async def _divide(self, failure: InvalidOperationError) -> None:
        """Carry the halves out apart: one command that the store refuses must not fail others."""
        left = self._left
        if len(left) == 1:
            raise self._error_of(failure) from failure
        middle = len(left) // 2
        for half in (left[:middle], left[middle:]):
            try:
                await Attempts(self._desk, self._org_id, self._refunds, self._pace, half).run()
            except StoreError as error:
                for command in half:
                    fail(command, error)

    async def _pause(self, attempt: int) -> None:
        if attempt >= _AT_ONCE:
            pause_ms = full_jitter_ms(
                attempt - _AT_ONCE + 1,
                first_ms=PAUSE_MS_FIRST,
                longest_ms=PAUSE_MS_MAX,
                randbelow=self._desk.random.randrange,
            )
            await self._desk.clock.sleep_ms(pause_ms)

    def _drop_answered(self) -> None:
        self._left = [command for command in self._left if not command.future.done()]

    def _error_of(self, failure: StoreError) -> StoreError:
        """What callers are told: once in doubt, no later failure proves that nothing happened."""
        if self._doubt and not isinstance(failure, OutcomeUnknownError):
            return OutcomeUnknownError(f"it may or may not have been decided: {failure}")
        return failure


def _stale_terms(books: Books, wanted: Wanted) -> list[tuple[Debit, Normal]]:
    """The buckets that deny a call on limits that have changed, and what brings them up to date."""
    found: list[tuple[Debit, Normal]] = []
    for candidate in wanted.candidates:
        for debit in wanted.debits(candidate, wanted.max_output_tokens):
            denial = books.find_violations(debit)
            if denial is not None and denial.settle is not None:
                found.append((debit, denial.settle))
    return found


def _debit_since(books: Books, command: Settle) -> None:
    """Spend a capture from budgets that are newer than its authorization."""
    if isinstance(command.action, Capture):
        since = [one for one in command.since if one.id not in command.without]
        books.add(since, spend(command.action.settlement.cost_usd_picos))


def is_own_change(command: Settle, seen: Authorization) -> bool:
    """Whether the authorization is as this command has left it: only its reply was lost."""
    return seen.nonce == command.nonce


def _posting(command: Settle) -> PostedRegion:
    """Where the record of a capture is: in the region of its authorization."""
    if command.submission is None:
        raise LookupError("only a capture has a record")
    return PostedRegion(
        command.submission.org_id, region_of(command.seen.id), command.submission.lanes
    )


def _note_found(command: Authorize | Settle, sheet: Mapping[str, Any] | None) -> None:
    """Learn from a sheet what is there of a command's own authorization."""
    if isinstance(command, Authorize):
        command.existing = find_on(sheet, command.id)
    else:
        command.seen = find_on(sheet, command.seen.id) or command.seen


def _answer_existing(command: Authorize, existing: Authorization) -> None:
    if existing.nonce == command.nonce or existing.grant.fingerprint == command.wanted.fingerprint:
        answer(command.future, Repeated(existing))
        return
    fail(command, ConflictError("authorization_id", "was used for another request"))
