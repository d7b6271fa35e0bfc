"""Who asks, what their key allows, and which credentials they may be given.

A key has a role in some organisations or in all. A role includes those before it. Every list of
organisations, or of what belongs to several of them, shows exactly those that its caller covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from pricekeeper.client_ids import Client
from pricekeeper.errors import NotPermittedError
from pricekeeper.showing import rfc3339
from pricekeeper.values import OrgId


class Role(StrEnum):
    """What somebody may do."""

    VIEWER = "VIEWER"
    """Reads."""
    OPERATOR = "OPERATOR"
    """Also overrides, freezes, revokes, rotates, resets and voids."""
    ADMIN = "ADMIN"
    """Also provisions, and manages keys."""

    def includes(self, needed: Role) -> bool:
        """Whether whoever has this role may do what takes that one."""
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER: Final = tuple(Role)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The organisations that somebody may know of; ``None``: all, also those that are to come."""

    org_ids: frozenset[OrgId] | None = None

    @property
    def is_all(self) -> bool:
        return self.org_ids is None

    @property
    def one(self) -> OrgId | None:
        """The organisation, if it is one alone."""
        if self.org_ids is None or len(self.org_ids) != 1:
            return None
        return next(iter(self.org_ids))

    def __contains__(self, org_id: OrgId) -> bool:
        return self.org_ids is None or org_id in self.org_ids

    def includes(self, other: Coverage) -> bool:
        """Whether every organisation of the other one is covered, now and later."""
        if self.org_ids is None:
            return True
        return other.org_ids is not None and other.org_ids <= self.org_ids


ALL_ORGS: Final = Coverage()
NO_ORG: Final = Coverage(frozenset())


def only(org_id: OrgId) -> Coverage:
    """That organisation alone."""
    return Coverage(frozenset({org_id}))


class KeyKind(StrEnum):
    """What sort of key somebody has shown."""

    DEPLOYMENT_KEY = "DEPLOYMENT_KEY"
    """The one of the environment: an ADMIN of everything."""
    ADMIN_KEY = "ADMIN_KEY"
    """A named one, with a role, for some organisations or all."""
    ORG_KEY = "ORG_KEY"
    """An organisation's own: an ADMIN of that organisation, and of no keys."""


class Reach(IntEnum):
    """How far above an organisation its administrator is; a higher one overrules a lower one."""

    ORG = 0
    """The organisation's own key."""
    LISTED = 1
    """A named key for listed organisations."""
    ALL = 2
    """A key for all organisations, or the store itself."""


@dataclass(frozen=True, slots=True)
class Authority:
    """What the key that came with a request allows."""

    kind: KeyKind
    role: Role
    coverage: Coverage
    key_id: str | None = None
    name: str | None = None
    expires_at_epoch: int | None = None
    """When the key stops counting; ``None``: it does not."""

    @property
    def reach(self) -> Reach:
        if self.kind is KeyKind.ORG_KEY:
            return Reach.ORG
        return Reach.ALL if self.coverage.is_all else Reach.LISTED


DEPLOYMENT: Final = Authority(KeyKind.DEPLOYMENT_KEY, Role.ADMIN, ALL_ORGS)
"""Whoever holds the deployment's own key, or the store itself."""


def of_org(org_id: OrgId) -> Authority:
    """Whoever holds an organisation's own key."""
    return Authority(KeyKind.ORG_KEY, Role.ADMIN, only(org_id))


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who asked for a change, from where and why.

    Whatever makes the change is handed this, so that it can be written down with the change.
    """

    actor: str
    """Which key it was, by its fingerprint, or which user of the command line. No secret."""
    address: str
    request_id: str
    reason: str | None = None
    authority: Authority | None = None
    """What the key allows; ``None`` if no key came."""

    @property
    def reach(self) -> Reach:
        """Without a key it is the lowest one."""
        return Reach.ORG if self.authority is None else self.authority.reach


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to make a secret or token of one credential. Only `may_produce` makes one."""

    credential: Authority | Client


def may_produce(by: Authority | Client | None, credential: Authority | Client) -> Permit:
    """Permit a secret or token of a credential that is no greater than the one that asks for it.

    - A key gives no key of a higher role, a wider coverage or a later end than its own.
    - A client's secret has no role and no end: any OPERATOR's key that covers the client gives it.
    - A client gives its own secret and tokens, and no others: for these it exchanges what it has.

    Raises `NotPermittedError` with what is greater.
    """
    refusal = _refusal(by, credential)
    if refusal is not None:
        raise NotPermittedError(refusal)
    return Permit(credential)


def _refusal(by: Authority | Client | None, credential: Authority | Client) -> str | None:
    """Why the credential is not given; ``None`` if it is."""
    if not isinstance(by, Authority):
        return None if by == credential else "a credential is given by a key"
    if isinstance(credential, Client):
        role, coverage, end = Role.OPERATOR, only(credential.org_id), by.expires_at_epoch
    elif by.kind is KeyKind.ORG_KEY:
        return "an organisation's own key gives no keys"
    else:
        role, coverage, end = credential.role, credential.coverage, credential.expires_at_epoch
    if not by.role.includes(role):
        return f"role: a key with the role {by.role} gives no {role}"
    if not by.coverage.includes(coverage):
        return "org_ids: must be among the organisations of the key that asks"
    if by.expires_at_epoch is not None and (end is None or end > by.expires_at_epoch):
        last = rfc3339(by.expires_at_epoch * 1000)
        return f"expires_at: the key that asks gives none that lasts longer than itself, to {last}"
    return None
