"""Conditions and update actions as frozen values, with DynamoDB's meaning.

Features never write expression strings: the SQLite adapter evaluates a condition (`holds`), the
DynamoDB adapter renders it. A condition that no store can evaluate is refused when made.

A missing attribute fails every comparison but ``<>``; values of different types are never equal and
never ordered.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, TypeAlias

import msgspec

from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage.values import NUMBER_BOUND, PARTITION_KEY, Item, Value, check_value, same

Comparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]

_ORDERINGS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PLAIN: Final = frozenset({str, int, bytes, bool, type(None)})
_ORDERED: Final = frozenset({str, int, bytes})


class _Missing:
    """The value of a missing attribute: equal to nothing, ordered with nothing."""


_MISSING: Final = _Missing()


class Condition(msgspec.Struct, frozen=True, tag=True):
    """A requirement on the current item for a write to happen."""

    def holds(self, item: Mapping[str, Value]) -> bool:
        raise NotImplementedError  # pragma: no cover - every subclass defines it

    def __and__(self, other: Condition) -> Condition:
        return And((*_parts(self, And), *_parts(other, And)))

    def __or__(self, other: Condition) -> Condition:
        return Or((*_parts(self, Or), *_parts(other, Or)))

    def __invert__(self) -> Condition:
        return Not(self)


class OnAttribute(Condition, frozen=True):
    """A condition on a single attribute."""

    attribute: str


class Compare(OnAttribute, frozen=True):
    """``attribute <comparison> value``."""

    comparison: Comparison
    value: Value

    def __post_init__(self) -> None:
        value = self.value
        if type(value) is int and -NUMBER_BOUND < value < NUMBER_BOUND:
            return
        check_value(value)
        if self.comparison in _ORDERINGS and type(self.value) not in _ORDERED:
            raise InvalidOperationError(f"{self.comparison} orders numbers, strings and bytes only")

    def holds(self, item: Mapping[str, Value]) -> bool:
        have = item.get(self.attribute, _MISSING)
        want = self.value
        if self.comparison == "=":
            return _equal(have, want)
        if self.comparison == "<>":
            return not _equal(have, want)
        return type(have) is type(want) and _ORDERINGS[self.comparison](have, want)


class Exists(OnAttribute, frozen=True):
    """The attribute is present, with any value, ``None`` included."""

    def holds(self, item: Mapping[str, Value]) -> bool:
        return self.attribute in item


class And(Condition, frozen=True):
    """All parts hold."""

    parts: tuple[Condition, ...]

    def holds(self, item: Mapping[str, Value]) -> bool:
        return all(part.holds(item) for part in self.parts)


class Or(Condition, frozen=True):
    """At least one part holds."""

    parts: tuple[Condition, ...]

    def holds(self, item: Mapping[str, Value]) -> bool:
        return any(part.holds(item) for part in self.parts)


class Not(Condition, frozen=True):
    """The part does not hold."""

    part: Condition

    def holds(self, item: Mapping[str, Value]) -> bool:
        return not self.part.holds(item)


class Attribute(msgspec.Struct, frozen=True):
    """A top-level attribute, which makes conditions."""

    name: str

    def eq(self, value: Value) -> Condition:
        return Compare(self.name, "=", value)

    def ne(self, value: Value) -> Condition:
        return Compare(self.name, "<>", value)

    def lt(self, value: str | int | bytes) -> Condition:
        return Compare(self.name, "<", value)

    def le(self, value: str | int | bytes) -> Condition:
        return Compare(self.name, "<=", value)

    def gt(self, value: str | int | bytes) -> Condition:
        return Compare(self.name, ">", value)

    def ge(self, value: str | int | bytes) -> Condition:
        return Compare(self.name, ">=", value)

    def exists(self) -> Condition:
        return Exists(self.name)

    def absent(self) -> Condition:
        return Not(Exists(self.name))


def attr(name: str) -> Attribute:
    """Start a condition: ``attr("balance").ge(10)``."""
    return Attribute(name)


ITEM_EXISTS: Final[Condition] = Exists(PARTITION_KEY)
ITEM_ABSENT: Final[Condition] = Not(ITEM_EXISTS)


class Set(msgspec.Struct, frozen=True, tag=True):
    """Give the attribute this value."""

    attribute: str
    value: Value

    def check(self) -> None:
        if type(self.value) is not bytes:
            check_value(self.value)

    def apply(self, item: Item) -> None:
        item[self.attribute] = self.value


class Add(msgspec.Struct, frozen=True, tag=True):
    """Add to a number (absent: 0), or members to a set (absent: empty)."""

    attribute: str
    value: int | AbstractSet[str]

    def check(self) -> None:
        value = self.value
        if type(value) is int and -NUMBER_BOUND < value < NUMBER_BOUND:
            return
        if type(value) is not int and not isinstance(value, (set, frozenset)):
            raise InvalidOperationError("ADD takes an integer or a set of strings")
        check_value(value)

    def apply(self, item: Item) -> None:
        """Change the item; raises if the attribute has another type."""
        have, value = item.get(self.attribute, _MISSING), self.value
        if have is _MISSING:
            item[self.attribute] = value
        elif type(value) is int and type(have) is int:
            item[self.attribute] = have + value
        elif isinstance(have, (set, frozenset)) and isinstance(value, (set, frozenset)):
            item[self.attribute] = frozenset(have) | value
        else:
            raise InvalidOperationError(
                f"ADD to {self.attribute!r}: it holds another type than what is added"
            )


class Remove(msgspec.Struct, frozen=True, tag=True):
    """Remove the attribute, if present."""

    attribute: str

    def check(self) -> None:
        pass

    def apply(self, item: Item) -> None:
        item.pop(self.attribute, None)


Action: TypeAlias = Set | Add | Remove


def _parts(condition: Condition, kind: type[And | Or]) -> tuple[Condition, ...]:
    return condition.parts if isinstance(condition, kind) else (condition,)


def _equal(have: Value | _Missing, want: Value) -> bool:
    if type(have) in _PLAIN:
        return type(have) is type(want) and have == want
    return have is not _MISSING and same(have, want)  # type: ignore[arg-type]
