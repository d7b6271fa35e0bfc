"""From a usage record to what is written of it: checked, priced, and with its place in the journal.

What the records of one client, label and day have in common is worked out once and remembered, for
as long as the client's policy and the prices are the same.

Bound: `COMMON_MAX` clients and labels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pricekeeper.budgets import BudgetAccount
from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import date_of, org_day
from pricekeeper.errors import RequestIdReusedError, UnpricedUsageError
from pricekeeper.ledger import Ledger
from pricekeeper.metering.counters import Account
from pricekeeper.metering.estimates import EstimateWarnings
from pricekeeper.metering.journal import (
    Address,
    StoredTerms,
    Terms,
    address_of,
    flags_of,
    lanes_of,
    store_form,
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
from pricekeeper.pricing import PriceBook, Prices, charge, check_plausible
from pricekeeper.tenants import Client, Policy

COMMON_MAX: Final = 10_000


class _Common(NamedTuple):
    """What records of one client and label have in common, on one day and at the same prices."""

    policy: Policy
    prices: Prices
    day: str
    terms: Terms
    stored_terms: StoredTerms
    account: Account


class Preparer:
    """Checks and prices records. Without a ``ledger`` records are spent from no budgets.

    Ids that were made before ``journal_from_ms`` need a receipt: instances of an earlier version
    may have counted them.
    """

    def __init__(
        self, clock: Clock, prices: PriceBook, ledger: Ledger | None, journal_from_ms: int
    ) -> None:
        self._clock = clock
        self._prices = prices
        self._ledger = ledger
        self._journal_from_ms = journal_from_ms
        self._common: BoundedCache[tuple[Client, str, str, str | None], _Common] = BoundedCache(
            COMMON_MAX
        )
        self._estimates = EstimateWarnings(clock)

    async def prepare(self, policy: Policy, usage: Usage, *, on_sheet: bool = False) -> Submission:
        """The record as it is written; raises what is wrong with it.

        ``on_sheet`` is for one that is written on a sheet of the log, whatever its id says.
        """
        usage, now_ms = checked(usage), self._clock.now_ms()
        address = address_of(usage.request_id)
        if address is not None:
            check_minted(address.minted_ms, now_ms)
            address = None if on_sheet else self._in_journal(address)
        if is_authorization_id(usage.request_id):
            raise RequestIdReusedError(usage.request_id, usage.request_id)
        at_ms = happened_at_ms(usage, now_ms)
        accounts = self._find_accounts(policy, usage, at_ms)
        if accounts:
            accounts = await self._open_current(accounts, now_ms)
        return await self._price(policy, usage, address, at_ms, accounts)

    async def prepare_captured(
        self, policy: Policy, usage: Usage, authorized_at_ms: int
    ) -> Submission:
        """The record that a capture counts as.

        It counts when its call was authorized, whatever time it says: in the same day and windows
        that it was held against.
        """
        if usage.timestamp_ms is not None:  # a time that can't be true is refused, too
            happened_at_ms(usage, self._clock.now_ms())
        check_details(usage)  # its id is the authorization's
        return await self._price(policy, usage, None, authorized_at_ms, ())

    def find_address(self, request_id: str) -> Address | None:
        """Where the record of that id is, if the id alone says so."""
        address = address_of(request_id)
        return None if address is None else self._in_journal(address)

    def _in_journal(self, address: Address) -> Address | None:
        """The address, unless it is of a time before the journal: then there is a receipt."""
        return None if address.minted_ms < self._journal_from_ms else address

    def _find_accounts(self, policy: Policy, usage: Usage, at_ms: int) -> tuple[BudgetAccount, ...]:
        if self._ledger is None:
            return ()
        return self._ledger.find(policy, usage.model_label, usage.tags, at_ms)

    async def _open_current(
        self, accounts: tuple[BudgetAccount, ...], now_ms: int
    ) -> tuple[BudgetAccount, ...]:
        """The budgets that the record is spent from; those of windows that are over rest."""
        current = tuple(account for account in accounts if account.span.ends_at_ms > now_ms)
        if current and self._ledger is not None:
            await self._ledger.open_all(current)
        return current

    async def _price(
        self,
        policy: Policy,
        usage: Usage,
        address: Address | None,
        at_ms: int,
        accounts: tuple[BudgetAccount, ...],
    ) -> Submission:
        day, tokens, book = org_day(policy.timezone, at_ms), usage.tokens, self._prices
        model = book.catalogue.model(usage.model_label)
        if usage.bedrock_model_id is not None:
            model.require(usage.bedrock_model_id)
        check_plausible(model, tokens)
        try:
            date = date_of(day)
            prices = book.recall_prices(model, date) or await book.find_prices(model, date)
            charged = charge(model, prices, tokens)
        except UnpricedUsageError as error:
            book.meter.unpriced[error.label] += 1
            raise
        if charged.price_estimated:
            self._estimates.warn(policy, usage)
        tier = str(charged.variant or tokens.service_tier or "")
        common = self._find_common(policy, usage, day, tier, prices)
        return Submission(
            policy.org_id,
            usage.request_id,
            address,
            lanes_of(policy.agg_shard_count),
            fingerprint(policy.client_id, usage),
            common.terms,
            common.stored_terms,
            common.account,
            at_ms,
            flags_of(
                is_error=usage.status is UsageStatus.ERROR, is_estimated=charged.price_estimated
            ),
            charged.cost_usd_picos,
            tokens,
            accounts,
        )

    def _find_common(
        self, policy: Policy, usage: Usage, day: str, tier: str, prices: Prices
    ) -> _Common:
        if usage.tags:
            return _make_common(policy, usage, day, tier, prices)
        key = (policy.client, usage.model_label, tier, usage.calling_region)
        known = self._common.get(key)
        if (
            known is None
            or known.policy is not policy
            or known.prices is not prices
            or known.day != day
        ):
            known = _make_common(policy, usage, day, tier, prices)
            self._common.put(key, known)
        return known


def _make_common(policy: Policy, usage: Usage, day: str, tier: str, prices: Prices) -> _Common:
    terms = Terms(
        policy.scope_key,
        policy.client.app_id,
        usage.model_label,
        day,
        tier,
        prices.version,
        prices.source[:SOURCE_LENGTH_MAX],
        usage.calling_region,
        tuple(sorted(usage.tags.items())),
        tuple(key for key in policy.tag_keys if key in usage.tags),
    )
    account = Account(terms.scope_key, terms.label, day)
    return _Common(policy, prices, day, terms, store_form(terms), account)
