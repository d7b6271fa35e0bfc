"""How an expired item is made to count as absent, though DynamoDB still holds it.

DynamoDB removes an item hours or days after its time, and until then evaluates conditions on
it. So the conditions that we send are written to give, on an expired item, the answer that the
caller's condition gives on no item. That answer is a constant, known before sending:

- False of no item, so it must be false of an expired one: ``C AND live`` is sent.
- True of no item, so it must be true of an expired one: ``C OR expired`` is sent.

An update is different, for it would build on the old values: it is always sent with
``C AND live``, and an expired item in its way is removed or replaced first.

All of this is pure. ``now_epoch`` is read once per call, so that what was sent and how the
answer is read agree.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.storage.expressions import And, Compare, Condition, Exists, Not, Or
from pricekeeper.storage.operations import Update, Write
from pricekeeper.storage.tables import Table
from pricekeeper.storage.values import EXPIRY, Item

_EVERLASTING: Final = Not(Exists(EXPIRY))


def is_expired(table: Table, item: Item | None, now_epoch: int) -> bool:
    """Whether there is an item, and its time has come."""
    if item is None or not table.expires:
        return False
    expires = item.get(EXPIRY)
    return type(expires) is int and expires <= now_epoch


def visible(table: Table, item: Item | None, now_epoch: int) -> Item | None:
    """The item as the caller may see it: none if its time has come."""
    return None if is_expired(table, item, now_epoch) else item


def condition_to_send(operation: Write, now_epoch: int) -> Condition | None:
    """The operation's condition, made to see an expired item as none."""
    condition = operation.condition
    if not operation.table.expires:
        return condition
    if isinstance(operation, Update):
        live = _live(now_epoch)
        return live if condition is None else And((condition, live))
    if condition is None:
        return None
    if condition.holds({}):
        return Or((condition, Compare(EXPIRY, "<=", now_epoch)))
    return And((condition, _live(now_epoch)))


def starts_from_nothing(operation: Update) -> bool:
    """Whether the update may go ahead where there is no item."""
    return operation.condition is None or operation.condition.holds({})


def _live(now_epoch: int) -> Condition:
    return Or((_EVERLASTING, Compare(EXPIRY, ">", now_epoch)))
