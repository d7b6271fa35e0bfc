"""What waits for the worker of an organisation: calls that want to go, and settlements."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from pricekeeper.authorizations.authorization import Authorization
from pricekeeper.authorizations.decision import Denied, Granted, Wanted
from pricekeeper.authorizations.settling import Action
from pricekeeper.metering import Submission
from pricekeeper.metering.journal import PAGE_DIGITS


class Repeated(NamedTuple):
    """The grant that the same request has got before."""

    authorization: Authorization


class Settled(NamedTuple):
    """The authorization after a settlement, and whether this one has changed it."""

    authorization: Authorization
    changed: bool


class Authorize:
    """A call that wants to be authorized."""

    __slots__ = ("existing", "future", "id", "nonce", "wanted")

    def __init__(self, wanted: Wanted, authorization_id: str, nonce: bytes) -> None:
        self.wanted = wanted
        self.id = authorization_id
        self.nonce = nonce
        """By which it knows its own grant again, if a reply was lost."""
        self.existing: Authorization | None = None
        """What was found under its id."""
        self.future: asyncio.Future[Granted | Denied | Repeated] = (
            asyncio.get_running_loop().create_future()
        )


class Settle:
    """A settlement of an authorization."""

    __slots__ = ("action", "depth", "future", "nonce", "seen", "submission", "without")

    def __init__(
        self,
        action: Action,
        seen: Authorization,
        nonce: bytes,
        submission: Submission | None = None,
    ) -> None:
        self.action = action
        self.seen = seen
        """The authorization as it was last seen."""
        self.nonce = nonce
        self.submission = submission
        """The record that a capture counts as."""
        self.depth = PAGE_DIGITS
        """Of the page that the record is on, if its id says where it is."""
        self.without: set[str] = set()
        """Accounts of windows that are long over, and gone."""
        self.future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()


Command = Authorize | Settle
