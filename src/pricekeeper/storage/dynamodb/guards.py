"""Decides which conditional writes may be retried after a lost reply.

A write guards itself if its own condition is false once it has been applied: ``SET rf = 7 IF rf =
5``, put-if-absent, delete-if-present. A second copy is then refused, not applied. This is decided
without the item: the condition is evaluated over what the write makes certain, and everything else
is unknown (Kleene's three-valued logic).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pricekeeper.storage.expressions import (
    And,
    Condition,
    Exists,
    Not,
    OnAttribute,
    Or,
    Remove,
    Set,
)
from pricekeeper.storage.operations import Delete, Put, Update
from pricekeeper.storage.values import Value

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
