"""Which model now, and why: quotas, the sticky fallback, and the operator's override.

`Selection.select` answers with a `Decision`, which explains itself. The decision itself is in
`pricekeeper.selection.fallback`, as arithmetic.
"""

from pricekeeper.selection.decision import Decision, Guidance, pct_text
from pricekeeper.selection.fallback import (
    Choice,
    Override,
    QuotaStatus,
    QuotaUse,
    Reason,
    Standing,
    quota_pct_hundredths,
    quota_status,
)
from pricekeeper.selection.meter import EXHAUSTED, SelectionMeter
from pricekeeper.selection.service import Selection

__all__ = [
    "EXHAUSTED",
    "Choice",
    "Decision",
    "Guidance",
    "Override",
    "QuotaStatus",
    "QuotaUse",
    "Reason",
    "Selection",
    "SelectionMeter",
    "Standing",
    "pct_text",
    "quota_pct_hundredths",
    "quota_status",
]
