"""Accounts in the store: the codec of their items, and what a write adds to them.

All accounts of a client are in one item of RateBuckets, ``{client}@{life}#BUDGETS`` / ``ALL``;
those for a value of a tag in ``TAG#{tag}#{value}`` of the same partition. For each account::

    u:{id}   used: spent, held and unsettled together, which is what the limit is held against
    h:{id}   of that, held by authorizations that are open
    x:{id}   of that, charged for authorizations that expired and that nobody has settled

All are pico-dollars, and change by ``ADD`` alone. An account is **open** once ``u`` is there: it
then has everything that was spent in its window before. A write on an account that is not open is
refused, so no record is written between the sum of those before and the first debit.

``mends`` counts how often accounts of the item were set right, so that nobody does it twice for the
same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pricekeeper.budgets.account import BudgetAccount
from pricekeeper.days import day_start_ms
from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import (
    Action,
    Add,
    Condition,
    Item,
    Key,
    Query,
    Remove,
    Set,
    TypedItem,
    Update,
    attr,
)
from pricekeeper.storage.expressions import And
from pricekeeper.storage.tables import RATE_BUCKETS
from pricekeeper.storage.values import EXPIRY

USED, HELD, UNSETTLED = "u:", "h:", "x:"
_MENDS: Final = "mends"
LIFE_SECS: Final = 40 * 86_400
"""How long an item is kept after its last write: longer than its longest window."""
KEPT_MS: Final = 27 * 3_600_000
"""How long after its window an account is kept: an authorization may be held for an hour, and be
captured up to a day after that."""
REMOVED_MAX: Final = 32
"""Accounts of past windows that one write takes away."""


class Balance(msgspec.Struct, frozen=True):
    """What an account has, in pico-dollars."""

    used: int = 0
    held: int = 0
    unsettled: int = 0

    @property
    def spent(self) -> int:
        """What was counted by records."""
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
    """What an authorization that nobody has settled adds when it expires."""
    return Balance(0, -held, held)


def capture_late(held: int, cost: int) -> Balance:
    """What the capture of an authorization that had expired adds."""
    return Balance(cost - held, 0, -held)


def spend(cost: int) -> Balance:
    """What a record adds that was never authorized."""
    return Balance(cost, 0, 0)


def balance_of(item: Mapping[str, Any] | None, account_id: str) -> Balance | None:
    """What the account has; ``None`` if it is not open."""
    if item is None or USED + account_id not in item:
        return None
    typed = TypedItem(RATE_BUCKETS, item)
    return Balance(
        typed.whole(USED + account_id),
        typed.whole(HELD + account_id, 0),
        typed.whole(UNSETTLED + account_id, 0),
    )


def balances_of(item: Mapping[str, Any] | None) -> dict[str, Balance | UnreadableItemError] | None:
    """What each account of an item has that is open; ``None`` if there is no item.

    In place of one that can't be read is the error: it concerns whoever needs that account.
    """
    if item is None:
        return None
    found: dict[str, Balance | UnreadableItemError] = {}
    for account_id in account_ids(item):
        try:
            found[account_id] = balance_of(item, account_id) or NOTHING
        except UnreadableItemError as error:
            found[account_id] = error
    return found


def account_ids(item: Mapping[str, Any]) -> list[str]:
    """The accounts of an item that are open."""
    return [name.removeprefix(USED) for name in item if name.startswith(USED)]


def account_update(
    key: Key,
    changes: Mapping[str, Balance],
    limits: Mapping[str, int],
    now_ms: int,
) -> Update:
    """Add these changes to accounts of one item, all or none.

    Each account must be open. ``limits`` says how much an account may have used afterwards, for
    those where that matters.
    """
    actions: list[Action] = [Set(EXPIRY, now_ms // 1000 + LIFE_SECS)]
    conditions: list[Condition] = []
    for account_id, change in changes.items():
        used = attr(USED + account_id)
        conditions.append(used.exists())
        if account_id in limits:
            conditions.append(used.le(limits[account_id] - change.used))
        for prefix, picos in (
            (USED, change.used),
            (HELD, change.held),
            (UNSETTLED, change.unsettled),
        ):
            if picos:
                actions.append(Add(prefix + account_id, picos))
    return Update(RATE_BUCKETS, key, tuple(actions), And(tuple(conditions)))


def open_update(account: BudgetAccount, spent: int, past: Iterable[str], now_ms: int) -> Update:
    """Open an account with what was spent in its window before, unless it is open.

    ``past`` are accounts of windows that are over, which are taken away.
    """
    actions: list[Action] = [
        Set(EXPIRY, now_ms // 1000 + LIFE_SECS),
        Set(USED + account.id, spent),
        Set(HELD + account.id, 0),
        Set(UNSETTLED + account.id, 0),
    ]
    conditions: list[Condition] = [attr(USED + account.id).absent()]
    for account_id in past:
        actions += (Remove(prefix + account_id) for prefix in (USED, HELD, UNSETTLED))
        held = attr(HELD + account_id)
        conditions.append(held.absent() | held.eq(0))
    return Update(RATE_BUCKETS, account.key, tuple(actions), And(tuple(conditions)))


def mend_update(key: Key, account_id: str, seen: Balance, right: Balance) -> Update:
    """Set an account right, if it is still as it was seen."""
    return Update(
        RATE_BUCKETS,
        key,
        (
            Set(USED + account_id, right.used),
            Set(HELD + account_id, right.held),
            Set(UNSETTLED + account_id, right.unsettled),
            Add(_MENDS, 1),
        ),
        And(
            (
                attr(USED + account_id).eq(seen.used),
                attr(HELD + account_id).eq(seen.held),
                attr(UNSETTLED + account_id).eq(seen.unsettled),
            )
        ),
    )


def mends_of(item: Mapping[str, Any]) -> int:
    """How often accounts of the item were set right."""
    mends: int = TypedItem(RATE_BUCKETS, item).whole(_MENDS, 0)
    return mends


def recount_update(key: Key, missing: Mapping[str, int], mends: int) -> Update:
    """Add to accounts what is missing in them, unless one of the item was set right meanwhile.

    What is counted meanwhile is no hindrance: it is missing in any case.
    """
    counted = attr(_MENDS)
    conditions: list[Condition] = [counted.eq(mends) if mends else counted.absent()]
    actions: list[Action] = [Add(_MENDS, 1)]
    for account_id, picos in missing.items():
        conditions.append(attr(USED + account_id).exists())
        actions.append(Add(USED + account_id, picos))
    return Update(RATE_BUCKETS, key, tuple(actions), And(tuple(conditions)))


def past_accounts(item: Item | None, now_ms: int) -> list[str]:
    """The accounts of an item whose window is long over and that hold nothing."""
    if item is None:
        return []
    typed = TypedItem(RATE_BUCKETS, item)
    return [
        account_id
        for account_id in account_ids(item)
        if _is_past(account_id, now_ms) and not typed.whole(HELD + account_id, 0)
    ][:REMOVED_MAX]


def partition_query(pk: str, after: str = "") -> Query:
    """Every item of a client's accounts."""
    return Query(RATE_BUCKETS, pk, after=after)


def _is_past(account_id: str, now_ms: int) -> bool:
    """Whether its window began so long ago that nothing of it can be settled any more.

    A window is at most a month long, and its name says when it began.
    """
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
