"""Checks secrets that came with a bcrypt hash, without blocking the event loop.

One check costs a quarter of a second of processor time by design. It runs on one of
`THREADS_MAX` threads of their own, which also bounds what callers that go away leave running. The
line in front of them has `PLACES_MAX` places, of which each organisation has its share, and they
take turns. Beyond that, a refusal at once is better than an answer after the caller has gone.

Until a client has been seen once, the time of the answer shows that its hash is one of these.
Doing as much work for clients that do not exist would hide that, and would let anybody keep
the processors busy with made-up names.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import bcrypt

from pricekeeper.concurrency import FairLine

PREFIX: Final = "$2b$"
THREADS_MAX: Final = 2
PLACES_MAX: Final = 64
"""One organisation alone has half of them: many processes of one client may log in at the same
moment, until one has succeeded."""
_COST_MAX: Final = 15
"""2**15 rounds, two seconds or so; a hash that asks for more is no hash of a client secret."""


def is_legacy(stored: str | None) -> bool:
    """Whether what is stored is a bcrypt hash."""
    return stored is not None and stored.startswith(PREFIX)


class LegacyHashes:
    """Checks bcrypt hashes, a few at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="pricekeeper-bcrypt")
        self._line = FairLine(THREADS_MAX, PLACES_MAX)

    async def matches(self, org_id: str, stored: str, secret: str) -> bool:
        """Whether the hash is the secret's; a malformed hash is nobody's."""
        if not stored[4:6].isdecimal() or int(stored[4:6]) > _COST_MAX:
            return False
        async with self._line.turn(org_id):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _matches, stored, secret)


def _matches(stored: str, secret: str) -> bool:
    try:
        return bcrypt.checkpw(secret.encode(), stored.encode())
    except ValueError:  # not a bcrypt hash after all, or not text
        return False
