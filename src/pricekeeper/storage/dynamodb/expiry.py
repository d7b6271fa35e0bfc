"""Makes an expired item count as absent while DynamoDB still holds it.

DynamoDB removes an item hours or days after its expiry, and evaluates conditions on it until then.
So a condition is sent in a form that gives, on an expired item, the answer that the caller's
condition gives on no item. That answer is a constant, known before sending:

- False of no item: ``C AND live`` is sent.
- True of no item: ``C OR expired`` is sent.

An update would build on the old values, so it is always sent with ``C AND live``, and an expired
item in its way is removed or replaced first.

This module is pure. ``now_epoch`` is read once per call, so that the request and the reading of its
reply agree.
"""

from __future__ import annotations

from typing import Final

from pricekeeper.storage.expressions import And, Compare, Condition, Exists, Not, Or
from pricekeeper.storage.operations import Update, Write
from pricekeeper.storage.tables import Table
from pricekeeper.storage.values import EXPIRY, Item

_EVERLASTING: Final = Not(Exists(EXPIRY))


def is_expired(table: Table, item: Item | None, now_epoch: int) -> bool:
    """Whether there is an item that has expired."""
    if item is None or not table.expires:
        return False
    expires = item.get(EXPIRY)
    return type(expires) is int and expires <= now_epoch


def visible(table: Table, item: Item | None, now_epoch: int) -> Item | None:
    """The item as callers see it: none if it has expired."""
    return None if is_expired(table, item, now_epoch) else item


def condition_to_send(operation: Write, now_epoch: int) -> Condition | None:
    """The operation's condition, changed to treat an expired item as absent."""
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
    """Whether the update may create the item."""
    return operation.condition is None or operation.condition.holds({})


def _live(now_epoch: int) -> Condition:
    return Or((_EVERLASTING, Compare(EXPIRY, ">", now_epoch)))
