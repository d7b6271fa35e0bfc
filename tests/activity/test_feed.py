"""Feeds: numbered without gaps by all writers, on every store, and written only if watched."""

import asyncio
from collections.abc import Iterable

import pytest

from activity.happenings import ORG, OTHER_ORG, counted, note_counted
from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from pricekeeper.activity import feed as feeds
from pricekeeper.activity.event import AlertNotice, CountedSpend
from pricekeeper.activity.feed import Feed
from pricekeeper.activity.items import ALL, WATCH_SECS, FeedItem, feed_item_from, feed_query
from pricekeeper.authority import ALL_ORGS, only
from pricekeeper.clock import ManualClock
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.usecases.activity import tell
from pricekeeper.usecases.spend import Viewer
from pricekeeper.values import OrgId


async def read(store: Store, audience: str = ORG, behind: int = 0) -> list[FeedItem]:
    page = await store.query(feed_query(audience, behind))
    return [feed_item_from(item) for item in page.items]


def ids(items: Iterable[FeedItem]) -> list[str]:
    return [
        record.request_id
        for item in items
        for event in item.events
        if isinstance(event, CountedSpend)
        for record in event.records
    ]


async def test_nothing_is_written_that_nobody_watches(
    store: Store, clock: ManualClock, meter: StoreMeter
) -> None:
    """A flush with something to tell asks once; one with nothing asks nothing."""
    feed = Feed(store, clock)
    note_counted(feed, ORG, counted())
    await feed.flush()
    assert meter.calls == {"query": 1}
    await feed.flush()
    assert meter.calls == {"query": 1}


async def test_each_audience_is_told_its_own(store: Store, clock: ManualClock) -> None:
    """An organisation sees its own events, the feed of all sees everything."""
    feed = Feed(store, clock)
    for audience in (ORG, ALL):
        await feed.watch(audience)
    note_counted(feed, ORG, counted("mine"))
    note_counted(feed, OTHER_ORG, counted("other"))
    await feed.flush()
    assert ids(await read(store)) == ["mine"]
    assert sorted(ids(await read(store, ALL))) == ["mine", "other"]
    assert await read(store, OTHER_ORG) == []


async def test_what_is_about_the_deployment_is_told_to_whoever_sees_all(
    store: Store, clock: ManualClock
) -> None:
    feed = Feed(store, clock)
    for audience in (ORG, ALL):
        await feed.watch(audience)
    alert = AlertNotice(None, 7, None, {"title": "the aggregator is behind"})
    feed.note_alert(alert)
    await feed.flush()
    told, others = [[one.events for one in await read(store, whose)] for whose in (ALL, ORG)]
    assert sum(told, ()) == (alert,)
    assert sum(others, ()) == ()
    everybody, one = Viewer(ALL_ORGS, None), Viewer(only(OrgId(ORG)), None)
    assert tell(alert, one) is None
    assert tell(alert, everybody) is not None


async def test_numbers_have_no_gap_whoever_writes(store: Store, clock: ManualClock) -> None:
    """Ten processes at once: each event arrives once."""
    writers = [Feed(store, clock) for _ in range(10)]
    begun = await writers[0].watch(ORG)
    for turn in range(3):
        for number, writer in enumerate(writers):
            note_counted(writer, ORG, counted(f"{turn}-{number}"))
        await asyncio.gather(*(writer.flush() for writer in writers))
    items = await read(store)
    assert sorted(ids(items)) == sorted(f"{t}-{n}" for t in range(3) for n in range(10))
    assert [item.number for item in items] == list(range(begun, begun + 31))
    assert all(item.is_complete for item in items)


async def test_a_feed_goes_on_while_it_is_watched(store: Store, clock: ManualClock) -> None:
    feed = Feed(store, clock)
    begun = await feed.watch(ORG)
    for second in range(4):
        note_counted(feed, ORG, counted(str(second)))
        await feed.flush()
        clock.advance_ms(WATCH_SECS * 500)
        assert await Feed(store, clock).watch(ORG) == begun + second + 1


async def test_a_feed_that_nobody_watched_goes_on_behind_a_gap(
    store: Store, clock: ManualClock
) -> None:
    """So that earlier watchers see the gap, and no writer continues the old numbers."""
    feed = Feed(store, clock)
    await feed.watch(ORG)
    note_counted(feed, ORG, counted("before"))
    await feed.flush()
    (_, last) = await read(store)
    clock.advance_ms(WATCH_SECS * 1000)
    note_counted(feed, ORG, counted("unseen"))
    await feed.flush()
    begun = await Feed(store, clock).watch(ORG)
    assert begun > last.number + 1
    note_counted(feed, ORG, counted("after"))
    await feed.flush()
    items = await read(store, behind=last.number)
    assert [item.number for item in items] == [begun, begun + 1]
    assert ids(items) == ["after"]


async def test_what_has_no_room_is_said_to_be_missing(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BYTES_MAX", 300)
    feed = Feed(store, clock)
    await feed.watch(ALL)
    for number in range(20):
        note_counted(feed, f"{number:08d}{ORG[8:]}", counted(str(number)))
    await feed.flush()
    _, item = await read(store, ALL)
    assert not item.is_complete
    assert 0 < len(item.events) < 4
    note_counted(feed, ORG, counted("next"))
    await feed.flush()
    assert (await read(store, ALL))[-1].is_complete


async def test_what_could_not_be_written_is_said_to_be_missing(clock: ManualClock) -> None:
    """With the next item, and also if nothing more happens; then all is well again."""
    inner = MemoryStore(clock)
    turns = Interleaving(1)
    store = FaultyStore(inner, turns, Faults(refused_pct=100, spare_reads=True))
    feed = Feed(store, clock)
    await feed.watch(ORG)
    note_counted(feed, ORG, counted("lost"))
    await turns.run(feed.flush())
    assert feed.meter.failed == 1
    await feed.flush()
    (_, item) = await read(inner)
    assert (item.events, item.is_complete) == ((), False)
    await feed.flush()
    note_counted(feed, ORG, counted("told"))
    await feed.flush()
    last = (await read(inner))[-1]
    assert (ids([last]), last.is_complete) == (["told"], True)


async def test_a_feed_that_is_off_notes_nothing(store: Store, clock: ManualClock) -> None:
    feed = Feed(store, clock, is_on=False)
    await Feed(store, clock).watch(ORG)
    note_counted(feed, ORG, counted())
    feed.note_alert(AlertNotice(ORG, 0, None, {}))
    await feed.flush()
    assert ids(await read(store)) == []


FAULTS = Faults(
    refused_pct=4, request_lost_pct=5, reply_lost_pct=6, late_pct=6, resent_pct=5, crashed_pct=2
)


@pytest.mark.parametrize("seed", range(60))
async def test_through_every_failure_each_moment_is_told_once_or_said_to_be_missing(
    seed: int,
) -> None:
    """Lost requests and replies, copies that come late, crashes: numbers without gap, no repeats.

    Every noted event arrives exactly once, unless its process was killed, or a later item is
    marked as incomplete.
    """
    clock = ManualClock()
    inner, turns = MemoryStore(clock), Interleaving(seed)
    store = FaultyStore(inner, turns, FAULTS)
    begun = await Feed(inner, clock).watch(ORG)
    writers = [Feed(store, clock) for _ in range(3)]
    noted: dict[int, list[str]] = {number: [] for number in range(3)}
    dead: set[int] = set()

    async def work(number: int) -> None:
        for turn in range(6):
            name = f"{number}-{turn}"
            noted[number].append(name)
            note_counted(writers[number], ORG, counted(name))
            try:
                await writers[number].flush()
            except Crashed:
                dead.add(number)
                raise

    await turns.run(*(work(number) for number in range(3)))
    await store.deliver()
    for number, writer in enumerate(writers):
        if number not in dead:
            await writer.flush()
    items = await read(inner)
    told = ids(items)
    assert len(told) == len(set(told))
    assert [item.number for item in items] == list(range(begun, begun + len(items)))
    missing = [n for number in {0, 1, 2} - dead for n in noted[number] if n not in told]
    incomplete = sum(not item.is_complete for item in items)
    assert not missing or incomplete
    failed = sum(writer.meter.failed for writer in writers)
    assert not (missing and not failed)
