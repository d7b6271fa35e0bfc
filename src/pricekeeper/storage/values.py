"""What an item may hold: DynamoDB's types, with integers as the only numbers.

Both adapters enforce the allowed values, sizes in DynamoDB's arithmetic, and its equality, which is
stricter than Python's (``True`` is not ``1``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pricekeeper.errors import InvalidOperationError

Value: TypeAlias = (
    "str | int | bool | bytes | Sequence[Value] | Mapping[str, Value] | AbstractSet[str] | None"
)
Item: TypeAlias = dict[str, Any]
"""Attributes by name. Their values are `Value`; codecs give them their types."""

PARTITION_KEY: Final = "PK"
SORT_KEY: Final = "SK"
EXPIRY: Final = "expires_at_epoch"

DAMAGED: Final = ""
"""The attribute of an item whose bytes can't be decoded; real attributes have a name."""

ITEM_BYTES_MAX: Final = 400 * 1024
PARTITION_KEY_BYTES_MAX: Final = 2048
SORT_KEY_BYTES_MAX: Final = 1024
NUMBER_BOUND: Final = 10**38
NESTING_MAX: Final = 31

_CONTAINER_BYTES: Final = 3
_NUMBER_BYTES_MAX: Final = 21
_ALL_TEXT: Final = {str}


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """A stored value that the port has no type for, such as another program's fraction.

    It equals nothing and can't be written: its item is unreadable only where it matters.
    """

    kind: str


def text_bytes(text: str) -> int:
    """The length in UTF-8; refuses a lone surrogate."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidOperationError("a string holds a lone surrogate, which is not text") from error


def name_bytes(name: str) -> int:
    """The length of an attribute's name, which can't be empty."""
    if type(name) is not str or not name:
        raise InvalidOperationError(f"an attribute needs a name, not {name!r}")
    return text_bytes(name)


def number_bytes(number: int) -> int:
    """Two digits per byte, one more byte, and one below zero."""
    if -NUMBER_BOUND < number < NUMBER_BOUND:
        digits = len(str(abs(number)).rstrip("0")) if number else 0
        return (digits + 1) // 2 + 1 + (number < 0)
    raise InvalidOperationError("a number has more than 38 digits")


def value_bytes(value: Value, depth: int = 0) -> int:
    """The size in DynamoDB's arithmetic; raises for a value that can't be stored."""
    kind = type(value)
    if kind is str:
        return text_bytes(value)  # type: ignore[arg-type]
    if kind is int:
        return number_bytes(value)  # type: ignore[arg-type]
    if kind is bool or value is None:
        return 1
    if kind is bytes:
        return len(value)  # type: ignore[arg-type]
    if depth >= NESTING_MAX:
        raise InvalidOperationError(f"values nest deeper than {NESTING_MAX} levels")
    if isinstance(value, (set, frozenset)):
        if not value or not all(type(member) is str for member in value):
            raise InvalidOperationError("a set holds strings, at least one")
        return sum(map(text_bytes, value))
    if isinstance(value, (list, tuple)):
        return _CONTAINER_BYTES + sum(1 + value_bytes(member, depth + 1) for member in value)
    if isinstance(value, dict):
        return _CONTAINER_BYTES + sum(
            1 + name_bytes(name) + value_bytes(member, depth + 1) for name, member in value.items()
        )
    raise InvalidOperationError(f"an item can't hold a {kind.__name__}: {value!r}")


def check_value(value: Value) -> None:
    """Raise if the value can't be stored; fast for integers."""
    if type(value) is not int or not -NUMBER_BOUND < value < NUMBER_BOUND:
        value_bytes(value)


def item_bytes(item: Mapping[str, Value]) -> int:
    """The size of an item: names and values."""
    return sum(name_bytes(name) + value_bytes(value) for name, value in item.items())


def item_bytes_at_most(item: Mapping[str, Value]) -> int:
    """A fast upper bound of `item_bytes`; raises for the same items."""
    size = _names_bytes(item)
    for value in item.values():
        kind = type(value)
        if (kind is str and value.isascii()) or kind is bytes:  # type: ignore[union-attr]
            size += len(value)  # type: ignore[arg-type]
        elif kind is int and -NUMBER_BOUND < value < NUMBER_BOUND:  # type: ignore[operator]
            size += _NUMBER_BYTES_MAX
        else:
            size += value_bytes(value)
    return size


def _names_bytes(item: Mapping[str, Value]) -> int:
    if "" not in item and set(map(type, item)) == _ALL_TEXT:
        names = "".join(item)
        if names.isascii():
            return len(names)
    return sum(map(name_bytes, item))


def same(left: Value, right: Value) -> bool:
    """DynamoDB's equality: the types must agree at every depth."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            same(member, right[name]) for name, member in left.items()
        )
    if isinstance(left, (set, frozenset)) and isinstance(right, (set, frozenset)):
        return left == right
    return type(left) is type(right) and left == right
