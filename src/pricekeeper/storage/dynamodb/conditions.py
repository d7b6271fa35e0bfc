"""Decides which condition is sent with a write, and which writes may be retried.

**Expired items.** DynamoDB removes an item hours or days after its expiry. So the condition that is
sent gives, on an expired item, the caller's answer on no item: ``C AND live`` if that is false, ``C
OR expired`` if it is true. An update would build on the old values, so it is always sent with ``C
AND live``, and an expired item in its way is removed or replaced first. ``now_epoch`` is read once
per call, so that request and reply agree.

**Retries.** A write guards itself if its own condition is false once it has been applied, as in
``SET rf = 7 IF rf = 5`` or put-if-absent. A second copy is then refused. The condition is evaluated
over what the write makes certain; everything else is unknown (Kleene's three-valued logic).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pricekeeper.storage.expressions import (
    And,
    Compare,
    Condition,
    Exists,
    Not,
    OnAttribute,
    Or,
    Remove,
    Set,
)
from pricekeeper.storage.operations import Delete, Put, Update, Write
from pricekeeper.storage.tables import Table
from pricekeeper.storage.values import EXPIRY, Item, Value

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


_REMOVED: Final = object()


def guards_itself(operation: Put | Update | Delete) -> bool:
    """Whether the applied operation certainly makes its own condition false."""
    condition = operation.condition
    if condition is None:
        return False
    if isinstance(operation, Put):
        return not condition.holds(operation.item)
    if isinstance(operation, Delete):
        return not condition.holds({})
    known: dict[str, Value | object] = {**operation.key.attributes}
    for action in operation.actions:
        if isinstance(action, Set):
            known[action.attribute] = action.value
        elif isinstance(action, Remove):
            known[action.attribute] = _REMOVED
    present = frozenset(action.attribute for action in operation.actions) - {
        action.attribute for action in operation.actions if isinstance(action, Remove)
    }
    return _certain(condition, known, present) is False


def _certain(
    condition: Condition, known: Mapping[str, Value | object], present: frozenset[str]
) -> bool | None:
    """Whether the condition certainly holds or fails; ``None`` if unknown."""
    match condition:
        case OnAttribute(attribute=name):
            if name not in known:
                return True if isinstance(condition, Exists) and name in present else None
            value = known[name]
            return condition.holds({} if value is _REMOVED else {name: value})  # type: ignore[dict-item]
        case Not(part=part):
            inner = _certain(part, known, present)
            return None if inner is None else not inner
        case And(parts=parts) | Or(parts=parts):
            deciding = isinstance(condition, Or)
            certain = [_certain(part, known, present) for part in parts]
            if deciding in certain:
                return deciding
            return None if None in certain else not deciding
        case _:
            return None
