"""Answers that a caller may cache, expect or get as CSV."""

from __future__ import annotations

from datetime import date
from typing import Final

from pricekeeper.http.encoding import Encoded, encode_answer
from pricekeeper.http.incoming import weights_of
from pricekeeper.http.operation import Answer, Call, Handler
from pricekeeper.selection import QuotaStatus
from pricekeeper.tenants import Policy
from pricekeeper.usecases import aggregates, spend
from pricekeeper.usecases.csv_text import MEDIA_TYPE, csv_text
from pricekeeper.usecases.provisioning import etag_of, matches
from pricekeeper.usecases.table import UseCase

PAST_DAY_SECS: Final = 300
_CSV: Final = f"{MEDIA_TYPE}; charset=utf-8; header=present".encode()


async def read_today(call: Call) -> Answer:
    """The totals of the organisation's present day so far."""
    return await _answer_day(call, aggregates.today(call.services, call.policy))


async def read_day(call: Call) -> Answer:
    """The totals of a day; a past day without data has zeros."""
    return await _answer_day(call, aggregates.parse_day(call.path["date"]))


async def read_range(call: Call) -> Answer:
    """The totals of each day of a range, the earliest first."""
    first, last = aggregates.parse_range(call.request.query)
    answer, as_of_ms = await aggregates.read_range(call.services, call.policy, first, last)
    max_age = _max_age(call.policy, QuotaStatus.NORMAL)
    return cached_answer(call, encode_answer(answer), max_age, _lag(call, as_of_ms))


async def _answer_day(call: Call, day: date) -> Answer:
    answer, as_of_ms = await aggregates.read_day(call.services, call.policy, day)
    tight = any(model.quota_status != QuotaStatus.NORMAL for model in answer.models.values())
    mode = QuotaStatus.TIGHT if tight else QuotaStatus.NORMAL
    is_today = day == aggregates.today(call.services, call.policy)
    max_age = _max_age(call.policy, mode) if is_today else PAST_DAY_SECS
    return cached_answer(call, encode_answer(answer), max_age, _lag(call, as_of_ms))


def _lag(call: Call, as_of_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    lag_secs = max(0, call.services.clock.now_ms() - as_of_ms) // 1000
    return ((b"x-data-lag-secs", b"%d" % lag_secs),)


def _max_age(policy: Policy, mode: QuotaStatus) -> int:
    if mode is QuotaStatus.NORMAL:
        return policy.refresh_interval_normal_secs
    return policy.refresh_interval_tight_secs


def cached_answer(
    call: Call, encoded: Encoded, max_age_secs: int, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Answer:
    """The bytes, or 304 if the caller has them; private to the caller."""
    all_headers = (
        (b"etag", encoded.etag),
        (b"cache-control", b"private, max-age=%d" % max_age_secs),
        (b"vary", b"Authorization"),
        *headers,
    )
    if matches(call.request.header(b"if-none-match"), encoded.etag.decode()):
        return Answer(304, None, all_headers)
    return Answer(200, encoded.data, all_headers)


async def get_spend(call: Call) -> Answer:
    """Spend in a range, as JSON or CSV."""
    request = spend.parse_request(call.query)
    answer, as_of_ms = await spend.read_spend(call.services, call.viewer, request)
    headers = (
        (b"cache-control", b"private, no-cache"),
        (b"vary", b"Accept, Authorization, X-API-Key"),
        *_lag(call, as_of_ms),
    )
    if not accepts_csv(call.request.header(b"accept")):
        return Answer(200, answer, headers)
    text = csv_text((*request.grouping.names, *spend.SUM_FIELDS), answer.rows)
    return Answer(200, text.encode(), headers, media_type=_CSV)


def answer_tagged(case: UseCase) -> Handler:
    """A handler that answers with settings and their ETag, which a patch may expect."""

    async def answer(call: Call) -> Answer:
        settings = await case(call)
        return Answer(200, settings, ((b"etag", etag_of(settings).encode()),))

    return answer


def accepts_csv(header: str | None) -> bool:
    """Whether the caller prefers CSV to JSON."""
    weights = weights_of(header)
    return 0 < weights.get("text/csv", 0) >= weights.get("application/json", 0)
