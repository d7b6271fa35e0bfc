"""Requests of apps that HTTP serves in its own way: without a task, in batches, or with metrics.

A batch gets places in its organisation's share of the commit queue before its body is read. Without
a free place, or if the store took no record, it gets a 503 with ``Retry-After``, and the client
sends it again. Batches are parsed in small groups, so other requests are served in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET

from pricekeeper.errors import (
    AuthorizationDeniedError,
    InvalidValueError,
    Obstacle,
    PriceKeeperError,
    RateLimitExceededError,
    RequestRefusedError,
)
from pricekeeper.http.edge import BATCH_BYTES_MAX, read_body, strict_json, take_json
from pricekeeper.http.gate import limit_client
from pricekeeper.http.operation import Answer, Call, Reply
from pricekeeper.http.problems import RETRY_SECS, problem_of, status_of
from pricekeeper.http.reports import cached_answer
from pricekeeper.metering import (
    GROUP_RECORDS,
    BatchPlaces,
    Recorded,
    RecordUnderWay,
    Refused,
    Usage,
)
from pricekeeper.shapes import convert, members_of
from pricekeeper.usecases import authorizations
from pricekeeper.usecases import runtime as cases
from pricekeeper.usecases.runtime import usage_of
from pricekeeper.wire import authorizations as granted
from pricekeeper.wire import runtime as wire

_RECORD_OUTCOMES: Final = ("accepted", "duplicate", "failed")
_UNAVAILABLE: Final = 503


def queue_batch(call: Call, reply: Reply) -> bool:
    """Let a batch wait for room before it is read; returns whether it waits."""

    def go_on(places: BatchPlaces | None) -> None:
        if places is None:
            reply.refuse_for_room()
        elif reply.is_answered:
            places.end_work()
        else:
            reply.finish(_count_within(call, places))

    reply.may_be_applied = False
    return call.services.metering.admission.queue_batch(call.org_id, go_on)


async def answer_batch(call: Call) -> Answer:
    """Count the records of the body."""
    async with call.services.metering.admission.admit_batch(call.org_id) as places:
        return await _count_within(call, places)


async def _count_within(call: Call, places: BatchPlaces) -> Answer:
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
    temporary = _temporary_errors(
        [one.error if isinstance(one, Refused) else one for one in judged]
    )
    results = [one if isinstance(one, wire.BatchResult) else _record_result(one) for one in judged]
    return _parts_answer(wire.BatchAnswer, _RECORD_OUTCOMES, results, retry_after=bool(temporary))


def _temporary_errors(judged: Sequence[object]) -> list[PriceKeeperError]:
    """Temporary errors of parts; raises the first if every part failed so."""
    temporary = [
        one
        for one in judged
        if isinstance(one, PriceKeeperError) and status_of(type(one))[0] == _UNAVAILABLE
    ]
    if len(temporary) == len(judged):
        raise temporary[0]
    return temporary


def _parts_answer(
    kind: Callable[..., Any], names: Sequence[str], results: Sequence[Any], *, retry_after: bool
) -> Answer:
    """The outcome of each part, after the number of parts with each outcome."""
    counts = (sum(result.status == name for result in results) for name in names)
    headers = ((b"retry-after", b"%d" % RETRY_SECS),) if retry_after else ()
    return Answer(207, kind(*counts, results), headers)


async def _parse_each(records: Sequence[Any]) -> list[Usage | wire.BatchResult]:
    """Parse each record to a usage, or to a result that lists its mistakes."""
    parsed: list[Usage | wire.BatchResult] = []
    for number, record in enumerate(records):
        if number and number % GROUP_RECORDS == 0:
            await asyncio.sleep(0)
        try:
            parsed.append(usage_of(convert(record, wire.UsageBody)))
        except (RequestRefusedError, InvalidValueError) as error:
            parsed.append(_failed(_claimed_id(record, "request_id"), "INVALID_REQUEST", str(error)))
    return parsed


def _record_result(outcome: Recorded | Refused) -> wire.BatchResult:
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


def _claimed_id(part: Any, field: str) -> str | None:
    found = part.get(field) if isinstance(part, dict) else None
    return found[:64] if isinstance(found, str) else None


_CAPTURE_OUTCOMES: Final = ("captured", "duplicate", "failed")


async def select_model(call: Call) -> Answer:
    """Select the model to call now, and why."""
    forced = _is_forced(call)
    if forced and call.principal is not None:
        await limit_client(call, call.principal.client_id, variant=True)
    decision = await cases.select(call.services, call.policy, force_check=forced)
    encoded = call.encoded.encode(decision.policy.client, decision, cases.selection_answer)
    max_age_secs = decision.guidance(call.services.clock.now_ms()).cache_duration_secs
    return cached_answer(call, encoded, max_age_secs)


async def record_usage(call: Call) -> Answer:
    """Count the usage of one model call, exactly once."""
    return Answer(202, await cases.record_usage(call.services, call.policy, call.body))


def begin_usage(call: Call, reply: Reply) -> bool:
    """As `record_usage`, without a task that waits for the commit."""
    services, policy = call.services, call.policy
    body = take_json(call.request, wire.UsageBody)
    if body is None:
        return False

    def answer(recorded: Recorded) -> Answer:
        return Answer(202, cases.recorded_answer(recorded, policy))

    async def finish(settled: RecordUnderWay) -> Answer:
        return answer(await services.authorizations.recording.answer(settled))

    def settle(settled: RecordUnderWay) -> None:
        try:
            recorded = services.metering.find_answer(settled)
            if recorded is None:
                reply.finish(finish(settled))
            else:
                reply.send(answer(recorded))
        except Exception as error:  # noqa: BLE001 - answered and logged
            reply.fail(error)

    return services.metering.begin(policy, cases.usage_of(body), settle)


async def acquire(call: Call) -> Answer:
    """Take tokens from the buckets of a label, all or nothing."""
    try:
        acquired = await cases.acquire(call.services, call.policy, call.body)
    except RateLimitExceededError as denied:
        for name in {violation.limit for violation in denied.violations}:
            call.metrics.note_limit_decision(name, "denied")
        raise
    for name in call.body.consume:
        call.metrics.note_limit_decision(name, "granted")
    return Answer(200, acquired)


async def authorize(call: Call) -> Answer:
    """Decide on a call and its model, and hold its maximum cost."""
    try:
        answer, is_new = await authorizations.authorize(call.services, call.policy, call.body)
    except AuthorizationDeniedError as denied:
        for name in {one.name for one in denied.denied_by if one.kind is Obstacle.LIMIT}:
            call.metrics.note_limit_decision(name, "denied")
        raise
    if is_new:
        for name in answer.limits:
            call.metrics.note_limit_decision(name, "granted")
    return Answer(201 if is_new else 200, answer)


async def capture_many(call: Call) -> Answer:
    """Capture up to 100 calls; each is judged by itself."""
    parsed = [_parsed(one) for one in call.body]
    good = [one for one in parsed if isinstance(one, granted.CaptureOne)]
    outcomes = iter(await authorizations.capture_each(call.services, call.policy, good))
    judged = [next(outcomes) if isinstance(one, granted.CaptureOne) else one for one in parsed]
    temporary = _temporary_errors(judged)
    results = [
        _capture_result(_claimed_id(one, "authorization_id"), outcome)
        for one, outcome in zip(call.body, judged, strict=True)
    ]
    return _parts_answer(
        granted.CapturesAnswer, _CAPTURE_OUTCOMES, results, retry_after=bool(temporary)
    )


def _parsed(one: Any) -> granted.CaptureOne | PriceKeeperError:
    try:
        return convert(one, granted.CaptureOne)
    except (RequestRefusedError, InvalidValueError) as error:
        return error


def _capture_result(
    authorization_id: str | None, outcome: granted.CapturedAnswer | PriceKeeperError
) -> granted.CaptureResult:
    if isinstance(outcome, PriceKeeperError):
        problem = problem_of(outcome, 0)
        return granted.CaptureResult(
            authorization_id, "failed", code=problem.code, detail=problem.detail
        )
    return granted.CaptureResult(
        outcome.request_id,
        outcome.status,
        cost_usd_micros=outcome.cost_usd_micros,
        held_usd_micros=outcome.held_usd_micros,
        overrun_usd_micros=outcome.overrun_usd_micros,
    )


def _is_forced(call: Call) -> bool:
    text = call.request.query.get("force_check", "false")
    if text not in ("true", "false"):
        raise InvalidValueError("force_check", "must be true or false")
    return text == "true"
