"""The cost of a refused write, which DynamoDB bills and does not report.

A reply to a condition that failed has no ``ConsumedCapacity``, but AWS documents what it is: a
conditional write that is refused consumes write units by the size of the item, the one that is
there or the one that was to be written, whichever is larger, and one unit at least. A transaction
that a condition cancels has prepared each of its operations: two units for each KB of each.

What an update would have made of an item is not known here. It is taken as large as the item that
is there, or as what the request carries if there is none. The items under a cancelled transaction
are known only where a condition failed. Conflicts and throttles are not counted, since their cost
is not documented.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from pricekeeper.storage.dynamodb.faults import (
    CONDITION_FAILED,
    TRANSACTION_CANCELLED,
    Fault,
    Treatment,
)
from pricekeeper.storage.dynamodb.wire import Attribute, Attributes

_UNIT_BYTES: Final = 1024
_CONTAINER_BYTES: Final = 3
_TRANSACTION_FACTOR: Final = 2


def refused_write_units(request: Mapping[str, Any], fault: Fault) -> Counter[str]:
    """Write units by table name; none if the fault is not a refusal."""
    units: Counter[str] = Counter()
    if fault.name == CONDITION_FAILED:
        units[request["TableName"]] = _units(request, fault.reply.get("Item"))
    elif fault.name == TRANSACTION_CANCELLED and fault.treatment is Treatment.REFUSED:
        reasons = fault.reply["CancellationReasons"]
        for entry, reason in zip(request["TransactItems"], reasons, strict=False):
            for operation in entry.values():
                held = reason.get("Item")
                units[operation["TableName"]] += _TRANSACTION_FACTOR * _units(operation, held)
    return units


def _units(operation: Mapping[str, Any], held: Attributes | None) -> int:
    there = _item_bytes(held or {})
    written = _item_bytes(operation.get("Item", operation.get("Key", {})))
    if "UpdateExpression" in operation and not held:
        written += _item_bytes(operation.get("ExpressionAttributeValues", {}))
    return max(1, -(-max(there, written) // _UNIT_BYTES))


def _item_bytes(attributes: Attributes) -> int:
    return sum(len(name.encode()) + _bytes(value) for name, value in attributes.items())


def _bytes(attribute: Attribute) -> int:
    """The size of a value as DynamoDB counts it: two digits in a byte, and one byte more."""
    for kind, content in attribute.items():
        match kind:
            case "S":
                return len(content.encode())
            case "N":
                return len(content) // 2 + 1
            case "B":
                return len(b64decode(content))
            case "L":
                return _CONTAINER_BYTES + sum(1 + _bytes(member) for member in content)
            case "M":
                return _CONTAINER_BYTES + len(content) + _item_bytes(content)
            case "SS" | "NS" | "BS":
                return sum(len(member.encode()) for member in content)
            case _:
                return 1
    return 0
