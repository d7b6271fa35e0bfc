"""One worker for each organisation and process: what waits is decided together and written once.

Commands wait in a queue. The worker takes what is there, decides it on the accounts and buckets as
it last saw them (`decision`), and sends one transaction. Only one is under way, so an instance
never gets into its own way; what arrives meanwhile goes into the next.

What was seen may be old. Every operation carries the condition under which its decision is right,
and a refusal brings the item along, from which it is decided again. Nobody is denied by what may be
old: it is read anew first. If a reply is lost, the authorizations say by their nonces whether the
transaction was applied. If it arrives later, its conditions are those of the next attempt, so one
of the two is refused.

Bounds: `WAITING_MAX` commands of an organisation, `COMMANDS_MAX` in a transaction, `ATTEMPTS_MAX`
attempts with up to `PAUSE_MS_MAX` between them, `SEEN_MAX` items that are remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeVar

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.authorizations.commands import Authorize, Command, Repeated, Settle, Settled
from pricekeeper.authorizations.decision import (
    TOKENS,
    Books,
    BucketKey,
    Denied,
    Granted,
    Wanted,
    decide,
)
from pricekeeper.authorizations.items import aliased_id, authorization_key, authorization_of
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.settling import Capture, Changed, Void, settle
from pricekeeper.authorizations.transaction import (
    OnAccounts,
    OnAlias,
    OnAuthorization,
    OnBucket,
    Step,
    make_transaction,
)
from pricekeeper.budgets.items import USED
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, error_copy, full_jitter_ms
from pricekeeper.errors import (
    CancellationReason,
    ConditionFailedError,
    ConflictError,
    ContendedError,
    InvalidOperationError,
    OutcomeUnknownError,
    OverloadedError,
    PriceKeeperError,
    ReasonCode,
    RequestIdReusedError,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.limiter.bucket import Bucket, Debit, Normal, expected
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.limiter.limits import limit_of
from pricekeeper.limiter.writes import adjust, normal
from pricekeeper.metering.journal import ID_DIGITS, entry_on, is_full, region_at
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.posting import Poster
from pricekeeper.storage import Item, Key, Store, Update
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED

WAITING_MAX: Final = 2_000
COMMANDS_MAX: Final = 24
OPERATIONS_MAX: Final = 96
ATTEMPTS_MAX: Final = 16
SEEN_MAX: Final = 20_000
PAUSE_MS_FIRST: Final = 4
PAUSE_MS_MAX: Final = 128
_AT_ONCE: Final = 2
"""Attempts without a pause before them."""
_T = TypeVar("_T")


class Desk:
    """What the workers of a process share."""

    def __init__(
        self, store: Store, clock: Clock, poster: Poster, random: Random, meter: AuthorizationMeter
    ) -> None:
        self.store = store
        self.clock = clock
        self.poster = poster
        self.random = random
        self.meter = meter
        self.give_up: Callable[[str, int, Authorization], None] = lambda *_: None
        """What to do with a grant that nobody has been told of."""
        self.accounts: BoundedCache[Key, Item] = BoundedCache(SEEN_MAX)
        self.buckets: BoundedCache[BucketKey, Bucket] = BoundedCache(SEEN_MAX)


class Worker:
    """Decides and writes the commands of one organisation."""

    def __init__(self, desk: Desk, org_id: str, lanes: int, end: Callable[[], None]) -> None:
        self._desk = desk
        self._org_id = org_id
        self._lanes = lanes
        self._end = end
        self._waiting: deque[Command] = deque()
        self.task: asyncio.Task[None] | None = None

    def submit(self, command: Command) -> None:
        """Have the command carried out; its future is set in any case."""
        if len(self._waiting) >= WAITING_MAX:
            raise OverloadedError("too many authorizations of this organisation are waiting")
        self._waiting.append(command)
        if self.task is None:
            self.task = asyncio.create_task(self._run(), name="pricekeeper-authorizations")

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # what comes in this turn of the loop is decided with it
                await self._carry_out(self._take())
        finally:
            self.task = None
            for command in self._waiting:
                _fail(command, StoreError("the authorization was not decided"))
            self._end()

    def _take(self) -> list[Command]:
        """As many commands as one transaction can carry; one for each authorization."""
        taken: list[Command] = []
        operations, ids = 0, set[str]()
        while self._waiting and len(taken) < COMMANDS_MAX:
            command = self._waiting[0]
            name = _name(command)
            operations += _operations_of(command)
            if taken and (operations > OPERATIONS_MAX or name in ids):
                break
            ids.add(name)
            taken.append(self._waiting.popleft())
        return taken

    async def _carry_out(self, commands: Sequence[Command]) -> None:
        """Decide and write them, and answer everybody, whatever happens."""
        error: BaseException = StoreError("the authorization was not decided")
        try:
            await _Attempts(self._desk, self._org_id, self._lanes, commands).run()
        except StoreError as failure:
            error = failure
        except BaseException as failure:
            error = failure
            raise
        finally:
            for command in commands:
                _fail(command, error)


class _Attempts:
    """The attempts to carry out some commands together."""

    def __init__(self, desk: Desk, org_id: str, lanes: int, commands: Sequence[Command]) -> None:
        self._desk = desk
        self._org_id = org_id
        self._lanes = lanes
        self._left = list(commands)
        self._is_fresh = False
        self._doubt = False
        self._page_nonce = desk.poster.new_nonce()
        self._stale_terms: list[tuple[Debit, Normal]] = []

    async def run(self) -> None:
        for attempt in range(ATTEMPTS_MAX):
            await self._pause(attempt)
            try:
                await self._attempt()
            except TransactionCancelledError as cancelled:
                raise ContendedError(str(cancelled)) from cancelled
            except (OutcomeUnknownError, ContendedError) as failure:
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

    async def _attempt(self) -> None:
        desk = self._desk
        books = await self._open_books()
        granted, changed = self._decide_all(books)
        if not granted and not changed:
            await self._settle_terms()
            if self._left:
                self._forget()  # some are denied, by what may be old
            return
        self._is_fresh = False
        sent_at_ms = books.now_ms
        posting = PostedRegion(self._org_id, region_at(sent_at_ms), self._lanes)
        submissions = [one.submission for one, _ in changed if one.submission is not None]
        for region in {
            posting.region,
            *(one.address.region for one in submissions if one.address is not None),
        }:
            if submissions:
                await desk.poster.mark(posting._replace(region=region), sent_at_ms)
        steps = make_transaction(
            self._org_id,
            books,
            granted,
            changed,
            sent_at_ms=sent_at_ms,
            page_nonce=self._page_nonce,
            expires_at_epoch=desk.poster.expires_at_epoch(posting.region),
        )
        try:
            await desk.store.transact([step.operation for step in steps])
        except TransactionCancelledError as cancelled:
            await self._note_refusals(steps, cancelled.reasons)
            return
        self._note_written(books, steps)
        receipts = [one.receipt(b"", sent_at_ms) for one in submissions]
        await desk.poster.repair_late(self._org_id, receipts)
        self._answer(granted, changed)
        await self._give_back(changed)

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
                    changed.append((command, change))
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
        if self._is_fresh and not granted and not changed:
            for command, denial in denied:
                self._desk.meter.denied += 1
                self._stale_terms += _stale_terms(books, command.wanted)
                _set(command.future, denial)
        self._drop_answered()
        return granted, changed

    def _decide_settlement(self, command: Settle, books: Books) -> Changed | None:
        seen = command.seen
        if seen.nonce == command.nonce:  # it was applied, and the reply was lost
            _set(command.future, Settled(seen, changed=True))
            return None
        try:
            change = settle(command.action, seen, books.now_ms, command.nonce)
        except PriceKeeperError as refused:
            _fail(command, refused)
            return None
        if change is None:
            _set(command.future, Settled(seen, changed=False))
        return change

    async def _open_books(self) -> Books:
        """The books of all that is left, from memory or, where there is nothing, from the store."""
        desk = self._desk
        keys, buckets = set[Key](), set[BucketKey]()
        for command in self._left:
            if isinstance(command, Authorize):
                for candidate in command.wanted.candidates:
                    keys.update(account.key for account in candidate.accounts)
                    buckets.update((one.entity, candidate.label) for one in candidate.buckets)
        items: dict[Key, Item | None] = {key: desk.accounts.get(key) for key in keys}
        seen: dict[BucketKey, Bucket | None] = {key: desk.buckets.get(key) for key in buckets}
        missing = [key for key, item in items.items() if item is None]
        unseen = [key for key, bucket in seen.items() if bucket is None]
        if missing or unseen:
            found = await desk.store.batch_get(
                [
                    *((RATE_BUCKETS, key) for key in missing),
                    *((RATE_BUCKETS, bucket_key(*key)) for key in unseen),
                ]
            )
            for key, item in zip(missing, found, strict=False):
                items[key] = item
                self._note_item(key, item)
            for bucket, item in zip(unseen, found[len(missing) :], strict=True):
                seen[bucket] = bucket_of(item)
                self._note_bucket(bucket, seen[bucket])
            self._is_fresh |= len(missing) == len(items) and len(unseen) == len(seen)
        elif not items and not seen:
            self._is_fresh = True
        return Books(items, seen, desk.clock.now_ms())

    def _forget(self) -> None:
        """Read everything anew that somebody may be denied by."""
        for command in self._left:
            if isinstance(command, Authorize):
                for candidate in command.wanted.candidates:
                    for account in candidate.accounts:
                        self._desk.accounts.pop(account.key)
                    for one in candidate.buckets:
                        self._desk.buckets.pop((one.entity, candidate.label))

    async def _note_refusals(
        self, steps: Sequence[Step], reasons: Sequence[CancellationReason]
    ) -> None:
        """Learn from a refusal what is there now."""
        self._desk.meter.lost_races += 1
        aliases: list[Authorize] = []
        for step, reason in zip(steps, reasons, strict=False):
            if reason.code is not ReasonCode.CONDITION_FAILED:
                continue
            concern, item = step.concern, reason.item
            if isinstance(concern, OnAccounts):
                self._note_item(concern.key, item)
                self._drop_gone(concern.key, item)
            elif isinstance(concern, OnBucket):
                self._note_bucket(concern.key, bucket_of(item))
            elif isinstance(concern, OnAuthorization):
                found = authorization_of(item)
                if isinstance(concern.command, Authorize):
                    concern.command.existing = found
                elif found is not None:
                    concern.command.seen = found
            elif isinstance(concern, OnAlias):
                concern.command.id = aliased_id(item) or concern.command.id
                aliases.append(concern.command)
            elif concern.command is not None:
                self._note_record(concern.command, item)
            else:
                self._page_nonce = self._desk.poster.new_nonce()
        await self._read_existing(aliases)

    def _drop_gone(self, key: Key, item: Mapping[str, Any] | None) -> None:
        """Leave out accounts of windows that are long over, which nobody needs any more."""
        for command in self._left:
            if isinstance(command, Settle):
                command.without.update(
                    account.id
                    for account in command.seen.grant.accounts
                    if Key(account.pk, account.sk) == key
                    and (item is None or USED + account.id not in item)
                )

    def _note_record(self, command: Settle, item: Mapping[str, Any] | None) -> None:
        """The id of a capture is that of a record, or its page is full."""
        submission = command.submission
        if submission is None:
            return
        address, page = submission.address, item or {}
        if address is None or entry_on(page, address.name) is not None:
            _fail(command, RequestIdReusedError(submission.request_id))
            self._drop_answered()
        elif is_full(page) and command.depth < ID_DIGITS:
            command.depth += 1

    async def _look_again(self) -> None:
        """After a lost reply: read what became of the authorizations, and forget the books."""
        self._forget()
        for command in self._left:
            if isinstance(command, Settle):
                for account in command.seen.grant.accounts:
                    self._desk.accounts.pop(Key(account.pk, account.sk))
        with contextlib.suppress(StoreError):  # then the next attempt is refused, and learns it
            await self._read_existing(
                [command for command in self._left if isinstance(command, Authorize)]
            )
            await self._read_seen([one for one in self._left if isinstance(one, Settle)])

    async def _read_existing(self, commands: Sequence[Authorize]) -> None:
        found = await self._read_all([command.id for command in commands])
        for command, authorization in zip(commands, found, strict=True):
            command.existing = authorization

    async def _read_seen(self, commands: Sequence[Settle]) -> None:
        found = await self._read_all([command.seen.id for command in commands])
        for command, authorization in zip(commands, found, strict=True):
            command.seen = authorization or command.seen

    async def _read_all(self, ids: Iterable[str]) -> list[Authorization | None]:
        keys = [(USAGE_AGG_SHARDED, authorization_key(self._org_id, one)) for one in ids]
        if not keys:
            return []
        return [authorization_of(item) for item in await self._desk.store.batch_get(keys)]

    def _note_written(self, books: Books, steps: Sequence[Step]) -> None:
        """Remember the items as they are now, as far as that is known."""
        for step in steps:
            concern, operation = step.concern, step.operation
            if isinstance(concern, OnAccounts) and isinstance(operation, Update):
                before = self._desk.accounts.peek(concern.key)
                if before is not None:
                    self._note_item(concern.key, operation.apply(before))
            elif isinstance(concern, OnBucket):
                after = expected(
                    books.steps[concern.key], self._desk.buckets.peek(concern.key), concern.debit
                )
                self._note_bucket(concern.key, after)

    def _note_item(self, key: Key, item: Mapping[str, Any] | None) -> None:
        if item is None:
            self._desk.accounts.pop(key)
        else:
            self._desk.accounts.put(key, dict(item))

    def _note_bucket(self, key: BucketKey, bucket: Bucket | None) -> None:
        if bucket is None:
            self._desk.buckets.pop(key)
        else:
            self._desk.buckets.put(key, bucket)

    def _answer(
        self,
        granted: Sequence[tuple[Authorize, Granted]],
        changed: Sequence[tuple[Settle, Changed]],
    ) -> None:
        for command, grant in granted:
            self._desk.meter.granted += 1
            if command.future.cancelled() and not command.wanted.asked_as:
                self._desk.give_up(self._org_id, self._lanes, grant.authorization)
            _set(command.future, grant)
        for settlement, change in changed:
            self._desk.meter.settled[change.after.state.value] += 1
            _set(settlement.future, Settled(change.after, changed=True))
        self._drop_answered()

    async def _settle_terms(self) -> None:
        """Let limits that have changed reach the buckets that have denied a call."""
        for debit, step in self._stale_terms:
            with contextlib.suppress(StoreError):  # the next denial tries again
                item = await self._desk.store.update(normal(debit, step))
                self._note_bucket((debit.entity, debit.resource), bucket_of(item))
        self._stale_terms = []

    async def _give_back(self, changed: Sequence[tuple[Settle, Changed]]) -> None:
        """Settle what buckets gave to what was used. If that fails, the tokens refill by time."""
        debits: dict[BucketKey, Debit] = {}
        for command, _ in changed:
            for debit in _tokens_beyond(command):
                key = (debit.entity, debit.resource)
                have = debits.get(key)
                tokens = dict(have.tokens if have else {})
                for name, count in debit.tokens.items():
                    tokens[name] = tokens.get(name, 0) + count
                limits = {**(have.limits if have else {}), **debit.limits}
                debits[key] = Debit(debit.entity, debit.resource, limits, tokens)
        for key, debit in debits.items():
            try:
                item = await self._desk.store.update(adjust(debit))
            except ConditionFailedError as refused:
                self._desk.meter.refunds_lost += 1
                self._note_bucket(key, bucket_of(refused.item))
            except StoreError:
                self._desk.meter.refunds_lost += 1
                self._desk.buckets.pop(key)
            else:
                self._note_bucket(key, bucket_of(item))

    async def _divide(self, failure: InvalidOperationError) -> None:
        """Carry the halves out apart: one command that the store refuses must not fail others."""
        left = self._left
        if len(left) == 1:
            raise self._error_of(failure) from failure
        middle = len(left) // 2
        for half in (left[:middle], left[middle:]):
            try:
                await _Attempts(self._desk, self._org_id, self._lanes, half).run()
            except StoreError as error:
                for command in half:
                    _fail(command, error)

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


def _tokens_beyond(command: Settle) -> list[Debit]:
    """What a settlement takes from buckets beyond what was reserved; less than zero is given back.

    A capture settles the tokens of the call by Bedrock's own arithmetic. A void gives all back.
    """
    debits: list[Debit] = []
    for held in command.seen.grant.buckets:
        tokens: dict[str, int] = {}
        if isinstance(command.action, Void):
            tokens = {name: -count for name, count in held.tokens.items()}
        elif isinstance(command.action, Capture) and TOKENS in held.tokens:
            tokens = {TOKENS: command.action.bucket_tokens - held.tokens[TOKENS]}
        tokens = {name: count for name, count in tokens.items() if count}
        if tokens:
            limits = {name: limit_of(name, held.terms[name]) for name in tokens}
            debits.append(Debit(held.entity, command.seen.grant.label, limits, tokens))
    return debits


def _stale_terms(books: Books, wanted: Wanted) -> list[tuple[Debit, Normal]]:
    """The buckets that deny a call on limits that have changed, and what brings them up to date."""
    found: list[tuple[Debit, Normal]] = []
    for candidate in wanted.candidates:
        for debit in wanted.debits(candidate, wanted.max_output_tokens):
            denial = books.find_violations(debit)
            if denial is not None and denial.settle is not None:
                found.append((debit, denial.settle))
    return found


def _answer_existing(command: Authorize, existing: Authorization) -> None:
    if existing.nonce == command.nonce or existing.grant.fingerprint == command.wanted.fingerprint:
        _set(command.future, Repeated(existing))
        return
    _fail(command, ConflictError("authorization_id", "was used for another request"))


def _name(command: Command) -> str:
    """What only one command of a transaction may be about."""
    if isinstance(command, Settle):
        return command.seen.id
    return command.wanted.asked_as or command.id


def _operations_of(command: Command) -> int:
    """How many operations a command adds to a transaction, at most."""
    if isinstance(command, Settle):
        return 3 + len({(one.pk, one.sk) for one in command.seen.grant.accounts})
    accounts = {one.key for candidate in command.wanted.candidates for one in candidate.accounts}
    buckets = max((len(one.buckets) for one in command.wanted.candidates), default=0)
    return 2 + len(accounts) + buckets


def _set(future: asyncio.Future[_T], outcome: _T) -> None:
    if not future.done():  # else its caller was cancelled; the decision stands
        future.set_result(outcome)


def _fail(command: Command, error: BaseException) -> None:
    future: asyncio.Future[Any] = command.future
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error_copy(error))
