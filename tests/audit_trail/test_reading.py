"""Listing entries: the newest first, by whom and what and when, in pages without gaps."""

from collections.abc import Callable
from typing import Any

import pytest

from attribution import BY
from audit_trail.conftest import a_change
from pricekeeper.audit import AuditTrail, Change, reading
from pricekeeper.audit import items as trail_items
from pricekeeper.audit.entry import chain_of
from pricekeeper.audit.reading import EntryPage, TrailCursor, TrailReader, WantedEntries
from pricekeeper.authority import Attribution
from pricekeeper.errors import InvalidValueError
from pricekeeper.storage import Put, Set, Store, Update
from pricekeeper.storage.tables import AUDIT_TRAIL
from pricekeeper.telemetry import StoreMeter
from pricekeeper.values import OrgId
from stores import ShiftedClock, stored
from tenants.conftest import new_org_id

HOUR_MS = 3_600_000


@pytest.fixture
def reader(store: Store) -> TrailReader:
    return TrailReader(store)


@pytest.fixture
async def orgs(trail: AuditTrail, clock: ShiftedClock) -> tuple[OrgId, OrgId]:
    """Make 30 entries of two organisations in turns, one an hour."""
    pair = new_org_id(), new_org_id()
    for number in range(30):
        clock.shift_ms = number * HOUR_MS
        by = Attribution(f"cli/{('jane', 'joe')[number % 3 == 0]}", "local", "local")
        action = "freeze" if number % 5 else "credentials.revoke"
        await trail.apply(by, Change(action, f"t{number}", pair[number % 2]), ())
    return pair


def targets(page: EntryPage) -> list[str]:
    return [entry.target for entry in page.entries]


async def all_of(
    reader: TrailReader, org_id: OrgId, wanted: WantedEntries, limit: int
) -> list[str]:
    """Every page, which ends."""
    found, after = list[str](), None
    while True:
        page = await reader.list_org(org_id, wanted, after, limit)
        found += targets(page)
        after = page.after
        if after is None:
            return found


async def test_a_copy_under_another_key_is_not_listed(
    reader: TrailReader, store: Store, orgs: tuple[OrgId, OrgId]
) -> None:
    """A foreign item does not stop the others from being listed."""
    org_id = orgs[0]
    listed = await all_of(reader, org_id, WantedEntries(), 1)
    item = await stored(store, AUDIT_TRAIL, trail_items.entry_key(chain_of(org_id), 15))
    for sort_key in ("15", f"{15:013}", "copy"):
        await store.put(Put(AUDIT_TRAIL, {**item, "SK": sort_key}))
    assert await all_of(reader, org_id, WantedEntries(), 1) == listed


async def test_pages_follow_each_other_the_newest_first(
    reader: TrailReader, orgs: tuple[OrgId, OrgId]
) -> None:
    """With pages of every size, of one organisation and of both."""
    wanted = [f"t{number}" for number in range(28, -1, -2)]
    for limit in (1, 4, 15, 100):
        assert await all_of(reader, orgs[0], WantedEntries(), limit) == wanted
        found, after = list[str](), None
        while True:
            page = await reader.list_all(WantedEntries(), after, limit, covered=orgs)
            found += targets(page)
            after = page.after
            if after is None:
                break
        assert found == [f"t{number}" for number in range(29, -1, -1)]


@pytest.mark.parametrize(
    ("filters", "fits"),
    [
        ({"actor": "cli/joe"}, lambda number: number % 3 == 0),
        ({"actor": "cli"}, lambda _: True),
        ({"actor": "cl"}, lambda _: False),
        ({"action": "credentials"}, lambda number: number % 5 == 0),
        ({"action": "credentials.revoke"}, lambda number: number % 5 == 0),
        ({"action": "freez"}, lambda _: False),
        ({"actor": "cli/joe", "action": "freeze"}, lambda n: n % 3 == 0 and n % 5 != 0),
    ],
)
async def test_only_what_is_wanted_is_listed(
    reader: TrailReader,
    orgs: tuple[OrgId, OrgId],
    filters: dict[str, Any],
    fits: Callable[[int], bool],
) -> None:
    """By the whole name, or the part before its separator."""
    expected = [number for number in range(29, -1, -1) if fits(number)]
    both = await reader.list_all(WantedEntries(**filters), None, covered=orgs)
    assert targets(both) == [f"t{number}" for number in expected]
    even = [f"t{number}" for number in expected if number % 2 == 0]
    assert await all_of(reader, orgs[0], WantedEntries(**filters), 3) == even


async def test_a_time_has_a_first_moment_and_an_end(
    reader: TrailReader, orgs: tuple[OrgId, OrgId]
) -> None:
    """The first is included, the end is not, to the millisecond."""
    page = await reader.list_all(WantedEntries(), None, covered=orgs)
    moments = [entry.at_ms for entry in page.entries]
    wanted = WantedEntries(first_ms=moments[20], end_ms=moments[10])
    expected = [f"t{number}" for number in range(18, 8, -1)]
    assert targets(await reader.list_all(wanted, None, covered=orgs)) == expected
    assert await all_of(reader, orgs[0], wanted, 2) == expected[::2]
    assert await all_of(reader, orgs[0], WantedEntries(first_ms=5, end_ms=5), 2) == []
    assert targets(await reader.list_all(WantedEntries(first_ms=5, end_ms=5), None)) == []


async def test_a_page_looks_at_a_bounded_number_of_entries(
    reader: TrailReader,
    orgs: tuple[OrgId, OrgId],
    meter: StoreMeter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing fits it is empty, and has a next one."""
    monkeypatch.setattr(reading, "LOOKED_AT_MAX", 5)
    meter.clear()
    page = await reader.list_org(orgs[0], WantedEntries(actor="unknown"), None)
    assert targets(page) == []
    assert page.after is not None
    assert page.after.seq == 11
    everything = await reader.list_all(WantedEntries(actor="unknown"), None)
    assert everything.entries == []
    assert everything.after is not None
    assert meter.calls["query"] == 2
    assert await all_of(reader, orgs[0], WantedEntries(action="credentials"), 100) == [
        "t20",
        "t10",
        "t0",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "7", "x", "0190c1a5-0000-7000-8000-000000000000"),
        *(f"0190c1a5-0000-7000-8000-000000000000-{seq}" for seq in ("0", "01", "x", "1" * 13)),
        "0190C1A5-0000-7000-8000-000000000000-1",
        "0190c1a5-0000-7000-8000-000000000000-\u0661",
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """And a cursor is what its text was."""
    with pytest.raises(InvalidValueError) as refused:
        TrailCursor.parse(text)
    assert refused.value.field == "after"
    cursor = TrailCursor("0190c1a5-0000-7000-8000-000000000000", 12)
    assert TrailCursor.parse(cursor.text) == cursor


async def test_an_entry_that_can_not_be_read_hides_no_other(
    reader: TrailReader, store: Store, trail: AuditTrail, org_id: OrgId
) -> None:
    """It is reported, and `audit verify` tells of it."""
    for number in range(3):
        await trail.apply(BY, a_change(org_id, f"t{number}"), ())
    key = trail_items.entry_key(chain_of(org_id), 2)
    await store.update(Update(AUDIT_TRAIL, key, (Set("entry", "{}"),)))
    assert targets(await reader.list_org(org_id, WantedEntries(), None)) == ["t2", "t0"]
    assert targets(await reader.list_all(WantedEntries(), None, covered=[org_id])) == ["t2", "t0"]
