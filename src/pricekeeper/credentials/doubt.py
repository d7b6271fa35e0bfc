"""Compares secrets that somebody may be guessing one after another, a few a second.

A caller that has failed too often is doubted, but a right secret must still be recognised. Secrets
that we minted can be compared at any rate: they have 256 random bits. A secret of another make
may be a person's password, and its hash may cost a quarter of a second. So a doubted secret of
that kind waits for its turn, and turns take `TURN_MS` each. That bounds both what can be guessed
and what guessing costs us, and a right secret only waits.

Turns are for clients that there are: anybody can make up names, and would take the turns of all
others. A made-up name waits as long as it would have to, so that the wait says nothing. Clients
take turns by organisation, and an organisation has its share of `PLACES_MAX` places, so that
guesses at one organisation leave turns to the others. Who is last in a full line waits for 4 s,
which is within the deadline of a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import FairLine

TURN_MS: Final = 250
PLACES_MAX: Final = 16


class DoubtedSecrets:
    """Gives turns, one at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line = FairLine(1, PLACES_MAX)

    @asynccontextmanager
    async def wait_for_turn(self, org_id: str) -> AsyncIterator[None]:
        """Wait for a turn; the comparison is made within it."""
        async with self._line.turn(org_id):
            await self._clock.sleep_ms(TURN_MS)
            yield

    async def wait_as_if(self) -> None:
        """Wait as long as somebody would who joined the line now, without a turn in it."""
        await self._clock.sleep_ms((self._line.length + 1) * TURN_MS)
