"""Activity: live events and denials of a process.

Noting costs no store call. Notes are soon written, combined: events to watched feeds
(`activity.feed`), denials to their lists (`activity.denials`).
"""

from __future__ import annotations

from random import randrange

from pricekeeper.activity.denials import DenialLog
from pricekeeper.activity.event import Denial
from pricekeeper.activity.feed import FLUSH_MS, FLUSH_SPREAD_MS, Feed
from pricekeeper.activity.listening import Listeners
from pricekeeper.clock import Clock
from pricekeeper.storage import Store


class Activity:
    """The feed of a process, its listeners, and its denials."""

    def __init__(self, store: Store, clock: Clock, *, listeners_max: int) -> None:
        """With ``listeners_max`` 0 there is no feed."""
        self._clock = clock
        self.feed = Feed(store, clock, is_on=listeners_max > 0)
        self.listeners = Listeners(store, clock, self.feed, listeners_max=listeners_max)
        self.denials = DenialLog(store, clock)

    def note_denial(self, denial: Denial, org_name: str, app_name: str | None) -> None:
        self.denials.note(denial, org_name, app_name)
        self.feed.note_denial(denial)

    async def run_forever(self) -> None:
        while True:
            # Spread, because all processes append to the same feeds.
            await self._clock.sleep_ms(FLUSH_MS - randrange(FLUSH_SPREAD_MS))  # noqa: S311
            await self.flush()

    async def flush(self) -> None:
        """Write the denials before their events: a page reads them when it gets the event."""
        taken = self.feed.take()
        await self.denials.flush()
        await self.feed.publish(taken)

    async def close(self) -> None:
        await self.listeners.wait_closed()
        taken = self.feed.take()
        await self.denials.close()
        await self.feed.publish(taken)
