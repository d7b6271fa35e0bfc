"""What happened: events for those who watch, denials and flips for those who look back."""

from pricekeeper.activity.denial import Denial, DeniedKind, bounded_why
from pricekeeper.activity.event import AlertNotice, AuthorizationLine, Counted, Flip, GivenUp
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
