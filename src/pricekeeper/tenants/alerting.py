"""When an organisation's people are told of something: thresholds, as settings.

Budgets have thresholds of their own. To whom alerts go is no setting: channels have secrets, and
are kept apart (`pricekeeper.alerts.channels`).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

QUOTA_AT_PCT_DEFAULT: Final = (80, 100)


class AlertSettings(Struct, frozen=True):
    """The thresholds of an organisation; an empty list or a zero is never."""

    quota_at_pct: tuple[Annotated[int, Meta(ge=1)], ...] = QUOTA_AT_PCT_DEFAULT
    """Percentages of each daily quota, rising."""


DEFAULTS: Final = AlertSettings()
