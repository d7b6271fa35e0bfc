"""Which keys somebody may give: never more than they have themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pricekeeper.authority import Authority, Coverage, Role
from pricekeeper.errors import NotPermittedError

ORGS_MAX: Final = 100
"""How many organisations a key names at most; one that covers more covers all."""


@dataclass(frozen=True, slots=True)
class WantedKey:
    """A key that somebody asks for."""

    name: str
    role: Role
    coverage: Coverage
    expires_at_epoch: int | None = None


def granted_key(wanted: WantedKey, by: Authority) -> WantedKey:
    """What is given to whoever asks with that authority; `NotPermittedError` if nothing is.

    A key that expires gives none that outlives it, so that a key for a day is not one for ever.
    Who does not say when the new one expires gets the own end.
    """
    if not by.role.includes(wanted.role):
        raise NotPermittedError(f"role: a key with the role {by.role} gives no {wanted.role}")
    if not by.coverage.includes(wanted.coverage):
        raise NotPermittedError("org_ids: must be among the organisations of the key that asks")
    if by.expires_at_epoch is None:
        return wanted
    if wanted.expires_at_epoch is None:
        return replace(wanted, expires_at_epoch=by.expires_at_epoch)
    if wanted.expires_at_epoch > by.expires_at_epoch:
        raise NotPermittedError("expires_at: must not be after the end of the key that asks")
    return wanted
