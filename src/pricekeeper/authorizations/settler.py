"""Settles authorizations: captures, voids, expires and extends them, and remembers open ones.

The `Settler` also has what all use cases of authorizations share: the log, the reader, the claims,
the marks and the tokens of buckets.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from pricekeeper.authorizations.authorization import (
    Action,
    Authorization,
    Capture,
    Changed,
    HeldAccount,
    State,
    Void,
    settle,
    tokens_beyond,
)
from pricekeeper.authorizations.claims import Claims
from pricekeeper.authorizations.items import captured, extended, unsettled, voided
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.reading import UNKNOWN, AuthorizationReader, Regions, Seen
from pricekeeper.budgets.items import spend
from pricekeeper.clock import Clock
from pricekeeper.errors import NotFoundError, OutcomeUnknownError
from pricekeeper.ledger import Command, Decision, Draft, Ledger
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.draft import AnyCommand, Send, Tell
from pricekeeper.limiter import Taker
from pricekeeper.metering import RecordOnSheet, Submission
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.marking import is_late
from pricekeeper.metering.posting import Poster
from pricekeeper.storage import Store

REMEMBERED_MAX: Final = 100_000
"""A sweep finds the others."""
SETTLED_MAX: Final = 1_000
"""Settled ones in the heap, beside as many as are open, before the heap is made again."""


class Settled(msgspec.Struct, frozen=True):
    """The authorization after a settlement, and whether this settlement has changed it."""

    authorization: Authorization
    changed: bool
    book: Book
    nonce: bytes = b""
    sent_at_ms: int = 0


class Due(NamedTuple):
    """An open authorization of this process."""

    org_id: str
    authorization: Authorization
    book: Book
    """While this process follows that log, it learns what others do with the authorization."""


class OpenList:
    """The open authorizations that this process has granted, by id and by when they expire."""

    def __init__(self) -> None:
        self._open: dict[str, Due] = {}
        self._names: dict[str, str] = {}
        self._heap: list[tuple[int, str]] = []

    def add(self, org_id: str, authorization: Authorization, book: Book) -> None:
        own_id = authorization.id
        if len(self._open) >= REMEMBERED_MAX and own_id not in self._open:
            return
        self._open[own_id] = Due(org_id, authorization, book)
        if authorization.grant.asked_as:
            self._names[authorization.grant.asked_as] = own_id
        heapq.heappush(self._heap, (authorization.expires_at_ms, own_id))
        if len(self._heap) > 2 * len(self._open) + SETTLED_MAX:
            held = (due.authorization for due in self._open.values())
            self._heap = [(one.expires_at_ms, one.id) for one in held]
            heapq.heapify(self._heap)

    def remove(self, authorization_id: str) -> None:
        due = self._open.pop(authorization_id, None)
        if due is not None:
            self._names.pop(due.authorization.grant.asked_as, None)

    def find(self, authorization_id: str) -> Due | None:
        return self._open.get(self._names.get(authorization_id, authorization_id))

    def take_due(self, now_ms: int) -> list[Due]:
        due: list[Due] = []
        while self._heap and self._heap[0][0] <= now_ms:
            expires_at_ms, authorization_id = heapq.heappop(self._heap)
            one = self._open.get(authorization_id)
            if one is not None and one.authorization.expires_at_ms == expires_at_ms:
                self.remove(authorization_id)
                due.append(one)
        return due

    def __len__(self) -> int:
        return len(self._open)


class Settler:
    """Settles authorizations, and remembers those that this process has granted."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ledger: Ledger,
        poster: Poster,
        meter: AuthorizationMeter,
        tokens: Taker,
        *,
        on_change: Tell[Authorization] = lambda *_: None,
        on_record: Tell[RecordOnSheet] = lambda *_: None,
    ) -> None:
        """``on_change`` gets what this process grants and settles, ``on_record`` the records."""
        self.note_changed = on_change
        self.note_captured = on_record
        self.clock = clock
        self.ledger = ledger
        self.poster = poster
        self.meter = meter
        self.reader = AuthorizationReader(store, ledger)
        self.claims = Claims(store, self.reader, poster)
        self.regions = Regions(store, clock, self.reader, poster.marks.retention_days)
        self.tokens = tokens
        self._open = OpenList()
        ledger.observers.append(self._note_others)

    def recall(self, authorization_id: str) -> Seen | None:
        due = self._open.find(authorization_id)
        return None if due is None else self._seen(due)

    def take_due(self) -> list[tuple[str, Seen]]:
        due = self._open.take_due(self.clock.now_ms())
        return [(one.org_id, self._seen(one)) for one in due]

    def note_granted(self, org_id: str, granted: Authorization, book: Book) -> None:
        self.meter.granted += 1
        self._open.add(org_id, granted, book)

    def give_up(self, granted: Authorization) -> None:
        due = self._open.find(granted.id)
        if due is not None:
            void = Void("its caller has left")
            self.submit(due.org_id, void, self._seen(due), follows=True)

    def submit(
        self,
        org_id: str,
        action: Action,
        seen: Seen,
        *,
        record: RecordOnSheet | None = None,
        since: tuple[HeldAccount, ...] = (),
        send: Send | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        follows: bool = False,
    ) -> Settle:
        """Settle an authorization, or find that it is settled; its future need not be awaited."""
        command = Settle(org_id, action, seen, self, record, since, send, on_failure)
        self.ledger.submit(org_id, command, follows=follows)
        return command

    async def return_tokens(self, void: Void, settled: Settled) -> None:
        if settled.changed:
            await self.tokens.give_back_now(tokens_beyond(void, settled.authorization))

    async def close(self) -> None:
        await self.ledger.close()
        await self.tokens.close()

    def note_settled(self, org_id: str, action: Action, settled: Settled) -> None:
        authorization = settled.authorization
        if authorization.state is State.OPEN:
            self._open.add(org_id, authorization, settled.book)
        else:
            self._open.remove(authorization.id)
        if not settled.changed:
            return
        self.meter.settled[str(authorization.state)] += 1
        beyond = tokens_beyond(action, authorization)
        if beyond:
            self.tokens.give_back(beyond)

    def _seen(self, due: Due) -> Seen:
        """Its generation is `UNKNOWN` if this process has lost the log since."""
        follows = self.ledger.known_book(due.org_id) is due.book
        return Seen(due.authorization, due.book.generation if follows else UNKNOWN)

    def _note_others(self, authorization_ids: Iterable[str]) -> None:
        for one in authorization_ids:
            self._open.remove(one)


class Settle(Command[Settled]):
    """Settles one authorization on the log."""

    def __init__(
        self,
        org_id: str,
        action: Action,
        seen: Seen,
        settler: Settler,
        record: RecordOnSheet | None,
        since: tuple[HeldAccount, ...],
        send: Send | None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """``since`` are accounts of newer budgets, from which the cost is spent, too.

        ``on_failure`` is for a caller that does not wait, and tries again then.
        """
        self._org_id = org_id
        self._action = action
        self.seen = seen
        self._settler = settler
        self._record = record
        self._since = since
        self._on_failure = on_failure
        self.lingers = on_failure is not None
        self._settled: Settled | None = None
        self.send = send
        self.keys = seen.authorization.grant.terms.keys
        if since:
            self.keys = [*self.keys, *(one.key for one in since)]
        self.name = seen.authorization.id

    def decide(self, draft: Draft) -> Decision:
        seen, generation = self.seen
        known = draft.outcome(seen.id)
        if generation != draft.book.generation or (known is not None and known != seen.outcome):
            draft.ask(("read", seen.id), self._look_again, self.fail)
            return Decision.WAITS
        changed = settle(self._action, seen, draft.now_ms)
        if changed is None:
            self._end(Settled(seen, changed=False, book=draft.book))
            return Decision.ANSWERED
        record = self._record
        if record is not None and must_mark(draft, record.submission, self._settler.poster, self):
            return Decision.WAITS
        self._write(draft, changed)
        return Decision.WRITES

    def note_written(self) -> None:
        if self._settled is not None:
            self._end(self._settled)

    def fail(self, error: BaseException) -> None:
        if not self.is_over:
            self._report_failure(error)
        super().fail(error)

    def _end(self, settled: Settled) -> None:
        self._settler.note_settled(self._org_id, self._action, settled)
        if (
            self._on_failure is not None
            and settled.changed
            and is_late(settled.sent_at_ms, self._settler.clock.now_ms())
        ):  # the record may have missed the last sum of its tick: then it needs a repair
            self._report_failure(OutcomeUnknownError("the record may be missing from totals"))
        self.answer(settled)

    def _report_failure(self, error: BaseException) -> None:
        """Call ``on_failure`` from the event loop: what it raises does not concern this sheet."""
        if self._on_failure is not None:
            asyncio.get_running_loop().call_soon(self._on_failure, error)

    async def _look_again(self) -> None:
        seen = await self._settler.reader.find(self._org_id, self.seen.authorization.id)
        if seen is None:
            raise NotFoundError("authorization")
        self.seen = seen

    def _write(self, draft: Draft, changed: Changed) -> None:
        after, grant = changed.after, changed.after.grant
        for account in grant.terms.accounts:  # accounts of past windows may be deleted
            draft.add_if_open(account.key, account.id, changed.change)
        if isinstance(self._action, Capture):
            cost = self._action.settlement.cost_usd_picos
            for account in self._since:
                draft.add_if_open(account.key, account.id, spend(cost))
        outcome = self._outcome(draft, after)
        draft.settle(after.id, outcome)
        after = Authorization(
            after.id, grant, after.state, after.expires_at_ms, after.settlement, outcome
        )
        self._settled = Settled(
            after, changed=True, book=draft.book, nonce=draft.nonce, sent_at_ms=draft.now_ms
        )
        if after.state is not State.OPEN:
            draft.gather(self._settler.note_changed, after)

    def _outcome(self, draft: Draft, after: Authorization) -> str:
        if after.state is State.OPEN:
            return extended(after.expires_at_ms)
        if after.state is State.UNSETTLED:
            return unsettled(after.expires_at_ms)
        if after.state is State.VOIDED and after.settlement is not None:
            return voided(after.settlement.at_ms, after.settlement.reason)
        if self._record is None:
            raise LookupError("a capture has a record")
        draft.gather(self._settler.note_captured, self._record)
        return captured(draft.position.prefix, put_record(draft, self._record.submission))


def must_mark(draft: Draft, submission: Submission, poster: Poster, command: AnyCommand) -> bool:
    """Whether the chapter's region must be marked first; then the draft is asked to mark it."""
    found = ("record", submission.lanes)
    if found in draft.found:
        return False
    region, now_ms = draft.position.chapter.region, draft.now_ms
    posting = PostedRegion(submission.org_id, region, submission.lanes)
    if poster.marks.is_marked(posting, now_ms):
        draft.found.add(found)
        return False
    draft.ask(("record", posting), lambda: poster.marks.mark(posting, now_ms), command.fail)
    return True


def put_record(draft: Draft, submission: Submission) -> int:
    """Put a record on the sheet; returns its number."""
    number = draft.take_number()
    record = submission.written_on_sheet(number, draft.nonce, draft.now_ms)
    draft.put({record.name: record.data, record.terms.name: record.terms.data})
    return number
