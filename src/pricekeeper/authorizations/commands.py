"""What waits for the worker of an organisation: calls that want to go, and settlements."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, TypeVar

from pricekeeper.authorizations.authorization import Authorization, HeldAccount
from pricekeeper.authorizations.decision import Denied, Granted, Wanted
from pricekeeper.authorizations.settling import Action
from pricekeeper.concurrency import error_copy
from pricekeeper.metering import Submission
from pricekeeper.metering.journal import PAGE_DIGITS, Address

_T = TypeVar("_T")


class Place(NamedTuple):
    """Where a usage record of an id would be: on its page, or else in its receipt."""

    request_id: str
    address: Address | None
    lanes: int


class Repeated(NamedTuple):
    """The grant that the same request has got before."""

    authorization: Authorization


class Settled(NamedTuple):
    """The authorization after a settlement, and whether this one has changed it."""

    authorization: Authorization
    changed: bool


class Authorize:
    """A call that wants to be authorized."""

    __slots__ = ("depth", "existing", "future", "id", "nonce", "place", "wanted")

    def __init__(self, wanted: Wanted, nonce: bytes, place: Place | None = None) -> None:
        self.wanted = wanted
        self.id = ""
        """On which sheet it is, under which number; it gets one when it is decided."""
        self.place = place
        """Where a usage record would be of the id that its caller gave it."""
        self.depth = PAGE_DIGITS
        """Of the page on which that place is."""
        self.nonce = nonce
        """By which it knows its own grant again, if a reply was lost."""
        self.existing: Authorization | None = None
        """What was found under its id."""
        self.future: asyncio.Future[Granted | Denied | Repeated] = (
            asyncio.get_running_loop().create_future()
        )


class Settle:
    """A settlement of an authorization."""

    __slots__ = ("action", "future", "nonce", "seen", "since", "submission", "without")

    def __init__(
        self,
        action: Action,
        seen: Authorization,
        nonce: bytes,
        submission: Submission | None = None,
        since: tuple[HeldAccount, ...] = (),
    ) -> None:
        self.action = action
        self.seen = seen
        """The authorization as it was last seen."""
        self.nonce = nonce
        self.submission = submission
        """The record that a capture counts as."""
        self.since = since
        """Accounts that it is spent from and was not held against: their budgets are newer."""
        self.without: set[str] = set()
        """Accounts of windows that are long over, and gone."""
        self.future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()


Command = Authorize | Settle


def name_of(command: Command) -> str:
    """What only one command of a transaction may be about; empty if there can't be another."""
    return command.seen.id if isinstance(command, Settle) else command.wanted.asked_as


def operations_of(command: Command) -> int:
    """How many operations a command needs in a transaction at most, beside those that it shares."""
    return 2 if isinstance(command, Authorize) and command.place is not None else 1


def items_of(command: Command) -> Iterator[Collection[object]]:
    """The accounts and buckets of a command, which it may share with others."""
    if isinstance(command, Settle):
        yield [one.key for one in command.seen.grant.accounts]
        yield [one.key for one in command.since]
        return
    for candidate in command.wanted.candidates:
        yield candidate.keys
        yield candidate.bucket_keys


def answer(future: asyncio.Future[_T], outcome: _T) -> None:
    """Set the outcome, unless the caller was cancelled: what was decided stands."""
    if not future.done():
        future.set_result(outcome)


def fail(command: Command, error: BaseException) -> None:
    """Let the caller know, unless it has an answer."""
    future: asyncio.Future[Any] = command.future
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error_copy(error))
