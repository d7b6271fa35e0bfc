"""When an organisation's people are told of something: thresholds, as settings.

Budgets have thresholds of their own. To whom alerts go is no setting: channels have secrets, and
are kept apart (`pricekeeper.alerts.channels`).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from pricekeeper.wire.bounds import (
    ANOMALY_PCT_DEFAULT,
    DENIED_PCT_DEFAULT,
    QUOTA_AT_PCT_DEFAULT,
    SECRET_DAYS_DEFAULT,
    UNSETTLED_PCT_DEFAULT,
)


class AlertSettings(Struct, frozen=True):
    """The thresholds of an organisation; an empty list or a zero is never."""

    quota_at_pct: tuple[Annotated[int, Meta(ge=1)], ...] = QUOTA_AT_PCT_DEFAULT
    """Percentages of each daily quota, rising."""
    denied_pct: Annotated[int, Meta(ge=0)] = DENIED_PCT_DEFAULT
    """How much of what an app asks for may be denied in ten minutes."""
    unsettled_pct: Annotated[int, Meta(ge=0)] = UNSETTLED_PCT_DEFAULT
    """How much of what is charged in an hour may be charged for calls that nobody has settled."""
    anomaly_pct: Annotated[int, Meta(ge=0)] = ANOMALY_PCT_DEFAULT
    """How much of the usual spend today's may be."""
    secret_days: Annotated[int, Meta(ge=0)] = SECRET_DAYS_DEFAULT
    """How old a secret may be."""

    def __post_init__(self) -> None:
        force_setattr(self, "quota_at_pct", tuple(sorted(set(self.quota_at_pct))))


DEFAULTS: Final = AlertSettings()
