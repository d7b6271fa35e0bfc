"""What the worker of an organisation is asked for: calls that want to go, and settlements.

Each is decided on the log as it is (`pricekeeper.ledger`), and written on its next sheet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from pricekeeper.authorizations import outcomes
from pricekeeper.authorizations.authorization import Authorization, HeldAccount, State
from pricekeeper.authorizations.claims import Claim, Claims, Place
from pricekeeper.authorizations.decision import (
    ChosenCandidate,
    Denied,
    Granted,
    Speeds,
    Taken,
    Wanted,
    Wants,
    choose,
    make_grant,
)
from pricekeeper.authorizations.grants import GRANT, encode_grant
from pricekeeper.authorizations.reading import Seen
from pricekeeper.authorizations.regions import Regions
from pricekeeper.authorizations.settling import Action, Capture, Changed, settle
from pricekeeper.budgets.items import hold, spend
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.ledger import AccountNotOpenError, Command, Decision, Draft
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.command import AnyCommand, Send
from pricekeeper.ledger.draft import Tell
from pricekeeper.ledger.position import authorization_id_of
from pricekeeper.metering import RecordOnSheet, Submission
from pricekeeper.metering.journal_items import PostedRegion
from pricekeeper.metering.posting import Poster


class Existing(msgspec.Struct, frozen=True):
    """The id that a caller gave stands for that authorization already."""

    own_id: str


class Settled(msgspec.Struct, frozen=True):
    """The authorization after a settlement, and whether this one has changed it."""

    authorization: Authorization
    changed: bool
    book: Book
    """The log that it was settled on."""
    nonce: bytes = b""
    """Of the sheet that says so."""
    sent_at_ms: int = 0


class Clerk(Protocol):
    """Who has calls authorized and settled."""

    claims: Claims
    """Claims the places of usage records of ids that callers gave."""
    regions: Regions
    """Marks the region of a chapter for sweeps, before something is granted in it."""
    poster: Poster
    """Marks a region for sums, before a record is posted into it."""
    note_changed: Tell[Authorization]
    """Is told of all that one sheet has granted or settled."""
    note_captured: Tell[RecordOnSheet]
    """Is told of all records of one sheet."""

    async def read(self, org_id: str, own_id: str) -> Seen:
        """The authorization of that id; raises `NotFoundError` if there is none."""
        ...

    async def find_named(self, org_id: str, place: Place) -> str | None:
        """The authorization that an id stands for which its caller gave it, if it does."""
        ...

    def note_settled(self, org_id: str, action: Action, settled: Settled) -> None:
        """Learn what became of it, also if nobody waits for that any more."""
        ...

    def is_late(self, settled: Settled) -> bool:
        """Whether its record may have missed the last sum of its tick: then it needs a repair."""
        ...


Answer: TypeAlias = Granted | Denied | Wants | Existing


class Authorize(Command[Answer]):
    """A call that wants to be authorized, with the tokens that were taken for it."""

    def __init__(
        self,
        wanted: Wanted,
        speeds: Speeds,
        clerk: Clerk,
        claim: Claim | None,
        on_end: Callable[[Answer | None, Book | None], None],
    ) -> None:
        """``claim`` is that of the id that its caller gave it, if it did.

        ``on_end`` is told what became of it and on which log, also if nobody waits any more.
        """
        candidates = wanted.candidates
        self.keys = candidates[0].chain.terms.keys
        if len(candidates) > 1:
            self.keys = dict.fromkeys(key for one in candidates for key in one.chain.terms.keys)
        self.name = wanted.asked_as
        self._wanted = wanted
        self._speeds = speeds
        self._clerk = clerk
        self._claim = claim
        self._is_new = claim is None
        """Whether the id is known to stand for nothing."""
        self._on_end = on_end
        self._granted: Granted | None = None
        self._denied: Denied | None = None
        self._book: Book | None = None

    def decide(self, draft: Draft) -> Decision:
        """Grant the first candidate that there is room for."""
        wanted, claim = self._wanted, self._claim
        if claim is not None:
            own_id = draft.book.named(wanted.asked_as) or claim.existing
            if own_id is not None:
                self._end(Existing(own_id))
                return Decision.ANSWERED
            if claim.failure is not None:
                raise claim.failure
        choice = choose(draft, wanted, self._speeds)
        if isinstance(choice, Wants):
            self._end(choice)
            return Decision.ANSWERED
        if isinstance(choice, Denied):
            self._denied = choice
            if self._is_new:
                return Decision.DENIED
            draft.ask(("named", wanted.asked_as), self._look_up_name, self.fail)
            return Decision.WAITS
        if self._must_wait(draft):
            return Decision.WAITS
        self._granted, self._book = self._grant(draft, choice), draft.book
        return Decision.WRITES

    def note_written(self) -> None:
        self._end(self._granted)

    def deny(self) -> None:
        self._end(self._denied)

    def fail(self, error: BaseException) -> None:
        self._tell(None)
        super().fail(error)

    def _must_wait(self, draft: Draft) -> bool:
        """Whether the region is to be marked, or the caller's id to be claimed, before."""
        org_id, region = self._wanted.org_id, draft.position.chapter.region
        must_mark = False
        if "grant" not in draft.found:
            regions = self._clerk.regions
            must_mark = regions.needs_mark(org_id, region)
            if must_mark:
                draft.ask(("grant", region), lambda: regions.mark(org_id, region), self.fail)
            else:
                draft.found.add("grant")
        claim = self._claim
        must_claim = claim is not None and _must_claim(draft, org_id, claim, self._clerk, self)
        return must_mark or must_claim

    async def _look_up_name(self) -> None:
        """Nobody is denied what was granted under the same id a moment ago."""
        if self._claim is not None:
            own_id = await self._clerk.find_named(self._wanted.org_id, self._claim.place)
            if own_id is not None:
                self._end(Existing(own_id))
        self._is_new = True

    def _end(self, answer: Answer | None) -> None:
        self._tell(answer)
        if answer is not None:
            self.answer(answer)

    def _tell(self, answer: Answer | None) -> None:
        on_end, self._on_end = self._on_end, _tell_nobody
        on_end(answer, self._book)

    def _grant(self, draft: Draft, choice: ChosenCandidate) -> Granted:
        wanted, number = self._wanted, draft.take_number()
        candidate, speed = wanted.candidates[choice.rank], self._speeds.get(choice.rank)
        grant, terms = make_grant(wanted, choice)
        change = hold(grant.held_usd_picos)
        balances = [
            (account, draft.add(account.key, account.id, change))
            for account in candidate.chain.accounts
        ]
        data = encode_grant(grant, terms, draft.now_ms, wanted.hold_ms)
        draft.put(f"{GRANT}{number}", data)
        draft.put(terms.name, terms.data)
        if wanted.asked_as:
            draft.name(number, wanted.asked_as)
        granted = Authorization(
            authorization_id_of(draft.sort_key, number),
            grant,
            State.OPEN,
            draft.now_ms + wanted.hold_ms,
        )
        draft.gather(self._clerk.note_changed, granted)
        limits = speed.limits if isinstance(speed, Taken) else {}
        return Granted(granted, choice.rank, tuple(balances), limits)


class Settle(Command[Settled]):
    """A settlement of an authorization."""

    def __init__(
        self,
        org_id: str,
        action: Action,
        seen: Seen,
        clerk: Clerk,
        record: RecordOnSheet | None,
        since: tuple[HeldAccount, ...],
        send: Send | None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """``record`` is the one that a capture counts as.

        ``since`` are accounts that it is spent from and was not held against: their budgets are
        newer. ``on_failure`` is for whoever does not wait for the future, and tries again then.
        """
        self._org_id = org_id
        self._action = action
        self.seen = seen
        """The authorization as it was last seen."""
        self._clerk = clerk
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
        """Change what is as it was seen; what has changed since is read first."""
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
        if record is not None and _must_mark(draft, record.submission, self._clerk.poster, self):
            return Decision.WAITS
        self._write(draft, changed)
        return Decision.WRITES

    def note_written(self) -> None:
        if self._settled is not None:
            self._end(self._settled)

    def fail(self, error: BaseException) -> None:
        if not self.is_over:
            self._tell_failure(error)
        super().fail(error)

    def _end(self, settled: Settled) -> None:
        self._clerk.note_settled(self._org_id, self._action, settled)
        if self._on_failure is not None and self._clerk.is_late(settled):
            self._tell_failure(OutcomeUnknownError("the record may be missing from totals"))
        self.answer(settled)

    def _tell_failure(self, error: BaseException) -> None:
        """Have whoever began it told, by the loop: what it raises is not for the others here."""
        if self._on_failure is not None:
            asyncio.get_running_loop().call_soon(self._on_failure, error)

    async def _look_again(self) -> None:
        self.seen = await self._clerk.read(self._org_id, self.seen.authorization.id)

    def _write(self, draft: Draft, changed: Changed) -> None:
        after, grant = changed.after, changed.after.grant
        # Accounts of windows that are long over are gone, and nobody needs them any more.
        for account in grant.terms.accounts:
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
            draft.gather(self._clerk.note_changed, after)

    def _outcome(self, draft: Draft, after: Authorization) -> str:
        if after.state is State.OPEN:
            return outcomes.extended(after.expires_at_ms)
        if after.state is State.UNSETTLED:
            return outcomes.unsettled(after.expires_at_ms)
        if after.state is State.VOIDED and after.settlement is not None:
            return outcomes.voided(after.settlement.at_ms, after.settlement.reason)
        if self._record is None:
            raise LookupError("a capture has a record")
        draft.gather(self._clerk.note_captured, self._record)
        return outcomes.captured(draft.prefix, _put_record(draft, self._record.submission))


class RecordedAt(msgspec.Struct, frozen=True):
    """A record is on a sheet."""

    nonce: bytes
    sent_at_ms: int


class RecordClaimed(Command[RecordedAt | Existing]):
    """A usage record whose id was claimed for a call that was not granted."""

    def __init__(self, org_id: str, record: RecordOnSheet, clerk: Clerk, claim: Claim) -> None:
        submission = record.submission
        self.keys = dict.fromkeys(account.key for account in submission.budget_accounts)
        self.name = submission.request_id
        self._org_id = org_id
        self._record = record
        self._clerk = clerk
        self._claim = claim

    def decide(self, draft: Draft) -> Decision:
        """Count it, and let its id stand for it, unless it stands for something."""
        submission, claim = self._record.submission, self._claim
        own_id = draft.book.named(submission.request_id) or claim.existing
        if own_id is not None:
            self.answer(Existing(own_id))
            return Decision.ANSWERED
        if claim.failure is not None:
            raise claim.failure
        for account in submission.budget_accounts:
            if draft.balance(account.key, account.id) is None:
                self.fail(AccountNotOpenError(account.name))
                return Decision.ANSWERED
        must_mark = _must_mark(draft, submission, self._clerk.poster, self)
        if _must_claim(draft, self._org_id, claim, self._clerk, self) or must_mark:
            return Decision.WAITS
        for account in submission.budget_accounts:
            draft.add(account.key, account.id, spend(submission.cost_usd_picos))
        draft.name(_put_record(draft, submission), submission.request_id)
        draft.gather(self._clerk.note_captured, self._record)
        self.result = RecordedAt(draft.nonce, draft.now_ms)
        return Decision.WRITES


def _must_claim(draft: Draft, org_id: str, claim: Claim, clerk: Clerk, command: AnyCommand) -> bool:
    """Whether the caller's id is to be claimed before; what waits for that is claimed together."""
    if claim.reaches(draft.position):
        return False
    claim.wanted = authorization_id_of(draft.sort_key, 0)
    waiting: list[Claim] = draft.share("claims", list)
    waiting.append(claim)
    draft.ask("claims", lambda: clerk.claims.claim_all(org_id, waiting), command.fail)
    return True


def _must_mark(draft: Draft, submission: Submission, poster: Poster, command: AnyCommand) -> bool:
    """Whether it is to be marked before that a record is posted into the chapter's region."""
    found = ("record", submission.lanes)
    if found in draft.found:
        return False
    region, now_ms = draft.position.chapter.region, draft.now_ms
    posting = PostedRegion(submission.org_id, region, submission.lanes)
    if poster.is_marked(posting, now_ms):
        draft.found.add(found)
        return False
    draft.ask(("record", posting), lambda: poster.mark(posting, now_ms), command.fail)
    return True


def _put_record(draft: Draft, submission: Submission) -> int:
    """Put a record on the sheet; returns its number."""
    number = draft.take_number()
    record = submission.written_on_sheet(number, draft.nonce, draft.now_ms)
    draft.put(record.name, record.data)
    draft.put(record.terms.name, record.terms.data)
    return number


def _tell_nobody(*_: Any) -> None:
    return
