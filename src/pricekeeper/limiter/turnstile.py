"""Who comes to a bucket while a write to it is under way goes into the next one, with others.

A process has one write under way to a bucket, or to a chain of them. So its own requests never
race each other, and the busier a bucket is, the more of them one write serves: a hot bucket
costs as many writes as fit one after another, however many requests there are. Nobody waits
on purpose: who finds the bucket free goes at once.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Final, TypeAlias

from pricekeeper.errors import PriceKeeperError
from pricekeeper.limiter.bucket import Denial, Draw
from pricekeeper.limiter.items import LeaseRecord
from pricekeeper.limiter.taking import Outcome, Round, Taken, Wish
from pricekeeper.limiter.till import Till

ROUND_MAX: Final = 64
"""Requests in one round: their records have to fit into one transaction."""

_Chain: TypeAlias = tuple[tuple[str, str], ...]


class _Place:
    """A wish in line, and the future that tells it its outcome, or that it is its turn."""

    __slots__ = ("turn", "wish")

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Turnstile:
    """The lines in front of the buckets. As long as the number of callers who wait."""

    def __init__(self, till: Till) -> None:
        self._till = till
        self._lines: dict[_Chain, list[_Place]] = {}
        """The chains that a round is under way for, and who waits for the next."""

    async def take(self, draws: Sequence[Draw]) -> Taken | Denial:
        """Take from all of these buckets or none, for a lease of which there is no record."""
        outcome = await self._pass(Wish(draws))
        if isinstance(outcome, LeaseRecord):
            raise TypeError("a lease without a name has no record")
        return outcome

    async def take_named(self, draws: Sequence[Draw], record: LeaseRecord) -> Outcome:
        """As `take`, and record the lease; if it was granted before, answer with its record."""
        return await self._pass(Wish(draws, record))
