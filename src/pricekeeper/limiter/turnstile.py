"""Who comes to a bucket while writes to it are under way goes into the next one, with others.

Writes of one process that would race each other go one after another, and whoever waits
shares the next with everybody else who waits. So the busier a bucket is, the more requests one
write serves: a hot bucket takes as many writes as fit one after another, however many requests
there are. Nobody waits on purpose: who finds the bucket free goes at once, and so do up to
`LANES_MAX` whose writes are not in each other's way: those that only take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from pricekeeper.concurrency import error_copy
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.limiter.bucket import Denial, Draw, Retry, plan
from pricekeeper.limiter.items import LeaseRecord
from pricekeeper.limiter.taking import Outcome, Round, Taken, Wish
from pricekeeper.limiter.bucket_cache import BucketCache

ROUND_MAX: Final = 64
"""Requests in one round: their records have to fit into one transaction."""
LANES_MAX: Final = 8
"""Rounds of one chain that may be under way at the same time."""

_Chain: TypeAlias = tuple[tuple[str, str], ...]


class _Place:
    """A wish in line. Its turn tells whom it is to lead through; ``None`` if it was led itself."""

    __slots__ = ("turn", "wish")

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.turn: asyncio.Future[list[_Place] | None] = asyncio.get_running_loop().create_future()


class _Line:
    """Who waits in front of one chain, and how many rounds of it are under way."""

    __slots__ = ("lanes", "waiting")

    def __init__(self) -> None:
        self.lanes = 0
        self.waiting: list[_Place] = []


class Turnstile:
    """The lines in front of the buckets; as long as there are callers who wait."""

    def __init__(self, cache: BucketCache) -> None:
        self._cache = cache
        self._lines: dict[_Chain, _Line] = {}

    async def take(self, draws: Sequence[Draw]) -> Taken | Denial:
        """Take from all of these buckets or none, for a lease of which there is no record."""
        outcome = await self._pass(Wish(draws))
        if isinstance(outcome, LeaseRecord):
            raise TypeError("a lease without a name has no record")
        return outcome

    async def take_named(self, draws: Sequence[Draw], record: LeaseRecord) -> Outcome:
        """As `take`, and record the lease; if it was granted before, its record is the answer."""
        return await self._pass(Wish(draws, record))

    async def _pass(self, wish: Wish) -> Outcome:
        chain = tuple((draw.entity, draw.resource) for draw in wish.draws)
        line = self._lines.setdefault(chain, _Line())
        if line.lanes == 0 or (line.lanes < LANES_MAX and self._only_takes(wish)):
            line.lanes += 1
            await self._lead(chain, wish, [])
        else:
            place = _Place(wish)
            line.waiting.append(place)
            followers = await place.turn
            if followers is not None:
                await self._lead(chain, wish, followers)
        if wish.outcome is None:
            raise OutcomeUnknownError("whoever went first did not come back")
        return wish.outcome

    def _only_takes(self, wish: Wish) -> bool:
        """Whether its write is, as far as we know, one that others can't be in the way of."""
        if len(wish.draws) > 1 or wish.record is not None:
            return False  # transactions on one item refuse each other
        draw = wish.draws[0]
        bucket = self._cache.recall(draw)
        return isinstance(plan(bucket, draw, self._cache.read_clock_ms(draw, bucket)), Retry)

    async def _lead(self, chain: _Chain, wish: Wish, followers: Sequence[_Place]) -> None:
        """Go through together, tell the others what came of it, and let the next ones go."""
        failure: Exception | None = None
        try:
            await Round(self._cache, [wish, *(one.wish for one in followers)]).run()
        except Exception as error:  # noqa: BLE001 - raised by everybody whom it concerns
            failure = error
        finally:
            for one in followers:
                if one.turn.done():
                    continue
                if one.wish.outcome is None and failure is not None:
                    one.turn.set_exception(error_copy(failure))
                else:
                    one.turn.set_result(None)
            self._let_next_go(chain)
        if failure is not None and wish.outcome is None:
            raise failure

    def _let_next_go(self, chain: _Chain) -> None:
        line = self._lines[chain]
        line.waiting = [one for one in line.waiting if not one.turn.done()]
        if line.waiting:
            leader, *rest = line.waiting
            together = [one for one in rest if one.wish.goes_with(leader.wish)]
            followers = together[: ROUND_MAX - 1]
            led = set(followers)
            line.waiting = [one for one in rest if one not in led]
            leader.turn.set_result(followers)
        else:
            line.lanes -= 1
            if line.lanes == 0:
                del self._lines[chain]
