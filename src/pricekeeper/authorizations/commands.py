"""What waits for the worker of an organisation: calls that want to go, and settlements."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, TypeVar

from pricekeeper.authorizations.authorization import Authorization, HeldAccount, is_own_id
from pricekeeper.authorizations.decision import Denied, Granted, Wanted
from pricekeeper.authorizations.settling import Action
from pricekeeper.concurrency import error_copy
from pricekeeper.metering import Submission
from pricekeeper.metering.journal import PAGE_DIGITS

_T = TypeVar("_T")


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

    __slots__ = ("action", "depth", "future", "nonce", "seen", "since", "submission", "without")

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
        self.depth = PAGE_DIGITS
        """Of the page that the record is on, if its id says where it is."""
        self.without: set[str] = set()
        """Accounts of windows that are long over, and gone."""
        self.future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()


Command = Authorize | Settle


def name_of(command: Command) -> str:
    """What only one command of a transaction may be about."""
    if isinstance(command, Settle):
        return command.seen.id
    return command.wanted.asked_as or command.id


def operations_of(command: Command) -> int:
    """How many operations a command alone needs in a transaction, beside the one shared page."""
    if isinstance(command, Settle):
        submission = command.submission
        return 1 if submission is None or is_own_id(submission.request_id) else 2
    return 2 if command.wanted.asked_as else 1


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
