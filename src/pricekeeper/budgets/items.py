"""Stores accounts: the codec of their items, and the updates that file into them.

All accounts of a client are in one item of RateBuckets, ``{client}@{life}#BUDGETS`` / ``ALL``;
accounts for a value of a tag are in ``TAG#{tag}#{value}``. Each account has three amounts in
pico-dollars, which change only by ``ADD``::

    u:{id}   used: spent, held and unsettled together; the limit applies to it
    h:{id}   the part held by open authorizations
    x:{id}   the part charged for expired, unsettled authorizations

An account is **open** once ``u`` exists: then it includes the earlier spend of its window. An item
contains the log up to the chapter in ``through``; a reader adds later sheets
(`pricekeeper.ledger`). ``mends`` counts corrections, so that none is applied twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pricekeeper.days import day_start_ms
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import (
    Action,
    Add,
    Item,
    Key,
    Put,
    Query,
    Remove,
    Set,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import EXPIRY

USED, HELD, UNSETTLED = "u:", "h:", "x:"
_MENDS: Final = "mends"
_THROUGH: Final = "through"
_CHAPTER: Final = re.compile("[0-9a-f]{9}")
LIFE_SECS: Final = 40 * 86_400
"""How long an item is kept after its last write: longer than its longest window."""
KEPT_MS: Final = 27 * 3_600_000
"""After an account's window: a call may be held for an hour and be captured up to a day later."""
REMOVED_MAX: Final = 32


class Balance(msgspec.Struct, frozen=True, gc=False):
    """The amounts of an account, in pico-dollars."""

    used: int = 0
    held: int = 0
    unsettled: int = 0

    @property
    def spent(self) -> int:
        return self.used - self.held - self.unsettled

    def __add__(self, other: Balance) -> Balance:
        return Balance(
            self.used + other.used, self.held + other.held, self.unsettled + other.unsettled
        )

    def __sub__(self, other: Balance) -> Balance:
        return Balance(
            self.used - other.used, self.held - other.held, self.unsettled - other.unsettled
        )


NOTHING: Final = Balance()


def hold(picos: int) -> Balance:
    """What an authorization adds to each of its accounts."""
    return Balance(picos, picos, 0)


def capture(held: int, cost: int) -> Balance:
    """What the capture of an open authorization adds."""
    return Balance(cost - held, -held, 0)


def expire(held: int) -> Balance:
    """What an authorization adds that expires unsettled."""
    return Balance(0, -held, held)


def capture_late(held: int, cost: int) -> Balance:
    """What the capture of an expired authorization adds."""
    return Balance(cost - held, 0, -held)


def spend(cost: int) -> Balance:
    """What a record without an authorization adds."""
    return Balance(cost, 0, 0)


def balance_of(item: Mapping[str, Any] | None, account_id: str) -> Balance | None:
    """The balance of an account; ``None`` if it is not open."""
    if item is None or USED + account_id not in item:
        return None
    typed = TypedItem(RATE_BUCKETS, item)
    return Balance(
        typed.whole(USED + account_id),
        typed.whole(HELD + account_id, 0),
        typed.whole(UNSETTLED + account_id, 0),
    )


def balances_of(item: Mapping[str, Any] | None) -> dict[str, Balance | UnreadableItemError]:
    """The balances of the open accounts of an item; for an unreadable one its error."""
    found: dict[str, Balance | UnreadableItemError] = {}
    for account_id in account_ids(item or {}):
        try:
            found[account_id] = balance_of(item, account_id) or NOTHING
        except UnreadableItemError as error:
            found[account_id] = error
    return found


def account_ids(item: Mapping[str, Any]) -> list[str]:
    """The open accounts of an item."""
    return [name.removeprefix(USED) for name in item if name.startswith(USED)]


def file_update(
    key: Key, changes: Mapping[str, Balance], mends: int, chapter: str, now_ms: int
) -> Update:
    """Add the changes of a chapter to accounts of one item, unless the chapter is in it.

    Chapters are filed in order, so the name of the last one says which are in.
    """
    actions: list[Action] = [Set(EXPIRY, now_ms // 1000 + LIFE_SECS), Set(_THROUGH, chapter)]
    if mends:
        actions.append(Add(_MENDS, mends))
    for account_id, change in changes.items():
        actions.append(Add(USED + account_id, change.used))  # also if it is nothing: it is open
        for prefix, picos in ((HELD, change.held), (UNSETTLED, change.unsettled)):
            if picos:
                actions.append(Add(prefix + account_id, picos))
    through = attr(_THROUGH)
    return Update(RATE_BUCKETS, key, tuple(actions), through.absent() | through.lt(chapter))


def file_put(
    key: Key,
    item: Item | None,
    changes: Mapping[str, Balance],
    mends: int,
    chapter: str,
    now_ms: int,
) -> Put:
    """The same as a put of the whole item, unless another chapter was filed since it was read.

    An unreadable account is left unchanged.
    """
    after: Item = {**(item or {}), **key.attributes}
    after |= {EXPIRY: now_ms // 1000 + LIFE_SECS, _THROUGH: chapter}
    if mends:
        after[_MENDS] = mends + (0 if item is None else mends_of(item))
    found = balances_of(item)
    for account_id, change in changes.items():
        have = found.get(account_id, NOTHING)
        if isinstance(have, Balance):
            sums = have + change
            after[USED + account_id] = sums.used
            after[HELD + account_id], after[UNSETTLED + account_id] = sums.held, sums.unsettled
    before = "" if item is None else filed_through(item)
    through = attr(_THROUGH)
    return Put(RATE_BUCKETS, after, through.eq(before) if before else through.absent())


def filed_through(item: Mapping[str, Any]) -> str:
    """The last chapter of the log that is in the item; empty if none."""
    typed = TypedItem(RATE_BUCKETS, item)
    chapter = typed.text(_THROUGH, "")
    if chapter and not _CHAPTER.fullmatch(chapter):
        raise typed.report_unreadable(f"{_THROUGH} must name a chapter")
    return chapter


def tidy_update(key: Key, past: Iterable[str], chapter: str) -> Update:
    """Remove accounts of windows that ended long ago, unless a chapter was filed since."""
    actions = [Remove(prefix + one) for one in past for prefix in (USED, HELD, UNSETTLED)]
    return Update(RATE_BUCKETS, key, tuple(actions), attr(_THROUGH).eq(chapter))


def mends_of(item: Mapping[str, Any]) -> int:
    """How many corrections the item has."""
    return TypedItem(RATE_BUCKETS, item).whole(_MENDS, 0)


def past_accounts(item: Item | None, now_ms: int) -> list[str]:
    """The accounts of an item whose windows ended long ago and that hold nothing."""
    if item is None:
        return []
    typed = TypedItem(RATE_BUCKETS, item)
    return [
        account_id
        for account_id in account_ids(item)
        if _is_past(account_id, now_ms) and not typed.whole(HELD + account_id, 0)
    ][:REMOVED_MAX]


def partition_query(pk: str, prefix: str = "") -> Query:
    """The items of a client's accounts, or those with this prefix."""
    return Query(RATE_BUCKETS, pk, prefix=prefix)


def _is_past(account_id: str, now_ms: int) -> bool:
    """A window lasts a month at most, and its name says when it began."""
    _, _, span = account_id.rpartition(".")
    kind, began = span[:1], span[1:]
    lasts_days = {"H": 0, "D": 2, "W": 8, "M": 32}.get(kind)
    if lasts_days is None or not began.isdigit():
        return False
    if kind == "H":
        began_ms = int(began) * 1000 + 2 * 3_600_000
    else:
        began_ms = day_start_ms("UTC", began) + lasts_days * 86_400_000
    return began_ms + KEPT_MS < now_ms
