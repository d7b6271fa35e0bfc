"""Which model now, and why: quotas, the sticky fallback, and the operator's override.

`Selector.select` answers with a `Decision`, which explains itself. The decision itself is in
`pricekeeper.selection.fallback`, as arithmetic.
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
