"""Whether the store answers, asked at most once a second however often somebody wants to know.

Anybody may ask ``/readyz``, and each look into the store costs money on DynamoDB. So one look
answers everybody who asks while it is under way, and everybody within a second of its beginning.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.errors import StoreError
from pricekeeper.storage import Key, Store
from pricekeeper.storage.tables import CONFIG

MEMORY_MS: Final = 1_000
_PROBE: Final = Key("readyz", "readyz")


class Readiness:
    """What is known of the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._look: asyncio.Task[bool] | None = None
        """The last one, under way or done."""
        self._began_ms = 0

    async def check(self) -> bool:
        """Whether the store answers, by a look that began a second ago at most."""
        now_ms = self._clock.monotonic_ms()
        look = self._look
        if look is None or (look.done() and now_ms - self._began_ms >= MEMORY_MS):
            look = asyncio.create_task(self._ask(), name="pricekeeper-readiness")
            self._look, self._began_ms = look, now_ms
        # Whoever has begun it may leave; the others still wait for it.
        return await asyncio.shield(look)

    async def close(self) -> None:
        """Wait for a look that is under way: the store closes next."""
        if self._look is not None:
            await asyncio.wait([self._look])

    async def _ask(self) -> bool:
        try:
            await self._store.get(CONFIG, _PROBE)
        except StoreError:
            return False
        return True
