"""Which labels a call may be made with, in order, and what each would be held against.

`auto` begins with the label in force, as selection says: the first with quota, the sticky fallback,
or an operator's override. A label or a model id begins with itself. With ``fallback`` the labels
further down the ordering follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from pricekeeper.authorizations.authorization import (
    REQUESTS,
    TOKENS,
    Considered,
    GrantTerms,
    HeldAccount,
)
from pricekeeper.authorizations.decision import (
    BucketLimits,
    CallChain,
    Candidate,
    Wanted,
    terms_of,
)
from pricekeeper.authorizations.grants import store_terms
from pricekeeper.authorizations.request import AUTO, AuthorizationRequest, fingerprint
from pricekeeper.budgets import BudgetAccount, Scope
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import date_of, next_midnight_ms, org_day
from pricekeeper.errors import (
    AuthorizationDeniedError,
    DeniedBy,
    InvalidValueError,
    Obstacle,
    PriceKeeperError,
    UnknownModelLabelError,
    UnpricedUsageError,
)
from pricekeeper.ledger import Ledger
from pricekeeper.limiter import Limit
from pricekeeper.limiter.limits import limit_of
from pricekeeper.pricing import (
    PICOS_PER_MICRO,
    CacheWrite,
    Catalogue,
    Model,
    PriceBook,
    Prices,
    WorstRates,
    check_answer_plausible,
    worst_rates,
)
from pricekeeper.selection import Choice, LabelQuota, LabelRole, QuotaStatus, Reason, Selector
from pricekeeper.tenants import (
    ANY_LABEL,
    Freeze,
    Policy,
    QuotaEnforcement,
    QuotaScope,
    RateLimit,
    RateLimits,
)
from pricekeeper.values import ModelLabel

CHAINS_MAX: Final = 10_000
RATES_MAX: Final = 4_096
_Kind: TypeAlias = tuple[int, CacheWrite, str | None, bool]
"""A price list, and what of a call decides which of its prices could apply."""
_LIMITS_MAX: Final = 4_096
_ROLES: Final = {
    LabelRole.EXCEEDED: "its quota for the day is spent",
    LabelRole.GIVEN_UP: "it was given up earlier today, until midnight or a higher quota",
    LabelRole.DISABLED: "its quota is zero",
    LabelRole.UNDEFINED: "the deployment has no such model",
    LabelRole.NOT_NEEDED: "an operator's override names another label",
}
_NOT_AMONG: Final = "the call is not for it"


class _Usable(msgspec.Struct, frozen=True):
    """A label that a call may be made with, or could be if its quota were not spent."""

    label: ModelLabel
    reason: Reason
    barred_by: DeniedBy | None = None


class _Labels(msgspec.Struct, frozen=True):
    """The labels that a call may be made with, and those passed over."""

    usable: tuple[_Usable, ...]
    passed_over: tuple[Considered, ...] = ()


@lru_cache(maxsize=_LIMITS_MAX)
def _alone(label: ModelLabel) -> _Labels:
    """One label and no other, as of most calls."""
    return _Labels((_Usable(label, Reason.NORMAL),))


class Candidates:
    """Finds the candidates of calls.

    Bounds: `CHAINS_MAX` policies times labels are remembered, and `RATES_MAX` price lists times
    kinds of calls.
    """

    def __init__(self, prices: PriceBook, selection: Selector, ledger: Ledger) -> None:
        self._prices = prices
        self._selection = selection
        self._ledger = ledger
        self._rates: BoundedCache[_Kind, tuple[Prices, WorstRates]] = BoundedCache(RATES_MAX)
        self._chains: BoundedCache[tuple[int, str, bool], CallChain] = BoundedCache(CHAINS_MAX)

    async def find(self, policy: Policy, request: AuthorizationRequest, at_ms: int) -> Wanted:
        """What the call wants, with all accounts that it could be held against open.

        Raises `AuthorizationDeniedError` if no label may be used, whatever the budgets.
        """
        if policy.freeze is not None:
            raise _frozen(policy.freeze)
        if request.model == AUTO:
            choice = (await self._selection.assess(policy)).choice
            labels = self._in_force(policy, request, choice)
        else:
            labels = self._named(policy, request)
        candidates: list[Candidate] = []
        for label in labels.usable:  # a comprehension would be one more coroutine
            made = await self._make(policy, request, label, at_ms)
            candidates.append(made)
        if request.consume:
            _check_limits_known(request.consume, candidates)
        return Wanted(
            org_id=policy.org_id,
            fingerprint=fingerprint(policy.client_id, request),
            candidates=tuple(candidates),
            max_output_tokens=request.max_output_tokens,
            min_output_tokens=request.least_output_tokens,
            consume=request.consume,
            hold_ms=request.hold_secs * 1000,
            tags=request.tags,
            at_ms=at_ms,
            passed_over=labels.passed_over,
            asked_as=request.authorization_id or "",
        )

    def _named(self, policy: Policy, request: AuthorizationRequest) -> _Labels:
        """The label that the call names and, if it may fall back, those below it."""
        label = find_label(self._prices.catalogue, policy, request.model)
        if not request.may_fall_back:
            return _alone(label)
        below = policy.model_ordering[policy.model_ordering.index(label) + 1 :]
        others = (
            _Usable(one, Reason.QUOTA_EXCEEDED) for one in below if self._may_use(policy, one)
        )
        return _Labels((_Usable(label, Reason.NORMAL), *others))

    def _in_force(self, policy: Policy, request: AuthorizationRequest, choice: Choice) -> _Labels:
        """The label in force and, if it may fall back, those below it."""
        strict = policy.quota_enforcement is QuotaEnforcement.STRICT
        passed_over: list[Considered] = []
        usable: list[_Usable] = []
        has_begun = False
        for use in choice.quotas:
            begins = use.role is LabelRole.CHOSEN
            has_begun |= begins
            if not _is_among(request, use.label):
                passed_over.append(Considered(use.label, _NOT_AMONG))
            elif begins:
                usable.append(_Usable(use.label, choice.reason))
            elif has_begun and use.role is LabelRole.NOT_NEEDED:
                spent = use.status is QuotaStatus.EXCEEDED and not strict
                if self._may_use(policy, use.label) and not spent:
                    usable.append(_Usable(use.label, Reason.QUOTA_EXCEEDED))
            elif choice.label is None and strict and use.role is LabelRole.EXCEEDED:
                usable.append(_Usable(use.label, Reason.QUOTA_EXCEEDED))
            else:
                passed_over.append(Considered(use.label, _ROLES[use.role]))
            if has_begun and not request.may_fall_back:
                break
        if not usable:
            usable = self._barred(policy, request, choice)
            passed_over = [one for one in passed_over if one.label not in {u.label for u in usable}]
        if not usable:
            raise self._nothing_left(policy, request, choice, passed_over)
        return _Labels(tuple(usable), tuple(passed_over))

    def _nothing_left(
        self,
        policy: Policy,
        request: AuthorizationRequest,
        choice: Choice,
        passed_over: list[Considered],
    ) -> PriceKeeperError:
        """What is said if no label may be used: a quota is in the way, or an override."""
        meant = [use for use in choice.quotas if _is_among(request, use.label)]
        if all(use.role is LabelRole.NOT_NEEDED for use in meant):
            names = ", ".join(request.among)
            return InvalidValueError("model", f"none of {names} may be used at the moment")
        # Every label is given up or undefined: the first one's quota is in the way.
        denied_by = [_spent_quota(policy, use, self._selection.now_ms()) for use in meant[:1]]
        return AuthorizationDeniedError(
            denied_by, [(one.label, one.because) for one in passed_over]
        )

    def _barred(
        self, policy: Policy, request: AuthorizationRequest, choice: Choice
    ) -> list[_Usable]:
        """The labels that a higher quota would bring back, if none of those wanted may be used."""
        now_ms = self._selection.now_ms()
        return [
            _Usable(use.label, choice.reason, _spent_quota(policy, use, now_ms))
            for use in choice.quotas
            if use.role in (LabelRole.EXCEEDED, LabelRole.GIVEN_UP, LabelRole.DISABLED)
            and use.label in self._prices.catalogue
            and _is_among(request, use.label)
        ]

    def _may_use(self, policy: Policy, label: ModelLabel) -> bool:
        return label in self._prices.catalogue and policy.quotas.get(label, 0) > 0

    async def _make(
        self,
        policy: Policy,
        request: AuthorizationRequest,
        usable: _Usable,
        at_ms: int,
    ) -> Candidate:
        label = usable.label
        model = self._prices.catalogue.model(label)
        # Bedrock refuses a prompt that is longer than the model can read, so nobody is billed it.
        input_tokens = min(request.input_tokens, model.context_window_tokens)
        check_answer_plausible(model, request.max_output_tokens)
        day, book = date_of(org_day(policy.timezone, at_ms)), self._prices
        try:
            prices = book.recall_prices(model, day) or await book.find_prices(model, day)
            worst = self._worst_rates(model, prices, input_tokens, request).of(input_tokens)
        except UnpricedUsageError as error:
            self._prices.meter.unpriced[error.label] += 1
            raise
        accounts = self._ledger.find(policy, label, request.tags, at_ms)
        if not self._ledger.were_opened(accounts):
            await self._ledger.open_for_calls(accounts)
        chain = self._chain(policy, label, accounts, by_gateway=request.by_gateway)
        return Candidate(label, str(usable.reason), input_tokens, worst, chain, usable.barred_by)

    def _worst_rates(
        self, model: Model, prices: Prices, input_tokens: int, request: AuthorizationRequest
    ) -> WorstRates:
        """The highest prices that could apply, found once for each kind of call and price list."""
        kind = (id(prices), request.cache_write, request.service_tier, request.batch)
        known = self._rates.peek(kind)
        if known is None or known[0] is not prices or not known[1].covers(input_tokens):
            rates = worst_rates(
                model,
                prices,
                input_tokens,
                cache_write=request.cache_write,
                service_tier=request.service_tier,
                batch=request.batch,
            )
            known = (prices, rates)
            self._rates.put(kind, known)
        return known[1]

    def _chain(
        self,
        policy: Policy,
        label: ModelLabel,
        accounts: tuple[BudgetAccount, ...],
        *,
        by_gateway: bool,
    ) -> CallChain:
        """What calls of a policy and label have in common, made once for the same accounts."""
        key = (id(policy), label, by_gateway)
        chain = self._chains.peek(key)
        if chain is None or chain.policy is not policy or chain.accounts is not accounts:
            buckets = bucket_limits(policy, label)
            held = tuple(HeldAccount(one.key, one.id) for one in accounts)
            keys = tuple(dict.fromkeys(account.key for account in accounts))
            app_id = policy.app_id
            terms = GrantTerms(policy.client_id, app_id, label, held, (), keys, by_gateway)
            terms = terms_of(terms, buckets, (REQUESTS, TOKENS))
            stored_terms = store_terms(policy.org_id, terms)
            alone = (Considered(label),)
            chain = CallChain(policy, accounts, buckets, terms, stored_terms, alone)
            self._chains.put(key, chain)
        return chain


def _check_limits_known(consume: Iterable[str], candidates: Iterable[Candidate]) -> None:
    known = {name for one in candidates for bucket in one.chain.buckets for name in bucket.limits}
    for name in consume:
        if name not in known:
            raise InvalidValueError(f"consume.{name}", "there is no such limit")


def find_label(catalogue: Catalogue, policy: Policy, model: str) -> ModelLabel:
    """The label of the ordering that is meant by a label, a model id or an ARN."""
    ordering = policy.model_ordering
    if model in ordering and model in catalogue:
        return ModelLabel(model)
    label = next((one for one in catalogue.labels_of(model) if one in ordering), None)
    if label is None:
        raise UnknownModelLabelError(model, ordering, "model")
    return label


def bucket_limits(policy: Policy, label: str) -> tuple[BucketLimits, ...]:
    """The limits that calls of a label are held against: the app's, and its organisation's."""
    found = [BucketLimits(policy.bucket_entity, "APP", _named(policy.rate_limits, label))]
    if policy.app_id is not None:
        org = _named(policy.org_rate_limits, label)
        found.append(BucketLimits(policy.org_bucket_entity, "ORG", org))
    return tuple(bucket for bucket in found if bucket.limits)


def named_limits(limits: RateLimits, label: str) -> list[Limit]:
    """A label's own limits before those for any label, by name."""
    named = {**limits.get(ANY_LABEL, {}), **limits.get(label, {})}
    return [_limit(name, limit) for name, limit in named.items()]


@lru_cache(maxsize=_LIMITS_MAX)
def _limit(name: str, limit: RateLimit) -> Limit:
    """Made once, and the same one as of buckets that were made with it: it is compared often."""
    return limit_of(name, f"{limit.capacity}/{limit.refill_amount}/{limit.refill_period_ms}")


def _named(limits: RateLimits, label: str) -> dict[str, Limit]:
    return {limit.name: limit for limit in named_limits(limits, label)}


def _is_among(request: AuthorizationRequest, label: str) -> bool:
    return not request.among or label in request.among


def _frozen(freeze: Freeze) -> AuthorizationDeniedError:
    error = freeze.error()
    return AuthorizationDeniedError(
        [DeniedBy(Obstacle.FROZEN, error.reason, error.scope, None, 0, 0)]
    )


def _spent_quota(policy: Policy, use: LabelQuota, now_ms: int) -> DeniedBy:
    """The quota that is in the way. What was given up needs more than the quota that it had."""
    by_app = policy.quota_scope is QuotaScope.APP and policy.app_id is not None
    scope = Scope.APP if by_app else Scope.ORG
    used_usd_micros = max(use.spend_usd_micros, use.given_up_at_usd_micros)
    return DeniedBy(
        Obstacle.QUOTA,
        f"quota-{use.label}",
        scope.value,
        use.label,
        1,
        (use.quota_usd_micros - used_usd_micros) * PICOS_PER_MICRO,
        next_midnight_ms(policy.timezone, now_ms),
    )
