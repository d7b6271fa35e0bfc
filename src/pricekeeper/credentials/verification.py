"""Compares secrets with stored hashes of every kind, at a bounded cost.

Our hashes cost microseconds and are always compared, also where nothing is stored, so that timing
shows nothing. A bcrypt hash of an imported client costs a quarter of a second. It is compared only
if nothing else matched, on `THREADS_MAX` threads; organisations take turns in a line of
`PLACES_MAX`, and further callers are refused. So until such a client's first login, timing shows
the kind of its hash.

**Doubted callers** have failed too often. Secrets of ours are still compared at once. An imported
one may be a password, so it waits for a turn of `TURN_MS`, which bounds guesses and cost. Made-up
names wait as long but get no turn. Organisations share `DOUBTED_PLACES_MAX` places; the longest
wait is 4 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import bcrypt
import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import FairLine
from pricekeeper.credentials.peppers import Peppers
from pricekeeper.errors import StoreError
from pricekeeper.storage import Set, Store, Update, attr
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, config_key

TURN_MS: Final = 250
DOUBTED_PLACES_MAX: Final = 16
PREFIX: Final = "$2b$"
THREADS_MAX: Final = 2
PLACES_MAX: Final = 64
"""One organisation can hold half: many processes of a client may log in at once."""
_COST_MAX: Final = 15
"""2**15 rounds take about two seconds; a hash with more is not accepted."""

_log = structlog.get_logger(__name__)


class DoubtedSecrets:
    """Gives turns for comparisons, one at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line = FairLine(1, DOUBTED_PLACES_MAX)

    @asynccontextmanager
    async def wait_for_turn(self, org_id: str) -> AsyncIterator[None]:
        async with self._line.turn(org_id):
            await self._clock.sleep_ms(TURN_MS)
            yield

    async def wait_as_if(self) -> None:
        await self._clock.sleep_ms((self._line.length + 1) * TURN_MS)


class BcryptHashes:
    """Compares bcrypt hashes in threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="pricekeeper-bcrypt")
        self._line = FairLine(THREADS_MAX, PLACES_MAX)

    async def matches(self, org_id: str, stored: str, secret: str) -> bool:
        """Compare in a turn of the organisation; a malformed hash matches nothing."""
        if not stored[4:6].isdecimal() or int(stored[4:6]) > _COST_MAX:
            return False
        async with self._line.turn(org_id):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _matches, stored, secret)


def _matches(stored: str, secret: str) -> bool:
    try:
        return bcrypt.checkpw(secret.encode(), stored.encode())
    except ValueError:  # no bcrypt hash, or no text
        return False


class Verifier:
    """Compares secrets with hashes. ``owner`` is part of what is hashed."""

    def __init__(self, store: Store, clock: Clock, peppers: Peppers) -> None:
        self._store = store
        self._peppers = peppers
        self._bcrypt = BcryptHashes()
        self.doubted = DoubtedSecrets(clock)

    async def matches(
        self,
        client: Client,
        owner: str,
        hashes: Mapping[str, str | None],
        secret: str,
        *,
        turn_needed: bool = False,
    ) -> bool:
        """Whether the secret has one of these hashes, named by their attribute of the client.

        A matching outdated hash is replaced. With ``turn_needed``, a bcrypt hash waits for a turn.
        """
        matched: str | None = None
        for attribute, stored in hashes.items():
            if self._peppers.matches(stored, owner, secret):
                matched = matched or attribute
        for attribute, stored in hashes.items():
            if stored is None or matched is not None or self._peppers.knows(stored):
                continue
            if not stored.startswith(PREFIX):
                _log.error("secret_hash_unreadable", owner=owner)
                continue
            turn = self.doubted.wait_for_turn(client.org_id) if turn_needed else nullcontext()
            async with turn:
                if await self._bcrypt.matches(client.org_id, stored, secret):
                    matched = attribute
        if matched is None:
            return False
        await self._rehash_outdated(client, owner, matched, hashes[matched] or "", secret)
        return True

    async def _rehash_outdated(
        self, client: Client, owner: str, attribute: str, stored: str, secret: str
    ) -> None:
        """Replace an outdated hash, unless it was changed; after a failure it stays valid."""
        if not self._peppers.is_outdated(stored):
            return
        actions = (Set(attribute, self._peppers.hash(owner, secret)),)
        same = attr(attribute).eq(stored)
        try:
            await self._store.update(Update(CONFIG, config_key(client), actions, same))
        except StoreError as error:
            _log.warning("secret_hash_kept", client_id=client.client_id, error=error.code)
        else:
            _log.info("secret_hash_upgraded", client_id=client.client_id)
