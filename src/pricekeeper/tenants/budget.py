"""Budgets: how much may be spent in a window of the organisation's calendar.

They are settings here, of an organisation or of an app. An app's budgets are held beside its
organisation's: neither replaces the other. The strict enforcement of quotas is the same promise
for the daily quotas, whose budgets have names of their own: hence the reserved prefix.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from pricekeeper.values import ModelLabel
from pricekeeper.wire.bounds import BUDGET_NAME

_NAME: Final = re.compile(BUDGET_NAME)


class Window(StrEnum):
    """For how long a budget lasts, by the organisation's calendar; weeks begin on Monday."""

    HOUR = "HOUR"
    DAY = "DAY"
    WEEK = "WEEK"
    MONTH = "MONTH"


class Enforcement(StrEnum):
    """Whether a budget that is spent stops calls, or only says so."""

    HARD = "HARD"
    SOFT = "SOFT"


class QuotaEnforcement(StrEnum):
    """Whether the daily quotas guide the choice of a model, or are hard budgets, too."""

    ADVISORY = "ADVISORY"
    STRICT = "STRICT"


class Budget(Struct, frozen=True):
    """So much for each window, on some labels or all, perhaps for each value of a tag.

    The bounds are those of a budget in the store; `wire.settings` has those of a request.
    """

    name: str
    window: Window
    limit_usd_micros: Annotated[int, Meta(ge=0)]
    labels: tuple[ModelLabel, ...] = ()
    """Whose spend counts; all labels if it is empty."""
    per_tag: str | None = None
    """The tag for each of whose values there is one such budget."""
    enforcement: Enforcement = Enforcement.HARD
    alert_at_pct: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """Percentages of the limit, rising."""

    def __post_init__(self) -> None:
        force_setattr(self, "alert_at_pct", tuple(sorted(set(self.alert_at_pct))))


def is_budget_name(name: str) -> bool:
    """Whether a budget may have this name, which becomes a part of keys."""
    return _NAME.fullmatch(name) is not None
