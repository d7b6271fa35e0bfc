"""Live events for people who watch, and denials for people who look back."""

from pricekeeper.activity.event import (
    AlertNotice,
    AuthorizationLine,
    Counted,
    Denial,
    DeniedKind,
    Flip,
    GivenUp,
    bounded_why,
)
from pricekeeper.activity.service import Activity

__all__ = [
    "Activity",
    "AlertNotice",
    "AuthorizationLine",
    "Counted",
    "Denial",
    "DeniedKind",
    "Flip",
    "GivenUp",
    "bounded_why",
]
