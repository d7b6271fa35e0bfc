"""Entries of the audit trail."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.usecases.wire.values import Response

Side = Annotated[
    dict[str, Any],
    Meta(description="What differs, and no secret; a value beyond 8 KiB is told by its hash."),
]


class AuditEntry(Response, frozen=True):
    """A change that somebody made, written with the change itself."""

    id: str
    at: str
    actor: str
    """Which key it was, by its fingerprint, or which user of the command line."""
    address: str
    action: str
    target: str
    request_id: str
    seq: int
    """Its number in the chain of its organisation, or of the deployment."""
    org_id: str | UnsetType = UNSET
    """Left out of what concerns no single organisation."""
    reason: str | UnsetType = UNSET
    before: Side | UnsetType = UNSET
    after: Side | UnsetType = UNSET


class AuditList(Response, frozen=True):
    """A page of entries, the newest first; a page may be empty and have a next."""

    entries: list[AuditEntry]
    next: str | UnsetType = UNSET
