"""Usage records under ids that stand for something in the log.

A usage record under the id of an authorization is its capture. One under an id that was claimed for
a call which was not granted in the end counts as any other, but on a sheet of the log: the sheet
names the id, so nothing can be granted under it any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from pricekeeper.authorizations.authorization import Authorization, check_settler
from pricekeeper.authorizations.claims import Claim, Place
from pricekeeper.authorizations.commands import Existing, RecordClaimed
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.reading import Seen
from pricekeeper.concurrency import gather_in_turn
from pricekeeper.errors import (
    ContendedError,
    InvalidValueError,
    PriceKeeperError,
    RequestIdReusedError,
)
from pricekeeper.ledger import AccountNotOpenError
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
from pricekeeper.metering.usage import is_authorization_id
from pricekeeper.tenants import Policy

ATTEMPTS_MAX: Final = 4


class CaptureAnswer(msgspec.Struct, frozen=True):
    """What a capture was answered with."""

    authorization: Authorization
    recorded: Recorded
    is_duplicate: bool

    @property
    def overrun_usd_picos(self) -> int:
        """By how much the call cost more than was held for it."""
        cost = self.recorded.receipt.cost_usd_picos
        return max(0, cost - self.authorization.grant.held_usd_picos)


Capture: TypeAlias = Callable[[Policy, Seen, Usage], Awaitable[CaptureAnswer]]
MakePlace: TypeAlias = Callable[[Policy, str], Place]


class Recording:
    """Counts usage records, whatever their ids stand for."""

    def __init__(
        self, desk: Desk, metering: Metering, capture: Capture, make_place: MakePlace
    ) -> None:
        self._desk = desk
        self._metering = metering
        self._capture = capture
        self._make_place = make_place

    async def record(self, policy: Policy, usage: Usage) -> Recorded:
        """Count a usage record; one under the id of an authorization is its capture."""
        try:
            return await self._metering.record(policy, usage)
        except RequestIdReusedError as named:
            if not named.authorization_id:
                raise
            return await self._record_named(policy, usage, named)

    async def answer(self, settled: RecordUnderWay) -> Recorded:
        """The answer to a record that `Metering.begin` has begun; raises what `record` would."""
        try:
            return await self._metering.answer(settled)
        except RequestIdReusedError as named:
            if not named.authorization_id:
                raise
            return await self._record_named(settled.policy, settled.usage, named)

    async def record_many(
        self, policy: Policy, usages: Sequence[Usage], places: BatchPlaces | None = None
    ) -> list[Recorded | Refused]:
        """Count up to 100 usage records, each for itself; the answers are in their order."""
        answers = await self._metering.record_many(policy, usages, places)
        named = {
            number: answer.error
            for number, answer in enumerate(answers)
            if isinstance(answer, Refused)
            and isinstance(answer.error, RequestIdReusedError)
            and answer.error.authorization_id
        }
        if not named:  # as nearly always
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

    async def _record_named(
        self, policy: Policy, usage: Usage, named: RequestIdReusedError
    ) -> Recorded:
        """Count a record under an id that is one of ours, or that was claimed."""
        org_id, request_id, claim = policy.org_id, named.request_id, named.authorization_id
        own_id: str | None = request_id
        if not is_authorization_id(request_id):
            own_id = await self._desk.reader.find_named(org_id, request_id, claim)
        for _ in range(ATTEMPTS_MAX):
            if own_id is None:
                place = self._make_place(policy, usage.request_id.lower())
                done = await self._record_claimed(policy, usage, Claim(place))
                if isinstance(done, Recorded):
                    return done
                own_id = done.own_id
            seen = await self._desk.reader.find(org_id, own_id)
            if seen is not None:
                return await self._record_granted(policy, usage, seen)
            record = await self._desk.reader.find_record(org_id, own_id, request_id)
            if record is not None:
                return await self._answer_again(policy, usage, record)
            if is_authorization_id(request_id):
                message = "is of version 8, as only authorizations are; make it of version 7"
                raise InvalidValueError("request_id", message)
            own_id = None
        raise ContendedError("what the id stands for kept changing")

    async def _record_granted(self, policy: Policy, usage: Usage, seen: Seen) -> Recorded:
        """Capture an authorization by a usage record under its id, if it is of the same call."""
        terms = seen.authorization.grant.terms
        if terms.client_id != policy.client_id or terms.label != usage.model_label:
            raise RequestIdReusedError(seen.authorization.shown_id)
        check_settler(seen.authorization.grant)
        return (await self._capture(policy, seen, usage)).recorded

    async def _record_claimed(
        self, policy: Policy, usage: Usage, claim: Claim
    ) -> Recorded | Existing:
        """Count a record under an id that was claimed and not granted."""
        for _ in range(ATTEMPTS_MAX):
            submission = await self._metering.price_recorded(policy, usage)
            record = RecordOnSheet(policy, submission)
            command = RecordClaimed(policy.org_id, record, self._desk, claim)
            try:
                done = await self._desk.ledger.carry_out(policy.org_id, command)
            except AccountNotOpenError:
                self._desk.ledger.forget(submission.budget_accounts)
                continue
            if isinstance(done, Existing):
                return done
            receipt = submission.receipt(done.nonce, done.sent_at_ms)
            await self._desk.poster.request_repair_if_late(policy.org_id, [receipt])
            return await self._metering.answer_on_sheet(
                policy, submission.request_id, receipt, accepted=True
            )
        raise ContendedError("an account was not open")

    async def _answer_again(self, policy: Policy, usage: Usage, record: Record) -> Recorded:
        """The answer that the record has got."""
        submission: Submission = await self._metering.price_recorded(policy, usage)
        if record.entry.fingerprint != submission.fingerprint:
            raise RequestIdReusedError(record.request_id)
        await self._desk.poster.request_repair_if_late(policy.org_id, [record.receipt])
        return await self._metering.answer_on_sheet(
            policy, submission.request_id, record.receipt, accepted=False
        )
