"""Authorizations: one decision before a call, one settlement after it.

`authorize` takes the call's tokens from every bucket, and then holds the most that it can cost
against every budget of its chain by one sheet of its organisation's log, which also has the
authorization. `capture` counts the record and releases the hold by one sheet; `void` gives
everything back. What nobody settles is charged at its hold when it expires, and stays so until a
late capture sets it right.

Every step can be repeated from any instance until it is answered, and happens once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

import msgspec
import structlog

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution
from pricekeeper.authorizations.admin_voids import void_by_admin
from pricekeeper.authorizations.asking import Asking
from pricekeeper.authorizations.authorization import (
    Authorization,
    Grant,
    HeldAccount,
    Settlement,
    State,
    check_settler,
    parse_id,
)
from pricekeeper.authorizations.candidates import Candidates
from pricekeeper.authorizations.claims import Place
from pricekeeper.authorizations.commands import Existing, Settled
from pricekeeper.authorizations.decision import (
    ChosenCandidate,
    Denied,
    Granted,
    Room,
    Speed,
    Taken,
    Wanted,
    choose,
    make_grant,
)
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.expiry import Expiry
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.outcomes import record_place
from pricekeeper.authorizations.reading import Seen
from pricekeeper.authorizations.recording import CaptureAnswer, Recording
from pricekeeper.authorizations.request import AuthorizationRequest, check_hold_secs, checked
from pricekeeper.authorizations.request import fingerprint as fingerprint_of_request
from pricekeeper.authorizations.settling import Capture, Extend, Void
from pricekeeper.budgets import Balance, BudgetAccount
from pricekeeper.budgets.items import NOTHING, hold
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
from pricekeeper.ledger.service import AccountKey
from pricekeeper.limiter.bucket import LimitStatus
from pricekeeper.metering import Metering, RecordOnSheet, Submission, Usage
from pricekeeper.metering.journal import address_of, lanes_of
from pricekeeper.metering.posting import is_late
from pricekeeper.metering.usage import is_authorization_id
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import Selector
from pricekeeper.storage import Key, Store
from pricekeeper.tenants import BudgetRule, Policy, QuotaEnforcement
from pricekeeper.ticks import TICK_MS, region_at, tick_of
from pricekeeper.values import parse_reason

EXPOSED_MS: Final = 5 * 24 * 3_600_000
_PERMILLE: Final = 1_000

_log = structlog.get_logger(__name__)


class Authorized(msgspec.Struct, frozen=True):
    """What an authorization was answered with: a grant of now, or the same one again."""

    authorization: Authorization
    granted: Granted | None


class Watch(Protocol):
    """Who is told how often apps are denied, and what is charged without being settled."""

    def note_asked(self, policy: Policy, *, is_denied: bool) -> None:
        """An app has asked for a call."""
        ...

    def note_charged(self, org_id: str, cost_usd_picos: int, *, is_unsettled: bool) -> None:
        """An organisation is charged for a call that was captured, or that nobody has settled."""
        ...


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
        watch: Watch | None = None,
        trail: AuditTrail | None = None,
        on_change: Tell[Authorization] = lambda *_: None,
    ) -> None:
        """``on_change`` is told of what this process grants and settles, sheet by sheet."""
        self._watch = watch
        self._clock = clock
        self._metering = metering
        self._prices = prices
        self._selection = selection
        self._ledger = ledger
        self._candidates = Candidates(prices, selection, ledger)
        self.meter = AuthorizationMeter()
        self._on_change = on_change
        self._desk = Desk(
            store,
            clock,
            ledger,
            metering.poster,
            self.meter,
            on_change=self._tell_changed,
            on_record=lambda _, records: metering.note_on_sheet(records),
        )
        self._open = self._desk.open
        self._tokens = self._desk.tokens
        self._regions = self._desk.regions
        self.recording = Recording(self._desk, metering, self._capture, self._place)
        self.expiry = Expiry(self._desk)
        self._trail = trail or AuditTrail(store, clock)

    async def authorize(self, policy: Policy, request: AuthorizationRequest) -> Authorized:
        """Authorize a call, or raise `AuthorizationDeniedError`, which names all that denies it.

        The same request under the same id is the same grant; another one under it is a
        `ConflictError`.
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
        now_ms = self._clock.now_ms()
        asked_as = None if request.dry_run else request.authorization_id
        if asked_as is not None and is_authorization_id(asked_as):
            existing = await self._desk.reader.find(policy.org_id, asked_as)
            if existing is None:  # one that we make later may be the same
                message = "is of version 8, as only those are that we make; make it of version 7"
                raise InvalidValueError("authorization_id", message)
            return self._repeat(existing, fingerprint_of_request(policy.client_id, request))
        try:
            wanted = await self._candidates.find(policy, request, now_ms)
        except PriceKeeperError:
            existing = None if asked_as is None else await self._look_up(policy, asked_as)
            if existing is None:
                raise
            return self._repeat(existing, fingerprint_of_request(policy.client_id, request))
        if request.dry_run:
            return await self._try(policy, wanted, now_ms)
        place = None if asked_as is None else self._place(policy, asked_as)
        answer = await Asking(self._desk, wanted, place).ask()
        if isinstance(answer, Denied):
            self.meter.denied += 1
            raise await self._deny(policy, answer)
        if isinstance(answer, Existing):
            existing = await self._desk.reader.find(policy.org_id, answer.own_id)
            if existing is None:
                raise ConflictError("authorization_id", "is that of a usage record")
            return self._repeat(existing, wanted.fingerprint)
        return Authorized(answer.authorization, answer)

    async def capture(
        self, policy: Policy, authorization_id: str, usage: Usage, *, by_gateway: bool = False
    ) -> CaptureAnswer:
        """Count what the call used, and release what was held for it, in one step.

        ``usage`` has no id and no label of its own: they are the authorization's. The same capture
        again is a duplicate; another one is a `RequestIdReusedError`. What the gateway has called
        it settles itself, from what Bedrock says; anybody else's word is a `ConflictError`.
        """
        seen = await self._find_open(policy, authorization_id)
        check_settler(seen.authorization.grant, by_gateway=by_gateway)
        return await self._capture(policy, seen, usage)

    def begin_capture(
        self,
        policy: Policy,
        authorization: Authorization,
        usage: Usage,
        on_failure: Callable[[BaseException], None],
    ) -> int | None:
        """Begin to capture what this process has granted; what it costs, in pico-dollars.

        ``on_failure`` is told if `capture` has to be tried for it. ``None`` if it was not begun,
        because something has to be read first or is wrong: `capture` does the one and says the
        other.
        """
        due, grant = self._open.find(authorization.id), authorization.grant
        if due is None:
            return None
        usage = _named(policy, authorization, usage)
        try:
            submission = self._metering.price_captured_at_once(
                policy, usage, grant.authorized_at_ms
            )
        except PriceKeeperError:
            return None
        accounts = self._ledger.find(policy, grant.terms.label, usage.tags, grant.authorized_at_ms)
        if submission is None or not _are_held(accounts, grant):
            return None
        self._desk.submit(
            policy.org_id,
            self._make_capture(usage, submission),
            self._desk.seen(due),
            record=RecordOnSheet(policy, submission),
            on_failure=on_failure,
        )
        return submission.cost_usd_picos

    async def _capture(self, policy: Policy, seen: Seen, usage: Usage) -> CaptureAnswer:
        grant = seen.authorization.grant
        usage = _named(policy, seen.authorization, usage)
        submission = await self._metering.price_captured(policy, usage, grant.authorized_at_ms)
        action = self._make_capture(usage, submission)
        accounts = self._ledger.find(policy, grant.terms.label, usage.tags, grant.authorized_at_ms)
        since = () if _are_held(accounts, grant) else await self._open_since(accounts, grant)
        record = RecordOnSheet(policy, submission)
        settled = await self._desk.submit(
            policy.org_id, action, seen, record=record, since=since
        ).future
        return await self._answer_captured(policy, settled, submission)

    def _make_capture(self, usage: Usage, submission: Submission) -> Capture:
        settlement = Settlement(
            at_ms=self._clock.now_ms(),
            fingerprint=submission.fingerprint,
            cost_usd_picos=submission.cost_usd_picos,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            pricing_version=submission.terms.pricing_version,
            org_day=submission.terms.day,
            price_estimated=submission.price_estimated,
        )
        return Capture(settlement, self._bucket_tokens(usage))

    async def void(
        self,
        policy: Policy,
        authorization_id: str,
        reason: str | None,
        *,
        by_gateway: bool = False,
    ) -> None:
        """Give everything back: the model was never reached. Who may is as for `capture`."""
        void = Void("" if reason is None else parse_reason(reason))
        seen = await self._find_open(policy, authorization_id)
        check_settler(seen.authorization.grant, by_gateway=by_gateway)
        settled = await self._desk.submit(policy.org_id, void, seen).future
        await self._desk.return_tokens(void, settled)

    async def void_for_admin(
        self, org: Policy, authorization_id: str, by: Attribution, rule: BudgetRule
    ) -> Authorization:
        """Give back what any client of the organisation has been granted, with an audit entry.

        What the client could not void itself takes a key that may raise budgets, by that rule.
        """
        seen = await self._look_up(org, parse_id(authorization_id))
        if seen is None:
            raise NotFoundError("authorization")
        return await void_by_admin(self._desk, self._trail, org.org_id, seen, by, rule)

    async def find_captured_ms(self, org: Policy, request_id: str) -> int | None:
        """About when a record was written that is on a sheet; ``None`` if none has that id."""
        canonical = parse_id(request_id, "request_id")
        found = await self._look_up(org, canonical)
        if found is None:
            own_id = await self._desk.find_named(org.org_id, self._place(org, canonical))
            return None if own_id is None else int(region_of(own_id), 16) * TICK_MS
        if found.authorization.state is not State.CAPTURED:
            return None
        place = record_place(found.authorization.outcome)
        region = region_of(found.authorization.id) if place is None else place.region
        return int(region, 16) * TICK_MS

    async def extend(self, policy: Policy, authorization_id: str, hold_secs: int) -> Authorization:
        """Hold it for so long from now, if that is longer."""
        check_hold_secs(hold_secs)
        seen = await self._find_open(policy, authorization_id)
        extend = Extend(hold_secs * 1000)
        return (await self._desk.submit(policy.org_id, extend, seen).future).authorization

    async def find(self, policy: Policy, authorization_id: str) -> Authorization:
        """The authorization of a client; raises `NotFoundError` if it has none of that id."""
        found = (await self._find(policy, authorization_id)).authorization
        return found.at(self._clock.now_ms())

    async def _find(self, policy: Policy, authorization_id: str) -> Seen:
        found = await self._look_up(policy, parse_id(authorization_id))
        if found is None or found.authorization.grant.terms.client_id != policy.client_id:
            raise NotFoundError("authorization")
        return found

    async def _find_open(self, policy: Policy, authorization_id: str) -> Seen:
        """The authorization to settle, from memory if this process has granted it."""
        return self._recall(policy, authorization_id) or await self._find(policy, authorization_id)

    def _recall(self, policy: Policy, authorization_id: str) -> Seen | None:
        """An authorization that this process has granted, if it is open."""
        due = self._open.find(parse_id(authorization_id))
        if due is None or due.authorization.grant.terms.client_id != policy.client_id:
            return None
        return self._desk.seen(due)

    async def list_unfinished(
        self, policy: Policy, states: Collection[State], before: str = "", limit: int = 100
    ) -> list[Authorization]:
        """So many of the client's authorizations that are open or unsettled, the newest first.

        ``before`` is the own id of one: those that follow it.
        """
        mine: list[Authorization] = []
        async for one in self._regions.read_unfinished(policy.org_id, states, before):
            if policy.app_id is None or one.grant.terms.client_id == policy.client_id:
                mine.append(one)
                if len(mine) == limit:
                    break
        return mine

    async def read_exposed(
        self, org_ids: Collection[str], first_ms: int | None = None, last_ms: int | None = None
    ) -> list[tuple[str, Authorization]]:
        """What is held, and what is charged and unsettled, of that time at these organisations.

        By default of the last days: what can still be settled, and some more.
        """
        now_ms = self._clock.now_ms()
        if first_ms is None:
            first_ms = now_ms - EXPOSED_MS
        return await self._regions.read_exposed(
            org_ids, first_ms, now_ms + EXPOSED_MS if last_ms is None else last_ms
        )

    async def close(self) -> None:
        """Carry out what was accepted, then stop."""
        await self._desk.close()

    def _tell_changed(self, org_id: str, changed: list[Authorization]) -> None:
        """Tell of authorizations that a sheet of ours has granted or settled, and their charge."""
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

    async def _open_since(
        self, accounts: tuple[BudgetAccount, ...], grant: Grant
    ) -> tuple[HeldAccount, ...]:
        """The accounts of budgets that are newer than the authorization: it is spent from them."""
        now_ms = self._clock.now_ms()
        held = {(one.key.pk, one.id) for one in grant.terms.accounts}
        accounts = tuple(
            account
            for account in accounts
            if account.span.ends_at_ms > now_ms and (account.key.pk, account.id) not in held
        )
        await self._ledger.open_all(accounts)
        return tuple(HeldAccount(one.key, one.id) for one in accounts)

    async def _answer_captured(
        self, policy: Policy, settled: Settled, submission: Submission
    ) -> CaptureAnswer:
        authorization = settled.authorization
        settlement = authorization.settlement
        sent_at_ms = settled.sent_at_ms or self._clock.now_ms()
        receipt = submission.receipt(settled.nonce, sent_at_ms)
        if settlement is not None and not settled.changed:  # it gets the answer of the first
            receipt = msgspec.structs.replace(
                receipt,
                cost_usd_picos=settlement.cost_usd_picos,
                pricing_version=settlement.pricing_version,
                org_day=settlement.org_day,
                price_estimated=settlement.price_estimated,
                accepted_at_ms=settlement.at_ms,
            )
        if is_late(tick_of(receipt.accepted_at_ms), self._clock.now_ms()):
            await self._desk.poster.request_repair_if_late(policy.org_id, [receipt])
        recorded = await self._metering.answer_on_sheet(
            policy, submission.request_id, receipt, accepted=settled.changed
        )
        return CaptureAnswer(authorization, recorded, is_duplicate=not settled.changed)

    async def _try(self, policy: Policy, wanted: Wanted, now_ms: int) -> Authorized:
        """Decide on what the store has now, and take nothing."""
        accounts = dict.fromkeys(one for some in wanted.candidates for one in some.chain.accounts)
        found = await self._ledger.read_open(accounts)
        balances = _Balances(((one.key, one.id), has) for one, has in found.items())
        speeds: dict[int, Speed] = {}
        for rank, candidate in enumerate(wanted.candidates):
            speed = speeds[rank] = await self._tokens.look(wanted, candidate)
            if isinstance(speed, Room):
                speeds[rank] = Taken(speed.output_tokens, (), speed.limits)
        choice = choose(balances, wanted, speeds)
        if isinstance(choice, Denied):
            raise await self._deny(policy, choice)
        if not isinstance(choice, ChosenCandidate):
            raise LookupError("the limits of every candidate are known")  # noqa: TRY004
        grant, _ = make_grant(wanted, choice)
        granted = Authorization("", grant, State.OPEN, now_ms + wanted.hold_ms)
        change, chosen = hold(grant.held_usd_picos), speeds[choice.rank]
        after = tuple(
            (one, balances.get((one.key, one.id), NOTHING) + change)
            for one in wanted.candidates[choice.rank].chain.accounts
        )
        limits: Mapping[str, LimitStatus] = chosen.limits if isinstance(chosen, Taken) else {}
        return Authorized(granted, Granted(granted, choice.rank, after, limits))

    async def _deny(self, policy: Policy, denied: Denied) -> AuthorizationDeniedError:
        """The denial; a quota that is spent is given up, as selection does it."""
        strict = policy.quota_enforcement is QuotaEnforcement.STRICT
        spent = [one for one in denied.denied_by if one.kind is Obstacle.QUOTA]
        if strict and any(one.remaining <= 0 for one in spent):
            try:
                await self._selection.assess(policy, force_check=True)
            except StoreError as error:  # the next selection tries again
                _log.warning("flip_failed", client_id=policy.client_id, error=error.code)
        considered = [(one.label, one.because) for one in denied.considered]
        return AuthorizationDeniedError(denied.denied_by, considered)

    async def _look_up(self, policy: Policy, authorization_id: str) -> Seen | None:
        """The authorization of an id that we made, or that its caller gave it."""
        if is_authorization_id(authorization_id):
            found = await self._desk.reader.find(policy.org_id, authorization_id)
            if found is not None:
                return found
        place = self._place(policy, authorization_id)
        own_id = await self._desk.find_named(policy.org_id, place)
        return None if own_id is None else await self._desk.reader.find(policy.org_id, own_id)

    def _place(self, policy: Policy, asked_as: str) -> Place:
        """Where a usage record of that id would be."""
        lanes = lanes_of(policy.agg_shard_count)
        expires = self._metering.poster.expires_at_epoch(region_at(self._clock.now_ms()))
        return Place(asked_as, address_of(asked_as), lanes, expires)

    def _repeat(self, existing: Seen, fingerprint: bytes) -> Authorized:
        """The answer to a request whose id has an authorization."""
        if existing.authorization.grant.fingerprint != fingerprint:
            raise ConflictError("authorization_id", "was used for another request")
        return Authorized(existing.authorization.at(self._clock.now_ms()), None)

    def _bucket_tokens(self, usage: Usage) -> int:
        """What the call took from Bedrock's limit: its input, and its output by a factor."""
        factor = self._prices.catalogue.model(usage.model_label).burn_down_factor_permille
        written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
        output = -(-usage.output_tokens * factor // _PERMILLE)
        return usage.input_tokens + written + output


class _Balances(dict[AccountKey, Balance]):
    """Accounts as they were read."""

    def balance(self, key: Key, account_id: str) -> Balance | None:
        """What the account has; ``None`` if it is not open."""
        return self.get((key, account_id))


def _named(policy: Policy, authorization: Authorization, usage: Usage) -> Usage:
    """The record of an authorization: under its id, with its label and tags."""
    grant, tags = authorization.grant, authorization.grant.tags
    if usage.tags:
        tags = {k: v for k, v in usage.tags.items() if k not in policy.tag_keys} | tags
    return msgspec.structs.replace(
        usage, request_id=authorization.shown_id, model_label=grant.terms.label, tags=tags
    )


def _are_held(accounts: tuple[BudgetAccount, ...], grant: Grant) -> bool:
    """Whether an authorization is held against exactly these, as nearly always."""
    held = grant.terms.accounts
    if len(accounts) != len(held):
        return False
    for account, one in zip(accounts, held, strict=True):
        if account.id != one.id or account.key.pk != one.key.pk:
            return False
    return True
