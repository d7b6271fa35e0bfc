"""Authorizations: one decision before a call, one settlement after it.

`authorize` takes the call's tokens from every bucket, then holds its maximum cost against every
budget of its chain, on one sheet of the organisation's log. `capture` counts the usage record and
releases the hold on one sheet. `void` gives everything back. An authorization that is not settled
in time is charged at its hold.

Every step can be repeated from any instance, and takes effect once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.authorizations.authorization import (
    Authorization,
    Extend,
    State,
    Void,
    check_may_settle,
)
from pricekeeper.authorizations.authorizing import Call, try_out
from pricekeeper.authorizations.candidates import Candidates
from pricekeeper.authorizations.claims import Existing, place_of
from pricekeeper.authorizations.decision import Denied, Granted
from pricekeeper.authorizations.expiry import Expiry
from pricekeeper.authorizations.items import record_place
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.reading import Seen
from pricekeeper.authorizations.recording import CaptureAnswer, Recording
from pricekeeper.authorizations.request import (
    AuthorizationRequest,
    check_hold_secs,
    checked,
    fingerprint,
    parse_id,
)
from pricekeeper.authorizations.settler import Settler
from pricekeeper.clock import Clock
from pricekeeper.errors import (
    AuthorizationDeniedError,
    ConflictError,
    InvalidValueError,
    NotFoundError,
    Obstacle,
    PriceKeeperError,
    StoreError,
)
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.draft import Tell
from pricekeeper.ledger.position import region_of
from pricekeeper.limiter import Taker
from pricekeeper.metering import Metering, Usage
from pricekeeper.metering.usage import is_authorization_id
from pricekeeper.pricing import PICOS_PER_MICRO, PriceBook
from pricekeeper.selection import Selector
from pricekeeper.storage import Store, Write
from pricekeeper.tenants import BudgetRule, Policy, QuotaEnforcement
from pricekeeper.ticks import TICK_MS
from pricekeeper.values import OrgId, parse_reason

EXPOSED_MS: Final = 5 * 24 * 3_600_000
_VOID: Final = "authorization.void"

_log = structlog.get_logger(__name__)


class Authorized(msgspec.Struct, frozen=True):
    """The answer to a request: a new grant, or the earlier one with the same id."""

    authorization: Authorization
    granted: Granted | None


class Watch(Protocol):
    """Learns how often apps are denied, and what they are charged."""

    def note_asked(self, policy: Policy, *, is_denied: bool) -> None: ...

    def note_charged(self, org_id: str, cost_usd_picos: int, *, is_unsettled: bool) -> None: ...


class Authorizations:
    """Authorizes calls, and settles them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        metering: Metering,
        prices: PriceBook,
        selection: Selector,
        ledger: Ledger,
        tokens: Taker,
        watch: Watch | None = None,
        trail: AuditTrail | None = None,
        on_change: Tell[Authorization] = lambda *_: None,
    ) -> None:
        """``on_change`` gets what this process grants and settles, sheet by sheet."""
        self._watch = watch
        self._clock = clock
        self._selection = selection
        self._candidates = Candidates(prices, selection, ledger)
        self.meter = AuthorizationMeter()
        self._on_change = on_change
        self._settler = Settler(
            store,
            clock,
            ledger,
            metering.poster,
            self.meter,
            tokens,
            on_change=self._note_changed,
            on_record=metering.note_on_sheet,
        )
        self.recording = Recording(self._settler, metering, prices)
        self.expiry = Expiry(self._settler)
        self._trail = trail or AuditTrail(store, clock)

    async def authorize(self, policy: Policy, request: AuthorizationRequest) -> Authorized:
        """Authorize a call, or raise `AuthorizationDeniedError` with everything that denies it.

        The same id gets the same grant; for another request it raises `ConflictError`.
        """
        watch = None if request.dry_run else self._watch
        try:
            authorized = await self._authorize(policy, request)
        except AuthorizationDeniedError:
            if watch is not None:
                watch.note_asked(policy, is_denied=True)
            raise
        if watch is not None:
            watch.note_asked(policy, is_denied=False)
        return authorized

    async def _authorize(self, policy: Policy, request: AuthorizationRequest) -> Authorized:
        request = checked(request)
        now_ms, settler = self._clock.now_ms(), self._settler
        asked_as = None if request.dry_run else request.authorization_id
        if asked_as is not None and is_authorization_id(asked_as):
            existing = await settler.reader.find(policy.org_id, asked_as)
            if existing is None:  # we could make the same id later
                message = "is of version 8, which only our own ids have; send a version 7 id"
                raise InvalidValueError("authorization_id", message)
            return self._repeat(existing, fingerprint(policy.client_id, request))
        try:
            wanted = await self._candidates.find(policy, request, now_ms)
        except PriceKeeperError:
            existing = None if asked_as is None else await self._look_up(policy, asked_as)
            if existing is None:
                raise
            return self._repeat(existing, fingerprint(policy.client_id, request))
        answer: Granted | Denied | Existing
        if request.dry_run:
            answer = await try_out(settler, wanted, now_ms)
        else:
            place = None if asked_as is None else place_of(policy, asked_as)
            answer = await Call(settler, wanted, place).authorize()
        if isinstance(answer, Denied):
            if not request.dry_run:
                self.meter.denied += 1
            raise await self._deny(policy, answer)
        if isinstance(answer, Existing):
            existing = await settler.reader.find(policy.org_id, answer.own_id)
            if existing is None:
                raise ConflictError(
                    "authorization_id", "is the id of a usage record; send a new id"
                )
            return self._repeat(existing, wanted.fingerprint)
        return Authorized(answer.authorization, answer)

    async def capture(
        self, policy: Policy, authorization_id: str, usage: Usage, *, by_gateway: bool = False
    ) -> CaptureAnswer:
        """Count what the call used, and release its hold, in one step.

        Only the gateway captures its calls, from Bedrock's reply; their apps get `ConflictError`.
        """
        seen = await self._find_open(policy, authorization_id)
        check_may_settle(seen.authorization.grant, by_gateway=by_gateway)
        return await self.recording.capture(policy, seen, usage)

    async def void(
        self,
        policy: Policy,
        authorization_id: str,
        reason: str | None,
        *,
        by_gateway: bool = False,
    ) -> None:
        void = Void("" if reason is None else parse_reason(reason))
        seen = await self._find_open(policy, authorization_id)
        check_may_settle(seen.authorization.grant, by_gateway=by_gateway)
        settled = await self._settler.submit(policy.org_id, void, seen).future
        await self._settler.return_tokens(void, settled)

    async def void_for_admin(
        self, org: Policy, authorization_id: str, by: Attribution, rule: BudgetRule
    ) -> Authorization:
        """Void the authorization of any client of an organisation, with an audit entry.

        Voiding again changes nothing. A captured one raises `ConflictError`. If its own client
        could not void it (a call of the gateway, or expired more than 24 hours ago), the key must
        be able to raise budgets, or `NotPermittedError` is raised.
        """
        seen = await self._look_up(org, parse_id(authorization_id))
        if seen is None:
            raise NotFoundError("authorization")
        if seen.authorization.grant.terms.by_gateway:
            rule.require_reach(by, "voiding a call of the gateway")
        if not seen.authorization.may_be_settled_at(self._clock.now_ms()):
            rule.require_reach(by, "voiding a call that expired more than 24 hours ago")

        async def send(operations: Sequence[Write]) -> None:
            before = command.seen.authorization.at(self._clock.now_ms())
            grant = before.grant
            was = {
                "client_id": grant.terms.client_id,
                "model_label": grant.terms.label,
                "status": before.state.value,
                "held_usd_micros": -(-grant.held_usd_picos // PICOS_PER_MICRO),
            }
            voided = {"status": State.VOIDED.value}
            change = Change(_VOID, _target(before), OrgId(org.org_id), was, voided)
            await self._trail.apply(by, change, operations)

        void = Void(by.reason or "", by_admin=True)
        command = self._settler.submit(org.org_id, void, seen, send=send)
        settled = await command.future
        if not settled.changed:
            repetition = Change(_VOID, _target(settled.authorization), OrgId(org.org_id))
            await self._trail.apply(by, repetition, ())
        await self._settler.return_tokens(void, settled)
        return settled.authorization

    async def find_captured_ms(self, org: Policy, request_id: str) -> int | None:
        """About when a record with this id was put on a sheet; ``None`` if it is on none."""
        canonical = parse_id(request_id, "request_id")
        found = await self._look_up(org, canonical)
        if found is None:
            own_id = await self._find_named(org, canonical)
            return None if own_id is None else int(region_of(own_id), 16) * TICK_MS
        if found.authorization.state is not State.CAPTURED:
            return None
        place = record_place(found.authorization.outcome)
        region = region_of(found.authorization.id) if place is None else place.region
        return int(region, 16) * TICK_MS

    async def extend(self, policy: Policy, authorization_id: str, hold_secs: int) -> Authorization:
        check_hold_secs(hold_secs)
        seen = await self._find_open(policy, authorization_id)
        extend = Extend(hold_secs * 1000)
        return (await self._settler.submit(policy.org_id, extend, seen).future).authorization

    async def find(self, policy: Policy, authorization_id: str) -> Authorization:
        found = (await self._find(policy, authorization_id)).authorization
        return found.at(self._clock.now_ms())

    async def list_unfinished(
        self, policy: Policy, states: Collection[State], before: str = "", limit: int = 100
    ) -> list[Authorization]:
        """Newest first, after our id ``before``."""
        mine: list[Authorization] = []
        async for one in self._settler.regions.read_unfinished(policy.org_id, states, before):
            if policy.app_id is None or one.grant.terms.client_id == policy.client_id:
                mine.append(one)
                if len(mine) == limit:
                    break
        return mine

    async def read_exposed(
        self, org_ids: Collection[str], first_ms: int | None = None, last_ms: int | None = None
    ) -> list[tuple[str, Authorization]]:
        """By default in the last days: all that can still be settled."""
        now_ms = self._clock.now_ms()
        first_ms = now_ms - EXPOSED_MS if first_ms is None else first_ms
        last_ms = now_ms + EXPOSED_MS if last_ms is None else last_ms
        return await self._settler.regions.read_exposed(org_ids, first_ms, last_ms)

    async def close(self) -> None:
        await self._settler.close()

    def _note_changed(self, org_id: str, changed: list[Authorization]) -> None:
        self._on_change(org_id, changed)
        watch, spent = self._watch, 0
        if watch is None:
            return
        for one in changed:
            if one.state is State.UNSETTLED:
                watch.note_charged(org_id, one.grant.held_usd_picos, is_unsettled=True)
            elif one.state is State.CAPTURED and one.settlement is not None:
                spent += one.settlement.cost_usd_picos
        if spent:
            watch.note_charged(org_id, spent, is_unsettled=False)

    async def _deny(self, policy: Policy, denied: Denied) -> AuthorizationDeniedError:
        strict = policy.quota_enforcement is QuotaEnforcement.STRICT
        spent = [one for one in denied.denied_by if one.kind is Obstacle.QUOTA]
        if strict and any(one.remaining <= 0 for one in spent):
            try:
                await self._selection.assess(policy, force_check=True)
            except StoreError as error:  # the next selection tries again
                _log.warning("flip_failed", client_id=policy.client_id, error=error.code)
        considered = [(one.label, one.because) for one in denied.considered]
        return AuthorizationDeniedError(denied.denied_by, considered)

    async def _find(self, policy: Policy, authorization_id: str) -> Seen:
        found = await self._look_up(policy, parse_id(authorization_id))
        if found is None or found.authorization.grant.terms.client_id != policy.client_id:
            raise NotFoundError("authorization")
        return found

    async def _find_open(self, policy: Policy, authorization_id: str) -> Seen:
        seen = self._settler.recall(parse_id(authorization_id))
        if seen is None or seen.authorization.grant.terms.client_id != policy.client_id:
            return await self._find(policy, authorization_id)
        return seen

    async def _look_up(self, policy: Policy, authorization_id: str) -> Seen | None:
        reader = self._settler.reader
        if is_authorization_id(authorization_id):
            found = await reader.find(policy.org_id, authorization_id)
            if found is not None:
                return found
        own_id = await self._find_named(policy, authorization_id)
        return None if own_id is None else await reader.find(policy.org_id, own_id)

    async def _find_named(self, policy: Policy, request_id: str) -> str | None:
        place = place_of(policy, request_id)
        return await self._settler.claims.find(policy.org_id, place)

    def _repeat(self, existing: Seen, asked: bytes) -> Authorized:
        if existing.authorization.grant.fingerprint != asked:
            raise ConflictError("authorization_id", "was used for another request; send a new id")
        return Authorized(existing.authorization.at(self._clock.now_ms()), None)


def _target(authorization: Authorization) -> str:
    return f"authorization/{authorization.shown_id}"
