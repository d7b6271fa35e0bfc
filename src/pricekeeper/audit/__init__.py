"""The audit trail: each change by a person or key is written down in its own transaction.

A feature that changes something on somebody's behalf is handed an `Attribution`, describes the
change as a `Change`, and has `AuditTrail` apply it.
"""

from pricekeeper.audit.entry import Change, differences
from pricekeeper.audit.service import AuditTrail

__all__ = ["AuditTrail", "Change", "differences"]
