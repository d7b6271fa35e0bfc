"""Authorizations: one decision before a call, one settlement after it.

`authorize` holds the most that the call can cost against every budget of its chain, and takes its
tokens from every bucket, in one transaction that also writes the authorization. `capture` counts
the record and releases the hold in one transaction; `void` gives everything back. What nobody
settles is charged at its hold when it expires, and stays so until a late capture sets it right.

Every step can be repeated from any instance until it is answered, and happens once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog

from pricekeeper.audit import AuditTrail
from pricekeeper.authorizations.admin_voids import AdminVoids
from pricekeeper.authorizations.authorization import (
    Authorization,
    HeldAccount,
    Settlement,
    State,
    parse_id,
)
from pricekeeper.authorizations.books import Books
from pricekeeper.authorizations.candidates import Candidates
from pricekeeper.authorizations.commands import Authorize, Place, Repeated, Settle, Settled
from pricekeeper.authorizations.decision import Denied, Granted, Wanted, decide
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.expiry import Expiry
from pricekeeper.authorizations.items import region_of, sheet_key
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.open_list import OpenList
from pricekeeper.authorizations.request import AuthorizationRequest, check_hold_secs, checked
from pricekeeper.authorizations.request import fingerprint as fingerprint_of_request
from pricekeeper.authorizations.settling import Action, Capture, Extend, Void
from pricekeeper.authorizations.sheet import find_on
from pricekeeper.authorizations.worker import Workers
from pricekeeper.budgets import BudgetAccount, Budgets
from pricekeeper.budgets.items import balances_of
from pricekeeper.clock import Clock
from pricekeeper.concurrency import error_copy, gather_in_turn
from pricekeeper.errors import (
    AuthorizationDeniedError,
    ConflictError,
    InvalidValueError,
    NotFoundError,
    Obstacle,
    PriceKeeperError,
    RequestIdReusedError,
    StoreError,
)
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.metering import (
    BatchPlaces,
    Metering,
    Recorded,
    Refused,
    Submission,
    Usage,
)
from pricekeeper.metering.journal import TICK_MS, lanes_of
from pricekeeper.metering.posting import TakenPlace
from pricekeeper.metering.usage import is_authorization_id
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import Selector
from pricekeeper.storage import Store
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy, QuotaEnforcement
from pricekeeper.values import Attribution, parse_reason

CAPTURES_MAX: Final = 100
EXPOSED_MS: Final = 5 * 24 * 3_600_000
_PERMILLE: Final = 1_000

_log = structlog.get_logger(__name__)


class Authorized(NamedTuple):
    """What an authorization was answered with: a grant of now, or the same one again."""

    authorization: Authorization
    granted: Granted | None


class Captured(NamedTuple):
    """What a capture was answered with."""

    authorization: Authorization
    recorded: Recorded
    is_duplicate: bool

    @property
    def overrun_usd_picos(self) -> int:
        """By how much the call cost more than was held for it."""
        cost = self.recorded.receipt.cost_usd_picos
        return max(0, cost - self.authorization.held_usd_picos)


class Watch(Protocol):
    """Who is told how often apps are denied, and what is charged without being settled."""

    def note_asked(self, policy: Policy, *, is_denied: bool) -> None:
        """An app has asked for a call."""
        ...

    def note_charged(self, org_id: str, cost_usd_picos: int, *, is_unsettled: bool) -> None:
        """An organisation is charged for a call that was captured, or that nobody has settled."""
        ...


def _tell_nobody(_: str, __: Authorization) -> None:
    return


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
        budgets: Budgets,
        watch: Watch | None = None,
        trail: AuditTrail | None = None,
        randomness: random.Random | None = None,
        on_change: Callable[[str, Authorization], None] = _tell_nobody,
    ) -> None:
        """``on_change`` is told of each authorization that this process grants or settles."""
        self._store = store
        self._watch = watch
        self._clock = clock
        self._metering = metering
        self._prices = prices
        self._selection = selection
        self._budgets = budgets
        self._random = randomness or random.Random()  # noqa: S311  # spreads, no secret
        self._candidates = Candidates(prices, selection, budgets)
        self.meter = AuthorizationMeter()
        self._desk = Desk(store, clock, metering.poster, self._random, self.meter)
        self._desk.give_up = self._give_up
        self._workers = Workers(self._desk)
        self._open = OpenList()
        self._regions = self._desk.regions
        self._on_change = on_change
        self.expiry = Expiry(self._desk, self._workers, self._open, self._tell_change)
        self._admin_voids = AdminVoids(self._desk, trail or AuditTrail(store, clock))

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
        existing = None
        if asked_as is not None and is_authorization_id(asked_as):
            existing = await self._get(policy, asked_as)
        if existing is not None:
            return _repeated(existing, fingerprint_of_request(policy.client_id, request))
        try:
            wanted = await self._candidates.find(policy, request, now_ms)
        except PriceKeeperError:
            existing = None if asked_as is None else await self._look_up(policy, asked_as)
            if existing is None:
                raise
            return _repeated(existing, fingerprint_of_request(policy.client_id, request))
        if request.dry_run:
            return await self._try(policy, wanted, now_ms)
        place = None if asked_as is None else self._place(policy, asked_as)
        command = Authorize(wanted, self._new_nonce(), place)
        self._workers.submit(policy.org_id, command)
        outcome = await self._outcome(policy.org_id, command)
        if isinstance(outcome, Denied):
            raise await self._deny(policy, outcome)
        if isinstance(outcome, Repeated):
            return _repeated(outcome.authorization, wanted.fingerprint)
        self._open.add(policy.org_id, outcome.authorization)
        self._tell_change(policy.org_id, outcome.authorization)
        return Authorized(outcome.authorization, outcome)

    async def capture(self, policy: Policy, authorization_id: str, usage: Usage) -> Captured:
        """Count what the call used, and release what was held for it, in one step.

        ``usage`` has no id and no label of its own: they are the authorization's. The same capture
        again is a duplicate; another one is a `RequestIdReusedError`.
        """
        return await self._capture(policy, await self._find_open(policy, authorization_id), usage)

    async def record(self, policy: Policy, usage: Usage) -> Recorded:
        """Count a usage record; one under the id of an authorization is its capture."""
        try:
            return await self._metering.record(policy, usage)
        except RequestIdReusedError as named:
            if not named.authorization_id:
                raise
            return await self._capture_record(policy, usage, named)

    async def record_many(
        self, policy: Policy, usages: Sequence[Usage], places: BatchPlaces | None = None
    ) -> list[Recorded | Refused]:
        """Count up to 100 usage records, each for itself; the answers are in their order."""
        answers = await self._metering.record_many(policy, usages, places)

        async def capture_named(number: int) -> Recorded | Refused:
            answer = answers[number]
            named = answer.error if isinstance(answer, Refused) else None
            if not isinstance(named, RequestIdReusedError) or not named.authorization_id:
                return answer
            try:
                return await self._capture_record(policy, usages[number], named)
            except PriceKeeperError as error:
                return Refused(named.request_id, error)

        return await gather_in_turn([one.request_id.lower() for one in usages], capture_named)

    async def _capture_record(
        self, policy: Policy, usage: Usage, named: RequestIdReusedError
    ) -> Recorded:
        """Capture an authorization by a usage record under its id, if it is of the same call."""
        seen = await self._look_up(policy, named.authorization_id)
        if seen is None:
            raise InvalidValueError(
                "request_id", "is of version 8, as only authorizations are; make it of version 7"
            )
        if seen.grant.client_id != policy.client_id or seen.grant.label != usage.model_label:
            raise RequestIdReusedError(named.request_id)
        return (await self._capture(policy, seen, usage)).recorded

    async def _capture(self, policy: Policy, seen: Authorization, usage: Usage) -> Captured:
        grant = seen.grant
        tags = {k: v for k, v in usage.tags.items() if k not in policy.tag_keys} | grant.tags
        usage = msgspec.structs.replace(
            usage, request_id=seen.shown_id, model_label=grant.label, tags=tags
        )
        submission = await self._metering.price_captured(policy, usage, grant.authorized_at_ms)
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
        action = Capture(settlement, self._bucket_tokens(grant.label, usage))
        since = await self._open_since(policy, seen, tags)
        settled = await self._settle(policy, action, seen, submission, since)
        return await self._answer_captured(policy, settled, submission)

    async def void(self, policy: Policy, authorization_id: str, reason: str | None) -> None:
        """Give everything back: the model was never reached."""
        text = "" if reason is None else parse_reason(reason)
        seen = await self._find_open(policy, authorization_id)
        await self._settle(policy, Void(text), seen)

    async def void_for_admin(
        self, org: Policy, authorization_id: str, by: Attribution
    ) -> Authorization:
        """Give back what any client of the organisation has been granted, with an audit entry."""
        seen = await self._look_up(org, parse_id(authorization_id))
        if seen is None:
            raise NotFoundError("authorization")
        voided = await self._admin_voids.void(org.org_id, seen, by, self._new_nonce())
        self._open.remove(voided.id)
        return voided

    async def find_captured_ms(self, org: Policy, request_id: str) -> int | None:
        """When a call was authorized whose record has that id; ``None`` if none was captured."""
        found = await self._look_up(org, parse_id(request_id, "request_id"))
        if found is None or found.state is not State.CAPTURED:
            return None
        return int(region_of(found.id), 16) * TICK_MS

    async def extend(self, policy: Policy, authorization_id: str, hold_secs: int) -> Authorization:
        """Hold it for so long from now, if that is longer."""
        check_hold_secs(hold_secs)
        seen = await self._find_open(policy, authorization_id)
        settled = await self._settle(policy, Extend(hold_secs * 1000), seen)
        return settled.authorization

    async def find(self, policy: Policy, authorization_id: str) -> Authorization:
        """The authorization of a client; raises `NotFoundError` if it has none of that id."""
        canonical = parse_id(authorization_id)
        found = await self._look_up(policy, canonical)
        if found is None or found.grant.client_id != policy.client_id:
            raise NotFoundError("authorization")
        return found

    async def _find_open(self, policy: Policy, authorization_id: str) -> Authorization:
        """The authorization to settle, from memory if this process has granted it.

        Another instance may have settled it. Then the write is refused, and brings along what is
        there.
        """
        seen = self._open.find(parse_id(authorization_id))
        if seen is None or seen.grant.client_id != policy.client_id:
            return await self.find(policy, authorization_id)
        return seen

    async def list_unfinished(
        self, policy: Policy, states: Collection[State], before: str = "", limit: int = 100
    ) -> list[Authorization]:
        """So many of the client's authorizations that are open or unsettled, the newest first.

        ``before`` is the own id of one: those that follow it.
        """
        mine: list[Authorization] = []
        async for one in self._regions.read_unfinished(policy.org_id, states, before):
            if policy.app_id is None or one.grant.client_id == policy.client_id:
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
        await self._workers.close()

    async def _outcome(self, org_id: str, command: Authorize) -> Granted | Denied | Repeated:
        """What was decided; what is granted to a caller that leaves at that moment goes back."""
        try:
            return await command.future
        except asyncio.CancelledError:
            future = command.future
            failed = future.cancelled() or future.exception() is not None
            outcome = None if failed else future.result()
            if isinstance(outcome, Granted) and not command.wanted.asked_as:
                self._give_up(org_id, outcome.authorization)
            raise

    async def _settle(
        self,
        policy: Policy,
        action: Action,
        seen: Authorization,
        submission: Submission | None = None,
        since: tuple[HeldAccount, ...] = (),
    ) -> Settled:
        command = Settle(action, seen, self._new_nonce(), submission, since)
        self._workers.submit(policy.org_id, command)
        settled = await command.future
        if settled.authorization.state is State.OPEN:
            self._open.add(policy.org_id, settled.authorization)
        else:
            self._open.remove(settled.authorization.id)
            if settled.changed:
                self._tell_change(policy.org_id, settled.authorization)
        return settled

    def _tell_change(self, org_id: str, changed: Authorization) -> None:
        """Tell of an authorization that was granted or settled here, and what it is charged."""
        self._on_change(org_id, changed)
        if self._watch is None:
            return
        if changed.state is State.UNSETTLED:
            held = changed.grant.held_usd_picos
            self._watch.note_charged(org_id, held, is_unsettled=True)
        elif changed.state is State.CAPTURED and changed.settlement is not None:
            cost = changed.settlement.cost_usd_picos
            self._watch.note_charged(org_id, cost, is_unsettled=False)

    async def _open_since(
        self, policy: Policy, seen: Authorization, tags: Mapping[str, str]
    ) -> tuple[HeldAccount, ...]:
        """The accounts of budgets that are newer than the authorization: it is spent from them."""
        grant, now_ms = seen.grant, self._clock.now_ms()
        accounts = self._budgets.find(policy, grant.label, tags, grant.authorized_at_ms)
        if len(accounts) == len(grant.accounts) and all(map(_is_held, accounts, grant.accounts)):
            return ()
        held = {(one.pk, one.id) for one in grant.accounts}
        accounts = tuple(
            account
            for account in accounts
            if account.span.ends_at_ms > now_ms and (account.key.pk, account.id) not in held
        )
        await self._budgets.open_all(accounts)
        return tuple(HeldAccount(one.key.pk, one.key.sk or "", one.id) for one in accounts)

    async def _answer_captured(
        self, policy: Policy, settled: Settled, submission: Submission
    ) -> Captured:
        authorization = settled.authorization
        settlement = authorization.settlement
        receipt = submission.receipt(authorization.nonce, self._clock.now_ms())
        if settlement is not None and not settled.changed:  # it gets the answer of the first
            receipt = msgspec.structs.replace(
                receipt,
                cost_usd_picos=settlement.cost_usd_picos,
                pricing_version=settlement.pricing_version,
                org_day=settlement.org_day,
                price_estimated=settlement.price_estimated,
            )
        recorded = await self._metering.answer_captured(
            policy, submission, receipt, accepted=settled.changed
        )
        return Captured(authorization, recorded, is_duplicate=not settled.changed)

    async def _try(self, policy: Policy, wanted: Wanted, now_ms: int) -> Authorized:
        """Decide on what the store has now, and take nothing."""
        keys = {key for one in wanted.candidates for key in one.keys}
        buckets = {key for one in wanted.candidates for key in one.bucket_keys}
        items = await self._budgets.read_items(keys)
        balances = {key: balances_of(item) for key, item in items.items()}
        listed = list(buckets)
        found = await self._store.batch_get([(RATE_BUCKETS, bucket_key(*one)) for one in listed])
        seen = {key: bucket_of(item) for key, item in zip(listed, found, strict=True)}
        decided = decide(Books(balances, seen, now_ms), wanted, "", b"")
        if isinstance(decided, Denied):
            raise await self._deny(policy, decided)
        return Authorized(decided.authorization, decided)

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

    async def _look_up(self, policy: Policy, authorization_id: str) -> Authorization | None:
        """The authorization of an id that we made, or that its caller gave it."""
        found = None
        if is_authorization_id(authorization_id):
            found = await self._get(policy, authorization_id)
        if found is None:
            place = self._place(policy, authorization_id)
            places = {authorization_id: place.address}
            there = await self._metering.poster.find(policy.org_id, place.lanes, places)
            taken = there.get(authorization_id)
            if isinstance(taken, StoreError):
                raise error_copy(taken)
            if isinstance(taken, TakenPlace):
                found = await self._get(policy, taken.authorization_id)
        return found

    async def _get(self, policy: Policy, own_id: str) -> Authorization | None:
        key = sheet_key(policy.org_id, own_id)
        return find_on(await self._store.get(USAGE_AGG_SHARDED, key), own_id)

    def _place(self, policy: Policy, asked_as: str) -> Place:
        """Where a usage record of that id would be."""
        lanes = lanes_of(policy.agg_shard_count)
        return Place(asked_as, self._metering.address_of(asked_as), lanes)

    def _bucket_tokens(self, label: str, usage: Usage) -> int:
        """What the call took from Bedrock's limit: its input, and its output by a factor."""
        factor = self._prices.catalogue.model(label).burn_down_factor_permille
        written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
        output = -(-usage.output_tokens * factor // _PERMILLE)
        return usage.input_tokens + written + output

    def _give_up(self, org_id: str, authorization: Authorization) -> None:
        """Give back what was granted to a caller that has left and does not know its id."""
        command = Settle(Void("its caller has left"), authorization, self._new_nonce())
        self._workers.submit(org_id, command)

    def _new_nonce(self) -> bytes:
        return self._desk.new_nonce()


def _is_held(account: BudgetAccount, held: HeldAccount) -> bool:
    """Whether an authorization is held against that account."""
    return account.id == held.id and account.key.pk == held.pk


def _repeated(existing: Authorization, fingerprint: bytes) -> Authorized:
    if existing.grant.fingerprint != fingerprint:
        raise ConflictError("authorization_id", "was used for another request")
    return Authorized(existing, None)
