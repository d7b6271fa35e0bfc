"""One transaction for all commands that are decided together. No I/O, no clock.

Every item is in it once: each item of accounts, each bucket, and each sheet, however many commands
are about it. Whatever becomes of it, each operation says whom its refusal concerns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pricekeeper.authorizations.books import Books, BucketKey, BucketStep
from pricekeeper.authorizations.commands import Authorize, Place, Settle
from pricekeeper.authorizations.decision import Granted
from pricekeeper.authorizations.items import NewGrant, StateChange, sheet_key, sheet_update
from pricekeeper.authorizations.settling import Changed
from pricekeeper.budgets.items import account_update
from pricekeeper.limiter.bucket import Create, Normal
from pricekeeper.limiter.writes import create, normal, retry
from pricekeeper.metering.journal import sheet_number
from pricekeeper.metering.journal_items import Written, take_place_update
from pricekeeper.metering.posting import page_at
from pricekeeper.metering.receipt import take_place_put
from pricekeeper.storage import Key, Put, Update, Write


class OnAccounts(NamedTuple):
    """The operation changes an item of accounts."""

    key: Key


class OnBucket(NamedTuple):
    """The operation takes from a bucket."""

    key: BucketKey


class OnSheet(NamedTuple):
    """The operation grants authorizations, or changes them."""

    commands: tuple[Authorize | Settle, ...]


class OnPlace(NamedTuple):
    """The operation lets a caller's own id stand for an authorization."""

    command: Authorize


Concern = OnAccounts | OnBucket | OnSheet | OnPlace


class Step(NamedTuple):
    """One operation, and whom its refusal concerns."""

    operation: Write
    concern: Concern


class _Sheet:
    """What a transaction does on one sheet, and for whom."""

    def __init__(self) -> None:
        self.granted: list[NewGrant] = []
        self.changed: list[StateChange] = []
        self.commands: list[Authorize | Settle] = []


def make_transaction(
    org_id: str,
    books: Books,
    buckets: Mapping[BucketKey, BucketStep],
    granted: Sequence[tuple[Authorize, Granted]],
    changed: Sequence[tuple[Settle, Changed]],
    *,
    sent_at_ms: int,
    expires_at_epoch: int,
) -> list[Step]:
    """The operations that carry out what was decided on the books."""
    steps = [
        Step(account_update(key, changes, books.limits.get(key, {}), sent_at_ms), OnAccounts(key))
        for key, changes in books.changes.items()
        if changes
    ]
    steps += [Step(_bucket_write(one), OnBucket(key)) for key, one in buckets.items()]
    sheets: dict[Key, _Sheet] = defaultdict(_Sheet)
    for command, grant in granted:
        sheet = sheets[sheet_key(org_id, command.id)]
        sheet.granted.append(NewGrant(grant.authorization, grant.stored_terms))
        sheet.commands.append(command)
        if command.place is not None:
            place = _take_place(org_id, command, command.place, expires_at_epoch)
            steps.append(Step(place, OnPlace(command)))
    for settlement, change in changed:
        sheet = sheets[sheet_key(org_id, settlement.seen.id)]
        record = _record(settlement, sent_at_ms)
        sheet.changed.append(StateChange(settlement.seen, change.after, record))
        sheet.commands.append(settlement)
    for key, sheet in sheets.items():
        update = sheet_update(key, sheet.granted, sheet.changed, expires_at_epoch)
        steps.append(Step(update, OnSheet(tuple(sheet.commands))))
    return steps


def _bucket_write(bucket: BucketStep) -> Put | Update:
    step, debit = bucket.step, bucket.debit
    if isinstance(step, Create):
        return create(debit, step)
    if isinstance(step, Normal):
        return normal(debit, step)
    return retry(debit, step)


def _record(settlement: Settle, sent_at_ms: int) -> Written | None:
    """The record that a capture counts as."""
    submission = settlement.submission
    if submission is None:
        return None
    number = sheet_number(settlement.seen.id)
    return submission.written_on_sheet(number, settlement.nonce, sent_at_ms)


def _take_place(
    org_id: str, command: Authorize, place: Place, expires_at_epoch: int
) -> Put | Update:
    """Let the caller's own id stand for the authorization, if it stands for nothing."""
    if place.address is None:
        return take_place_put(org_id, place.request_id, command.id, expires_at_epoch)
    key = page_at(org_id, place.lanes, place.address, command.depth)
    return take_place_update(key, place.address.name, command.id, expires_at_epoch)
