"""Authorizations: requests, settlements and answers.

Money is in whole micro-dollars: costs, spent and remaining amounts are rounded down, held,
unsettled and needed amounts up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from pricekeeper.activity import DeniedKind
from pricekeeper.authorizations import Authorization, AuthorizationRequest, Authorized, State
from pricekeeper.bootstrap import Services
from pricekeeper.budgets import Balance, BudgetAccount, accounts_for
from pricekeeper.concurrency import gather_in_turn
from pricekeeper.errors import InvalidValueError, PriceKeeperError
from pricekeeper.limiter import LimitStatus
from pricekeeper.tenants import Policy
from pricekeeper.usecases import containment
from pricekeeper.usecases.asking import Ask
from pricekeeper.usecases.denying import DENIALS, note_denial
from pricekeeper.usecases.describing import describe, micros_down, micros_up
from pricekeeper.usecases.queries import without_secret
from pricekeeper.usecases.runtime import daily_total_answer, limit_state, make_usage
from pricekeeper.values import parse_reason
from pricekeeper.wire import authorizations as wire
from pricekeeper.wire.values import rfc3339

PAGE_MAX: Final = 100
_GRANT_STATUS: Final[Mapping[State, wire.GrantStatus]] = {
    State.OPEN: "authorized",
    State.CAPTURED: "captured",
    State.VOIDED: "voided",
    State.UNSETTLED: "unsettled",
}
_UNFINISHED: Final = (State.OPEN, State.UNSETTLED)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


async def authorize(
    services: Services, policy: Policy, body: wire.AuthorizeBody
) -> tuple[wire.AuthorizedAnswer, bool]:
    """Authorize a call; also returns whether the grant is new."""
    try:
        request = msgspec.convert(body, AuthorizationRequest, from_attributes=True)
        authorized = await services.authorizations.authorize(policy, request)
    except DENIALS as denied:
        if not body.dry_run:
            kind = DeniedKind.AUTHORIZATION
            note_denial(services, policy, kind, body.model, body.tags, denied)
        raise
    is_new = authorized.granted is not None and not body.dry_run
    return await _authorized(services, policy, authorized, dry_run=body.dry_run), is_new


async def capture(ask: Ask) -> wire.CapturedAnswer:
    """Count the usage of a call, and release its hold."""
    return await _capture(ask.services, ask.policy, ask.path["authorization_id"], ask.body)


async def _capture(
    services: Services, policy: Policy, authorization_id: str, body: wire.CaptureBody
) -> wire.CapturedAnswer:
    usage = make_usage(body, "", "")  # the authorization has its id and label
    captured = await services.authorizations.capture(policy, _id(authorization_id), usage)
    recorded, receipt = captured.recorded, captured.recorded.receipt
    return wire.CapturedAnswer(
        request_id=recorded.request_id,
        status="duplicate" if captured.is_duplicate else "captured",
        cost_usd_micros=recorded.cost_usd_micros,
        pricing_version=receipt.pricing_version,
        shard_id=receipt.shard_id,
        org_day=receipt.org_day,
        daily_total=daily_total_answer(recorded, policy),
        price_estimated=receipt.price_estimated,
        held_usd_micros=micros_up(captured.authorization.grant.held_usd_picos),
        overrun_usd_micros=micros_up(captured.overrun_usd_picos),
    )


async def capture_each(
    services: Services, policy: Policy, captures: Sequence[wire.CaptureOne]
) -> list[wire.CapturedAnswer | PriceKeeperError]:
    """Capture up to 100 calls concurrently; the answers are in the order of the captures.

    Captures of one authorization run in sequence, so the later ones are duplicates.
    """

    async def capture_one(number: int) -> wire.CapturedAnswer | PriceKeeperError:
        body = captures[number]
        try:
            return await _capture(services, policy, body.authorization_id, body)
        except PriceKeeperError as error:
            return error

    return await gather_in_turn([one.authorization_id.lower() for one in captures], capture_one)


async def void(ask: Ask) -> None:
    """Return the hold of a call: the model was never reached.

    The operator of the store acts as an administrator.
    """
    services, voided_id, reason = ask.services, ask.path["authorization_id"], ask.body.reason
    if ask.authority is not None:
        await read_one(ask)
        await containment.void_authorization(ask)
        return
    if reason is not None:
        without_secret("reason", parse_reason(reason))
    await services.authorizations.void(ask.policy, _id(voided_id), reason)


async def extend(ask: Ask) -> wire.AuthorizationAnswer:
    """Hold an authorization for so long from now, if that is longer."""
    named = _id(ask.path["authorization_id"])
    extended = await ask.services.authorizations.extend(ask.policy, named, ask.body.hold_secs)
    return authorization_answer(extended)


async def read_one(ask: Ask) -> wire.AuthorizationAnswer:
    """Read an authorization of a client."""
    named = _id(ask.path["authorization_id"])
    return authorization_answer(await ask.services.authorizations.find(ask.policy, named))


async def list_unfinished(ask: Ask) -> wire.AuthorizationList:
    """Read a page of a client's open or unsettled authorizations, the newest first."""
    status, after = ask.query.get("status"), ask.query.get("after")
    states = _UNFINISHED if status is None else (_state(status),)
    cursor = "" if after is None else _id(after, "after").lower()
    most = PAGE_MAX + 1
    found = await ask.services.authorizations.list_unfinished(ask.policy, states, cursor, most)
    page = found[:PAGE_MAX]
    more = page[-1].id if len(found) > PAGE_MAX else UNSET
    return wire.AuthorizationList([authorization_answer(one) for one in page], next=more)


def authorization_answer(authorization: Authorization) -> wire.AuthorizationAnswer:
    """Describe an authorization."""
    grant, settlement = authorization.grant, authorization.settlement
    more: dict[str, Any] = {}
    if settlement is not None:
        more["settled_at"] = rfc3339(settlement.at_ms)
        if authorization.state is State.VOIDED:
            more["void_reason"] = settlement.reason or None
        else:
            cost = settlement.cost_usd_picos
            more["cost_usd_micros"] = micros_down(cost)  # as in its usage record
            more["overrun_usd_micros"] = micros_up(max(0, cost - grant.held_usd_picos))
    return describe(
        wire.AuthorizationAnswer,
        grant,
        authorization_id=authorization.shown_id,
        status=authorization.state.value,
        model_label=grant.terms.label,
        expires_at=rfc3339(authorization.expires_at_ms),
        considered=considered_labels((one.label, one.because) for one in grant.considered),
        **more,
    )


def considered_labels(considered: Iterable[tuple[str, str]]) -> list[wire.ConsideredLabel]:
    """Describe the considered labels, with the reason why one was skipped."""
    return [
        wire.ConsideredLabel(label, "SKIPPED", because)
        if because
        else wire.ConsideredLabel(label, "CHOSEN")
        for label, because in considered
    ]


async def _authorized(
    services: Services, policy: Policy, authorized: Authorized, *, dry_run: bool
) -> wire.AuthorizedAnswer:
    authorization, granted = authorized.authorization, authorized.granted
    grant = authorization.grant
    model = services.prices.catalogue.model(grant.terms.label)
    limits: Mapping[str, LimitStatus] = {}
    if granted is None:
        # The present windows: those of the hold may be over.
        now_ms = services.clock.now_ms()
        accounts = accounts_for(policy, grant.terms.label, grant.tags, now_ms)
        balances = tuple((await services.ledger.read(accounts)).items())
    else:
        balances, limits = granted.balances, granted.limits
    return wire.AuthorizedAnswer(
        authorization_id=None if dry_run else authorization.shown_id,
        status=_GRANT_STATUS[authorization.state],
        model=wire.AuthorizedModel(
            model.label, model.bedrock_model_id, grant.reason, model.description
        ),
        held_usd_micros=micros_up(grant.held_usd_picos),
        max_output_tokens=grant.max_output_tokens,
        expires_at=rfc3339(authorization.expires_at_ms),
        budgets=[_budget_after(account, balance) for account, balance in balances],
        limits={name: limit_state(status) for name, status in limits.items()},
        considered=considered_labels((one.label, one.because) for one in grant.considered),
        dry_run=True if dry_run else UNSET,
    )


def _budget_after(account: BudgetAccount, balance: Balance) -> wire.BudgetAfter:
    return wire.BudgetAfter(
        name=account.name,
        scope=account.scope.value,
        window=account.window.value,
        limit_usd_micros=micros_down(account.limit_usd_picos),
        spent_usd_micros=micros_down(balance.spent + balance.unsettled),
        held_usd_micros=micros_up(balance.held),
        remaining_usd_micros=micros_down(account.limit_usd_picos - balance.used),
        resets_at=rfc3339(account.span.ends_at_ms),
    )


def _state(status: str) -> State:
    if status not in _UNFINISHED:
        raise InvalidValueError("status", "must be open or unsettled")
    return State(status)


def _id(text: str, field: str = "authorization_id") -> str:
    if not _UUID.fullmatch(text):
        raise InvalidValueError(
            field, "must be a UUID such as 01928f7c-12ab-7c3d-8e4f-0123456789ab"
        )
    return text
