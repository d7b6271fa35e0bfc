"""Readiness: whether the store answers, asked at most once a second whoever wants to know."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from http_fixtures import METRICS_TOKEN, Api
from pricekeeper.cli.demo.service import demo_settings, running_service
from pricekeeper.clock import ManualClock
from pricekeeper.errors import StoreUnavailableError
from pricekeeper.http.readiness import MEMORY_MS, Readiness
from pricekeeper.settings import MEMORY, SqliteLocation, parse_store_location
from pricekeeper.storage import Item, Key, Store, Table, open_store
from pricekeeper.telemetry import StoreMeter
from scraping import scrape

GETS = 'pricekeeper_store_calls_total{call="get"}'


@pytest.mark.parametrize("kind", ["sqlite-file", "dynamodb-local"])
def test_however_often_it_is_asked_the_store_is_read_once_a_second(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Over a socket, by many at once, without credentials."""
    clock = ManualClock()
    settings = replace(
        demo_settings(tmp_path), metrics_token=METRICS_TOKEN, aggregator_interval_secs=0
    )
    if kind == "dynamodb-local":
        endpoint = request.getfixturevalue("dynamodb_local")
        url = f"dynamodb://us-east-1?prefix=ready-{uuid.uuid4().hex[:8]}-&endpoint={endpoint}"
        settings = replace(settings, store=parse_store_location(url))
    with running_service(settings, clock) as url, ThreadPoolExecutor(4) as pool:
        api = Api(url)

        def ask(_: int) -> int:
            return api.call("GET", "/readyz").status

        for second in range(3):
            before = scrape(api).get(GETS, 0)
            assert set(pool.map(ask, range(20))) == {200}
            clock.advance_ms(MEMORY_MS - 1)
            assert set(pool.map(ask, range(20))) == {200}
            assert scrape(api)[GETS] - before == 1, second
            clock.advance_ms(1)


class Failing:
    """A store that answers when it is told to, and how."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0
        self.down = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def get(self, table: Table, key: Key) -> Item | None:
        self.asked += 1
        await self.answers.wait()
        if self.down:
            raise StoreUnavailableError("it is down")
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
        await readiness.close()
        await store.close()


async def test_both_answers_are_remembered_for_a_second() -> None:
    """A store that comes back, or goes away, is noticed after that."""
    async with readiness_of() as (store, readiness, clock):
        for down in (False, True, False):
            store.down = down
            assert await readiness.check() is not down
            store.down = not down
            assert await readiness.check() is not down
            clock.advance_ms(MEMORY_MS)
        assert store.asked == 3


async def test_while_the_store_hangs_one_look_is_under_way() -> None:
    """Everybody waits for the same one, also after whoever began it has left."""
    async with readiness_of() as (store, readiness, clock):
        store.answers.clear()
        first, second = (asyncio.create_task(readiness.check()) for _ in range(2))
        await until(lambda: store.asked == 1)
        clock.advance_ms(10 * MEMORY_MS)
        third = asyncio.create_task(readiness.check())
        first.cancel()
        await asyncio.wait([first])
        store.answers.set()
        assert (await second, await third) == (True, True)
        assert store.asked == 1


async def until(condition: Callable[[], bool]) -> None:
    """Let the others go on until it is so."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came about")
