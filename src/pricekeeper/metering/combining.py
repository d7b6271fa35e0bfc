"""Which records go into one transaction, and the operations that it has: no I/O, no clock.

A record needs a receipt of its own. Its counters are added to those of every other record of
the same account in the commit, so an account takes one operation however many records it
has, and one more the first time, for its marker. Records of any scope and organisation share a
commit: none of them can see another, and each fails or succeeds by its own receipt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from pricekeeper.errors import CancellationReason, ReasonCode
from pricekeeper.metering.counters import Account, Counters
from pricekeeper.metering.fairness import TurnQueue
from pricekeeper.metering.items import (
    RETENTION_DAYS,
    counter_update,
    day_expires_at_epoch,
    marker_put,
    receipt_put,
)
from pricekeeper.metering.receipt import signed
from pricekeeper.storage import Item, Write
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX

OPERATIONS_MAX: Final = TRANSACTION_OPERATIONS_MAX


class Counted(NamedTuple):
    """An account, and the number of shards it is spread over."""

    account: Account
    shard_count: int


class Settled(NamedTuple):
    """The receipt under which a record counts, and whether it is this submission's own."""

    receipt: Item
    accepted: bool


class Submission:
    """A record that is ready to be committed, and those who wait for that."""

    __slots__ = ("counted", "counters", "org_id", "receipt", "request_id", "waiting")

    def __init__(
        self, org_id: str, request_id: str, counted: Counted, counters: Counters, receipt: Item
    ) -> None:
        self.org_id = org_id
        self.request_id = request_id
        self.counted = counted
        self.counters = counters
        self.receipt = receipt
        self.waiting: list[asyncio.Future[Settled]] = []
        """The first of them submitted it; the others sent the same request id meanwhile."""

    @property
    def receipt_pk(self) -> str:
        """What makes two submissions the same record."""
        pk: str = self.receipt["PK"]
        return pk


def take(queue: TurnQueue[Submission], marked: Collection[Counted]) -> list[Submission]:
    """Take from the queue, in its turns, what one transaction can hold."""
    taken: list[Submission] = []
    counted: set[Counted] = set()
    operations = 0
    while queue:
        place = queue.first().counted
        needed = 1
        if place not in counted:
            needed += 1 if place in marked else 2
        if operations + needed > OPERATIONS_MAX:
            break
        operations += needed
        counted.add(place)
        taken.append(queue.pop())
    return taken


class Plan:
    """One transaction: a receipt for each submission, then the counters, then new markers."""

    __slots__ = ("items", "operations", "shards", "submissions", "sums")

    def __init__(
        self,
        submissions: Sequence[Submission],
        commit_id: str,
        choose_shard: Callable[[Counted], int],
        marked: Collection[Counted],
        now_epoch: int,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        self.submissions = submissions
        self.sums = summed(submissions)
        self.shards = {place: choose_shard(place) for place in self.sums}
        self.items = [
            signed(submission.receipt, commit_id, self.shards[submission.counted])
            for submission in submissions
        ]
        self.operations: list[Write] = [receipt_put(item) for item in self.items]
        for place, counters in self.sums.items():
            expires = day_expires_at_epoch(place.account.day, retention_days)
            self.operations.append(
                counter_update(place.account, self.shards[place], counters, now_epoch, expires)
            )
        for place in self.sums:
            if place not in marked:
                expires = day_expires_at_epoch(place.account.day, retention_days)
                self.operations.append(marker_put(place.account, place.shard_count, expires))

    def met(self, reasons: Sequence[CancellationReason]) -> list[tuple[Submission, Item]]:
        """Which submissions were refused because of a receipt that is there, and that receipt."""
        return [
            (submission, dict(reason.item))
            for submission, reason in zip(self.submissions, reasons, strict=False)
            if reason.code is ReasonCode.CONDITION_FAILED and reason.item is not None
        ]


def summed(submissions: Iterable[Submission]) -> dict[Counted, Counters]:
    """What they add to each account."""
    sums: dict[Counted, Counters] = {}
    for submission in submissions:
        have = sums.get(submission.counted)
        sums[submission.counted] = (
            submission.counters if have is None else have + submission.counters
        )
    return sums
