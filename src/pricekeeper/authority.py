"""The caller's key, what it allows, and which credentials it may create."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from pricekeeper.client_ids import Client
from pricekeeper.errors import NotPermittedError
from pricekeeper.showing import rfc3339
from pricekeeper.values import OrgId


class Role(StrEnum):
    """What a key's holder may do."""

    VIEWER = "VIEWER"
    OPERATOR = "OPERATOR"
    """Also overrides, freezes, revokes, rotates, resets and voids."""
    ADMIN = "ADMIN"

    def includes(self, needed: Role) -> bool:
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER: Final = tuple(Role)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The organisations that a caller may see; ``None``: all, future ones included."""

    org_ids: frozenset[OrgId] | None = None

    @property
    def is_all(self) -> bool:
        return self.org_ids is None

    @property
    def one(self) -> OrgId | None:
        if self.org_ids is None or len(self.org_ids) != 1:
            return None
        return next(iter(self.org_ids))

    def __contains__(self, org_id: OrgId) -> bool:
        return self.org_ids is None or org_id in self.org_ids

    def includes(self, other: Coverage) -> bool:
        if self.org_ids is None:
            return True
        return other.org_ids is not None and other.org_ids <= self.org_ids


ALL_ORGS: Final = Coverage()
NO_ORG: Final = Coverage(frozenset())


def only(org_id: OrgId) -> Coverage:
    """A coverage of one organisation."""
    return Coverage(frozenset({org_id}))


class KeyKind(StrEnum):
    """The kinds of administrators' keys."""

    DEPLOYMENT_KEY = "DEPLOYMENT_KEY"
    ADMIN_KEY = "ADMIN_KEY"
    ORG_KEY = "ORG_KEY"
    """ADMIN of the organisation, but not of keys."""


class Reach(IntEnum):
    """How far above an organisation an administrator is; the higher overrules."""

    ORG = 0
    LISTED = 1
    ALL = 2
    """A key for all organisations, or access to the store."""


@dataclass(frozen=True, slots=True)
class Authority:
    """What the key of a request allows."""

    kind: KeyKind
    role: Role
    coverage: Coverage
    key_id: str | None = None
    name: str | None = None
    expires_at_epoch: int | None = None

    @property
    def reach(self) -> Reach:
        if self.kind is KeyKind.ORG_KEY:
            return Reach.ORG
        return Reach.ALL if self.coverage.is_all else Reach.LISTED


DEPLOYMENT: Final = Authority(KeyKind.DEPLOYMENT_KEY, Role.ADMIN, ALL_ORGS)


def of_org(org_id: OrgId) -> Authority:
    """The authority of an organisation's own key."""
    return Authority(KeyKind.ORG_KEY, Role.ADMIN, only(org_id))


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who asked for a change, from where and why; recorded with the change."""

    actor: str
    """The key's fingerprint, or the command line's user; never a secret."""
    address: str
    request_id: str
    reason: str | None = None
    authority: Authority | None = None

    @property
    def reach(self) -> Reach:
        return Reach.ORG if self.authority is None else self.authority.reach


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to create a secret or token. Only `may_produce` makes one."""

    credential: Authority | Client


def may_produce(by: Authority | Client | None, credential: Authority | Client) -> Permit:
    """Permit a secret or token of a credential that has no more rights than the caller's.

    - A key creates no key with a higher role, a wider coverage or a later end than its own.
    - Any OPERATOR's key that covers a client creates its secret.
    - A client creates only its own secret and tokens.

    Raises `NotPermittedError` that names what is greater.
    """
    refusal = _refusal(by, credential)
    if refusal is not None:
        raise NotPermittedError(refusal)
    return Permit(credential)


def _refusal(by: Authority | Client | None, credential: Authority | Client) -> str | None:
    if not isinstance(by, Authority):
        return None if by == credential else "only a key can create credentials for others"
    if isinstance(credential, Client):
        role, coverage, end = Role.OPERATOR, only(credential.org_id), by.expires_at_epoch
    elif by.kind is KeyKind.ORG_KEY:
        return "an organisation's own key can't create keys"
    else:
        role, coverage, end = credential.role, credential.coverage, credential.expires_at_epoch
    if not by.role.includes(role):
        return f"role: a key with role {by.role} can't create credentials of role {role}"
    if not by.coverage.includes(coverage):
        return "org_ids: must be among the organisations of the asking key"
    if by.expires_at_epoch is not None and (end is None or end > by.expires_at_epoch):
        last = rfc3339(by.expires_at_epoch * 1000)
        return f"expires_at: must not be later than that of the asking key, {last}"
    return None
