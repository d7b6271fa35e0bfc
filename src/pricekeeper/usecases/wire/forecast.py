"""Where budgets will end."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from pricekeeper.usecases.wire.values import Response


class ForecastAnswer(Response, frozen=True, omit_defaults=True):
    """Where one window will end. What is null is not known."""

    kind: Literal["BUDGET", "QUOTA", "TOTAL"]
    """`TOTAL` is everything that is spent in the window, whatever the budgets."""
    scope: Literal["ORG", "APP"]
    window: Literal["HOUR", "DAY", "WEEK", "MONTH"]
    window_started_at: str
    resets_at: str
    spent_usd_micros: int
    """Until now, with what is charged for calls that nobody has settled."""
    expected_usd_micros: int | None
    """At the end of the window."""
    low_usd_micros: int | None
    """It ends between this and `high_usd_micros` in four cases of five."""
    high_usd_micros: int | None
    straight_line_usd_micros: int | None
    """Where it would end if it went on as it began."""
    method: Literal["PROFILE", "STRAIGHT_LINE", "NONE"]
    """What is expected comes from the weekdays and hours that were recorded, from a straight line
    where they are too few, or from nothing."""
    history_hours: int
    """Recorded hours that it was made from."""
    name: str | UnsetType = UNSET
    limit_usd_micros: int | UnsetType = UNSET
    spent_at: str | UnsetType = UNSET
    """When the limit is expected to be spent, if that is in this window."""
    spent_at_earliest: str | UnsetType = UNSET
    """When it would be spent if the window ended at `high_usd_micros`."""
    label: str | UnsetType = UNSET
    """Of a quota."""
    tag: dict[str, str] | UnsetType = UNSET
    """Of a budget for each value of a tag: the tag, and the value."""


class ForecastList(Response, frozen=True):
    """A forecast for every budget that applies, and for all that is spent today and this month."""

    forecasts: list[ForecastAnswer]
