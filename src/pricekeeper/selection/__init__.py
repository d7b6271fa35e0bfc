"""Which model now, and why: quotas, the sticky fallback, and the operator's override.

`Selector.select` answers with a `Decision`, which explains itself. The decision itself is in
`pricekeeper.selection.fallback`, as arithmetic.
"""

from pricekeeper.selection.decision import Decision, Guidance, pct_text
from pricekeeper.selection.fallback import (
    Choice,
    LabelQuota,
    LabelRole,
    Override,
    QuotaStatus,
    Reason,
    quota_pct_hundredths,
    quota_status,
)
from pricekeeper.selection.meter import EXHAUSTED, SelectionMeter
from pricekeeper.selection.service import Selector

__all__ = [
    "EXHAUSTED",
    "Choice",
    "Decision",
    "Guidance",
    "LabelQuota",
    "LabelRole",
    "Override",
    "QuotaStatus",
    "Reason",
    "SelectionMeter",
    "Selector",
    "pct_text",
    "quota_pct_hundredths",
    "quota_status",
]
