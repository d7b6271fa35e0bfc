"""Lists single usage records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pricekeeper.bootstrap import Services
from pricekeeper.days import MS_PER_DAY
from pricekeeper.metering.journal import Record
from pricekeeper.metering.journal_items import VoidNote
from pricekeeper.metering.journal_reading import Cursor, JournalListing, RecordFilter
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX
from pricekeeper.pricing import split_micros
from pricekeeper.tenants import Policy
from pricekeeper.ticks import tick_of
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import End, bounds_ms, parse_each, parse_end, parse_tag
from pricekeeper.values import AppId, parse_app_id, parse_model_label
from pricekeeper.wire import spend as wire
from pricekeeper.wire.values import rfc3339

KEPT_DAYS: Final = 92
"""The default start of a list; records are kept for so long."""
_MARGIN_MS: Final = 600_000
"""For clocks that disagree, and for late acknowledgements."""


class RecordsRequest(NamedTuple):
    """A query for records. A date at the end is included, a time is not."""

    first: End | None = None
    last: End | None = None
    app_id: AppId | None = None
    label: str | None = None
    tag: tuple[str, str] | None = None
    after: Cursor | None = None


def parse_request(query: Mapping[str, str]) -> RecordsRequest:
    """Parse a query; every mistake is listed."""
    parsers: dict[str, Callable[[str], Any]] = {
        "from": parse_end,
        "to": parse_end,
        "app_id": parse_app_id,
        "label": lambda text: str(parse_model_label(text)),
        "tag": parse_tag,
        "after": Cursor.parse,
    }
    return RecordsRequest(*parse_each(query, parsers).values())


async def list_usage(services: Services, policy: Policy, request: RecordsRequest) -> wire.UsageList:
    """Read a page of the organisation's records, the newest first."""
    now_ms = services.clock.now_ms()
    otherwise = now_ms - KEPT_DAYS * MS_PER_DAY, now_ms + AHEAD_MS_MAX
    first_ms, last_ms = bounds_ms(request.first, request.last, policy.timezone, otherwise)
    wanted = RecordFilter(first_ms, last_ms, request.app_id, request.label, request.tag)
    ticks = (
        tick_of(max(0, first_ms - AHEAD_MS_MAX - _MARGIN_MS)),
        tick_of(min(now_ms, last_ms + LATE_MS_MAX) + _MARGIN_MS),
    )
    listing = JournalListing(services.store)
    page = await listing.read_page(policy.org_id, ticks, wanted, request.after)
    more = {} if page.after is None else {"next": page.after.text}
    records = [_answer(one, page.voided.get(one.request_id)) for one in page.records]
    return wire.UsageList(records, **more)


def _answer(record: Record, voided: VoidNote | None) -> wire.UsageRecord:
    entry, terms = record.entry, record.terms
    return describe(
        wire.UsageRecord,
        entry,
        request_id=record.request_id,
        app_id=terms.app_id,
        model_label=terms.label,
        recorded_at=rfc3339(entry.sent_at_ms),
        cost_usd_micros=_micros(entry.cost_usd_picos),
        service_tier=terms.service_tier or None,
        pricing_version=terms.pricing_version,
        price_estimated=record.receipt.price_estimated,
        calling_region=terms.calling_region,
        tags=dict(terms.tags),
        status="ERROR" if entry.counters.errors else "OK",
        voids=entry.voids or None,
        voided_at=None if voided is None else rfc3339(voided.at_ms),
        correction_id=None if voided is None else voided.correction_id,
    )


def _micros(cost_usd_picos: int) -> int:
    """A correction is the negative of its record."""
    micros = split_micros(abs(cost_usd_picos))[0]
    return -micros if cost_usd_picos < 0 else micros
