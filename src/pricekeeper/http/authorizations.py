"""Authorizations: one decision before a call, one settlement after it, and the budgets."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pricekeeper.authority import Role
from pricekeeper.errors import (
    AuthorizationDeniedError,
    InvalidValueError,
    Obstacle,
    PriceKeeperError,
    RequestRefusedError,
)
from pricekeeper.http.batch import claimed_id, parts_answer, temporary_errors
from pricekeeper.http.edge import read_json_if_any, read_members
from pricekeeper.http.operation import AFTER, APP, ORG, Access, Answer, Call, Operation, Parameter
from pricekeeper.http.problems import problem_of
from pricekeeper.shapes import convert
from pricekeeper.usecases import authorizations as cases
from pricekeeper.usecases import budgets
from pricekeeper.wire import authorizations as wire

_ONE: Final = f"{APP}/authorizations/{{authorization_id}}"
_LIST: Final = (
    Parameter(
        "status", "Only these; by default both.", {"type": "string", "enum": ["open", "unsettled"]}
    ),
    AFTER({"type": "string", "format": "uuid"}),
)
_OUTCOMES: Final = ("captured", "duplicate", "failed")


async def authorize(call: Call) -> Answer:
    """Decide whether a call may be made, with which model, and hold the most that it can cost."""
    try:
        answer, is_new = await cases.authorize(call.services, call.policy, call.body)
    except AuthorizationDeniedError as denied:
        for name in {one.name for one in denied.denied_by if one.kind is Obstacle.LIMIT}:
            call.metrics.note_limit_decision(name, "denied")
        raise
    if is_new:
        for name in answer.limits:
            call.metrics.note_limit_decision(name, "granted")
    return Answer(201 if is_new else 200, answer)


async def capture(call: Call) -> Answer:
    """Count what an authorized call used, exactly once, and release what was held for it."""
    return Answer(200, await cases.capture(call.services, call.policy, _id(call), call.body))


async def capture_many(call: Call) -> Answer:
    """Capture up to a hundred calls; one bad capture never spoils the rest."""
    parsed = [_parsed(one) for one in call.body]
    good = [one for one in parsed if isinstance(one, wire.CaptureOne)]
    outcomes = iter(await cases.capture_each(call.services, call.policy, good))
    judged = [next(outcomes) if isinstance(one, wire.CaptureOne) else one for one in parsed]
    temporary = temporary_errors(judged)
    results = [
        _result(claimed_id(one, "authorization_id"), outcome)
        for one, outcome in zip(call.body, judged, strict=True)
    ]
    return parts_answer(wire.CapturesAnswer, _OUTCOMES, results, retry_after=bool(temporary))


async def void(call: Call) -> Answer:
    """Give everything back that an authorization holds: the model was never reached."""
    await cases.void(call.services, call.policy, _id(call), call.body.reason)
    return Answer(204)


async def extend(call: Call) -> Answer:
    """Hold an authorization for longer; it is never shortened."""
    hold_secs = call.body.hold_secs
    return Answer(200, await cases.extend(call.services, call.policy, _id(call), hold_secs))


async def read_authorization(call: Call) -> Answer:
    """An authorization, and what has become of it."""
    return Answer(200, await cases.read_one(call.services, call.policy, _id(call)))


async def list_authorizations(call: Call) -> Answer:
    """Authorizations that are open, or that nobody has settled in time, the newest first."""
    status, after = map(call.query.get, ("status", "after"))
    listed = await cases.list_unfinished(call.services, call.policy, status, after)
    return Answer(200, listed)


async def list_budgets(call: Call) -> Answer:
    """Every budget that applies, and what is left of it in its present window."""
    return Answer(200, await budgets.list_budgets(call.services, call.policy))


def _id(call: Call) -> str:
    return call.path["authorization_id"]


def _parsed(one: Any) -> wire.CaptureOne | PriceKeeperError:
    try:
        return convert(one, wire.CaptureOne)
    except (RequestRefusedError, InvalidValueError) as error:
        return error


def _result(
    authorization_id: str | None, outcome: wire.CapturedAnswer | PriceKeeperError
) -> wire.CaptureResult:
    if isinstance(outcome, PriceKeeperError):
        problem = problem_of(outcome, 0)
        return wire.CaptureResult(
            authorization_id, "failed", code=problem.code, detail=problem.detail
        )
    return wire.CaptureResult(
        outcome.request_id,
        outcome.status,
        cost_usd_micros=outcome.cost_usd_micros,
        held_usd_micros=outcome.held_usd_micros,
        overrun_usd_micros=outcome.overrun_usd_micros,
    )


_row: Final = partial(Operation, access=Access.APP, tag="authorizations")
OPERATIONS: Final = (
    _row("POST", f"{APP}/authorizations", "authorize", authorize,
         {200: wire.AuthorizedAnswer, 201: wire.AuthorizedAnswer},
         body=wire.AuthorizeBody, limit="authorize", problems=(409, 429)),
    _row("GET", f"{APP}/authorizations", "listAuthorizations", list_authorizations,
         {200: wire.AuthorizationList}, query=_LIST, limit="aggregates", role=Role.VIEWER),
    _row("GET", _ONE, "getAuthorization", read_authorization, {200: wire.AuthorizationAnswer},
         limit="limits", role=Role.VIEWER),
    _row("POST", f"{_ONE}/capture", "captureAuthorization", capture, {200: wire.CapturedAnswer},
         body=wire.CaptureBody, limit="capture", problems=(409,)),
    _row("POST", f"{_ONE}/void", "voidAuthorization", void, {204: None}, body=wire.VoidBody,
         read=read_json_if_any, limit="capture", problems=(409,)),
    _row("POST", f"{_ONE}/extend", "extendAuthorization", extend, {200: wire.AuthorizationAnswer},
         body=wire.ExtendBody, limit="capture", problems=(409,)),
    _row("POST", f"{APP}/captures", "captureAuthorizations", capture_many,
         {207: wire.CapturesAnswer}, body=wire.CapturesBody, read=read_members, limit="batch"),
    _row("GET", f"{APP}/budgets", "listAppBudgets", list_budgets, {200: wire.BudgetList},
         limit="limits", role=Role.VIEWER),
    _row("GET", f"{ORG}/budgets", "listOrgBudgets", list_budgets, {200: wire.BudgetList},
         access=Access.ORG, limit="limits", role=Role.VIEWER),
)  # fmt: skip
