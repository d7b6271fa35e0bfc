"""An authorization: what it grants and holds, its states, and what changes them. No I/O, no clock.

::

    open -> captured | voided | unsettled
                                unsettled -> captured | voided   (up to 24 h after it expired)

The grant never changes. Later sheets of the organisation's log change the state, each of them once,
in the order of the log.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import capture, capture_late, expire
from pricekeeper.errors import ConflictError, RequestIdReusedError
from pricekeeper.limiter import Debit, limit_of
from pricekeeper.storage import Key

LATE_MS_MAX: Final = 24 * 3_600_000
"""After its expiry."""
HOLD_MS_MAX: Final = 26 * 3_600_000
"""From the grant to the latest expiry of an extended authorization."""

REQUESTS, TOKENS = "rpm", "tpm"


class State(StrEnum):
    """The state of an authorization."""

    OPEN = "open"
    CAPTURED = "captured"
    VOIDED = "voided"
    UNSETTLED = "unsettled"


class HeldAccount(msgspec.Struct, frozen=True):
    """An account that an authorization is held against."""

    key: Key
    id: str


class HeldBucket(msgspec.Struct, frozen=True):
    """A bucket that an authorization took tokens from."""

    entity: str
    terms: dict[str, str]


class Considered(msgspec.Struct, frozen=True, array_like=True):
    """A label that was considered, and why it was not chosen; no reason for the chosen one."""

    label: str
    because: str = ""


class GrantTerms(msgspec.Struct, frozen=True):
    """What all grants of one app and label have in common."""

    client_id: str
    app_id: str | None
    label: str
    accounts: tuple[HeldAccount, ...]
    buckets: tuple[HeldBucket, ...]
    keys: tuple[Key, ...]
    by_gateway: bool = False
    """Only the gateway settles them."""


class Grant(msgspec.Struct, frozen=True):
    """What an authorization allows, and what it holds."""

    terms: GrantTerms
    fingerprint: bytes
    """Of the request: the same request gets the same grant again."""
    reason: str
    held_usd_picos: int
    input_tokens: int
    """The prompt, at most as many as the model can read."""
    max_output_tokens: int
    authorized_at_ms: int
    tokens: dict[str, int]
    considered: tuple[Considered, ...] = ()
    tags: dict[str, str] = {}
    asked_as: str = ""
    """The caller's own id, if any."""


class Settlement(msgspec.Struct, frozen=True):
    """How an authorization was captured or voided."""

    at_ms: int
    fingerprint: bytes = b""
    """Of the capture: the same capture again is a duplicate."""
    cost_usd_picos: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    pricing_version: str = ""
    org_day: str = ""
    price_estimated: bool = False
    reason: str = ""


class Authorization(msgspec.Struct, frozen=True):
    """A grant, and its state."""

    id: str
    """Our own id, which names its sheet."""
    grant: Grant
    state: State
    """As the log says. Use `at` for the state at a time."""
    expires_at_ms: int
    settlement: Settlement | None = None
    outcome: str = ""
    """As the log states it; empty if there is none."""

    @property
    def shown_id(self) -> str:
        return self.grant.asked_as or self.id

    def at(self, now_ms: int) -> Authorization:
        """Unsettled once it has expired; the log says so a little later."""
        if self.state is State.OPEN and self.expires_at_ms <= now_ms:
            return msgspec.structs.replace(self, state=State.UNSETTLED)
        return self

    def may_be_settled_at(self, now_ms: int) -> bool:
        return now_ms <= self.expires_at_ms + LATE_MS_MAX


def usual_tokens(input_tokens: int, max_output_tokens: int) -> dict[str, int]:
    """What a call takes from each bucket by default, by limit."""
    return {REQUESTS: 1, TOKENS: input_tokens + max_output_tokens}


def check_may_settle(grant: Grant, *, by_gateway: bool = False) -> None:
    """Raise `ConflictError` if an app settles a call of the gateway."""
    if grant.terms.by_gateway and not by_gateway:
        raise ConflictError(
            "authorization_id", "belongs to a gateway call, which the gateway settles"
        )


class Capture(msgspec.Struct, frozen=True):
    """The call was made and used this."""

    settlement: Settlement
    bucket_tokens: int
    """By Bedrock's arithmetic."""


class Void(msgspec.Struct, frozen=True):
    """The model was not called."""

    reason: str
    by_admin: bool = False
    """An administrator can void it as long as it exists."""


class Expire(msgspec.Struct, frozen=True):
    """It was not settled in time."""


class Extend(msgspec.Struct, frozen=True):
    """The call takes longer."""

    hold_ms: int


Action: TypeAlias = Capture | Void | Expire | Extend


class Changed(NamedTuple):
    """The authorization after an action, and what is added to each of its accounts."""

    after: Authorization
    change: Balance


def settle(action: Action, seen: Authorization, now_ms: int) -> Changed | None:
    """The change, or ``None`` if the action was done before; raises what refuses it."""
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
            raise LookupError("a captured authorization was read without its record")
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
            "expired more than 24 hours ago and stays charged at its hold; an administrator "
            "can void it"
        )


def _conflict(message: str) -> ConflictError:
    return ConflictError("authorization_id", message)


def tokens_beyond(action: Action, authorization: Authorization) -> list[Debit]:
    """The debits of a settlement beyond the reserved tokens; negative amounts are given back.

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
                debits.append(Debit(Key(held.entity, label), limits, {TOKENS: beyond}))
    elif isinstance(action, Void):
        for held in buckets:
            tokens = {name: -grant.tokens[name] for name in held.terms if grant.tokens[name]}
            if tokens:
                limits = {name: limit_of(name, held.terms[name]) for name in tokens}
                debits.append(Debit(Key(held.entity, label), limits, tokens))
    return debits
