"""What a key allows: a role, and the organisations in which the key has it.

A role includes those before it. A coverage is some organisations or all; whatever lists
organisations, or what belongs to several of them, shows exactly those that its caller covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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


DEPLOYMENT: Final = Authority(KeyKind.DEPLOYMENT_KEY, Role.ADMIN, ALL_ORGS)
"""Whoever holds the deployment's own key, or the store itself."""


def of_org(org_id: OrgId) -> Authority:
    """Whoever holds an organisation's own key."""
    return Authority(KeyKind.ORG_KEY, Role.ADMIN, only(org_id))
