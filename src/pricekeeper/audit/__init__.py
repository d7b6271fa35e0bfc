"""The audit trail: each change by a person or key is recorded in the change's own transaction."""

from pricekeeper.audit.entry import Change, differences
from pricekeeper.audit.service import AuditTrail

__all__ = ["AuditTrail", "Change", "differences"]
