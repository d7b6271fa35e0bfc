"""A voided record is in no total: live, folded, rebuilt, by hour and tag, in budgets."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from http_fixtures import KEY, ORG, usage
from in_loop_service import Account, Reply, Service, register, serving
from minting import minted
from pricekeeper.clock import ManualClock
from pricekeeper.metering import journal, journal_items
from pricekeeper.metering.counters import NOTHING, Counters
from pricekeeper.metering.fold import Behind, Fold
from pricekeeper.metering.journal_reading import JournalListing, RecordFilter, RecordPage
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.ticks import TICK_MS, tick_of

COST = 15_400
NOON = 1_767_960_000_000
NOON_TO_FINAL_MS = 60 * 3_600_000
LANES = {"agg_shard_count": 32}
"""Four lanes, over which the pages of a region are spread."""
BUDGET = {"name": "monthly", "window": "MONTH", "limit_usd_micros": 10 * COST}


@dataclass
class World:
    """A service, its clock, and an app of it."""

    service: Service
    clock: ManualClock
    account: Account
    token: str

    @property
    def org(self) -> str:
        return f"/api/v1/orgs/{self.account.org_id}"

    async def record(self, request_id: str | None = None) -> str:
        sent = usage(request_id=request_id or minted(self.clock.now_ms()), tags={"team": "red"})
        done = await self.service.call("POST", f"{self.account.path}/usage", sent, token=self.token)
        assert done.status < 300, done.json
        return str(sent["request_id"])

    async def record_in_all_lanes(self) -> list[str]:
        """Pages that follow each other are in different lanes; one has an id without a time."""
        ids = [await self.record(str(uuid.uuid4()))]
        for _ in range(5):
            self.clock.advance_ms(16)
            ids.append(await self.record())
        return ids

    async def void(self, request_id: str) -> Reply:
        path = f"{self.org}/usage/{request_id}/void"
        return await self.service.provision("POST", path, {"reason": "by mistake"})

    async def get(self, path: str) -> Any:
        done = await self.service.provision("GET", path)
        assert done.status == 200, done.json
        return done.json

    async def fold(self) -> None:
        report = await self.service.inside.aggregator.run_once()
        assert not report.failed, report

    async def spent(self) -> tuple[int, int]:
        """What the totals of the day say: micro-dollars and requests."""
        day = (await self.get(f"{self.org}/aggregates/today"))["models"]["premium"]
        return day["cost_usd_micros"], day["requests"]

    async def by_tag(self) -> dict[str, tuple[int, int]]:
        first = "2026-01-09"
        path = f"/api/v1/spend?from={first}&to={first}&group_by=app,hour,tag:team"
        rows = (await self.get(path))["rows"]
        return {row["tag:team"]: (row["cost_usd_micros"], row["requests"]) for row in rows}

    async def budget(self) -> int:
        (one,) = (await self.get(f"{self.org}/budgets"))["budgets"]
        used: int = one["spent_usd_micros"]
        return used


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock(NOON)
    given_settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path, provisioning_key=KEY)
    async with serving(given_settings, clock) as service:
        account = await register(service, str(uuid.uuid4()), **LANES)
        org = {**ORG, **LANES, "budgets": [BUDGET], "tag_keys": ["team"]}
        path = f"/api/v1/orgs/{account.org_id}"
        assert (await service.provision("PUT", path, org)).status == 200
        made = await service.call("POST", "/auth/token", account.credentials)
        yield World(service, clock, account, made.json["access_token"])


async def test_an_id_without_a_time_can_be_voided_until_its_day_is_final(world: World) -> None:
    """Its moment is kept for longer than two days."""
    request_id = await world.record(str(uuid.uuid4()))
    world.clock.advance_ms(NOON_TO_FINAL_MS - 60_000)
    assert (await world.void(request_id)).status == 200


async def test_the_correction_finds_room_below_full_pages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of the same millisecond have filled the pages on which it would be."""
    for module in (journal, journal_items):
        monkeypatch.setattr(module, "FULL_WEIGHT", 1)
    ids = [await world.record() for _ in range(3)]
    for _ in range(2):
        assert (await world.void(ids[0])).status == 200
    await world.fold()
    assert await world.spent() == (2 * COST, 2)
    assert await world.budget() == 2 * COST


async def test_every_total_follows(world: World) -> None:
    """Whether the record was folded already or not, and whether its tick was closed."""
    folded = await world.record()
    await world.fold()
    open_tick, kept = await world.record(), await world.record()
    assert (await world.void(open_tick)).status == 200
    await world.fold()
    assert await world.spent() == (2 * COST, 2)
    world.clock.advance_ms(4 * TICK_MS)
    await world.fold()
    assert (await world.void(folded)).status == 200
    await world.fold()
    assert await world.spent() == (COST, 1)
    assert await world.by_tag() == {"red": (COST, 1)}
    assert await world.budget() == COST
    assert (await world.void(kept)).status == 200
    world.clock.advance_ms(4 * TICK_MS)
    await world.fold()
    assert await world.spent() == (0, 0)
    assert await world.budget() == 0
    report = await world.service.inside.aggregator.rebuild_day("20260109", world.account.org_id)
    assert (report.failed, report.changes) == (0, ())
    assert await world.spent() == (0, 0)


async def test_a_budget_that_is_opened_later_has_neither(world: World) -> None:
    """It is opened with what the journal adds up to."""
    voided = await world.record()
    await world.record()
    assert (await world.void(voided)).status == 200
    another = {**ORG, **LANES, "budgets": [{**BUDGET, "name": "another"}], "tag_keys": ["team"]}
    assert (await world.service.provision("PUT", world.org, another)).status == 200
    assert await world.budget() == COST


async def test_a_record_of_an_app_that_is_gone(world: World) -> None:
    """It is still part of what its organisation has spent."""
    voided = await world.record()
    await world.record()
    deleted = await world.service.provision("DELETE", world.account.path)
    assert deleted.status == 204
    assert (await world.void(voided)).status == 200
    await world.fold()
    assert await world.budget() == COST
    assert await world.spent() == (COST, 1)


async def test_a_record_says_that_it_is_voided_wherever_its_correction_is(world: World) -> None:
    """Two days later, where the list does not look."""
    ids = await world.record_in_all_lanes()
    world.clock.advance_ms(50 * 3_600_000)
    voided = {one: (await world.void(one)).json for one in ids[1:]}
    records = (await world.get(f"{world.org}/usage?to=2026-01-09"))["records"]
    assert {one["request_id"] for one in records} == set(ids)
    told = {one["request_id"]: one["correction_id"] for one in records if "voided_at" in one}
    assert told == {one: answer["correction_id"] for one, answer in voided.items()}


async def test_a_list_takes_no_more_reads_for_what_is_voided(world: World) -> None:
    """What it says of a record is read together with the record."""
    ids = await world.record_in_all_lanes()
    store = world.service.inside.store
    reads: list[str] = []

    class Watched:
        """The store, and its calls."""

        def __getattr__(self, name: str) -> object:
            reads.append(name)
            return getattr(store, name)

    async def read() -> tuple[RecordPage, list[str]]:
        reads.clear()
        listing = JournalListing(Watched())  # type: ignore[arg-type]
        ticks, wanted = (tick_of(NOON), tick_of(NOON)), RecordFilter(NOON, NOON + TICK_MS)
        return await listing.read_page(world.account.org_id, ticks, wanted, None), list(reads)

    first, before = await read()
    assert first.voided == {}
    world.clock.advance_ms(4 * TICK_MS)
    for one in ids:
        assert (await world.void(one)).status == 200
    page, after = await read()
    assert page.voided.keys() == set(ids) == {one.request_id for one in page.records}
    assert after == before


async def test_until_its_day_is_final(world: World) -> None:
    """Days later it is refused, and nothing is taken out."""
    early, late = await world.record(), await world.record()
    day_ms = 86_400_000
    world.clock.advance_ms(NOON // day_ms * day_ms + 3 * day_ms - NOON - 1_000)
    assert (await world.void(early)).status == 200
    world.clock.advance_ms(1_000)
    refused = await world.void(late)
    assert (refused.status, refused.json["code"]) == (409, "CONFLICT")
    assert "final" in refused.json["detail"]


RECORD = st.builds(Counters, *[st.integers(0, 9)] * 5, st.just(1), st.integers(0, 1))
EVENTS = st.lists(st.tuples(RECORD, st.integers(0, 2), st.none() | st.integers(0, 2)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.data())
def test_totals_move_forward_through_corrections(events: Any, data: st.DataObject) -> None:
    """The longer reading wins, even with a smaller sum; older readings are refused."""
    posted: list[tuple[int, Counters]] = []
    for record, tick, void_tick in events:
        posted.append((tick, record))
        if void_tick is not None and void_tick >= tick:
            posted.append((void_tick, NOTHING.less_voided(record)))
    fold = Fold()
    seen = 0
    for _ in range(4):
        upto = data.draw(st.integers(0, len(posted)))
        found: dict[int, Counters] = {}
        for tick, counters in posted[:upto]:
            found[tick] = found.get(tick, NOTHING) + counters
        try:
            fold = fold.forward(found, 3, -1) or fold
            seen = max(seen, upto)
        except Behind:
            assert upto < seen
    found = {}
    for tick, counters in posted:
        found[tick] = found.get(tick, NOTHING) + counters
    fold = fold.forward(found, 3, 3) or fold
    expected = NOTHING
    for _, counters in posted:
        expected += counters
    assert fold.total == expected
    assert all(amount >= 0 for amount in fold.total.amounts)
    rebuilt = fold.rebuilt(found, 3) or fold
    assert rebuilt.total == expected
