"""A freeze: an administrator stops an organisation or an app from getting models and tokens.

Usage is still counted, totals and sessions can still be read, leases still settle and clients
still log in: what was spent has to be known, whoever spent it.
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
        """What a client is told that asks for a model or for tokens."""
        return FrozenError(self.scope, self.reason, self.frozen_at_epoch)


def next_freeze(
    standing: Freeze | None, scope: FreezeScope, by: Attribution, now_epoch: int
) -> Freeze:
    """The freeze that is to hold after somebody froze the client, again or for the first time.

    It keeps the first moment and has the last reason.
    """
    require_authority(standing, by.org_id)
    return Freeze(
        scope=scope,
        reason=by.reason or "",
        frozen_at_epoch=now_epoch if standing is None else standing.frozen_at_epoch,
        by_org=by.org_id is not None,
    )


def require_authority(standing: Freeze | None, key_org_id: OrgId | None) -> None:
    """Raise if an organisation's own key is to change what the deployment's key has frozen.

    Whoever stole an organisation's key could otherwise go on with it.
    """
    if standing is not None and not standing.by_org and key_org_id is not None:
        raise NotPermittedError("this was frozen with the deployment's own key, which may lift it")
