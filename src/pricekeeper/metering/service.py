"""Metering: counts usage exactly once, on the day it happened, at its price.

Usually a record costs a share of one plain write, and no read. One that is about to be refused is
looked up first: if it was counted before, it is answered as a duplicate. After
`OutcomeUnknownError`, or if the caller was cancelled, it may be sent again, to any instance.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import (
    InvalidValueError,
    PriceKeeperError,
    RequestIdReusedError,
    StoreError,
)
from pricekeeper.ledger import Ledger
from pricekeeper.metering.admission import GROUP_RECORDS, Admission, BatchPlaces
from pricekeeper.metering.committer import PENDING_MAX, Committer
from pricekeeper.metering.counters import Account, Counters, Total
from pricekeeper.metering.items import RETENTION_DAYS
from pricekeeper.metering.journal import address_of, lanes_of
from pricekeeper.metering.known_totals import KnownTotals
from pricekeeper.metering.live import LiveSums
from pricekeeper.metering.meter import QuotaUses
from pricekeeper.metering.posting import Poster, TakenPlace
from pricekeeper.metering.preparing import Preparer
from pricekeeper.metering.receipt import Outcome, Receipt, Recorded, Refused
from pricekeeper.metering.submission import (
    Outcomes,
    Posted,
    RecordOnSheet,
    RecordUnderWay,
    Submission,
    Waiter,
    sum_by_account,
)
from pricekeeper.metering.totals import TotalsReader
from pricekeeper.metering.usage import Usage, checked, fingerprint
from pricekeeper.pricing import PriceBook
from pricekeeper.storage import Store
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel
from pricekeeper.wire.bounds import BATCH_MAX

IN_FLIGHT_MS: Final = 65_000
"""The longest duration of a request, plus the difference of the instances' clocks."""


class Metering:
    """Counts usage, and reads spend."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        prices: PriceBook,
        *,
        retention_days: int = RETENTION_DAYS,
        randomness: random.Random | None = None,
        linger_ms: int = 0,
        ledger: Ledger | None = None,
        on_counted: Callable[[Sequence[Submission]], None] = lambda _: None,
        in_flight_ms: int = IN_FLIGHT_MS,
    ) -> None:
        """Without a ``ledger``, records are charged to no budget.

        No instance acknowledges a record later than ``in_flight_ms`` after it was sent.
        """
        self._clock = clock
        self.reader = TotalsReader(store, clock)
        self._totals = KnownTotals(self.reader, clock)
        self.live = LiveSums(store, clock, retention_days=retention_days, in_flight_ms=in_flight_ms)
        self.quota_uses = QuotaUses()
        self.admission = Admission(clock, PENDING_MAX)
        self.preparer = Preparer(clock, prices, ledger)
        self.poster = Poster(
            store,
            clock,
            randomness or random.Random(),  # noqa: S311  # spreads writes, no secret
            retention_days=retention_days,
            ledger=ledger,
        )
        self._on_counted = on_counted
        self._noted_total: Total | None = None
        self._committer = Committer(
            self.poster, self._note_counted, self.admission.give_back, linger_ms=linger_ms
        )
        self.meter = self._committer.meter
        # Every label from the beginning, so that the first record is seen as a change.
        self.meter.estimated.update(dict.fromkeys(map(str, prices.catalogue.labels), 0))

    async def record(self, policy: Policy, usage: Usage) -> Recorded:
        """Count the record; a duplicate gets the original answer.

        Raises `RequestIdReusedError` for another body, `InvalidValueError`, `OverloadedError` if
        its organisation's share is used up, and errors of pricing.
        """
        prepared = await self._prepare(policy, usage)
        if isinstance(prepared, Submission):
            await self.admission.take(policy.org_id)
            outcomes = Outcomes(1)
            self._totals.want(prepared.account)
            self._submit(prepared, outcomes.waiter(0))
            (outcome,) = await outcomes.wait()
            return await self._make_answer(policy, prepared, outcome)
        (answer,) = await self._look_up(policy, [(usage, prepared)])
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    def begin(
        self, policy: Policy, usage: Usage, on_settled: Callable[[RecordUnderWay], None]
    ) -> bool:
        """Begin to `record` without a waiting task; ``False`` if it would have to wait or fail."""
        submission = self._prepare_at_once(policy, usage)
        if (
            submission is None
            or self._committer.is_closed
            or not self._totals.want(submission.account)
            or not self.admission.take_at_once(policy.org_id)
        ):
            return False
        self._submit(submission, RecordUnderWay(policy, usage, submission, on_settled).settle)
        return True

    def find_answer(self, settled: RecordUnderWay) -> Recorded | None:
        return self._answer_at_once(settled.policy, settled.submission, settled.outcome)

    async def answer(self, settled: RecordUnderWay) -> Recorded:
        outcome = settled.outcome or LookupError("it is not settled")
        return await self._make_answer(settled.policy, settled.submission, outcome)

    async def record_many(
        self, policy: Policy, usages: Sequence[Usage], places: BatchPlaces | None = None
    ) -> list[Recorded | Refused]:
        """Count up to 100 records independently; answers are in their order."""
        if not 1 <= len(usages) <= BATCH_MAX:
            raise InvalidValueError("requests", f"must be 1 to {BATCH_MAX} records")
        if places is None:
            async with self.admission.admit_batch(policy.org_id) as taken:
                await taken.begin_work()
                return await self.record_many(policy, usages, taken)
        prepared: list[Submission | PriceKeeperError] = []
        for number, usage in enumerate(usages):
            if number and number % GROUP_RECORDS == 0:
                await asyncio.sleep(0)  # let other requests have their turn of the loop
            prepared.append(
                self._prepare_at_once(policy, usage) or await self._prepare(policy, usage)
            )
        submissions = [one for one in prepared if isinstance(one, Submission)]
        outcomes = Outcomes(len(submissions))
        for account in {one.account for one in submissions}:
            self._totals.want(account)
        for number, one in enumerate(submissions):
            self._submit(one, outcomes.waiter(number), places)
        places.end_work()
        done = iter(await outcomes.wait())
        refused = [
            (usage, one)
            for usage, one in zip(usages, prepared, strict=True)
            if not isinstance(one, Submission)
        ]
        looked_up = iter(await self._look_up(policy, refused))
        answers: list[Recorded | Refused] = []
        for found in prepared:
            if isinstance(found, Submission):
                outcome = next(done)
                answer = self._answer_at_once(policy, found, outcome)
                answers.append(answer or await self._answer(policy, found, outcome))
            else:
                answers.append(next(looked_up))
        return answers

    async def read_totals(
        self, scope_key: str, labels: Iterable[str], day: str, *, live: bool = False
    ) -> dict[ModelLabel, Total]:
        accounts = [Account(scope_key, label, day) for label in labels]
        if not accounts:
            return {}
        posted = await self.live.read([accounts[0].org_id]) if live else None
        totals = (await self.reader.read(accounts, live=posted)).require_all()
        return {ModelLabel(account.label): totals[account] for account in accounts}

    def known_spend_usd_micros(self, account: Account) -> int | None:
        total = self._totals.total(account)
        return None if total is None else total.cost_usd_micros

    async def read_labels_used(self, scope_key: str, day: str) -> frozenset[ModelLabel]:
        accounts = await self.reader.read_accounts(day, f"{scope_key}#LABEL#")
        return frozenset(ModelLabel(account.label) for account in accounts)

    def note_on_sheet(self, _: str, records: Sequence[RecordOnSheet]) -> None:
        """All are of one organisation."""
        self.meter.accepted += len(records)
        self._note_counted([record.submission for record in records])
        policies: dict[Account, Policy] = {}
        for policy, submission in records:
            policies[submission.account] = policy
            if submission.price_estimated:
                self.meter.estimated[submission.terms.label] += 1
        for account, policy in policies.items():
            self._note_quota_use(policy, account, self._totals.want(account))

    async def answer_on_sheet(
        self, policy: Policy, request_id: str, receipt: Receipt, *, accepted: bool
    ) -> Recorded:
        if not accepted:
            self.meter.duplicates += 1
        outcome = Outcome.ACCEPTED if accepted else Outcome.DUPLICATE
        return await self._answer_counted(policy, request_id, outcome, receipt)

    def note_voided(self, sums: Mapping[Account, Counters]) -> None:
        for account, counters in sums.items():
            self.live.note_counted(account.org_id)
            self._totals.count(account, counters)

    async def close(self) -> None:
        await self._committer.close()
        await self.admission.close()
        await self._totals.close()

    async def _prepare(self, policy: Policy, usage: Usage) -> Submission | PriceKeeperError:
        """The prepared record; or the reason to refuse it, unless it was counted before."""
        try:
            return await self.preparer.prepare(policy, usage)
        except PriceKeeperError as error:
            return error

    def _prepare_at_once(self, policy: Policy, usage: Usage) -> Submission | None:
        """``None`` if it has to wait for something or is invalid."""
        try:
            return self.preparer.prepare_at_once(policy, usage)
        except PriceKeeperError:
            return None

    def _submit(
        self, submission: Submission, waiter: Waiter, places: BatchPlaces | None = None
    ) -> None:
        """Submit the record in one of ``places``, or the place that the caller took for it."""
        try:
            self._committer.submit(submission, waiter)
        except StoreError as error:
            if places is None:
                self.admission.give_back(submission.org_id)
            waiter(error)
        else:
            if places is not None:
                places.use()

    def _answer_at_once(
        self, policy: Policy, submission: Submission, posted: Posted | BaseException | None
    ) -> Recorded | None:
        """``None`` if its total is unknown."""
        if not isinstance(posted, Posted) or not posted.accepted:
            return None
        total = self._totals.total(submission.account)
        if total is None:
            return None
        return self._note_answer(policy, submission, posted, total)

    async def _answer(
        self, policy: Policy, submission: Submission, outcome: Posted | BaseException
    ) -> Recorded | Refused:
        try:
            return await self._make_answer(policy, submission, outcome)
        except PriceKeeperError as error:
            return Refused(submission.request_id, error)

    async def _make_answer(
        self, policy: Policy, submission: Submission, posted: Posted | BaseException
    ) -> Recorded:
        if isinstance(posted, BaseException):
            raise posted
        receipt = posted.receipt
        if receipt.fingerprint != submission.fingerprint:
            raise RequestIdReusedError(submission.request_id)
        total = await self._totals.wait_for(receipt.account)
        return self._note_answer(policy, submission, posted, total)

    def _note_answer(
        self, policy: Policy, submission: Submission, posted: Posted, total: Total | None
    ) -> Recorded:
        receipt = posted.receipt
        if posted.accepted and receipt.price_estimated:
            self.meter.estimated[receipt.model_label] += 1
        outcome = Outcome.ACCEPTED if posted.accepted else Outcome.DUPLICATE
        account = submission.account if posted.accepted else receipt.account
        self._note_quota_use(policy, account, total)
        return Recorded(submission.request_id, outcome, receipt, total)

    async def _answer_counted(
        self, policy: Policy, request_id: str, outcome: Outcome, receipt: Receipt
    ) -> Recorded:
        account = receipt.account
        total = await self._totals.wait_for(account)
        self._note_quota_use(policy, account, total)
        return Recorded(request_id, outcome, receipt, total)

    async def _look_up(
        self, policy: Policy, refused: Sequence[tuple[Usage, PriceKeeperError]]
    ) -> list[Recorded | Refused]:
        """Answer refused records as duplicates, if they were counted, or with the store's error."""
        sound = [_checked_unless_new(*one) for one in refused]
        known: dict[str, Receipt | TakenPlace | StoreError] = {}
        addresses = {one.request_id: address_of(one.request_id) for one in sound if one}
        if addresses:
            lanes = lanes_of(policy.agg_shard_count)
            try:
                known = await self.poster.read_receipts(policy.org_id, lanes, addresses)
            except StoreError as failure:
                known = dict.fromkeys(addresses, failure)
        return [
            await self._answer_known(policy, one, known[one.request_id])
            if one is not None and one.request_id in known
            else Refused(usage.request_id, error)
            for (usage, error), one in zip(refused, sound, strict=True)
        ]

    async def _answer_known(
        self, policy: Policy, usage: Usage, found: Receipt | TakenPlace | StoreError
    ) -> Recorded | Refused:
        request_id = usage.request_id
        if isinstance(found, TakenPlace):
            return Refused(request_id, RequestIdReusedError(request_id, found.authorization_id))
        if isinstance(found, StoreError):
            return Refused(request_id, error_copy(found))
        self.meter.duplicates += 1
        if found.fingerprint == fingerprint(policy.client_id, usage):
            return await self._answer_counted(policy, request_id, Outcome.DUPLICATE, found)
        return Refused(request_id, RequestIdReusedError(request_id))

    def _note_quota_use(self, policy: Policy, account: Account, total: Total | None) -> None:
        if total is None or total is self._noted_total:  # all records of one commit have the same
            return
        self._noted_total = total
        if account.scope_key == policy.scope_key:  # else it was counted under another quota scope
            self.quota_uses.note_estimate(
                policy, ModelLabel(account.label), account.day, total.cost_usd_micros
            )

    def _note_counted(self, submissions: Sequence[Submission]) -> None:
        for account, counters in sum_by_account(submissions).items():
            self._totals.count(account, counters)
        self.live.note_counted(submissions[0].org_id)
        self._on_counted(submissions)


def _checked_unless_new(usage: Usage, error: PriceKeeperError) -> Usage | None:
    """The refused record in canonical form; ``None`` if it can't have been counted."""
    if isinstance(error, (StoreError, RequestIdReusedError)):
        return None
    try:
        return checked(usage)
    except InvalidValueError:
        return None
