"""A batch of usage records: refused early and as a whole, or judged record by record.

A batch gets places in its organisation's share of the commit queue before its body is read. Without
a free place it is refused with 503 and ``Retry-After``, and the client sends it again. The same
happens if the store took no record at all. Admitted batches are parsed in small groups, with a turn
of the event loop between them, so that other requests are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET

from pricekeeper.errors import InvalidValueError, PriceKeeperError, RequestRefusedError
from pricekeeper.http.edge import BATCH_BYTES_MAX, read_body, strict_json
from pricekeeper.http.operation import Answer, Call, Reply
from pricekeeper.http.problems import RETRY_SECS, problem_of, status_of
from pricekeeper.metering import GROUP_RECORDS, BatchPlaces, Recorded, Refused, Usage
from pricekeeper.shapes import convert, members_of
from pricekeeper.usecases.runtime import usage_of
from pricekeeper.wire import runtime as wire

_OUTCOMES: Final = ("accepted", "duplicate", "failed")
_UNAVAILABLE: Final = 503


def queue_batch(call: Call, reply: Reply) -> bool:
    """Let a batch wait for room before it is read; returns whether it waits."""

    def go_on(places: BatchPlaces | None) -> None:
        if places is None:
            reply.refuse_for_room()
        elif reply.is_answered:  # its deadline passed first
            places.end_work()
        else:
            reply.finish(_count_within(call, places))

    reply.may_be_applied = False
    return call.services.metering.queue_batch(call.org_id, go_on)


async def answer_batch(call: Call) -> Answer:
    """Count the records of the body."""
    async with call.services.metering.admit_batch(call.org_id) as places:
        return await _count_within(call, places)


async def _count_within(call: Call, places: BatchPlaces) -> Answer:
    """Count the records of a batch that has its places."""
    try:
        body = await read_body(call.request, BATCH_BYTES_MAX)
        policy = await call.read_policy()
        await places.begin_work()
        parsed = await _parse_each(members_of(strict_json(body), wire.BatchBody))
        call.note_change()
        usages = [one for one in parsed if isinstance(one, Usage)]
        record_many = call.services.authorizations.recording.record_many
        outcomes = await record_many(policy, usages, places) if usages else []
    finally:
        places.end_work()
    remaining = iter(outcomes)
    judged = [next(remaining) if isinstance(one, Usage) else one for one in parsed]
    temporary = temporary_errors([one.error if isinstance(one, Refused) else one for one in judged])
    results = [one if isinstance(one, wire.BatchResult) else _result(one) for one in judged]
    return parts_answer(wire.BatchAnswer, _OUTCOMES, results, retry_after=bool(temporary))


def temporary_errors(judged: Sequence[object]) -> list[PriceKeeperError]:
    """The errors of parts that may succeed later; raises the first if every part failed so."""
    temporary = [
        one
        for one in judged
        if isinstance(one, PriceKeeperError) and status_of(type(one))[0] == _UNAVAILABLE
    ]
    if len(temporary) == len(judged):
        raise temporary[0]
    return temporary


def parts_answer(
    kind: Callable[..., Any], names: Sequence[str], results: Sequence[Any], *, retry_after: bool
) -> Answer:
    """The outcome of each part, after the number of parts with each outcome."""
    counts = (sum(result.status == name for result in results) for name in names)
    headers = ((b"retry-after", b"%d" % RETRY_SECS),) if retry_after else ()
    return Answer(207, kind(*counts, results), headers)


async def _parse_each(records: Sequence[Any]) -> list[Usage | wire.BatchResult]:
    """Parse each record to a usage, or to the result that lists its mistakes."""
    parsed: list[Usage | wire.BatchResult] = []
    for number, record in enumerate(records):
        if number and number % GROUP_RECORDS == 0:
            await asyncio.sleep(0)  # let other requests have their turn of the loop
        try:
            parsed.append(usage_of(convert(record, wire.UsageBody)))
        except (RequestRefusedError, InvalidValueError) as error:
            parsed.append(_failed(claimed_id(record, "request_id"), "INVALID_REQUEST", str(error)))
    return parsed


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


def claimed_id(part: Any, field: str) -> str | None:
    """The id that a part claims, if it has one."""
    found = part.get(field) if isinstance(part, dict) else None
    return found[:64] if isinstance(found, str) else None
