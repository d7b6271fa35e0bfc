"""Parses the query strings and reasons of callers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from pricekeeper.days import day_of
from pricekeeper.errors import FieldError, InvalidValueError, RequestRefusedError
from pricekeeper.metering import day_start_ms
from pricekeeper.metering.facets import MS_PER_HOUR
from pricekeeper.telemetry.logs import contains_secret
from pricekeeper.values import parse_whole
from pricekeeper.wire.values import parse_timestamp

End = date | int
"""A day, or the milliseconds of a full hour."""
NO_END: Final = "must be a date such as 2026-01-23, or a full hour such as 2026-01-23T15:00:00Z"
_ONE_DAY: Final = timedelta(days=1)
_YYYY_MM_DD: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_Choice = TypeVar("_Choice", bound=StrEnum)


def parse_each(
    query: Mapping[str, str],
    parsers: Mapping[str, Callable[[str], Any]],
    check: Callable[[Mapping[str, Any]], Iterable[FieldError]] = lambda _: (),
    *,
    required: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Parse the fields of a query, ``None`` for an absent one; every mistake is listed.

    ``check`` gets the parsed fields, ``required`` describes the required ones.
    """
    found, mistakes = dict[str, Any](), list[FieldError]()
    for name, parse in parsers.items():
        try:
            found[name] = parse(query[name]) if name in query else None
        except InvalidValueError as error:
            mistakes.append(FieldError(name, error.message))
        if name not in query and required is not None and name in required:
            mistakes.append(FieldError(name, f"is required: {required[name]}"))
    mistakes += check(found)
    if mistakes:
        raise RequestRefusedError.of(mistakes)
    return found


def parse_choice(kind: type[_Choice]) -> Callable[[str], _Choice]:
    """A parser for the names of an enumeration."""

    def parse(text: str) -> _Choice:
        if text not in set(kind):
            raise InvalidValueError("", f"must be one of {', '.join(kind)}")
        return kind(text)

    return parse


def parse_date(text: str) -> date:
    """Parse a day, yyyy-mm-dd; raises `ValueError`."""
    if not _YYYY_MM_DD.fullmatch(text):
        raise ValueError(text)
    return date.fromisoformat(text)


def parse_end(text: str) -> End:
    """Parse an end of a range: a day or a full hour."""
    try:
        if "T" not in text:
            return parse_date(text)
        at_ms = parse_timestamp(text)
    except (ValueError, InvalidValueError):
        raise InvalidValueError("", NO_END) from None
    if at_ms % MS_PER_HOUR:
        raise InvalidValueError("", "must be on the hour, such as 2026-01-23T15:00:00Z")
    return at_ms


def parse_limit(text: str, most: int) -> int:
    """Parse the number of entries per page."""
    found = parse_whole(text) or 0
    if not 1 <= found <= most:
        raise InvalidValueError("limit", f"must be from 1 to {most}")
    return found


def parse_tag(text: str) -> tuple[str, str]:
    """Parse ``team:red``, or ``team:`` for a missing tag or an empty value."""
    key, colon, value = text.partition(":")
    if not key or not colon:
        raise InvalidValueError("tag", "must be KEY:VALUE, or KEY: for what does not have it")
    return key, value


def without_secret(field: str, text: str) -> str:
    """Return a text that people will see; raises if it looks like a secret."""
    if contains_secret(text):
        raise InvalidValueError(field, "has something in it that looks like a secret")
    return text


def bounds_ms(
    first: End | None, last: End | None, zone: str, otherwise: tuple[int, int]
) -> tuple[int, int]:
    """The first and the last millisecond of a range, with defaults for the ends.

    A date at the end is included, a time is not. Raises if the range is empty.
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
