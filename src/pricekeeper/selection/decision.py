"""A decision: the choice, the model and its prices, and how long it holds.

The answer to an app is made from it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from pricekeeper.errors import QuotaExceededError
from pricekeeper.pricing import Model, Prices
from pricekeeper.selection.fallback import Choice, LabelQuota, LabelRole, QuotaStatus
from pricekeeper.tenants import Policy
from pricekeeper.values import ModelLabel

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Guidance:
    """When a client should ask again."""

    check_interval_secs: int
    cache_duration_secs: int

    @property
    def check_frequency(self) -> str:
        return f"PERIODIC_{self.check_interval_secs}S"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for a client, and its reasons."""

    policy: Policy
    choice: Choice
    model: Model | None
    prices: Prices | None
    org_day: str
    day_starts_at_ms: int
    checked_at_ms: int
    resets_at_ms: int
    live: bool

    @property
    def label(self) -> ModelLabel | None:
        return self.choice.label

    @property
    def mode(self) -> QuotaStatus:
        return self.choice.mode

    @property
    def org_local_time(self) -> datetime:
        return _moment(self.checked_at_ms).astimezone(ZoneInfo(self.policy.timezone))

    @property
    def resets_at(self) -> datetime:
        return _moment(self.resets_at_ms)

    @property
    def explanation(self) -> str:
        return explain(self.choice, self.resets_at)

    def guidance(self, now_ms: int) -> Guidance:
        """No answer is kept beyond the organisation's day."""
        calm = self.mode is QuotaStatus.NORMAL
        interval_secs = (
            self.policy.refresh_interval_normal_secs
            if calm
            else self.policy.refresh_interval_tight_secs
        )
        left_secs = max(0, self.resets_at_ms - now_ms) // 1000
        return Guidance(interval_secs, min(interval_secs, left_secs))

    def exhausted(self) -> QuotaExceededError:
        models: dict[str, int] = {use.label: use.quota_pct_hundredths for use in self.choice.quotas}
        return QuotaExceededError(models, self.resets_at_ms, self.explanation)


def explain(choice: Choice, resets_at: datetime) -> str:
    """The decision in words, from the first label of the order to the chosen one."""
    until = resets_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    parts = [
        _explain_quota(use, choice) for use in choice.quotas if use.role is not LabelRole.NOT_NEEDED
    ]
    if choice.label is None:
        parts.append("no model may be used")
    return f"{'; '.join(parts)}; the quotas reset at {until}"


def _explain_quota(use: LabelQuota, choice: Choice) -> str:
    spent = (
        f"{pct_text(use.quota_pct_hundredths)} % of its quota is spent "
        f"({use.spend_usd_micros} of {use.quota_usd_micros} micro-dollars)"
    )
    match use.role:
        case LabelRole.CHOSEN if choice.override is not None:
            whom = "organisation" if choice.override.client.app_id is None else "app"
            return f"{use.label} was set by hand for the {whom}: {spent}"
        case LabelRole.CHOSEN:
            return f"{use.label} is recommended: {spent}"
        case LabelRole.EXCEEDED:
            return f"{use.label} is exhausted: {spent}"
        case LabelRole.GIVEN_UP if use.status is QuotaStatus.EXCEEDED:
            return f"{use.label} was given up earlier today: {spent}"
        case LabelRole.GIVEN_UP:  # a record was voided since, or the total is older
            until = "until midnight or a higher quota"
            return f"{use.label} was given up earlier today, {until}: {spent}"
        case LabelRole.DISABLED:
            return f"{use.label} has no quota"
        case LabelRole.NO_TEXT:
            return f"{use.label} writes no text"
        case _:
            return f"{use.label} is not a model of this deployment"


def pct_text(hundredths: int) -> str:
    """A percentage with two decimals, from an integer: ``99.99``."""
    return f"{hundredths // 100}.{hundredths % 100:02}"


def _moment(epoch_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=epoch_ms)
