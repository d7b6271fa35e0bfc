"""Readiness: whether the store takes writes, probed at most once a second."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from http_fixtures import store_url
from pricekeeper.clock import ManualClock
from pricekeeper.errors import StoreError, StoreUnavailableError
from pricekeeper.http.health import HANGS, MEMORY_MS, PROBE_MS_MAX, Readiness
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Item, Key, Put, Store, Table, open_store
from pricekeeper.telemetry import StoreMeter
from scraping import scrape, until_prices_are_published
from served import served

GETS = 'pricekeeper_store_calls_total{call="get"}'
PUTS = 'pricekeeper_store_calls_total{call="put"}'


@pytest.mark.parametrize("kind", ["sqlite-file", "dynoxide"])
def test_however_often_it_is_asked_the_store_is_written_once_a_second(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Over a socket, by many at once, without credentials."""
    clock, store = ManualClock(), store_url(request, kind, tmp_path)
    with served(tmp_path, clock=clock, store=store) as api, ThreadPoolExecutor(4) as pool:

        def ask(_: int) -> int:
            return api.call("GET", "/readyz").status

        until_prices_are_published(api)
        for second in range(3):
            before = scrape(api)
            assert set(pool.map(ask, range(20))) == {200}
            clock.advance_ms(MEMORY_MS - 1)
            assert set(pool.map(ask, range(20))) == {200}
            after = scrape(api)
            assert [after[one] - before.get(one, 0) for one in (GETS, PUTS)] == [1, 1], second
            clock.advance_ms(1)


def leaves(kind: type[StoreError]) -> list[type[StoreError]]:
    """The kind itself and every one below it."""
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


class Failing:
    """A store that answers or fails as the test says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0
        self.failure: StoreError | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def put(self, operation: Put) -> None:
        self.asked += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        await self._store.put(operation)

    async def get(self, table: Table, key: Key) -> Item | None:
        return await self._store.get(table, key)


@asynccontextmanager
async def readiness_of() -> AsyncIterator[tuple[Failing, Readiness, ManualClock]]:
    clock = ManualClock()
    store = await open_store(SqliteLocation(MEMORY), clock=clock, meter=StoreMeter())
    await store.create_tables()
    failing = Failing(store)
    readiness = Readiness(failing, clock)  # type: ignore[arg-type]  # all that is asked of a store
    try:
        yield failing, readiness, clock
    finally:
        failing.answers.set()
        await readiness.aclose()
        await store.close()


async def test_both_answers_are_remembered_for_a_second() -> None:
    async with readiness_of() as (store, readiness, clock):
        failure = StoreUnavailableError("it is down")
        for down in (None, failure, None):
            store.failure = down
            assert (await readiness.check() is None) is (down is None)
            store.failure = None if down else failure
            assert (await readiness.check() is None) is (down is None)
            clock.advance_ms(MEMORY_MS)
        assert store.asked == 3


async def test_a_probe_that_hangs_is_the_only_one_and_holds_nobody() -> None:
    """Requests wait for a bounded time; when the probe ends, its result counts."""
    async with readiness_of() as (store, readiness, clock):
        store.answers.clear()
        first, second = (asyncio.create_task(readiness.check()) for _ in range(2))
        await until(lambda: store.asked == 1)
        first.cancel()
        await asyncio.wait([first])
        clock.advance_ms(PROBE_MS_MAX - 1)
        await turn()
        assert not second.done()
        clock.advance_ms(1)
        assert await second == HANGS
        clock.advance_ms(10 * MEMORY_MS)
        assert await readiness.check() == HANGS
        assert store.asked == 1
        store.answers.set()
        probe, patience = readiness._probe, readiness._patience
        assert probe is not None
        assert patience is not None
        assert await probe is None
        assert patience.done()  # nothing is left behind
        assert await readiness.check() is None


@pytest.mark.parametrize("failure", leaves(StoreError))
async def test_every_failure_of_a_store_has_a_reason(failure: type[StoreError]) -> None:
    """It does not quote the error, which may name accounts and paths."""
    async with readiness_of() as (store, readiness, _):
        store.failure = failure.__new__(failure, "arn:aws:secret")
        reason = await readiness.check()
        assert reason
        assert "arn" not in reason


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until it is true."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came about")
