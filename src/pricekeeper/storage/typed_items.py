"""Reads the attributes of a stored item with their types, and reports malformed items.

A missing or mistyped attribute makes the item unreadable: logged with its key, counted by table,
raised as `UnreadableItemError`. It never becomes zero or empty.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import msgspec
import structlog

from pricekeeper.errors import UnreadableItemError
from pricekeeper.shapes import worded
from pricekeeper.storage.tables import ALL_TABLES, Table
from pricekeeper.storage.values import DAMAGED, PARTITION_KEY, SORT_KEY
from pricekeeper.telemetry import Family, counted

LATEST_MAX: Final = 10

_STRANGE: Final = Family(
    "pricekeeper_strange_items", "Reads of malformed stored items.", ("table",)
)
_TABLES: Final = tuple(table.name for table in ALL_TABLES)
_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class StrangeItems:
    """Counts malformed items by table, from ``with`` to its end."""

    counts: Counter[str] = counted(_STRANGE, shown=_TABLES, factory=Counter)
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=LATEST_MAX))

    def __enter__(self) -> Self:
        _counting.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _counting.remove(self)


_counting: Final[list[StrangeItems]] = []


def report_strange_item(table: str, key: str, reason: str) -> None:
    """Report a malformed item. The reason never quotes a value: it may be a secret."""
    _log.warning("stored_item_strange", table=table, key=key, reason=reason)
    for one in _counting:
        one.counts[table] += 1
        one.latest.append(f"{table} {key}: {reason}")


REQUIRED: Final[Any] = object()
MOMENTS_END_MS: Final = 253_402_300_800_000
_ALL_INTEGERS: Final = {int}

_Default = TypeVar("_Default")
_Kind = TypeVar("_Kind")
_Stored = TypeVar("_Stored")


class TypedItem:
    """An item of a table. Methods return the attribute, or the default if absent."""

    __slots__ = ("item", "table")

    def __init__(self, table: Table, item: Mapping[str, Any]) -> None:
        self.table = table
        self.item = item
        if DAMAGED in item:
            raise self.report_unreadable("its bytes can't be decoded")

    def whole(
        self, name: str, default: _Default = REQUIRED, *, least: int | None = None
    ) -> int | _Default:
        value = self.item.get(name, default)
        if value is default:
            self._attribute(name, default)  # which raises if there must be one
            return default
        if type(value) is not int:
            raise self.report_unreadable(f"{name} must be an integer, not {_kind(value)}")
        if least is not None and value < least:
            raise self.report_unreadable(f"{name} must be at least {least}")
        return value

    def integers(self, *names: str) -> list[int]:
        """All required."""
        values: list[Any] = [self.item.get(name) for name in names]
        if set(map(type, values)) == _ALL_INTEGERS:
            return values
        return [self.whole(name) for name in names]  # which says what is wrong

    def wholes(self, names: Sequence[str]) -> list[int]:
        """Zero if absent, and never less."""
        values = [self.item.get(name, 0) for name in names]
        if set(map(type, values)) == _ALL_INTEGERS and min(values) >= 0:
            return values
        return [self.whole(name, 0, least=0) for name in names]  # which says what is wrong

    def moment_ms(self, name: str) -> int:
        """A time in milliseconds since 1970, before the year 10000."""
        value = self.whole(name, least=0)
        if value >= MOMENTS_END_MS:
            raise self.report_unreadable(f"{name} must be a moment before the year 10000")
        return value

    def text(self, name: str, default: _Default = REQUIRED) -> str | _Default:
        return self._of_type(name, default, str, "a string")

    def mapping(self, name: str, default: _Default = REQUIRED) -> dict[str, Any] | _Default:
        return self._of_type(name, default, dict, "a map")

    def texts(self, name: str, default: _Default = REQUIRED) -> Collection[str] | _Default:
        value = self._attribute(name, default)
        if value is default:
            return default
        if isinstance(value, (list, tuple, set, frozenset)) and all(
            type(member) is str for member in value
        ):
            return value
        raise self.report_unreadable(f"{name} must be a list of strings, not {_kind(value)}")

    def convert(self, kind: type[_Kind]) -> _Kind:
        """The item as a value of that type; ignores unknown attributes."""
        try:
            return msgspec.convert(self.item, kind)
        except msgspec.ValidationError as error:
            wrong = worded(error)
            reason = wrong.message.partition(" '")[0]  # it may quote the value
            raise self.report_unreadable(f"{wrong.field}: {reason}") from error

    def report_unreadable(self, reason: str) -> UnreadableItemError:
        key = str(self.item.get(PARTITION_KEY, "?"))
        if SORT_KEY in self.item:
            key += f" / {self.item[SORT_KEY]}"
        report_strange_item(self.table.name, key, reason)
        return UnreadableItemError(f"the {self.table.name} item {key} can't be read: {reason}")

    def _of_type(
        self, name: str, default: _Default, kind: type[_Kind], called: str
    ) -> _Kind | _Default:
        value: _Kind | _Default = self._attribute(name, default)
        if value is default or type(value) is kind:
            return value
        raise self.report_unreadable(f"{name} must be {called}, not {_kind(value)}")

    def _attribute(self, name: str, default: Any) -> Any:
        if name in self.item:
            return self.item[name]
        if default is REQUIRED:
            raise self.report_unreadable(f"{name} is missing")
        return default


def readable(read: Callable[[_Stored], _Kind | None], stored: _Stored | None) -> _Kind | None:
    """Read an item; ``None`` if it is absent, or unreadable, which is reported."""
    if stored is None:
        return None
    try:
        return read(stored)
    except UnreadableItemError:
        return None


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
