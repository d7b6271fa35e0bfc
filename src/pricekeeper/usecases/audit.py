"""The audit trail: changes with their actor, time, address and reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from pricekeeper.audit.entry import org_of
from pricekeeper.audit.reading import END_MS, TrailCursor, TrailReader, WantedEntries
from pricekeeper.errors import FieldError, InvalidValueError, NotFoundError
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import parse_date, parse_each, parse_limit
from pricekeeper.values import parse_org_id
from pricekeeper.wire import administration as wire
from pricekeeper.wire.bounds import AUDIT_FILTER_LENGTH_MAX, PAGE_MAX
from pricekeeper.wire.values import parse_timestamp

_NO_END: Final = "must be a date such as 2026-01-23, or a moment such as 2026-01-23T15:30:45Z"
_ONE_DAY: Final = timedelta(days=1)


async def list_entries(ask: Ask) -> wire.AuditList:
    """Read a page of entries of the covered organisations, the newest first.

    Dates are days in UTC. Only a key for all organisations sees entries of no single one.
    """
    query, coverage, reader = ask.query, ask.coverage, TrailReader(ask.services.store)
    parsers: dict[str, Callable[[str], Any]] = {
        "org_id": parse_org_id,
        "actor": _parse_filter,
        "action": _parse_filter,
        "from": _parse_end,
        "to": partial(_parse_end, includes_day=True),
        "after": TrailCursor.parse,
        "limit": lambda text: parse_limit(text, PAGE_MAX),
    }

    def check(found: Mapping[str, Any]) -> Iterator[FieldError]:
        first_ms, end_ms = found.get("from"), found.get("to")
        if first_ms is not None and end_ms is not None and first_ms >= end_ms:
            how = "before" if "T" in query["to"] else "at most"
            yield FieldError("from", f"must be {how} `to`")

    found = parse_each(query, parsers, check)
    first_ms, end_ms = found["from"] or 0, END_MS if found["to"] is None else found["to"]
    wanted = WantedEntries(found["actor"], found["action"], _clamp(first_ms), _clamp(end_ms))
    if found["org_id"] is not None and found["org_id"] not in coverage:
        raise NotFoundError("org")
    org_id, limit = found["org_id"] or coverage.one, found["limit"] or PAGE_MAX
    if org_id is not None:
        page = await reader.list_org(org_id, wanted, found["after"], limit)
    else:
        page = await reader.list_all(wanted, found["after"], limit, covered=coverage.org_ids)
    after = UNSET if page.after is None else page.after.text
    entries = [describe(wire.AuditEntry, one, org_id=org_of(one.chain)) for one in page.entries]
    return wire.AuditList(entries, after)


def _parse_filter(text: str) -> str:
    if not 1 <= len(text) <= AUDIT_FILTER_LENGTH_MAX:
        raise InvalidValueError("", f"must have 1 to {AUDIT_FILTER_LENGTH_MAX} characters")
    return text


def _parse_end(text: str, *, includes_day: bool = False) -> int:
    try:
        if "T" in text:
            at_ms = parse_timestamp(text)
        else:
            day = parse_date(text) + (_ONE_DAY if includes_day else timedelta())
            at_ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
    except (ValueError, OverflowError, InvalidValueError):
        raise InvalidValueError("", _NO_END) from None
    return at_ms


def _clamp(at_ms: int) -> int:
    return min(max(0, at_ms), END_MS)
