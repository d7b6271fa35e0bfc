"""Model selection: which model to use now, and why (quotas, sticky fallback, override).

`Selector.select` returns a `Decision` that explains itself. `pricekeeper.selection.fallback`
decides, as pure arithmetic.
"""

from pricekeeper.selection.decision import Decision
from pricekeeper.selection.fallback import (
    Choice,
    LabelQuota,
    LabelRole,
    QuotaStatus,
    Reason,
    quota_pct_hundredths,
    quota_status,
)
from pricekeeper.selection.meter import SelectionMeter
from pricekeeper.selection.service import Selector

__all__ = [
    "Choice",
    "Decision",
    "LabelQuota",
    "LabelRole",
    "QuotaStatus",
    "Reason",
    "SelectionMeter",
    "Selector",
    "quota_pct_hundredths",
    "quota_status",
]
