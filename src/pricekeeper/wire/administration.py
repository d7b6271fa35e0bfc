"""Keys of administrators, and the audit trail."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from pricekeeper.wire.bounds import GRACE_HOURS_MAX, KEY_NAME_LENGTH_MAX, KEY_ORGS_MAX
from pricekeeper.wire.values import RequestBody, Response, Timestamp, Uuid

RoleName = Annotated[
    Literal["VIEWER", "OPERATOR", "ADMIN"],
    Meta(
        description="VIEWER reads; OPERATOR also overrides, freezes, revokes, rotates, resets and "
        "voids; ADMIN also provisions and manages keys."
    ),
]
KeyName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KEY_NAME_LENGTH_MAX,
        pattern=r"\S",
        description="The owner, for people: printable characters without a slash.",
        examples=["night shift"],
    ),
]


class AdminKeyBody(RequestBody, frozen=True):
    """A key to create."""

    name: KeyName
    role: RoleName
    org_ids: (
        Annotated[
            list[Uuid],
            Meta(
                min_length=1,
                max_length=KEY_ORGS_MAX,
                description="The organisations that it covers; if left out, all, later ones too.",
            ),
        ]
        | None
    ) = None
    expires_at: (
        Annotated[
            Timestamp,
            Meta(description="When it expires; with the key that asks, if left out."),
        ]
        | None
    ) = None


class RotateKeyBody(RequestBody, frozen=True):
    """How long the old text works beside the new one."""

    grace_period_hours: Annotated[int, Meta(ge=0, le=GRACE_HOURS_MAX)]


class KeyFields(Response, frozen=True, omit_defaults=True, kw_only=True):
    """What every answer about a key has. Without `org_ids` it covers all organisations."""

    key_id: str
    name: str
    role: str
    created_at: str
    org_ids: list[str] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    old_key_expires_at: str | UnsetType = UNSET


class IssuedAdminKey(KeyFields, frozen=True, kw_only=True):
    """A key; only this answer shows its text."""

    key: str


class AdminKeyAnswer(KeyFields, frozen=True, kw_only=True):
    """A key without its text. Without `org_ids` it covers all organisations."""

    created_by: str
    last_used_at: str | UnsetType = UNSET
    rotated_at: str | UnsetType = UNSET


class AdminKeyList(Response, frozen=True, omit_defaults=True):
    """Keys, the oldest first."""

    keys: list[AdminKeyAnswer]
    next: str | UnsetType = UNSET


class Me(Response, frozen=True, omit_defaults=True):
    """The credential of the request, and what it may see."""

    kind: Literal["DEPLOYMENT_KEY", "ADMIN_KEY", "ORG_KEY", "CLIENT"]
    role: str | UnsetType = UNSET
    """Of a key only."""
    org_ids: list[str] | UnsetType = UNSET
    """All organisations, if left out."""
    key_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    """Of an access token only, like the next two."""
    app_id: str | UnsetType = UNSET
    scope: str | UnsetType = UNSET


Side = Annotated[
    dict[str, Any],
    Meta(description="The fields that differ, without secrets; a value above 8 KiB is a hash."),
]


class AuditEntry(Response, frozen=True):
    """A change, written in the same transaction as the change itself."""

    id: str
    at: str
    actor: str
    """The key, by name or fingerprint, or the user of the command line."""
    address: str
    action: str
    target: str
    request_id: str
    seq: int
    """Its number in the chain of its organisation, or of the deployment."""
    org_id: str | UnsetType = UNSET
    """Left out if the change concerns no single organisation."""
    reason: str | UnsetType = UNSET
    before: Side | UnsetType = UNSET
    after: Side | UnsetType = UNSET


class AuditList(Response, frozen=True):
    """A page of entries, the newest first; a page may be empty although more pages follow."""

    entries: list[AuditEntry]
    next: str | UnsetType = UNSET
