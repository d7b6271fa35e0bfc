"""Runtime: which model to call, what a call used, and how fast an app may go."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.authority import Role
from pricekeeper.errors import InvalidValueError, RateLimitExceededError
from pricekeeper.http.batch import answer_batch, queue_batch
from pricekeeper.http.caching import cached_answer
from pricekeeper.http.edge import read_members, take_json
from pricekeeper.http.gate import limit_client
from pricekeeper.http.operation import APP, Access, Answer, Call, Operation, Parameter, Reply
from pricekeeper.metering import Recorded, RecordUnderWay
from pricekeeper.usecases import runtime as cases
from pricekeeper.wire import runtime as wire

_FORCE: Final = Parameter(
    "force_check",
    "Sum the counters instead of reading totals; callers within a second share one sum.",
    {"type": "boolean"},
)


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
        except Exception as error:  # noqa: BLE001 - it is told and logged
            reply.fail(error)

    return services.metering.begin(policy, cases.usage_of(body), settle)


async def record_batch(call: Call) -> Answer:
    """Count up to a hundred calls; one bad record never spoils the rest."""
    return await answer_batch(call)


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


async def adjust(call: Call) -> Answer:
    """Settle a lease to what was really used; the same adjustment applies once."""
    lease_id = call.path["lease_id"]
    return Answer(200, await cases.adjust(call.services, call.policy, lease_id, call.body))


async def release(call: Call) -> Answer:
    """Give everything back that a lease holds."""
    await call.services.limiter.release(call.policy.bucket_entity, call.path["lease_id"])
    return Answer(204)


async def list_limits(call: Call) -> Answer:
    """How the buckets of this app stand, without taking anything."""
    return Answer(200, await cases.list_limits(call.services, call.policy))


def _is_forced(call: Call) -> bool:
    text = call.request.query.get("force_check", "false")
    if text not in ("true", "false"):
        raise InvalidValueError("force_check", "must be true or false")
    return text == "true"


_row: Final = partial(Operation, access=Access.APP)
OPERATIONS: Final = (
    _row("POST", f"{APP}/usage", "recordUsage", record_usage, {202: wire.UsageAnswer},
         body=wire.UsageBody, begin=begin_usage, limit="usage", problems=(409,)),
    _row("GET", f"{APP}/model-selection", "selectModel", select_model,
         {200: wire.SelectionAnswer, 304: None},
         query=(_FORCE,), limit="selection", variant_limit="force_check"),
    _row("POST", f"{APP}/usage/batch", "recordUsageBatch", record_batch, {207: wire.BatchAnswer},
         body=wire.BatchBody, read=read_members, reads_itself=True, begin=queue_batch,
         begins_early=True, limit="batch"),
    _row("POST", f"{APP}/limits/acquire", "acquire", acquire, {200: wire.Acquired},
         body=wire.AcquireBody, limit="limits", problems=(409, 429)),
    _row("POST", f"{APP}/leases/{{lease_id}}/adjust", "adjustLease", adjust, {200: wire.Adjusted},
         body=wire.AdjustBody, limit="limits", problems=(409,)),
    _row("POST", f"{APP}/leases/{{lease_id}}/release", "releaseLease", release, {204: None},
         limit="limits", problems=(409,)),
    _row("GET", f"{APP}/limits", "listLimits", list_limits, {200: wire.LimitList},
         limit="limits", role=Role.VIEWER),
)  # fmt: skip
