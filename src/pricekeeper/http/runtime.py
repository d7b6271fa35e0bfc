"""Requests of apps that HTTP serves in its own way: in the callback path, or with metrics."""

from __future__ import annotations

from typing import Any, Final

from pricekeeper.errors import (
    AuthorizationDeniedError,
    InvalidValueError,
    Obstacle,
    PriceKeeperError,
    RateLimitExceededError,
    RequestRefusedError,
)
from pricekeeper.http.batch import claimed_id, parts_answer, temporary_errors
from pricekeeper.http.edge import take_json
from pricekeeper.http.gate import limit_client
from pricekeeper.http.operation import Answer, Call, Reply
from pricekeeper.http.problems import problem_of
from pricekeeper.http.reports import cached_answer
from pricekeeper.metering import Recorded, RecordUnderWay
from pricekeeper.shapes import convert
from pricekeeper.usecases import authorizations
from pricekeeper.usecases import runtime as cases
from pricekeeper.wire import authorizations as granted
from pricekeeper.wire import runtime as wire

_OUTCOMES: Final = ("captured", "duplicate", "failed")


async def select_model(call: Call) -> Answer:
    """The model to call now, and why."""
    forced = _is_forced(call)
    if forced and call.principal is not None:
        await limit_client(call, call.principal.client_id, variant=True)
    decision = await cases.select(call.services, call.policy, force_check=forced)
    encoded = call.encoded.encode(decision.policy.client, decision, cases.selection_answer)
    max_age_secs = decision.guidance(call.services.clock.now_ms()).cache_duration_secs
    return cached_answer(call, encoded, max_age_secs)


async def record_usage(call: Call) -> Answer:
    """Count what one model call used, exactly once."""
    return Answer(202, await cases.record_usage(call.services, call.policy, call.body))


def begin_usage(call: Call, reply: Reply) -> bool:
    """Do `record_usage` without a task that waits for the commit."""
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
    """Decide whether a call may be made and with which model, and hold its maximum cost."""
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
    """Capture up to 100 calls; each capture is judged by itself."""
    parsed = [_parsed(one) for one in call.body]
    good = [one for one in parsed if isinstance(one, granted.CaptureOne)]
    outcomes = iter(await authorizations.capture_each(call.services, call.policy, good))
    judged = [next(outcomes) if isinstance(one, granted.CaptureOne) else one for one in parsed]
    temporary = temporary_errors(judged)
    results = [
        _result(claimed_id(one, "authorization_id"), outcome)
        for one, outcome in zip(call.body, judged, strict=True)
    ]
    return parts_answer(granted.CapturesAnswer, _OUTCOMES, results, retry_after=bool(temporary))


def _parsed(one: Any) -> granted.CaptureOne | PriceKeeperError:
    try:
        return convert(one, granted.CaptureOne)
    except (RequestRefusedError, InvalidValueError) as error:
        return error


def _result(
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
