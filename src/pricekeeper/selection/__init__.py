"""Model selection: which model to use now, and why (quotas, sticky fallback, override)."""

from pricekeeper.selection.decision import Decision
from pricekeeper.selection.fallback import (
    Choice,
    LabelQuota,
    LabelRole,
    QuotaStatus,
    Reason,
    StickyState,
    quota_pct_hundredths,
    quota_status,
)
from pricekeeper.selection.history import FlipHistory, FlipPage
from pricekeeper.selection.meter import SelectionMeter
from pricekeeper.selection.service import Selector

__all__ = [
    "Choice",
    "Decision",
    "FlipHistory",
    "FlipPage",
    "LabelQuota",
    "LabelRole",
    "QuotaStatus",
    "Reason",
    "SelectionMeter",
    "Selector",
    "StickyState",
    "quota_pct_hundredths",
    "quota_status",
]
