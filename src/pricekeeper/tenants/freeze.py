"""A freeze: an administrator stops an organisation or an app from getting models and tokens.

Usage is still counted, totals and sessions can still be read, leases can still be adjusted and
clients can still log in, because what was spent has to be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pricekeeper.errors import FrozenError, NotPermittedError
from pricekeeper.values import Attribution, OrgId

FreezeScope: TypeAlias = Literal["ORG", "APP"]
"""Whether a whole organisation is frozen, or one app of it."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Why a client is frozen, and since when."""

    scope: FreezeScope
    reason: str
    frozen_at_epoch: int
    by_org: bool
    """Whether it was set with the organisation's own key, which may then lift it as well."""

    def error(self) -> FrozenError:
        """The error for a client that asks for a model or for tokens."""
        return FrozenError(self.scope, self.reason, self.frozen_at_epoch)


def next_freeze(
    current: Freeze | None, scope: FreezeScope, by: Attribution, now_epoch: int
) -> Freeze:
    """The freeze after an administrator froze the client, again or for the first time.

    It has the first moment and the last reason.
    """
    require_authority(current, by.org_id)
    return Freeze(
        scope=scope,
        reason=by.reason or "",
        frozen_at_epoch=now_epoch if current is None else current.frozen_at_epoch,
        by_org=by.org_id is not None,
    )


def require_authority(current: Freeze | None, key_org_id: OrgId | None, what: str = "this") -> None:
    """Raise if an organisation's own key is to change what an administrator above it has frozen.

    A thief of the organisation's key could otherwise lift the freeze.
    """
    if current is not None and not current.by_org and key_org_id is not None:
        raise NotPermittedError(
            f"{what} was frozen by an administrator above this key, who may lift it"
        )
