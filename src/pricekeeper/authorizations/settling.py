"""What settles an authorization, and what that changes. No I/O, no clock.

Each action looks at the authorization as it was last seen. Either it changes it, or it finds that
this has happened already, or it is refused because something else has happened.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from pricekeeper.authorizations.authorization import (
    HOLD_MS_MAX,
    TOKENS,
    Authorization,
    Settlement,
    State,
)
from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import capture, capture_late, expire
from pricekeeper.errors import ConflictError, RequestIdReusedError
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.limits import limit_of


class Capture(msgspec.Struct, frozen=True):
    """The call was made, and this is what it used."""

    settlement: Settlement
    bucket_tokens: int
    """What the call took from Bedrock's own limit, by its own arithmetic."""


class Void(msgspec.Struct, frozen=True):
    """The model was never reached."""

    reason: str
    by_admin: bool = False
    """Whether an administrator says so, who may do it as long as the authorization is kept."""


class Expire(msgspec.Struct, frozen=True):
    """Nobody has settled it in time."""


class Extend(msgspec.Struct, frozen=True):
    """The call takes longer."""

    hold_ms: int


Action: TypeAlias = Capture | Void | Expire | Extend


class Changed(NamedTuple):
    """What the authorization becomes, and what that adds to each of its accounts."""

    after: Authorization
    change: Balance


def settle(action: Action, seen: Authorization, now_ms: int) -> Changed | None:
    """The change; ``None`` if there is nothing left to change. Raises what refuses it."""
    if isinstance(action, Capture):
        return _capture(action.settlement, seen, now_ms)
    if isinstance(action, Void):
        return _void(action, seen, now_ms)
    if isinstance(action, Extend):
        return _extend(action.hold_ms, seen, now_ms)
    after = seen.at(now_ms)
    if after.state is seen.state:
        return None
    return Changed(after, expire(seen.grant.held_usd_picos))


def _capture(settlement: Settlement, seen: Authorization, now_ms: int) -> Changed | None:
    if seen.state is State.CAPTURED:
        if seen.settlement is None:
            raise LookupError("what was captured was read without its record")
        if seen.settlement.fingerprint != settlement.fingerprint:
            raise RequestIdReusedError(seen.shown_id)
        return None
    if seen.state is State.VOIDED:
        raise _conflict("was voided")
    _check_late(seen, now_ms)
    change = _release(seen, settlement.cost_usd_picos)
    after = Authorization(seen.id, seen.grant, State.CAPTURED, seen.expires_at_ms, settlement)
    return Changed(after, change)


def _void(action: Void, seen: Authorization, now_ms: int) -> Changed | None:
    if seen.state is State.VOIDED:
        return None
    if seen.state is State.CAPTURED:
        raise _conflict("was captured")
    if not action.by_admin:
        _check_late(seen, now_ms)
    settlement = Settlement(now_ms, reason=action.reason)
    after = msgspec.structs.replace(seen, state=State.VOIDED, settlement=settlement)
    return Changed(after, _release(seen, 0))


def _release(seen: Authorization, cost: int) -> Balance:
    """What a settlement adds to the accounts, which count the hold as the log does."""
    held = seen.grant.held_usd_picos
    return capture_late(held, cost) if seen.state is State.UNSETTLED else capture(held, cost)


def _extend(hold_ms: int, seen: Authorization, now_ms: int) -> Changed | None:
    state = seen.at(now_ms).state
    if state is not State.OPEN:
        raise _conflict(f"is {state.value}")
    until_ms = min(now_ms + hold_ms, seen.grant.authorized_at_ms + HOLD_MS_MAX)
    if until_ms <= seen.expires_at_ms:
        return None
    return Changed(msgspec.structs.replace(seen, expires_at_ms=until_ms), Balance())


def _check_late(seen: Authorization, now_ms: int) -> None:
    if not seen.may_be_settled_at(now_ms):
        raise _conflict(
            "expired more than 24 hours ago, and stays charged at what it held unless an "
            "administrator voids it"
        )


def _conflict(message: str) -> ConflictError:
    return ConflictError("authorization_id", message)


def tokens_beyond(action: Action, authorization: Authorization) -> list[Debit]:
    """The debits of a settlement beyond what was reserved; negative amounts are given back.

    A capture uses Bedrock's own count of the call's tokens. A void gives everything back.
    """
    debits: list[Debit] = []
    grant = authorization.grant
    label, buckets = grant.terms.label, grant.terms.buckets
    if isinstance(action, Capture):
        beyond = action.bucket_tokens - grant.tokens.get(TOKENS, 0)
        for held in buckets if beyond else ():
            terms = held.terms.get(TOKENS)
            if terms is not None:
                limits = {TOKENS: limit_of(TOKENS, terms)}
                debits.append(Debit(held.entity, label, limits, {TOKENS: beyond}))
    elif isinstance(action, Void):
        for held in buckets:
            tokens = {name: -grant.tokens[name] for name in held.terms if grant.tokens[name]}
            if tokens:
                limits = {name: limit_of(name, held.terms[name]) for name in tokens}
                debits.append(Debit(held.entity, label, limits, tokens))
    return debits
