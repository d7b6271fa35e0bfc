"""Single usage records, as they were counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any, Final, Literal, NamedTuple

from msgspec import UNSET

from pricekeeper.bootstrap import Services
from pricekeeper.days import MS_PER_DAY, day_of
from pricekeeper.errors import FieldError, InvalidValueError, RequestRefusedError
from pricekeeper.metering import day_start_ms
from pricekeeper.metering.journal import Record, tick_of
from pricekeeper.metering.journal_listing import Cursor, JournalListing, Wanted
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX
from pricekeeper.pricing import split_micros
from pricekeeper.tenants import Policy
from pricekeeper.usecases.spend import parse_end
from pricekeeper.usecases.wire import reports as wire
from pricekeeper.usecases.wire.values import rfc3339
from pricekeeper.values import AppId, parse_app_id, parse_model_label

KEPT_DAYS: Final = 92
"""How far back a list begins if nobody says: records are forgotten by then."""
_MARGIN_MS: Final = 600_000
"""For clocks that disagree, and for what was sent a while before it was acknowledged."""
_ONE_DAY: Final = timedelta(days=1)


class ListRequest(NamedTuple):
    """Which records are asked for. A date is included, an instant at the end is not."""

    first: date | int | None = None
    last: date | int | None = None
    app_id: AppId | None = None
    label: str | None = None
    tag: tuple[str, str | None] | None = None
    after: Cursor | None = None


def parse_request(query: Mapping[str, str]) -> ListRequest:
    """What the query asks for; every mistake is told."""
    parsers: dict[str, Callable[[str], Any]] = {
        "from": lambda text: parse_end("from", text),
        "to": lambda text: parse_end("to", text),
        "app_id": parse_app_id,
        "label": lambda text: str(parse_model_label(text)),
        "tag": _parse_tag,
        "after": Cursor.parse,
    }
    found, mistakes = [], list[FieldError]()
    for name, parse in parsers.items():
        try:
            found.append(parse(query[name]) if name in query else None)
        except InvalidValueError as error:
            mistakes.append(FieldError(name, error.message))
    if mistakes:
        detail = ", ".join(f"{one.field}: {one.message}" for one in mistakes)
        raise RequestRefusedError(detail, tuple(mistakes))
    return ListRequest(*found)


def _parse_tag(text: str) -> tuple[str, str | None]:
    """``team:red`` is a tag with that value, ``team`` one with any."""
    key, colon, value = text.partition(":")
    if not key:
        raise InvalidValueError("tag", "must be KEY:VALUE, or KEY for any value")
    return key, value if colon else None


async def list_usage(services: Services, policy: Policy, request: ListRequest) -> wire.UsageList:
    """Read a page of the organisation's records, the newest first."""
    now_ms = services.clock.now_ms()
    first_ms = now_ms - KEPT_DAYS * MS_PER_DAY
    last_ms = now_ms + AHEAD_MS_MAX
    if request.first is not None:
        first_ms = _start_ms(request.first, policy.timezone)
    if request.last is not None:
        is_date = isinstance(request.last, date)
        if isinstance(request.last, date) and request.last >= date.max - _ONE_DAY:
            raise InvalidValueError("to", "is too far ahead")
        end = request.last + _ONE_DAY if isinstance(request.last, date) else request.last
        last_ms = _start_ms(end, policy.timezone) - 1
        if first_ms > last_ms:
            raise InvalidValueError("from", f"must be {'at most' if is_date else 'before'} `to`")
    wanted = Wanted(first_ms, last_ms, request.app_id, request.label, request.tag)
    ticks = (
        tick_of(max(0, first_ms - AHEAD_MS_MAX - _MARGIN_MS)),
        tick_of(min(now_ms, last_ms + LATE_MS_MAX) + _MARGIN_MS),
    )
    listing = JournalListing(services.store)
    page = await listing.read_page(policy.org_id, ticks, wanted, request.after)
    more = {} if page.after is None else {"next": page.after.text}
    return wire.UsageList([_answer(record) for record in page.records], **more)


def _start_ms(end: date | int, zone: str) -> int:
    return day_start_ms(zone, day_of(end)) if isinstance(end, date) else end


def _answer(record: Record) -> wire.UsageRecord:
    entry, terms = record.entry, record.terms
    status: Literal["OK", "ERROR"] = "ERROR" if entry.counters.errors else "OK"
    return wire.UsageRecord(
        request_id=record.request_id,
        app_id=terms.app_id,
        model_label=terms.label,
        happened_at=rfc3339(entry.happened_at_ms),
        recorded_at=rfc3339(entry.sent_at_ms),
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        cache_read_tokens=entry.cache_read_tokens,
        cache_write_5m_tokens=entry.cache_write_5m_tokens,
        cache_write_1h_tokens=entry.cache_write_1h_tokens,
        cost_usd_micros=_micros(entry.cost_usd_picos),
        service_tier=terms.service_tier or None,
        pricing_version=terms.pricing_version,
        price_estimated=record.receipt.price_estimated,
        calling_region=terms.calling_region,
        tags=dict(terms.tags),
        status=status,
        voids=entry.voids or UNSET,
    )


def _micros(cost_usd_picos: int) -> int:
    """Whole micro-dollars; a correction takes back what its record shows."""
    micros = split_micros(abs(cost_usd_picos))[0]
    return -micros if cost_usd_picos < 0 else micros
