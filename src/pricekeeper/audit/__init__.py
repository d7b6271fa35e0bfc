"""The audit trail: each change by a person or key is recorded in the change's own transaction.

A feature describes a change as a `Change` and gives it to `AuditTrail`, with the `Attribution` of
its author.
"""

from pricekeeper.audit.entry import Change, differences
from pricekeeper.audit.service import AuditTrail

__all__ = ["AuditTrail", "Change", "differences"]
