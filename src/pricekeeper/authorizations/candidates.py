"""Finds the labels that a call may use, and what each would be held against.

`auto` starts with the label in force: the first one with quota, the sticky fallback, or an
operator's override. A label or a model id starts with itself. With ``fallback``, the later labels
of the ordering follow.
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
from pricekeeper.authorizations.items import encode_grant_terms
from pricekeeper.authorizations.request import (
    AuthorizationRequest,
    Labels,
    Usable,
    fingerprint,
    labels_in_force,
    named_labels,
)
from pricekeeper.bedrock import AUTO, CacheWrite
from pricekeeper.budgets import BudgetAccount
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import date_of, org_day
from pricekeeper.errors import (
    AuthorizationDeniedError,
    DeniedBy,
    InvalidValueError,
    Obstacle,
    UnpricedUsageError,
)
from pricekeeper.ledger import Ledger
from pricekeeper.limiter import Limit, limit_of
from pricekeeper.pricing import (
    Model,
    PriceBook,
    Prices,
    WorstRates,
    answer_tokens,
    check_covered,
    worst_rates,
)
from pricekeeper.selection import Selector
from pricekeeper.storage import Key
from pricekeeper.tenants import (
    ANY_LABEL,
    Freeze,
    Policy,
    RateLimit,
    RateLimits,
)
from pricekeeper.values import ModelLabel

CHAINS_MAX: Final = 10_000
RATES_MAX: Final = 4_096
_Kind: TypeAlias = tuple[int, CacheWrite, str | None, bool]
_LIMITS_MAX: Final = 4_096


class Candidates:
    """Finds the candidates of calls.

    Bounds: it remembers `CHAINS_MAX` policies times labels, and `RATES_MAX` price lists times kinds
    of calls.
    """

    def __init__(self, prices: PriceBook, selection: Selector, ledger: Ledger) -> None:
        self._prices = prices
        self._selection = selection
        self._ledger = ledger
        self._rates: BoundedCache[_Kind, tuple[Prices, WorstRates]] = BoundedCache(RATES_MAX)
        self._chains: BoundedCache[tuple[int, str, bool], CallChain] = BoundedCache(CHAINS_MAX)

    async def find(self, policy: Policy, request: AuthorizationRequest, at_ms: int) -> Wanted:
        """The request with its candidates, whose accounts are open.

        Raises `AuthorizationDeniedError` if no label may be used, for reasons other than budgets.
        """
        if policy.freeze is not None:
            raise _frozen(policy.freeze)
        asked = fingerprint(policy.client_id, request)
        longest = request.longest_answer(policy.max_output_tokens_cap)
        if longest < request.max_output_tokens:
            request = msgspec.structs.replace(request, max_output_tokens=longest)
        if request.model == AUTO:
            choice = (await self._selection.assess(policy)).choice
            now_ms = self._selection.now_ms()
            labels = labels_in_force(self._prices.catalogue, policy, request, choice, now_ms)
        else:
            labels = named_labels(self._prices.catalogue, policy, request)
        candidates, passed_over = await self._make_all(policy, request, labels, at_ms)
        if request.consume:
            _check_limits_known(request.consume, candidates)
        return Wanted(
            org_id=policy.org_id,
            fingerprint=asked,
            candidates=tuple(candidates),
            consume=request.consume,
            hold_ms=request.hold_secs * 1000,
            tags=request.tags,
            at_ms=at_ms,
            passed_over=tuple(passed_over),
            asked_as=request.authorization_id or "",
        )

    async def _make_all(
        self, policy: Policy, request: AuthorizationRequest, labels: Labels, at_ms: int
    ) -> tuple[list[Candidate], list[Considered]]:
        """The candidates, and the labels after the last of them.

        A label without a price or window is skipped, unless the call names it or all labels are.
        """
        candidates: list[Candidate] = []
        skipped: list[Considered] = []
        refused: UnpricedUsageError | InvalidValueError | None = None
        for one in labels:
            if isinstance(one, Considered):
                skipped.append(one)
                continue
            try:
                made = await self._make(policy, request, one, at_ms)
            except (UnpricedUsageError, InvalidValueError) as error:
                if request.model != AUTO and not candidates:
                    raise
                refused = refused or error
                skipped.append(Considered(one.label, str(error)))
            else:
                if skipped:
                    made = msgspec.structs.replace(made, passed_over=tuple(skipped))
                    skipped.clear()
                candidates.append(made)
        if refused is not None and not candidates:
            raise refused
        return candidates, skipped

    async def _make(
        self,
        policy: Policy,
        request: AuthorizationRequest,
        usable: Usable,
        at_ms: int,
    ) -> Candidate:
        label = usable.label
        model = self._prices.catalogue.model(label)
        # Bedrock refuses a longer prompt than the model can read, and bills nothing for it.
        input_tokens = min(request.input_tokens, model.context_window_tokens)
        least = request.least_output_tokens
        output_tokens = answer_tokens(model, request.max_output_tokens, least)
        if request.uses or request.window_tokens:
            check_covered(model, request.uses, request.window_tokens)
        day, book = date_of(org_day(policy.timezone, at_ms)), self._prices
        try:
            prices = book.recall_prices(model, day) or await book.find_prices(model, day)
            worst = self._worst_rates(model, prices, input_tokens, request).of(input_tokens)
        except UnpricedUsageError as error:
            self._prices.meter.unpriced[error.label] += 1
            raise
        accounts = self._ledger.accounts_for(policy, label, request.tags, at_ms)
        if not self._ledger.were_opened(accounts):
            await self._ledger.open_for_calls(accounts)
        chain = self._chain(policy, label, accounts, by_gateway=request.by_gateway)
        return Candidate(
            label,
            str(usable.reason),
            input_tokens,
            output_tokens,
            None if least is None else min(least, output_tokens),
            worst,
            chain,
            barred_by=usable.barred_by,
        )

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
        key = (id(policy), label, by_gateway)
        chain = self._chains.peek(key)
        if chain is None or chain.policy is not policy or chain.accounts is not accounts:
            buckets = bucket_limits(policy, label)
            held = tuple(HeldAccount(one.key, one.id) for one in accounts)
            keys = tuple(dict.fromkeys(account.key for account in accounts))
            app_id = policy.app_id
            terms = GrantTerms(policy.client_id, app_id, label, held, (), keys, by_gateway)
            terms = terms_of(terms, buckets, (REQUESTS, TOKENS))
            stored_terms = encode_grant_terms(policy.org_id, terms)
            alone = (Considered(label),)
            chain = CallChain(policy, accounts, buckets, terms, stored_terms, alone)
            self._chains.put(key, chain)
        return chain


def _check_limits_known(consume: Iterable[str], candidates: Iterable[Candidate]) -> None:
    known = {name for one in candidates for bucket in one.chain.buckets for name in bucket.limits}
    for name in consume:
        if name not in known:
            raise InvalidValueError(
                f"consume.{name}", "no such rate limit; leave it out, or set it for the app"
            )


def bucket_limits(policy: Policy, label: str) -> tuple[BucketLimits, ...]:
    """The limits of calls with a label: the app's, and its organisation's."""
    app = _named(policy.rate_limits, label)
    found = [BucketLimits(Key(policy.bucket_entity, label), "APP", app)]
    if policy.app_id is not None:
        org = _named(policy.org_rate_limits, label)
        found.append(BucketLimits(Key(policy.org_bucket_entity, label), "ORG", org))
    return tuple(bucket for bucket in found if bucket.limits)


def named_limits(limits: RateLimits, label: str) -> list[Limit]:
    """The limits of a label, its own before those for any label."""
    named = {**limits.get(ANY_LABEL, {}), **limits.get(label, {})}
    return [_limit(name, limit) for name, limit in named.items()]


@lru_cache(maxsize=_LIMITS_MAX)
def _limit(name: str, limit: RateLimit) -> Limit:
    return limit_of(name, f"{limit.capacity}/{limit.refill_amount}/{limit.refill_period_ms}")


def _named(limits: RateLimits, label: str) -> dict[str, Limit]:
    return {limit.name: limit for limit in named_limits(limits, label)}


def _frozen(freeze: Freeze) -> AuthorizationDeniedError:
    error = freeze.error()
    return AuthorizationDeniedError(
        [DeniedBy(Obstacle.FROZEN, error.reason, error.scope, None, 0, 0)]
    )
