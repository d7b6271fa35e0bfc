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
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec
import structlog

from pricekeeper.authorizations.authorization import (
    Authorization,
    HeldAccount,
    Settlement,
    State,
    is_own_id,
    new_authorization_id,
    parse_id,
)
from pricekeeper.authorizations.books import Books
from pricekeeper.authorizations.candidates import Candidates
from pricekeeper.authorizations.commands import Authorize, Repeated, Settle, Settled
from pricekeeper.authorizations.decision import Denied, Granted, Wanted, decide
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.expiry import VISITS_MS, OpenList, Regions
from pricekeeper.authorizations.items import (
    alias_key,
    aliased_id,
    authorization_key,
    authorization_of,
    region_of,
)
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.request import AuthorizationRequest, check_hold_secs, checked
from pricekeeper.authorizations.request import fingerprint as fingerprint_of_request
from pricekeeper.authorizations.settling import Action, Capture, Expire, Extend, Void
from pricekeeper.authorizations.worker import Worker
from pricekeeper.budgets import BudgetAccount, Budgets
from pricekeeper.budgets.items import balances_of
from pricekeeper.clock import Clock
from pricekeeper.errors import (
    AuthorizationDeniedError,
    ConflictError,
    NotFoundError,
    Obstacle,
    StoreError,
)
from pricekeeper.limiter.items import bucket_key, bucket_of
from pricekeeper.metering import Metering, Recorded, Submission, Usage
from pricekeeper.pricing import PriceBook
from pricekeeper.selection import Selector
from pricekeeper.storage import Store
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.tenants import Policy, QuotaEnforcement
from pricekeeper.values import parse_reason

CAPTURES_MAX: Final = 100
EXPIRY_INTERVAL_MS: Final = 1_000
SWEEP_INTERVAL_MS: Final = 60_000
EXPIRED_AT_ONCE: Final = 100
SELDOM_MS: Final = 600_000
"""How often an instance sweeps whose totals another process aggregates."""
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
        randomness: random.Random | None = None,
    ) -> None:
        self._store = store
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
        self._workers: dict[str, Worker] = {}
        self._open = OpenList()
        self._regions = Regions(store, clock)

    async def authorize(self, policy: Policy, request: AuthorizationRequest) -> Authorized:
        """Authorize a call, or raise `AuthorizationDeniedError`, which names all that denies it.

        The same request under the same id is the same grant; another one under it is a
        `ConflictError`.
        """
        request = checked(request)
        now_ms = self._clock.now_ms()
        existing = None
        if request.authorization_id is not None and not request.dry_run:
            existing = await self._look_up(policy, request.authorization_id)
        if existing is not None:
            return _repeated(existing, fingerprint_of_request(policy.client_id, request))
        wanted = await self._candidates.find(policy, request, now_ms)
        if request.dry_run:
            return await self._try(policy, wanted, now_ms)
        authorization_id = new_authorization_id(now_ms, self._random.getrandbits(74))
        await self._regions.mark(policy.org_id, authorization_id)
        command = Authorize(wanted, authorization_id, self._new_nonce())
        self._worker(policy.org_id).submit(command)
        outcome = await self._outcome(policy.org_id, command)
        if isinstance(outcome, Denied):
            raise await self._deny(policy, outcome)
        if isinstance(outcome, Repeated):
            return _repeated(outcome.authorization, wanted.fingerprint)
        self._open.add(policy.org_id, outcome.authorization)
        return Authorized(outcome.authorization, outcome)

    async def capture(self, policy: Policy, authorization_id: str, usage: Usage) -> Captured:
        """Count what the call used, and release what was held for it, in one step.

        ``usage`` has no id and no label of its own: they are the authorization's. The same capture
        again is a duplicate; another one is a `RequestIdReusedError`.
        """
        seen = await self._find_open(policy, authorization_id)
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

    async def list_unfinished(self, policy: Policy, state: State) -> list[Authorization]:
        """The client's authorizations that are open, or those that are unsettled, newest first."""
        found = await self._regions.read_unfinished(policy.org_id, state)
        mine = [
            one for one in found if policy.app_id is None or one.grant.client_id == policy.client_id
        ]
        return sorted(mine, key=lambda one: one.id, reverse=True)

    async def read_exposed(self, org_ids: Collection[str]) -> list[tuple[str, Authorization]]:
        """What is held, and what is charged and unsettled, at these organisations."""
        return await self._regions.read_exposed(org_ids)

    async def expire_due(self) -> int:
        """Charge what this process has granted, and nobody has settled in time, at its hold."""
        due = self._open.take_due(self._clock.now_ms())
        for start in range(0, len(due), EXPIRED_AT_ONCE):
            some = due[start : start + EXPIRED_AT_ONCE]
            done = await asyncio.gather(
                *(self._expire(one.org_id, one.authorization) for one in some),
                return_exceptions=True,
            )
            for failure in done:
                if isinstance(failure, StoreError):  # a sweep finds it
                    _log.warning("expiry_failed", error=failure.code)
                elif isinstance(failure, BaseException):
                    raise failure
        return len(due)

    async def sweep(self) -> int:
        """Charge what processes that are gone have left; returns how many there were."""
        expired = 0
        for visit in range(len(VISITS_MS)):
            for org_id, region in await self._regions.read_due(visit):
                some_open = False
                async for one in self._regions.read(org_id, region):
                    if one.state is State.OPEN:
                        due = one.expires_at_ms <= self._clock.now_ms()
                        some_open |= not (due and await self._expire(org_id, one))
                        expired += due
                if not some_open:
                    await self._regions.note_visited(org_id, region, visit)
        return expired

    async def run_forever(self, sweep_interval_ms: int = SWEEP_INTERVAL_MS) -> None:
        """Expire what is due every second, and sweep now and then; a failure waits for the next."""
        swept_at_ms = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(EXPIRY_INTERVAL_MS)
            try:
                await self.expire_due()
                if self._clock.monotonic_ms() - swept_at_ms >= sweep_interval_ms:
                    swept_at_ms = self._clock.monotonic_ms()
                    await self.sweep()
            except StoreError as error:
                _log.warning("expiry_failed", error=error.code)

    async def close(self) -> None:
        """Carry out what was accepted, then stop."""
        while self._workers:
            tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
            if not tasks:
                return
            await asyncio.wait(tasks)

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
        self._worker(policy.org_id).submit(command)
        settled = await command.future
        if settled.authorization.state is State.OPEN:
            self._open.add(policy.org_id, settled.authorization)
        else:
            self._open.remove(settled.authorization.id)
        return settled

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

    async def _expire(self, org_id: str, authorization: Authorization) -> bool:
        """Charge it at its hold, if nobody has settled it; whether it is open no longer."""
        await self._regions.note_unsettled(org_id, region_of(authorization.id))
        command = Settle(Expire(), authorization, self._new_nonce())
        self._worker(org_id).submit(command)
        settled = await command.future
        if settled.changed:
            grant = authorization.grant
            _log.warning(
                "authorization_unsettled",
                client_id=grant.client_id,
                authorization_id=authorization.shown_id,
                label=grant.label,
                held_usd_picos=grant.held_usd_picos,
            )
        return settled.authorization.state is not State.OPEN

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
        authorization_id = new_authorization_id(now_ms, 0)
        decided = decide(Books(balances, seen, now_ms), wanted, authorization_id, b"")
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
        if is_own_id(authorization_id):
            found = await self._get(policy, authorization_id)
        if found is None:
            table, key = alias_key(policy.org_id, authorization_id)
            own_id = aliased_id(await self._store.get(table, key))
            found = None if own_id is None else await self._get(policy, own_id)
        return found

    async def _get(self, policy: Policy, own_id: str) -> Authorization | None:
        key = authorization_key(policy.org_id, own_id)
        return authorization_of(await self._store.get(USAGE_AGG_SHARDED, key))

    def _bucket_tokens(self, label: str, usage: Usage) -> int:
        """What the call took from Bedrock's limit: its input, and its output by a factor."""
        factor = self._prices.catalogue.model(label).burn_down_factor_permille
        written = usage.cache_write_5m_tokens + usage.cache_write_1h_tokens
        output = -(-usage.output_tokens * factor // _PERMILLE)
        return usage.input_tokens + written + output

    def _give_up(self, org_id: str, authorization: Authorization) -> None:
        """Give back what was granted to a caller that has left and does not know its id."""
        command = Settle(Void("its caller has left"), authorization, self._new_nonce())
        self._worker(org_id).submit(command)

    def _worker(self, org_id: str) -> Worker:
        worker = self._workers.get(org_id)
        if worker is None:
            worker = Worker(self._desk, org_id, lambda: self._end(org_id))
            self._workers[org_id] = worker
        return worker

    def _end(self, org_id: str) -> None:
        self._workers.pop(org_id, None)

    def _new_nonce(self) -> bytes:
        return self._random.randbytes(8)


def _is_held(account: BudgetAccount, held: HeldAccount) -> bool:
    """Whether an authorization is held against that account."""
    return account.id == held.id and account.key.pk == held.pk


def _repeated(existing: Authorization, fingerprint: bytes) -> Authorized:
    if existing.grant.fingerprint != fingerprint:
        raise ConflictError("authorization_id", "was used for another request")
    return Authorized(existing, None)
