"""What lists are asked with: fields that are each checked, and the two ends of a range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any, Final

from pricekeeper.days import day_of
from pricekeeper.errors import FieldError, InvalidValueError, RequestRefusedError
from pricekeeper.metering import day_start_ms

End = date | int
"""A day, or the milliseconds of a full hour."""
_ONE_DAY: Final = timedelta(days=1)


def parse_each(
    query: Mapping[str, str], parsers: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """The fields of a query, ``None`` for one that is not there; every mistake is told."""
    found, mistakes = dict[str, Any](), list[FieldError]()
    for name, parse in parsers.items():
        try:
            found[name] = parse(query[name]) if name in query else None
        except InvalidValueError as error:
            mistakes.append(FieldError(name, error.message))
    if mistakes:
        detail = ", ".join(f"{one.field}: {one.message}" for one in mistakes)
        raise RequestRefusedError(detail, tuple(mistakes))
    return found


def parse_tag(text: str) -> tuple[str, str]:
    """``team:red`` is what has that value, ``team:`` what has no such tag, or an empty one."""
    key, colon, value = text.partition(":")
    if not key or not colon:
        raise InvalidValueError("tag", "must be KEY:VALUE, or KEY: for what does not have it")
    return key, value


def bounds_ms(
    first: End | None, last: End | None, zone: str, otherwise: tuple[int, int]
) -> tuple[int, int]:
    """The first and the last millisecond of a range; an end that is not given is the other one.

    A date is included, an instant at the end is not. Raises if the range is none.
    """
    first_ms, last_ms = otherwise
    if first is not None:
        first_ms = _start_ms(first, zone)
    if last is not None:
        if isinstance(last, date) and last >= date.max - _ONE_DAY:
            raise InvalidValueError("to", "is too far ahead")
        end = last + _ONE_DAY if isinstance(last, date) else last
        last_ms = _start_ms(end, zone) - 1
        if first is None:
            first_ms = min(first_ms, last_ms)
        elif first_ms > last_ms:
            how = "at most" if isinstance(last, date) else "before"
            raise InvalidValueError("from", f"must be {how} `to`")
    return first_ms, last_ms


def _start_ms(end: End, zone: str) -> int:
    return day_start_ms(zone, day_of(end)) if isinstance(end, date) else end
