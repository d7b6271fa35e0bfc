"""Counts what calls have used: captures, and usage records whose ids the log knows.

A usage record under the id of an authorization is its capture. A record whose id was claimed for a
call that was not granted is put on a sheet of the log. The sheet names the id, so no call can be
granted under it any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from pricekeeper.authorizations.authorization import (
    Authorization,
    Capture,
    Grant,
    HeldAccount,
    Settlement,
    check_may_settle,
)
from pricekeeper.authorizations.claims import Claim, Existing, place_of
from pricekeeper.authorizations.reading import Seen
from pricekeeper.authorizations.settler import Settled, Settler, must_mark, put_record
from pricekeeper.budgets import BudgetAccount
from pricekeeper.budgets.items import spend
from pricekeeper.concurrency import gather_in_turn
from pricekeeper.errors import (
    ContendedError,
    InvalidValueError,
    PriceKeeperError,
    RequestIdReusedError,
)
from pricekeeper.ledger import AccountNotOpenError, Command, Decision, Draft
from pricekeeper.metering import (
    BatchPlaces,
    Metering,
    Recorded,
    RecordOnSheet,
    RecordUnderWay,
    Refused,
    Submission,
    Usage,
)
from pricekeeper.metering.journal import Record
from pricekeeper.metering.marking import is_late
from pricekeeper.metering.usage import is_authorization_id
from pricekeeper.pricing import PriceBook
from pricekeeper.tenants import Policy

ATTEMPTS_MAX: Final = 4
_PERMILLE: Final = 1_000


class CaptureAnswer(msgspec.Struct, frozen=True):
    """The result of a capture."""

    authorization: Authorization
    recorded: Recorded
    is_duplicate: bool

    @property
    def overrun_usd_picos(self) -> int:
        cost = self.recorded.receipt.cost_usd_picos
        return max(0, cost - self.authorization.grant.held_usd_picos)


class RecordedAt(msgspec.Struct, frozen=True):
    """A record is on a sheet."""

    nonce: bytes
    sent_at_ms: int


class Recording:
    """Captures authorizations, and counts usage records."""

    def __init__(self, settler: Settler, metering: Metering, prices: PriceBook) -> None:
        self._settler = settler
        self._metering = metering
        self._prices = prices

    async def capture(self, policy: Policy, seen: Seen, usage: Usage) -> CaptureAnswer:
        """Count what the call used and release its hold, in one step.

        The same capture again is a duplicate; a different one raises `RequestIdReusedError`.
        """
        grant, settler = seen.authorization.grant, self._settler
        usage = _named(policy, seen.authorization, usage)
        submission = await self._metering.preparer.prepare_captured(
            policy, usage, grant.authorized_at_ms
        )
        capture = self._make_capture(usage, submission)
        accounts = settler.ledger.accounts_for(
            policy, grant.terms.label, usage.tags, grant.authorized_at_ms
        )
        since = () if _are_held(accounts, grant) else await self._open_since(accounts, grant)
        record = RecordOnSheet(policy, submission)
        settled = await settler.submit(
            policy.org_id, capture, seen, record=record, since=since
        ).future
        return await self._answer_captured(policy, settled, submission)

    def begin_capture(
        self,
        policy: Policy,
        authorization: Authorization,
        usage: Usage,
        on_failure: Callable[[BaseException], None],
    ) -> int | None:
        """Begin to capture a grant of this process; return its cost in pico-dollars.

        ``None`` if nothing was begun: then, and after ``on_failure``, `capture` must be tried
        instead.
        """
        seen, grant = self._settler.recall(authorization.id), authorization.grant
        if seen is None:
            return None
        usage = _named(policy, authorization, usage)
        try:
            submission = self._metering.preparer.prepare_captured_at_once(
                policy, usage, grant.authorized_at_ms
            )
        except PriceKeeperError:
            return None
        accounts = self._settler.ledger.accounts_for(
            policy, grant.terms.label, usage.tags, grant.authorized_at_ms
        )
        if submission is None or not _are_held(accounts, grant):
            return None
        self._settler.submit(
            policy.org_id,
            self._make_capture(usage, submission),
            seen,
            record=RecordOnSheet(policy, submission),
            on_failure=on_failure,
        )
        return submission.cost_usd_picos

    async def record(self, policy: Policy, usage: Usage) -> Recorded:
        return await self._count(self._metering.record(policy, usage), policy, usage)

    async def answer(self, settled: RecordUnderWay) -> Recorded:
        return await self._count(self._metering.answer(settled), settled.policy, settled.usage)

    async def record_many(
        self, policy: Policy, usages: Sequence[Usage], places: BatchPlaces | None = None
    ) -> list[Recorded | Refused]:
        answers = await self._metering.record_many(policy, usages, places)
        named = {
            number: answer.error
            for number, answer in enumerate(answers)
            if isinstance(answer, Refused)
            and isinstance(answer.error, RequestIdReusedError)
            and answer.error.authorization_id
        }
        if not named:  # nearly always
            return answers
        numbers = list(named)

        async def record_named(place: int) -> Recorded | Refused:
            number = numbers[place]
            try:
                return await self._record_named(policy, usages[number], named[number])
            except PriceKeeperError as error:
                return Refused(named[number].request_id, error)

        keys = [usages[number].request_id.lower() for number in numbers]
        for number, answer in zip(numbers, await gather_in_turn(keys, record_named), strict=True):
            answers[number] = answer
        return answers

    def _make_capture(self, usage: Usage, submission: Submission) -> Capture:
        settlement = Settlement(
            at_ms=self._settler.clock.now_ms(),
            fingerprint=submission.fingerprint,
            cost_usd_picos=submission.cost_usd_picos,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            pricing_version=submission.terms.pricing_version,
            org_day=submission.terms.day,
            price_estimated=submission.price_estimated,
        )
        return Capture(settlement, self._bucket_tokens(usage))

    def _bucket_tokens(self, usage: Usage) -> int:
        factor = self._prices.catalogue.model(usage.model_label).burn_down_factor_permille
        written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
        output = -(-usage.output_tokens * factor // _PERMILLE)
        return usage.input_tokens + written + output

    async def _open_since(
        self, accounts: tuple[BudgetAccount, ...], grant: Grant
    ) -> tuple[HeldAccount, ...]:
        now_ms = self._settler.clock.now_ms()
        held = {(one.key.pk, one.id) for one in grant.terms.accounts}
        accounts = tuple(
            account
            for account in accounts
            if account.span.ends_at_ms > now_ms and (account.key.pk, account.id) not in held
        )
        await self._settler.ledger.open_all(accounts)
        return tuple(HeldAccount(one.key, one.id) for one in accounts)

    async def _answer_captured(
        self, policy: Policy, settled: Settled, submission: Submission
    ) -> CaptureAnswer:
        authorization, clock = settled.authorization, self._settler.clock
        settlement = authorization.settlement
        receipt = submission.receipt(settled.nonce, settled.sent_at_ms or clock.now_ms())
        if settlement is not None and not settled.changed:  # answer as the first capture
            receipt = msgspec.structs.replace(
                receipt,
                cost_usd_picos=settlement.cost_usd_picos,
                pricing_version=settlement.pricing_version,
                org_day=settlement.org_day,
                price_estimated=settlement.price_estimated,
                accepted_at_ms=settlement.at_ms,
            )
        if is_late(receipt.accepted_at_ms, clock.now_ms()):
            await self._settler.poster.marks.request_repair_if_late(policy.org_id, [receipt])
        recorded = await self._metering.answer_on_sheet(
            policy, submission.request_id, receipt, accepted=settled.changed
        )
        return CaptureAnswer(authorization, recorded, is_duplicate=not settled.changed)

    async def _count(self, recorded: Awaitable[Recorded], policy: Policy, usage: Usage) -> Recorded:
        try:
            return await recorded
        except RequestIdReusedError as named:
            if not named.authorization_id:
                raise
            return await self._record_named(policy, usage, named)

    async def _record_named(
        self, policy: Policy, usage: Usage, named: RequestIdReusedError
    ) -> Recorded:
        org_id, request_id, claim = policy.org_id, named.request_id, named.authorization_id
        reader = self._settler.reader
        own_id: str | None = request_id
        if not is_authorization_id(request_id):
            own_id = await reader.find_named(org_id, request_id, claim)
        for _ in range(ATTEMPTS_MAX):
            if own_id is None:
                done = await self._record_claimed(policy, usage)
                if isinstance(done, Recorded):
                    return done
                own_id = done.own_id
            seen = await reader.find(org_id, own_id)
            if seen is not None:
                return await self._record_granted(policy, usage, seen)
            record = await reader.find_record(org_id, own_id, request_id)
            if record is not None:
                return await self._answer_again(policy, usage, record)
            if is_authorization_id(request_id):
                message = "is of version 8, which only authorizations have; send a version 7 id"
                raise InvalidValueError("request_id", message)
            own_id = None
        raise ContendedError("the id kept changing its meaning")

    async def _record_granted(self, policy: Policy, usage: Usage, seen: Seen) -> Recorded:
        terms = seen.authorization.grant.terms
        if terms.client_id != policy.client_id or terms.label != usage.model_label:
            raise RequestIdReusedError(seen.authorization.shown_id)
        check_may_settle(seen.authorization.grant)
        return (await self.capture(policy, seen, usage)).recorded

    async def _record_claimed(self, policy: Policy, usage: Usage) -> Recorded | Existing:
        settler, org_id = self._settler, policy.org_id
        claim = Claim(place_of(policy, usage.request_id.lower()))
        for _ in range(ATTEMPTS_MAX):
            submission = await self._metering.preparer.prepare(policy, usage, on_sheet=True)
            record = RecordOnSheet(policy, submission)
            command = RecordClaimed(org_id, record, settler, claim)
            try:
                done = await settler.ledger.carry_out(org_id, command)
            except AccountNotOpenError:
                settler.ledger.forget(submission.budget_accounts)
                continue
            if isinstance(done, Existing):
                return done
            receipt = submission.receipt(done.nonce, done.sent_at_ms)
            await settler.poster.marks.request_repair_if_late(org_id, [receipt])
            return await self._metering.answer_on_sheet(
                policy, submission.request_id, receipt, accepted=True
            )
        raise ContendedError("an account was not open")

    async def _answer_again(self, policy: Policy, usage: Usage, record: Record) -> Recorded:
        submission: Submission = await self._metering.preparer.prepare(policy, usage, on_sheet=True)
        if record.entry.fingerprint != submission.fingerprint:
            raise RequestIdReusedError(record.request_id)
        await self._settler.poster.marks.request_repair_if_late(policy.org_id, [record.receipt])
        return await self._metering.answer_on_sheet(
            policy, submission.request_id, record.receipt, accepted=False
        )


class RecordClaimed(Command[RecordedAt | Existing]):
    """Counts a usage record whose id was claimed for a call that was not granted."""

    def __init__(self, org_id: str, record: RecordOnSheet, settler: Settler, claim: Claim) -> None:
        submission = record.submission
        self.keys = dict.fromkeys(account.key for account in submission.budget_accounts)
        self.name = submission.request_id
        self._org_id = org_id
        self._record = record
        self._settler = settler
        self._claim = claim

    def decide(self, draft: Draft) -> Decision:
        submission, claim, settler = self._record.submission, self._claim, self._settler
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
        marks_first = must_mark(draft, submission, settler.poster, self)
        if settler.claims.must_wait(draft, self._org_id, claim, self) or marks_first:
            return Decision.WAITS
        for account in submission.budget_accounts:
            draft.add(account.key, account.id, spend(submission.cost_usd_picos))
        draft.name(put_record(draft, submission), submission.request_id)
        draft.gather(settler.note_captured, self._record)
        self.result = RecordedAt(draft.nonce, draft.now_ms)
        return Decision.WRITES


def _named(policy: Policy, authorization: Authorization, usage: Usage) -> Usage:
    grant, tags = authorization.grant, authorization.grant.tags
    if usage.tags:
        tags = {k: v for k, v in usage.tags.items() if k not in policy.tag_keys} | tags
    return msgspec.structs.replace(
        usage, request_id=authorization.shown_id, model_label=grant.terms.label, tags=tags
    )


def _are_held(accounts: tuple[BudgetAccount, ...], grant: Grant) -> bool:
    held = grant.terms.accounts
    return len(accounts) == len(held) and all(
        account.id == one.id and account.key.pk == one.key.pk
        for account, one in zip(accounts, held, strict=True)
    )
