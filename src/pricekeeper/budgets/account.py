"""The accounts of a call: the budgets and strict quotas of an app and its organisation.

An account is one budget in one window, or one strict quota on one day. It never refills. All
accounts of a client are attributes of one item, so a decision about them is one condition; a budget
per value of a tag has an item for each value.

Windows of a kind follow each other without gap or overlap, also when clocks change
(`pricekeeper.days`). A week begins on Monday. No I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from pricekeeper.concurrency import BoundedCache
from pricekeeper.days import date_of, day_of, day_start_ms, org_day
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.storage import Key
from pricekeeper.tenants import Budget, Enforcement, Policy, QuotaEnforcement, QuotaScope, Window

EVERY_VALUE: Final = "ALL"
ACCOUNTS: Final = "#BUDGETS"
"""The end of a client's partition of accounts; the start is its entity."""
REMEMBERED_MAX: Final = 10_000
VALUES_MAX: Final = 128
"""Values of a tag, for each of these. Callers choose them, so one with many evicts only its own."""
_QUOTA: Final = "quota-"
_NEVER_MS: Final = 1 << 62
MS_PER_HOUR: Final = 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPANS_MAX: Final = 4_096


class Kind(StrEnum):
    """The source of an account."""

    BUDGET = "BUDGET"
    QUOTA = "QUOTA"


class Scope(StrEnum):
    """Whose spend an account counts: an app's, or the whole organisation's."""

    ORG = "ORG"
    APP = "APP"


class Span(NamedTuple):
    """One window: from its first instant to the first instant of the next one."""

    name: str
    """Unique among all windows."""
    starts_at_ms: int
    ends_at_ms: int

    def has(self, epoch_ms: int) -> bool:
        return self.starts_at_ms <= epoch_ms < self.ends_at_ms


class BudgetAccount(msgspec.Struct, frozen=True):
    """One budget in one window."""

    key: Key
    id: str
    kind: Kind
    name: str
    scope: Scope
    window: Window
    span: Span
    limit_usd_picos: int
    is_hard: bool
    org_id: str
    app_id: str | None
    """``None`` if every app of the organisation counts."""
    labels: tuple[str, ...]
    """The labels that count; all if empty."""
    tag: tuple[str, str] | None = None
    """A call without the tag has the value ``""``."""

    def __hash__(self) -> int:
        return hash((self.key.pk, self.key.sk, self.id))

    @property
    def label(self) -> str | None:
        return self.labels[0] if self.kind is Kind.QUOTA else None

    def counts(self, app_id: str | None, label: str, tags: Mapping[str, str], at_ms: int) -> bool:
        return (
            self.span.has(at_ms)
            and self.app_id in (None, app_id)
            and (not self.labels or label in self.labels)
            and (self.tag is None or tags.get(self.tag[0], "") == self.tag[1])
        )


def accounts_for(
    policy: Policy, label: str, tags: Mapping[str, str], at_ms: int
) -> tuple[BudgetAccount, ...]:
    """Every account that a call at that time is held against and spent from."""
    found = _accounts(policy, at_ms, tags, label)
    return tuple(one for one in found if not one.labels or label in one.labels)


class AccountMemory:
    """Caches the accounts of calls by policy, label, window and tag values.

    The same policy is used thousands of times a second. Its accounts are the same tuple as long as
    the policy is the same object and no window has ended.
    """

    def __init__(self) -> None:
        self._made: BoundedCache[tuple[int, str], _Made] = BoundedCache(REMEMBERED_MAX)

    def find(
        self, policy: Policy, label: str, tags: Mapping[str, str], at_ms: int
    ) -> tuple[BudgetAccount, ...]:
        made = self._made.peek((id(policy), label))
        if made is None or made.policy is not policy or not made.from_ms <= at_ms < made.until_ms:
            accounts = accounts_for(policy, label, tags, at_ms)
            made = _Made(
                policy,
                max((account.span.starts_at_ms for account in accounts), default=0),
                min((account.span.ends_at_ms for account in accounts), default=_NEVER_MS),
                tuple(dict.fromkeys(account.tag[0] for account in accounts if account.tag)),
                BoundedCache(VALUES_MAX),
            )
            self._made.put((id(policy), label), made)
            made.by_values.put(made.values_of(tags), accounts)
            return accounts
        values = made.values_of(tags)
        known = made.by_values.peek(values)
        if known is None:
            known = accounts_for(policy, label, tags, at_ms)
            made.by_values.put(values, known)
        return known


class _Made(NamedTuple):
    policy: Policy
    """Kept, so that no other policy gets its identity."""
    from_ms: int
    until_ms: int
    tag_keys: tuple[str, ...]
    by_values: BoundedCache[tuple[str, ...], tuple[BudgetAccount, ...]]

    def values_of(self, tags: Mapping[str, str]) -> tuple[str, ...]:
        return tuple([tags.get(key, "") for key in self.tag_keys]) if self.tag_keys else ()


def accounts_of(
    policy: Policy, at_ms: int, tags: Mapping[str, str] | None = None
) -> tuple[BudgetAccount, ...]:
    """Every account of the client; without ``tags``, not those per value of a tag."""
    return tuple(_accounts(policy, at_ms, tags, None))


def _accounts(
    policy: Policy, at_ms: int, tags: Mapping[str, str] | None, label: str | None
) -> list[BudgetAccount]:
    strict = policy.quota_enforcement is QuotaEnforcement.STRICT
    if not (strict or policy.budgets or policy.org_budgets):
        return []
    app_id = policy.app_id if policy.is_registered else None
    accounts = [*_of_budgets(policy, Scope.ORG, policy.org_budgets, None, at_ms, tags)]
    if app_id is not None:
        accounts += _of_budgets(policy, Scope.APP, policy.budgets, app_id, at_ms, tags)
    if strict:
        accounts += _of_quotas(policy, at_ms, label)
    return accounts


def item_partition(policy: Policy, scope: Scope) -> str:
    """The partition of the accounts of an app or organisation, in its current life."""
    entity = policy.org_bucket_entity if scope is Scope.ORG else policy.bucket_entity
    return entity + ACCOUNTS


def tags_of(key: Key) -> dict[str, str] | None:
    """The tag and value of an item of accounts; ``None`` if it is for all values."""
    if key.sk is None or key.sk == EVERY_VALUE:
        return None
    _, name, value = key.sk.split("#", 2)
    return {name: value}


def _of_budgets(
    policy: Policy,
    scope: Scope,
    budgets: Iterable[Budget],
    app_id: str | None,
    at_ms: int,
    tags: Mapping[str, str] | None,
) -> Iterator[BudgetAccount]:
    pk = item_partition(policy, scope)
    for budget in budgets:
        tag, sort_key = None, EVERY_VALUE
        if budget.per_tag is not None:
            if tags is None:
                continue
            tag = (budget.per_tag, tags.get(budget.per_tag, ""))
            sort_key = f"TAG#{tag[0]}#{tag[1]}"
        span = window_at(budget.window, policy.timezone, at_ms)
        yield BudgetAccount(
            key=Key(pk, sort_key),
            id=f"{budget.name}{_digest(budget.labels)}.{span.name}",
            kind=Kind.BUDGET,
            name=budget.name,
            scope=scope,
            window=budget.window,
            span=span,
            limit_usd_picos=budget.limit_usd_micros * PICOS_PER_MICRO,
            is_hard=budget.enforcement is Enforcement.HARD,
            org_id=policy.org_id,
            app_id=app_id,
            labels=tuple(budget.labels),
            tag=tag,
        )


def _of_quotas(policy: Policy, at_ms: int, only: str | None) -> Iterator[BudgetAccount]:
    by_app = policy.quota_scope is QuotaScope.APP and policy.app_id is not None
    scope = Scope.APP if by_app else Scope.ORG
    span = window_at(Window.DAY, policy.timezone, at_ms)
    for label, quota_usd_micros in policy.quotas.items():
        if only not in (None, label):
            continue
        yield BudgetAccount(
            key=Key(item_partition(policy, scope), EVERY_VALUE),
            id=f"{_QUOTA}{label}.{span.name}",
            kind=Kind.QUOTA,
            name=f"{_QUOTA}{label}",
            scope=scope,
            window=Window.DAY,
            span=span,
            limit_usd_picos=quota_usd_micros * PICOS_PER_MICRO,
            is_hard=True,
            org_id=policy.org_id,
            app_id=policy.app_id if by_app else None,
            labels=(str(label),),
        )


def _digest(labels: Iterable[str]) -> str:
    """Tells budgets of the same name apart that count other labels."""
    listed = sorted(labels)
    if not listed:
        return ""
    return "~" + hashlib.blake2b("\n".join(listed).encode(), digest_size=4).hexdigest()


def window_at(window: Window, zone: str, epoch_ms: int) -> Span:
    """The window of that kind at that instant."""
    if window is Window.HOUR:
        return _hour(zone, epoch_ms)
    return _days(window, zone, org_day(zone, epoch_ms))


def _hour(zone: str, epoch_ms: int) -> Span:
    """Cut where clocks change within it: an hour that comes twice is two hours."""
    info = ZoneInfo(zone)
    starts_at_ms = _hour_start_ms(info, epoch_ms)
    ends_at_ms = starts_at_ms + MS_PER_HOUR
    if _hour_start_ms(info, ends_at_ms) != ends_at_ms:  # the clocks change by a part of an hour
        ends_at_ms = _hour_start_ms(info, ends_at_ms) + MS_PER_HOUR
    return Span(f"H{starts_at_ms // 1000}", starts_at_ms, ends_at_ms)


def _hour_start_ms(info: ZoneInfo, epoch_ms: int) -> int:
    local = (_EPOCH + timedelta(milliseconds=epoch_ms)).astimezone(info)
    offset = local.utcoffset() or timedelta()
    past_hour_ms = (epoch_ms + offset // timedelta(milliseconds=1)) % MS_PER_HOUR
    return epoch_ms - past_hour_ms


@lru_cache(maxsize=_SPANS_MAX)
def _days(window: Window, zone: str, day: str) -> Span:
    first, following = _dates(window, date_of(day))
    return Span(
        f"{window.value[0]}{day_of(first)}",
        day_start_ms(zone, day_of(first)),
        day_start_ms(zone, day_of(following)),
    )


def _dates(window: Window, day: date) -> tuple[date, date]:
    if window is Window.DAY:
        return day, day + timedelta(days=1)
    if window is Window.WEEK:
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=7)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)
