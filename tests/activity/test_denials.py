"""Denials are combined by minute, written behind the answers, and bounded."""

import pytest

from activity.happenings import ORG, OTHER_ORG, denial
from faulty_store import Faults, FaultyStore, Interleaving
from memory_store import MemoryStore
from pricekeeper.activity import denials as log
from pricekeeper.activity.denials import DenialListing, DenialLog, Listed
from pricekeeper.activity.event import WHY_BYTES_MAX, bounded_why
from pricekeeper.clock import ManualClock
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter

MINUTE_MS = 60_000


async def listed(store: Store, clock: ManualClock, org_id: str = ORG) -> list[Listed]:
    first, last = clock.now_ms() - 86_400_000, clock.now_ms() + MINUTE_MS
    page = await DenialListing(store).read_org(org_id, first, last)
    assert page.after is None
    return page.entries


def note(noted: DenialLog, at_ms: int, **changes: object) -> None:
    noted.note(denial(at_ms, **changes), "Acme", "Web")


async def test_a_flood_of_denials_is_a_handful_of_writes(
    store: Store, clock: ManualClock, meter: StoreMeter
) -> None:
    """A hundred thousand in a minute: two at first, then one every ten seconds."""
    noted = DenialLog(store, clock)
    began_ms = clock.now_ms()
    for _ in range(100):
        for _ in range(1000):
            note(noted, clock.now_ms())
        clock.advance_ms(600)
        await noted.flush()
    assert meter.calls["put"] <= 2 + 6
    assert not meter.calls.keys() - {"put"}
    (row,) = await listed(store, clock)
    assert row.group.count == 100_000
    assert (row.group.first_at_ms, row.group.last_at_ms) == (began_ms, began_ms + 99 * 600)
    meter.clear()
    clock.advance_ms(MINUTE_MS)
    await noted.flush()
    assert not meter.calls


async def test_the_first_denial_is_written_at_once_and_the_rest_by_the_end(
    store: Store, clock: ManualClock
) -> None:
    """So a list is a second behind for what is new, and ten for how often."""
    noted = DenialLog(store, clock)
    note(noted, clock.now_ms())
    await noted.flush()
    assert [row.group.count for row in await listed(store, clock)] == [1]
    clock.advance_ms(9_000)
    note(noted, clock.now_ms())
    await noted.flush()
    assert [row.group.count for row in await listed(store, clock)] == [1]
    clock.advance_ms(1_000)
    await noted.flush()
    assert [row.group.count for row in await listed(store, clock)] == [2]
    note(noted, clock.now_ms())
    clock.advance_ms(MINUTE_MS)
    await noted.flush()
    assert [row.group.count for row in await listed(store, clock)] == [3]


async def test_one_organisation_has_so_many_groups_and_no_more(
    store: Store, clock: ManualClock, meter: StoreMeter
) -> None:
    """The rest counts as one, without an example; a neighbour is not concerned."""
    noted = DenialLog(store, clock)
    for number in range(10_000):
        note(noted, clock.now_ms(), model=f"label-{number}")
    note(noted, clock.now_ms(), org_id=OTHER_ORG)
    await noted.flush()
    assert meter.calls["put"] == 2 * (log.GROUPS_MAX + 2)
    rows = await listed(store, clock)
    others = [row.group for row in rows if row.group.model == log.OTHER]
    assert (len(rows), [other.count for other in others]) == (33, [10_000 - log.GROUPS_MAX])
    assert others[0].why == {}
    assert [row.group.count for row in await listed(store, clock, OTHER_ORG)] == [1]


async def test_processes_that_count_the_same_are_shown_as_one(
    store: Store, clock: ManualClock
) -> None:
    """Added up, with the example of the earliest."""
    first, second = DenialLog(store, clock), DenialLog(store, clock)
    note(second, clock.now_ms() + 2, why={"detail": "later"})
    note(first, clock.now_ms() + 1, why={"detail": "earlier"})
    note(first, clock.now_ms() + 5)
    for noted in (first, second):
        await noted.flush()
    (row,) = await listed(store, clock)
    assert (row.group.count, row.group.why) == (3, {"detail": "earlier"})
    began_ms = clock.now_ms()
    assert (row.group.first_at_ms, row.group.last_at_ms) == (began_ms + 1, began_ms + 5)


async def test_what_the_store_does_not_take_is_tried_again(clock: ManualClock) -> None:
    """Also after a lost reply: a group is written as a whole, and counts once."""
    inner = MemoryStore(clock)
    for seed in range(30):
        turns = Interleaving(seed)
        faults = Faults(refused_pct=30, request_lost_pct=15, reply_lost_pct=15, resent_pct=15)
        noted = DenialLog(FaultyStore(inner, turns, faults), clock)
        org_id = f"{seed:08d}{ORG[8:]}"
        for _ in range(6):
            note(noted, clock.now_ms(), org_id=org_id)
            await turns.run(noted.flush())
            clock.advance_ms(10_000)
        await noted.flush()
        rows = await listed(inner, clock, org_id)
        assert sum(row.group.count for row in rows) == 6
        assert not noted.meter.lost


async def test_a_store_that_never_takes_them_costs_no_memory_for_ever(clock: ManualClock) -> None:
    """They are given up, and counted as lost."""
    turns = Interleaving(0)
    noted = DenialLog(FaultyStore(MemoryStore(clock), turns, Faults(refused_pct=100)), clock)
    note(noted, clock.now_ms())
    for _ in range(8):
        await turns.run(noted.flush())
        clock.advance_ms(MINUTE_MS)
    assert (noted.meter.lost, len(noted._pending)) == (1, 0)


async def test_what_is_noted_last_is_written_at_the_end(store: Store, clock: ManualClock) -> None:
    """A service that is stopped in order leaves nothing behind."""
    noted = DenialLog(store, clock)
    note(noted, clock.now_ms())
    await noted.flush()
    note(noted, clock.now_ms())
    await noted.close()
    assert [row.group.count for row in await listed(store, clock)] == [2]


async def test_they_are_kept_for_five_weeks(store: Store, clock: ManualClock) -> None:
    noted = DenialLog(store, clock)
    note(noted, clock.now_ms())
    await noted.flush()
    at_ms = clock.now_ms()
    clock.advance_ms(35 * 86_400_000 - 1000)
    listing = DenialListing(store)
    assert len((await listing.read_org(ORG, at_ms, at_ms)).entries) == 1
    clock.advance_ms(61_000)
    assert (await listing.read_org(ORG, at_ms, at_ms)).entries == []


def test_an_example_is_bounded_and_says_what_it_lacks() -> None:
    small = {"detail": "no", "denied_by": [{"name": "a"}], "considered": [1], "tags": {"a": "b"}}
    assert bounded_why(small) == small
    large = small | {"considered": ["x" * WHY_BYTES_MAX]}
    assert bounded_why(large) == {
        "detail": "no", "denied_by": [{"name": "a"}], "tags": {"a": "b"}, "left_out": ["considered"]
    }  # fmt: skip
    larger = large | {"tags": {"a": "x" * WHY_BYTES_MAX}}
    assert bounded_why(larger)["left_out"] == ["considered", "tags"]


def test_lines_of_the_metrics_are_bounded(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SERIES_MAX", 2)
    noted = DenialLog(MemoryStore(clock), clock)
    for number in range(5):
        note(noted, 0, model=f"label-{number}")
        note(noted, 0, model=f"label-{number}")
    assert len(noted.totals) == 3
    assert noted.totals[log.OTHERS] == 6
    assert noted.totals.total() == 10
