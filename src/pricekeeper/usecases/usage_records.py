"""Lists single usage records."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from pricekeeper.days import MS_PER_DAY
from pricekeeper.metering.journal import Record
from pricekeeper.metering.journal_items import VoidNote
from pricekeeper.metering.journal_reading import Cursor, JournalListing, RecordFilter
from pricekeeper.metering.usage import AHEAD_MS_MAX, LATE_MS_MAX
from pricekeeper.pricing import split_micros
from pricekeeper.ticks import tick_of
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.describing import describe
from pricekeeper.usecases.queries import bounds_ms, parse_each, parse_end, parse_tag
from pricekeeper.values import parse_app_id, parse_model_label
from pricekeeper.wire import spend as wire
from pricekeeper.wire.values import rfc3339

KEPT_DAYS: Final = 92
"""The default start of a list; records are kept for so long."""
_MARGIN_MS: Final = 600_000
"""For clocks that disagree, and for late acknowledgements."""


async def list_usage(ask: Ask) -> wire.UsageList:
    """Read a page of the organisation's records, the newest first.

    A date at the end of the range is included, a time is not.
    """
    found = parse_each(
        ask.query,
        {
            "from": parse_end,
            "to": parse_end,
            "app_id": parse_app_id,
            "label": lambda text: str(parse_model_label(text)),
            "tag": parse_tag,
            "after": Cursor.parse,
        },
    )
    policy = await ask.read_org_policy(found["app_id"])
    now_ms = ask.services.clock.now_ms()
    otherwise = now_ms - KEPT_DAYS * MS_PER_DAY, now_ms + AHEAD_MS_MAX
    first_ms, last_ms = bounds_ms(found["from"], found["to"], policy.timezone, otherwise)
    wanted = RecordFilter(first_ms, last_ms, found["app_id"], found["label"], found["tag"])
    ticks = (
        tick_of(max(0, first_ms - AHEAD_MS_MAX - _MARGIN_MS)),
        tick_of(min(now_ms, last_ms + LATE_MS_MAX) + _MARGIN_MS),
    )
    listing = JournalListing(ask.services.store)
    page = await listing.read_page(policy.org_id, ticks, wanted, found["after"])
    records = [_answer(one, page.voided.get(one.request_id)) for one in page.records]
    return wire.UsageList(records, UNSET if page.after is None else page.after.text)


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
