"""The audit trail: who changed what, when, from where and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

from pricekeeper.audit.entry import Entry, org_of
from pricekeeper.audit.reading import END_MS, PAGE_MAX, Cursor, TrailReader, Wanted
from pricekeeper.authority import Coverage
from pricekeeper.bootstrap import Services
from pricekeeper.errors import FieldError, InvalidValueError, NotFoundError, RequestRefusedError
from pricekeeper.usecases.wire import audit as wire
from pricekeeper.usecases.wire.values import parse_timestamp, rfc3339
from pricekeeper.values import OrgId, parse_org_id

FILTER_LENGTH_MAX: Final = 256
_NO_END: Final = "must be a date such as 2026-01-23, or a moment such as 2026-01-23T15:30:45Z"
_ONE_DAY: Final = timedelta(days=1)
_YYYY_MM_DD: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class ListRequest(NamedTuple):
    """Which entries are asked for. A date at the end is included, a moment is not."""

    org_id: OrgId | None = None
    wanted: Wanted = Wanted()
    after: Cursor | None = None
    limit: int = PAGE_MAX


def parse_request(query: Mapping[str, str]) -> ListRequest:
    """What the query asks for; every mistake is told. Dates are days in UTC."""
    parsers: dict[str, Callable[[str], Any]] = {
        "org_id": parse_org_id,
        "actor": lambda text: _parse_filter("actor", text),
        "action": lambda text: _parse_filter("action", text),
        "from": lambda text: _parse_end("from", text),
        "to": lambda text: _parse_end("to", text, includes_day=True),
        "after": Cursor.parse,
        "limit": _parse_limit,
    }
    found, mistakes = dict[str, Any](), list[FieldError]()
    for name, parse in parsers.items():
        try:
            found |= {name: parse(query[name])} if name in query else {}
        except InvalidValueError as error:
            mistakes.append(FieldError(name, error.message))
    first_ms, end_ms = found.get("from", 0), found.get("to", END_MS)
    if {"from", "to"} <= found.keys() and first_ms >= end_ms:
        how = "before" if "T" in query["to"] else "at most"
        mistakes.append(FieldError("from", f"must be {how} `to`"))
    if mistakes:
        detail = ", ".join(f"{one.field}: {one.message}" for one in mistakes)
        raise RequestRefusedError(detail, tuple(mistakes))
    wanted = Wanted(found.get("actor"), found.get("action"), _clamp(first_ms), _clamp(end_ms))
    limit = found.get("limit", PAGE_MAX)
    return ListRequest(found.get("org_id"), wanted, found.get("after"), limit)


async def list_entries(
    services: Services, request: ListRequest, coverage: Coverage
) -> wire.AuditList:
    """Read a page of entries, the newest first, of those organisations that somebody covers.

    What concerns no single organisation is shown to who covers all of them.
    """
    reader, org_id = TrailReader(services.store), request.org_id
    if org_id is not None and org_id not in coverage:
        raise NotFoundError("org")
    org_id = org_id or coverage.one
    if org_id is not None:
        page = await reader.list_org(org_id, request.wanted, request.after, request.limit)
    else:
        page = await reader.list_all(
            request.wanted, request.after, request.limit, covered=coverage.org_ids
        )
    more = {} if page.after is None else {"next": page.after.text}
    return wire.AuditList([_answer(entry) for entry in page.entries], **more)


def _answer(entry: Entry) -> wire.AuditEntry:
    more: dict[str, Any] = {
        "org_id": org_of(entry.chain),
        "reason": entry.reason,
        "before": entry.before,
        "after": entry.after,
    }
    return wire.AuditEntry(
        id=entry.id,
        at=rfc3339(entry.at_ms),
        actor=entry.actor,
        address=entry.address,
        action=entry.action,
        target=entry.target,
        request_id=entry.request_id,
        seq=entry.seq,
        **{name: value for name, value in more.items() if value is not None},
    )


def _parse_filter(name: str, text: str) -> str:
    if not 1 <= len(text) <= FILTER_LENGTH_MAX:
        raise InvalidValueError(name, f"must have 1 to {FILTER_LENGTH_MAX} characters")
    return text


def _parse_limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_MAX:
        raise InvalidValueError("limit", f"must be from 1 to {PAGE_MAX}")
    return int(text)


def _parse_end(name: str, text: str, *, includes_day: bool = False) -> int:
    """The moment, in milliseconds; of a date, when it begins, or when it is over."""
    try:
        if "T" in text:
            at_ms = parse_timestamp(text)
        else:
            day = _parse_date(text) + (_ONE_DAY if includes_day else timedelta())
            at_ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
    except (ValueError, OverflowError, InvalidValueError):
        raise InvalidValueError(name, _NO_END) from None
    return at_ms


def _clamp(at_ms: int) -> int:
    """The nearest moment that an entry can have."""
    return min(max(0, at_ms), END_MS)


def _parse_date(text: str) -> date:
    if not _YYYY_MM_DD.fullmatch(text):
        raise ValueError
    return date.fromisoformat(text)
