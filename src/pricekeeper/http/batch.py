"""A batch of usage records: refused early and as a whole, or judged record by record.

A batch gets places in its organisation's share of the commit queue before its body is read. If none
come free, it is refused with 503 and ``Retry-After``, as the client has to send all of it again.
The same is answered if the store could not take a single record. What is admitted is parsed in
small groups, with a turn of the event loop between them, so that other requests go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from pricekeeper.errors import InvalidValueError, PriceKeeperError, RequestRefusedError
from pricekeeper.http.edge import read_body, strict_json
from pricekeeper.http.operation import Answer, Call, Reply
from pricekeeper.http.problems import RETRY_SECS, problem_of, status_of
from pricekeeper.metering import (
    BATCH_MAX,
    GROUP_RECORDS,
    BatchPlaces,
    Recorded,
    Refused,
    Usage,
)
from pricekeeper.shapes import convert
from pricekeeper.usecases.runtime import usage_of
from pricekeeper.usecases.wire import runtime as wire

BATCH_BYTES_MAX: Final = 1024 * 1024
_OUTCOMES: Final = ("accepted", "duplicate", "failed")
_UNAVAILABLE: Final = 503


def queue_batch(call: Call, reply: Reply) -> bool:
    """Let a batch wait for which there is no room now, with nothing of it read; whether it does."""

    def go_on(places: BatchPlaces | None) -> None:
        if places is None:
            reply.refuse_for_room()
        elif reply.is_answered:  # its time was up before there was room
            places.end_work()
        else:
            reply.finish(_count_within(call, places))

    reply.may_be_applied = False
    return call.services.metering.queue_batch(call.org_id, go_on)


async def answer_batch(call: Call) -> Answer:
    """Count the records of the body."""
    call.note_change(begins=False)
    async with call.services.metering.admit_batch(call.org_id) as places:
        return await _count_within(call, places)


async def _count_within(call: Call, places: BatchPlaces) -> Answer:
    """Count the records of a batch that has its places."""
    call.note_change(begins=False)
    try:
        body = await read_body(call.request, BATCH_BYTES_MAX)
        policy = await call.read_policy()
        await places.begin_work()
        parsed = await _parse_each(_records(body))
        call.note_change()
        usages = [one for one in parsed if isinstance(one, Usage)]
        record_many = call.services.authorizations.record_many
        outcomes = await record_many(policy, usages, places) if usages else []
    finally:
        places.end_work()
    passing = [one.error for one in outcomes if isinstance(one, Refused) and passes(one.error)]
    if len(passing) == len(parsed):
        raise passing[0]
    remaining = iter(outcomes)
    results = [_result(next(remaining)) if isinstance(one, Usage) else one for one in parsed]
    accepted, duplicates, failed = (
        sum(result.status == status for result in results) for status in _OUTCOMES
    )
    headers = ((b"retry-after", b"%d" % RETRY_SECS),) if passing else ()
    return Answer(207, wire.BatchAnswer(accepted, duplicates, failed, results), headers)


def _records(body: bytes) -> list[Any]:
    """The records of a batch as they came; raises if it is no batch as a whole."""
    plain = strict_json(body)
    records = plain.get("requests") if isinstance(plain, dict) else None
    if not isinstance(records, list) or not 1 <= len(records) <= BATCH_MAX or len(plain) > 1:
        convert(plain, wire.BatchBody)  # names what is wrong with the whole
    return records or []


async def _parse_each(records: Sequence[Any]) -> list[Usage | wire.BatchResult]:
    """Each record as a usage, or as the result that says what is wrong with it."""
    parsed: list[Usage | wire.BatchResult] = []
    for number, record in enumerate(records):
        if number and number % GROUP_RECORDS == 0:
            await asyncio.sleep(0)  # let other requests have their turn of the loop
        try:
            parsed.append(usage_of(convert(record, wire.UsageBody)))
        except (RequestRefusedError, InvalidValueError) as error:
            parsed.append(_failed(_claimed_id(record), "INVALID_REQUEST", str(error)))
    return parsed


def passes(error: PriceKeeperError) -> bool:
    """Whether the same record may be counted later."""
    return status_of(type(error))[0] == _UNAVAILABLE


def _result(outcome: Recorded | Refused) -> wire.BatchResult:
    if isinstance(outcome, Refused):
        problem = problem_of(outcome.error, 0)
        return _failed(outcome.request_id, problem.code, problem.detail)
    return wire.BatchResult(
        outcome.request_id,
        outcome.outcome,
        cost_usd_micros=outcome.cost_usd_micros,
        price_estimated=outcome.receipt.price_estimated or UNSET,
    )


def _failed(request_id: str | None, code: str, detail: str) -> wire.BatchResult:
    return wire.BatchResult(request_id, "failed", code=code, detail=detail)


def _claimed_id(record: Any) -> str | None:
    """The id in a record that could not be read, if there is something like one."""
    found = record.get("request_id") if isinstance(record, dict) else None
    return found[:64] if isinstance(found, str) else None
