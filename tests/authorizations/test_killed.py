"""Processes that are killed while they authorize: no budget is overspent, and nothing stays held.

Real processes on one SQLite file, and on DynamoDB behind a wire that loses requests and replies.
They are killed at random moments and started again, while some of what the dead have sent is still
under way and arrives after they are gone. The items are read all the time, and at the end.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from authorizations.authorize_process import policies
from authorizations.books import Auditor, copy_books, region_queries
from authorizations.conftest import COST_USD_PICOS, Instance
from fault_proxy import Fault, FaultProxy
from metering.conftest import new_org_id
from pricekeeper.authorizations import State
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import Query, Store, open_store
from stores import ShiftedClock

PROCESS = Path(__file__).with_name("authorize_process.py")
KILLS = 8
LINES_BETWEEN = (10, 120)
PATIENCE_SECS = 90
HOUR_MS = 3_600_000
SWEPT_AFTER_HOURS = (2, 27)
ODDS_PCT = {
    Fault.CLOSE_AFTER: 2,
    Fault.SERVER_ERROR_AFTER: 2,
    Fault.RESET_MID_BODY: 1,
    Fault.CLOSE_BEFORE: 2,
    Fault.SERVER_ERROR_BEFORE: 1,
    Fault.CONFLICT: 2,
}


class Told:
    """What the processes have told."""

    def __init__(self) -> None:
        self.lines = 0
        self.kinds: Counter[str] = Counter()
        self.granted: set[str] = set()
        self.captured: dict[str, int] = {}
        self.news = asyncio.Condition()

    async def note(self, line: str) -> None:
        kind, *rest = line.split()
        self.kinds[kind] += 1
        if kind == "granted":
            self.granted.add(rest[0])
        elif kind == "captured":
            self.captured[rest[0]] = int(rest[1])
        async with self.news:
            self.lines += 1
            self.news.notify_all()

    async def wait(self, lines: int) -> None:
        """Wait for so many more."""
        until = self.lines + lines
        async with self.news:
            await self.news.wait_for(lambda: self.lines >= until)


class Running:
    """One of the processes, and the reader of its output."""

    def __init__(self, process: asyncio.subprocess.Process, told: Told) -> None:
        self._process = process
        self._told = told
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, arguments: list[str], told: Told) -> "Running":
        command = [sys.executable, str(PROCESS), *arguments]
        made = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        return cls(made, told)

    async def kill(self) -> None:
        """With kill -9; what it had told before counts."""
        assert self._process.returncode is None, "it has ended by itself"
        self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):
                await self._told.note(line.decode())


class World:
    """The store, from outside of the processes."""

    def __init__(self, store: Store, clock: ShiftedClock) -> None:
        self.store = store
        self.clock = clock
        self.policies = policies(new_org_id())
        self.began_ms = clock.now_ms()
        self.looks = 0

    @property
    def org_id(self) -> str:
        return self.policies[0].org_id

    async def look(self) -> None:
        """No hard budget is overspent; each sheet is read in one piece."""
        auditor = await self.copy(self.queries())
        auditor.check_limits()
        self.looks += bool(auditor.balances())

    async def audit(self) -> Auditor:
        """Check everything while no process writes."""
        auditor = await self.copy(self.queries())
        auditor.check()
        auditor.check_limits()
        auditor.check_records()
        return auditor

    def queries(self) -> list[Query]:
        """Everything that may have been written, by the processes and by the sweeps after them."""
        queries: list[Query] = []
        for hours in (0, *SWEPT_AFTER_HOURS):
            first_ms = self.began_ms + hours * HOUR_MS
            last_ms = first_ms + PATIENCE_SECS * 1000
            queries += region_queries(self.policies[0], first_ms, last_ms)
        return queries

    async def copy(self, queries: list[Query]) -> Auditor:
        """An auditor of a copy of the accounts, and of what these queries find."""
        moments_ms = (self.began_ms, self.began_ms + HOUR_MS)
        return await copy_books(self.store, self.clock, self.policies, moments_ms, queries)


@pytest.fixture(params=["sqlite-file", "dynamodb_local", "dynoxide"])
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str
) -> AsyncIterator[tuple[str, str, FaultProxy | None]]:
    """The store by its own address, by that of the processes, and the wire between, if any."""
    if request.param == "sqlite-file":
        url = f"sqlite:///{tmp_path / 'store.db'}"
        yield url, url, None
        return
    endpoint: str = request.getfixturevalue(request.param)
    async with FaultProxy(endpoint) as proxy:
        url = f"dynamodb://us-east-1?prefix={table_prefix}&endpoint="
        yield url + endpoint, url + proxy.endpoint, proxy


@pytest.mark.slow
async def test_kill_9_overspends_nothing_and_leaves_nothing_held(
    engine: tuple[str, str, FaultProxy | None],
) -> None:
    """Every capture that was acknowledged is counted, once, in every account."""
    direct, through, proxy = engine
    clock = ShiftedClock()
    store = await open_store(parse_store_location(direct), clock=clock)
    await store.create_tables()
    world, told = World(store, clock), Told()
    async with asyncio.timeout(PATIENCE_SECS):
        await run_processes(world, [through, world.org_id], told, proxy)
        auditor = await world.audit()
    by_id = {one.shown_id: one for one in auditor.authorizations()}
    assert told.granted <= by_id.keys()
    assert all(by_id[one].state is State.CAPTURED for one in told.captured)
    assert set(told.captured.values()) == {COST_USD_PICOS}
    assert world.looks >= KILLS
    assert min(told.kinds[one] for one in ("granted", "captured", "denied")) > 20
    assert any(balance.held or balance.unsettled for balance in auditor.balances().values())

    survivor = Instance(store, clock)
    for hours in SWEPT_AFTER_HOURS:
        clock.shift_ms = hours * HOUR_MS
        await survivor.authorizations.expiry.sweep()
    await survivor.close()
    auditor = await world.audit()
    assert not any(balance.held for balance in auditor.balances().values())
    assert any(balance.unsettled for balance in auditor.balances().values())
    await store.close()


async def run_processes(
    world: World, arguments: list[str], told: Told, proxy: FaultProxy | None
) -> None:
    """Two processes or three, killed and started again."""
    random = Random(4)
    count = 2 if proxy is None else 3
    if proxy is not None:
        proxy.misbehave(4, ODDS_PCT)
    running = [await Running.start(arguments, told) for _ in range(count)]
    for _ in range(KILLS):
        await told.wait(random.randrange(*LINES_BETWEEN))
        await world.look()
        number = random.randrange(count)
        if proxy is not None:
            proxy.next(random.choice(("PutItem", "TransactWriteItems")), Fault.LATE)
            await told.wait(5)
        await running[number].kill()
        running[number] = await Running.start(arguments, told)
        if proxy is not None:
            await proxy.release()
        await world.look()
    for one in running:
        await one.kill()
    if proxy is not None:
        await proxy.release()
