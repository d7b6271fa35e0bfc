"""Prepares a usage record for the journal: checks it, prices it, finds its place and budgets.

The common part of records of one client, label and day is cached while the policy and prices stay
the same, for `COMMON_MAX` clients and labels.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import msgspec
import structlog

from pricekeeper.budgets import BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import date_of, day_start_ms, next_midnight_ms, org_day
from pricekeeper.errors import RequestIdReusedError, UnpricedUsageError
from pricekeeper.ledger import Ledger
from pricekeeper.metering.counters import Account
from pricekeeper.metering.journal import (
    Address,
    StoredTerms,
    Terms,
    address_of,
    encode_terms,
    lanes_of,
)
from pricekeeper.metering.receipt import SOURCE_LENGTH_MAX
from pricekeeper.metering.submission import Submission
from pricekeeper.metering.usage import (
    Usage,
    UsageStatus,
    check_details,
    check_minted,
    checked,
    fingerprint,
    happened_at_ms,
    is_authorization_id,
)
from pricekeeper.pricing import Model, PriceBook, Prices, TokenUsage, charge, check_plausible
from pricekeeper.pricing.cost import served_variant
from pricekeeper.tenants import Policy

COMMON_MAX: Final = 10_000
QUIET_MS: Final = 60_000

_log = structlog.get_logger(__name__)


class _Common(NamedTuple):
    """What records of one client and label share, on one day and at the same prices."""

    policy: Policy
    model: Model
    prices: Prices
    day: str
    from_ms: int
    until_ms: int
    terms: Terms
    stored_terms: StoredTerms
    account: Account
    lanes: int


class _Valid(NamedTuple):
    """A valid record, its place, moment and budgets."""

    policy: Policy
    usage: Usage
    address: Address | None
    at_ms: int
    accounts: tuple[BudgetAccount, ...] = ()


_CommonKey: TypeAlias = tuple[str, str, str | None, bool, str | None]


class Preparer:
    """Checks and prices records. Without a ``ledger``, records are spent from no budgets."""

    def __init__(self, clock: Clock, prices: PriceBook, ledger: Ledger | None) -> None:
        self._clock = clock
        self._prices = prices
        self._ledger = ledger
        self._common: BoundedCache[_CommonKey, _Common] = BoundedCache(COMMON_MAX)
        self._warned_at_ms: dict[str, int] = {}

    async def prepare(self, policy: Policy, usage: Usage, *, on_sheet: bool = False) -> Submission:
        """``on_sheet``: it is written on a sheet of the log, so its id needs no time."""
        valid = self._check(policy, usage)
        if valid.accounts and self._ledger is not None:
            await self._ledger.open_all(valid.accounts)
        return await self._price(valid._replace(address=None) if on_sheet else valid)

    def prepare_at_once(self, policy: Policy, usage: Usage) -> Submission | None:
        """The same; ``None`` if it has to wait for something."""
        valid = self._check(policy, usage)
        accounts = valid.accounts
        if accounts and self._ledger is not None and not self._ledger.are_open(accounts):
            return None
        return self._price_at_once(valid)

    async def prepare_captured(
        self, policy: Policy, usage: Usage, authorized_at_ms: int
    ) -> Submission:
        """The record of a capture, on the day and in the windows of its authorization."""
        return await self._price(self._check_captured(policy, usage, authorized_at_ms))

    def prepare_captured_at_once(
        self, policy: Policy, usage: Usage, authorized_at_ms: int
    ) -> Submission | None:
        return self._price_at_once(self._check_captured(policy, usage, authorized_at_ms))

    def _check_captured(self, policy: Policy, usage: Usage, authorized_at_ms: int) -> _Valid:
        """Its id is the authorization's."""
        if usage.timestamp_ms is not None:  # a time that can't be true is refused, too
            happened_at_ms(usage, self._clock.now_ms())
        check_details(usage)
        return _Valid(policy, usage, None, authorized_at_ms)

    def _check(self, policy: Policy, usage: Usage) -> _Valid:
        usage, now_ms = checked(usage), self._clock.now_ms()
        address = self._check_id(usage, now_ms)
        at_ms = happened_at_ms(usage, now_ms)
        accounts = self._find_accounts(policy, usage, at_ms, now_ms)
        return _Valid(policy, usage, address, at_ms, accounts)

    def _check_id(self, usage: Usage, now_ms: int) -> Address | None:
        """The record's place, if its id has a time; raise if no record can have it."""
        address = address_of(usage.request_id)
        if address is not None:
            check_minted(address.minted_ms, now_ms)
        elif is_authorization_id(usage.request_id):
            raise RequestIdReusedError(usage.request_id, usage.request_id)
        return address

    def _find_accounts(
        self, policy: Policy, usage: Usage, at_ms: int, now_ms: int
    ) -> tuple[BudgetAccount, ...]:
        """Find the budgets that the record is spent from; those of ended windows are omitted."""
        if self._ledger is None:
            return ()
        accounts = self._ledger.accounts_for(policy, usage.model_label, usage.tags, at_ms)
        if not accounts:
            return accounts
        return tuple(account for account in accounts if account.span.ends_at_ms > now_ms)

    async def _price(self, valid: _Valid) -> Submission:
        try:
            common = self._recall_common(valid) or await self._find_common(valid)
            return self._charge(valid, common)
        except UnpricedUsageError as error:
            self._prices.meter.unpriced[error.label] += 1
            raise

    def _price_at_once(self, valid: _Valid) -> Submission | None:
        common = self._recall_common(valid)
        return None if common is None else self._charge(valid, common)

    def _charge(self, valid: _Valid, common: _Common) -> Submission:
        policy, usage, address, at_ms, accounts = valid
        model, terms, stored_terms = common.model, common.terms, common.stored_terms
        tokens = _check_tokens(model, usage)
        charged = charge(model, common.prices, tokens)
        if usage.tags:
            tags = tuple(sorted(usage.tags.items()))
            tag_keys = tuple(key for key in policy.tag_keys if key in usage.tags)
            terms = msgspec.structs.replace(terms, tags=tags, tag_keys=tag_keys)
            stored_terms = encode_terms(terms)
        if charged.price_estimated:
            self._warn_of_estimate(policy, usage)
        return Submission(
            policy.org_id,
            usage.request_id,
            address,
            common.lanes,
            fingerprint(policy.client_id, usage),
            terms,
            stored_terms,
            common.account,
            at_ms,
            usage.status is UsageStatus.ERROR,
            charged.price_estimated,
            charged.cost_usd_picos,
            tokens,
            accounts,
        )

    def _warn_of_estimate(self, policy: Policy, usage: Usage) -> None:
        """At most once a minute for each label."""
        now_ms = self._clock.monotonic_ms()
        warned_at_ms = self._warned_at_ms.get(usage.model_label)
        if warned_at_ms is not None and now_ms - warned_at_ms < QUIET_MS:
            return
        self._warned_at_ms[usage.model_label] = now_ms
        _log.warning(
            "price_estimated",
            label=usage.model_label,
            service_tier=usage.service_tier or "batch",
            org_id=policy.org_id,
            app_id=policy.app_id,
            advice="add the prices of this tier to the deployment file",
        )

    def _recall_common(self, valid: _Valid) -> _Common | None:
        common = self._common.peek(_common_key(valid.policy, valid.usage))
        if (
            common is None
            or common.policy is not valid.policy
            or not common.from_ms <= valid.at_ms < common.until_ms
            or self._prices.recall_prices(common.model, date_of(common.day)) is not common.prices
        ):
            return None
        return common

    async def _find_common(self, valid: _Valid) -> _Common:
        policy, usage, _, at_ms, _ = valid
        day, tokens = org_day(policy.timezone, at_ms), usage.tokens
        model = self._prices.catalogue.model(usage.model_label)
        _check_tokens(model, usage)
        prices = await self._prices.find_prices(model, date_of(day))
        variant = served_variant(model, tokens)
        terms = Terms(
            policy.scope_key,
            policy.client.app_id,
            usage.model_label,
            day,
            str(variant or tokens.service_tier or ""),
            prices.version,
            prices.source[:SOURCE_LENGTH_MAX],
            usage.calling_region,
        )
        common = _Common(
            policy,
            model,
            prices,
            day,
            day_start_ms(policy.timezone, day),
            next_midnight_ms(policy.timezone, at_ms),
            terms,
            encode_terms(terms),
            Account(terms.scope_key, terms.label, day),
            lanes_of(policy.agg_shard_count),
        )
        self._common.put(_common_key(policy, usage), common)
        return common


def _common_key(policy: Policy, usage: Usage) -> _CommonKey:
    tier, region = usage.service_tier, usage.calling_region
    return policy.client_id, usage.model_label, tier, usage.batch, region


def _check_tokens(model: Model, usage: Usage) -> TokenUsage:
    """Raise if no call of that model can have used these tokens."""
    tokens = usage.tokens
    if usage.bedrock_model_id is not None:
        model.require(usage.bedrock_model_id)
    check_plausible(model, tokens)
    return tokens
