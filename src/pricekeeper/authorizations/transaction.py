"""One transaction for all commands that are decided together. No I/O, no clock.

Every item is in it once: each item of accounts, each bucket, each authorization, and the pages and
receipts of what is captured. Whatever becomes of it, each operation says whom its refusal concerns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pricekeeper.authorizations.authorization import is_own_id
from pricekeeper.authorizations.books import Books, BucketKey, BucketStep
from pricekeeper.authorizations.commands import Authorize, Settle
from pricekeeper.authorizations.decision import Granted
from pricekeeper.authorizations.items import alias_put, authorization_put, change_update
from pricekeeper.authorizations.settling import Changed
from pricekeeper.budgets.items import account_update
from pricekeeper.limiter.bucket import Create, Normal
from pricekeeper.limiter.writes import create, normal, retry
from pricekeeper.metering.journal import region_at
from pricekeeper.metering.journal_items import Written, page_update, private_page_put
from pricekeeper.metering.posting import page_at
from pricekeeper.metering.receipt import receipt_put
from pricekeeper.storage import Key, Put, Update, Write


class OnAccounts(NamedTuple):
    """The operation changes an item of accounts."""

    key: Key


class OnBucket(NamedTuple):
    """The operation takes from a bucket."""

    key: BucketKey


class OnAuthorization(NamedTuple):
    """The operation writes an authorization."""

    command: Authorize | Settle


class OnAlias(NamedTuple):
    """The operation lets a caller's own id stand for an authorization."""

    command: Authorize


class OnRecord(NamedTuple):
    """The operation writes what a capture counts as: a page of its own, or a receipt."""

    command: Settle | None


Concern = OnAccounts | OnBucket | OnAuthorization | OnAlias | OnRecord


class Step(NamedTuple):
    """One operation, and whom its refusal concerns."""

    operation: Write
    concern: Concern


def make_transaction(
    org_id: str,
    books: Books,
    buckets: Mapping[BucketKey, BucketStep],
    granted: Sequence[tuple[Authorize, Granted]],
    changed: Sequence[tuple[Settle, Changed]],
    *,
    sent_at_ms: int,
    page_nonce: bytes,
    expires_at_epoch: int,
) -> list[Step]:
    """The operations that carry out what was decided on the books."""
    steps = [
        Step(account_update(key, changes, books.limits.get(key, {}), sent_at_ms), OnAccounts(key))
        for key, changes in books.changes.items()
        if changes
    ]
    steps += [Step(_bucket_write(one), OnBucket(key)) for key, one in buckets.items()]
    for command, grant in granted:
        put = authorization_put(org_id, grant.authorization)
        steps.append(Step(put, OnAuthorization(command)))
        if command.wanted.asked_as:
            alias = alias_put(org_id, command.wanted.asked_as, command.id)
            steps.append(Step(alias, OnAlias(command)))
    for settlement, change in changed:
        update = change_update(org_id, settlement.seen, change.after)
        steps.append(Step(update, OnAuthorization(settlement)))
    captured = [command for command, _ in changed if command.submission is not None]
    return steps + _records(org_id, captured, sent_at_ms, page_nonce, expires_at_epoch)


def _bucket_write(bucket: BucketStep) -> Put | Update:
    step, debit = bucket.step, bucket.debit
    if isinstance(step, Create):
        return create(debit, step)
    if isinstance(step, Normal):
        return normal(debit, step)
    return retry(debit, step)


def _records(
    org_id: str,
    captured: Sequence[Settle],
    sent_at_ms: int,
    page_nonce: bytes,
    expires_at_epoch: int,
) -> list[Step]:
    """The records of captures.

    Those of ids that we made are on one page that nobody else writes: nothing else can have their
    ids. An id that the caller gave may be that of a usage record. So it needs what such a record
    needs to count once: its place on the page that its time names, or else a receipt.
    """
    steps: list[Step] = []
    private: list[Written] = []
    for command in captured:
        submission = command.submission
        if submission is None:
            continue
        record = submission.written(command.nonce, sent_at_ms)
        if submission.address is not None:
            key = page_at(org_id, submission.lanes, submission.address, command.depth)
            steps.append(Step(page_update(key, [record], expires_at_epoch), OnRecord(command)))
            continue
        private.append(record)
        if not is_own_id(submission.request_id):
            receipt = submission.receipt(command.nonce, sent_at_ms)
            put = receipt_put(org_id, submission.request_id, receipt)
            steps.append(Step(put, OnRecord(command)))
    if private:
        page = private_page_put(
            org_id, region_at(sent_at_ms), page_nonce, private, expires_at_epoch
        )
        steps.append(Step(page, OnRecord(None)))
    return steps
