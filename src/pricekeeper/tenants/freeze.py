"""A freeze: an administrator stops an organisation or an app from getting models and tokens.

Usage is still counted, totals and sessions can still be read, leases can still be adjusted and
clients can still log in, because what was spent has to be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pricekeeper.authority import Attribution, Reach
from pricekeeper.errors import FrozenError, NotPermittedError

FreezeScope: TypeAlias = Literal["ORG", "APP"]
"""Whether a whole organisation is frozen, or one app of it."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Why a client is frozen, and since when."""

    scope: FreezeScope
    reason: str
    frozen_at_epoch: int
    reach: Reach = Reach.ALL
    """How far above the organisation it was set; a key that reaches less far does not lift it."""

    def error(self) -> FrozenError:
        """The error for a client that asks for a model or for tokens."""
        return FrozenError(self.scope, self.reason, self.frozen_at_epoch)


def next_freeze(
    current: Freeze | None, scope: FreezeScope, by: Attribution, now_epoch: int
) -> Freeze:
    """The freeze after an administrator froze the client, again or for the first time.

    It has the first moment and the last reason.
    """
    require_authority(current, by.reach)
    return Freeze(
        scope=scope,
        reason=by.reason or "",
        frozen_at_epoch=now_epoch if current is None else current.frozen_at_epoch,
        reach=by.reach,
    )


def require_authority(current: Freeze | None, reach: Reach, what: str = "this") -> None:
    """Raise if a key is to change what an administrator above it has frozen.

    A thief of the key could otherwise lift the freeze.
    """
    if current is not None and reach < current.reach:
        raise NotPermittedError(
            f"{what} was frozen by an administrator above this key, who may lift it"
        )
