"""What happened: noted by whoever does it, told to those who watch, and kept for those who ask.

Noting costs no store call. A moment later everything that was noted is written, combined: to the
feeds that somebody watches (`activity.feed`), and denials to where they are listed
(`activity.denials`).
"""

from __future__ import annotations

from random import randrange

from pricekeeper.activity.denial import Denial
from pricekeeper.activity.denials import DenialLog
from pricekeeper.activity.feed import FLUSH_MS, FLUSH_SPREAD_MS, Feed
from pricekeeper.activity.listening import Listeners
from pricekeeper.clock import Clock
from pricekeeper.storage import Store


class Activity:
    """The feed of a process, those who listen to it, and its denials."""

    def __init__(self, store: Store, clock: Clock, *, listeners_max: int) -> None:
        """Without listeners anywhere there is no feed."""
        self._clock = clock
        self.feed = Feed(store, clock, is_on=listeners_max > 0)
        self.listeners = Listeners(store, clock, self.feed, listeners_max=listeners_max)
        self.denials = DenialLog(store, clock)

    def note_denial(self, denial: Denial, org_name: str, app_name: str | None) -> None:
        """Note a call that was denied, and what people call whose it was."""
        self.denials.note(denial, org_name, app_name)
        self.feed.note_denial(denial)

    async def run_forever(self) -> None:
        """Write what was noted, again and again."""
        while True:
            # Not all processes at the same moment: each appends to the same feeds.
            await self._clock.sleep_ms(FLUSH_MS - randrange(FLUSH_SPREAD_MS))  # noqa: S311
            await self.flush()

    async def flush(self) -> None:
        """Write the denials, then announce them: a page reads them when it hears of them."""
        taken = self.feed.take()
        await self.denials.flush()
        await self.feed.publish(taken)

    async def close(self) -> None:
        """End the listeners, then write what was noted last."""
        await self.listeners.wait_closed()
        taken = self.feed.take()
        await self.denials.close()
        await self.feed.publish(taken)
