"""What a worker can be asked to do to the buckets of a chain, and what it answers.

Nobody who waits for the answer can be sure to see it: a command that was queued is carried out
also if its caller is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from pricekeeper.limiter.bucket import Bucket, Debit, Denial
from pricekeeper.limiter.items import LeaseRecord
from pricekeeper.storage import Key


class Acquire(msgspec.Struct, frozen=True, eq=False):
    """Take from all of these buckets or from none; with a ``record``, once for its name."""

    debits: tuple[Debit, ...]
    record: LeaseRecord | None = None


class LeaseChange(msgspec.Struct, frozen=True, eq=False):
    """Adjust what a lease holds, or release it. It is not denied.

    Without a ``record`` the lease lives in this process alone, and it is for `lease_accounts` to
    send the change once. With one, it is applied once for the same ``mark``; no mark is a release.
    """

    debits: tuple[Debit, ...]
    """The buckets of the lease; their tokens mean nothing."""
    delta: Mapping[str, int]
    record: LeaseRecord | None = None
    """The record as its account last saw it."""
    mark: str | None = None


Command: TypeAlias = Acquire | LeaseChange


class Debited(msgspec.Struct, frozen=True):
    """Tokens that were taken, as of that moment, and the buckets afterwards."""

    as_of_ms: int
    buckets: tuple[Bucket | None, ...]


Outcome: TypeAlias = Debited | Denial | LeaseRecord | dict[str, int]
"""Of an acquire: what was taken, a denial, or the record if the lease was granted before. Of a
change: the record after it; without a record how much was taken of each limit."""


def keys_of(command: Command) -> Iterator[Key]:
    """Every item that the command may have to write."""
    for debit in command.debits:
        yield debit.key
    if command.record is not None:
        yield command.record.key
