"""Denials are listed before the feed announces them, so a page that hears of one can show it."""

import pytest

from activity.happenings import ORG, denial
from faulty_store import Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from pricekeeper.activity import Activity
from pricekeeper.activity.denials import DenialListing
from pricekeeper.activity.event import DeniedCalls
from pricekeeper.activity.items import feed_item_from, feed_query
from pricekeeper.clock import ManualClock


async def announced(store: MemoryStore) -> set[str]:
    """Return the models of the denials in the organisation's feed."""
    page = await store.query(feed_query(ORG, 0))
    events = [event for item in page.items for event in feed_item_from(item).events]
    return {event.model for event in events if isinstance(event, DeniedCalls)}


async def listed(store: MemoryStore, clock: ManualClock) -> set[str]:
    """Return the models of the denials that the API lists."""
    page = await DenialListing(store).read_org(ORG, clock.now_ms() - 60_000, clock.now_ms())
    return {one.group.model for one in page.entries}


@pytest.mark.parametrize("seed", range(20))
async def test_a_denial_is_listed_before_it_is_announced(clock: ManualClock, seed: int) -> None:
    """Also one that is noted while others are being written."""
    inner, turns = MemoryStore(clock), Interleaving(seed)
    activity = Activity(FaultyStore(inner, turns, Faults()), clock, listeners_max=1)
    await activity.feed.watch(ORG)
    models = [f"model-{number}" for number in range(6)]

    async def note_some() -> None:
        for model in models:
            activity.note_denial(denial(clock.now_ms(), model=model), "Acme", None)
            await turns.turns(2)

    async def look() -> None:
        for _ in range(40):
            await turns.turn()
            assert await announced(inner) <= await listed(inner, clock)

    async def flush() -> None:
        for _ in range(3):
            await activity.flush()
            await turns.turn()

    outcomes = await turns.run(note_some(), look(), flush())
    assert outcomes == [None, None, None]
    await activity.close()
    assert await announced(inner) == await listed(inner, clock) == set(models)
