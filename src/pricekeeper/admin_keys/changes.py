"""Changes to admin keys as the audit trail has them: what a key may do, and never its text.

A key for one organisation is that organisation's matter, and is in its chain; every other one is
the deployment's.
"""

from __future__ import annotations

from typing import Any

from pricekeeper.admin_keys.key import AdminKey
from pricekeeper.audit import Change


def key_created(key: AdminKey) -> Change:
    """A key begins to count."""
    return _change(key, "admin_key.create", after=_terms(key))


def key_rotated(key: AdminKey, grace_period_hours: int) -> Change:
    """A key gets another text."""
    return _change(key, "admin_key.rotate", after={"grace_period_hours": grace_period_hours})


def key_deleted(key: AdminKey) -> Change:
    """A key ends."""
    return _change(key, "admin_key.delete", before=_terms(key))


def _change(key: AdminKey, action: str, **sides: dict[str, Any]) -> Change:
    return Change(action, f"admin-key/{key.key_id}", key.coverage.one, **sides)


def _terms(key: AdminKey) -> dict[str, Any]:
    terms: dict[str, Any] = {"name": key.name, "role": key.role.value}
    if key.coverage.org_ids is not None:
        terms["org_ids"] = sorted(key.coverage.org_ids)
    if key.expires_at_epoch is not None:
        terms["expires_at_epoch"] = key.expires_at_epoch
    return terms
