"""The version of the store's format: written once, checked whenever a store is opened."""

import ast
import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import pricekeeper
from pricekeeper.clock import SystemClock
from pricekeeper.errors import StoreFormatError, StoreMisconfiguredError
from pricekeeper.settings import DynamoDbLocation, StoreLocation
from pricekeeper.storage import Item, Key, Put, Store, Table, open_store, require_format
from pricekeeper.storage.format import FORMAT_KEY, FORMAT_VERSION
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants.items import INDEX_PK
from stores import location_of

ORG = (CONFIG, Key(INDEX_PK, "an organisation"))
VERSION: Item = {**FORMAT_KEY.attributes, "version": FORMAT_VERSION}


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    """A store that no other test writes to."""
    return location_of(request.param, request, tmp_path, f"format-{uuid.uuid4().hex[:8]}-")


@pytest.fixture
async def store(location: StoreLocation) -> AsyncIterator[Store]:
    opened = await open_store(location, clock=SystemClock())
    await opened.create_tables()
    yield opened
    await opened.close()


async def put(store: Store, where: tuple[Table, Key], **attributes: Any) -> None:
    table, key = where
    await store.put(Put(table, {**key.attributes, **attributes}))


async def test_an_empty_store_gets_its_version_once(store: Store) -> None:
    """Also if the store has data by the next time."""
    await require_format(store)
    assert await store.get(CONFIG, FORMAT_KEY) == VERSION
    await put(store, ORG)
    await require_format(store)
    assert await store.get(CONFIG, FORMAT_KEY) == VERSION


async def test_processes_may_open_an_empty_store_at_once(
    store: Store, location: StoreLocation
) -> None:
    """Each of them may write data as soon as it has opened the store."""
    others = [await open_store(location, clock=SystemClock()) for _ in range(6)]

    async def start(one: Store) -> None:
        await require_format(one)
        await put(one, ORG)

    await asyncio.gather(*map(start, others))
    assert await store.get(CONFIG, FORMAT_KEY) == VERSION
    for one in others:
        await one.close()


class StartsLate:
    """Its first read of the version is answered before another process opens the store."""

    def __init__(self, store: Store, other_process: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._other_process = other_process
        self._has_read = False

    async def get(self, table: Table, key: Key, *, consistent: bool = True) -> Item | None:
        found = await self._store.get(table, key, consistent=consistent)
        if not self._has_read:
            self._has_read = True
            await self._other_process()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_data_that_another_process_wrote_meanwhile_is_no_unversioned_store(
    store: Store,
) -> None:

    async def other_process() -> None:
        await require_format(store)
        await put(store, ORG)

    late: Any = StartsLate(store, other_process)
    await require_format(late)


async def test_a_version_that_another_process_wrote_meanwhile_stays(store: Store) -> None:
    newer = {**VERSION, "version": FORMAT_VERSION + 1}

    async def other_process() -> None:
        await store.put(Put(CONFIG, newer))

    late: Any = StartsLate(store, other_process)
    with pytest.raises(StoreFormatError, match="install the version"):
        await require_format(late)
    assert await store.get(CONFIG, FORMAT_KEY) == newer


async def test_data_without_a_version_is_refused(store: Store) -> None:
    """An unreleased build wrote it. Refusing it writes nothing."""
    await put(store, ORG)
    for may_begin in (True, False):
        with pytest.raises(StoreFormatError, match=r"no format version.*empty store"):
            await require_format(store, may_begin=may_begin)
    assert await store.get(CONFIG, FORMAT_KEY) is None


async def test_a_reader_leaves_an_empty_store_empty(store: Store) -> None:
    """The aggregator's role can't write to Config, and a later service opens the store."""
    await require_format(store, may_begin=False)
    assert await store.get(CONFIG, FORMAT_KEY) is None


@pytest.mark.parametrize(
    ("version", "next_step"),
    [(FORMAT_VERSION - 1, "pricekeeper migrate"), (FORMAT_VERSION + 1, "install the version")],
)
async def test_another_version_is_refused_with_the_next_step(
    store: Store, version: int, next_step: str
) -> None:
    await put(store, (CONFIG, FORMAT_KEY), version=version)
    with pytest.raises(StoreFormatError, match=next_step) as refused:
        await require_format(store)
    assert f"format {version}, and this pricekeeper uses format {FORMAT_VERSION}" in str(
        refused.value
    )


async def test_the_check_costs_one_read_of_a_store_in_use(
    store: Store, location: StoreLocation
) -> None:
    await require_format(store)
    meter = StoreMeter()
    again = await open_store(location, clock=SystemClock(), meter=meter)
    await require_format(again)
    await again.close()
    assert {name: count for name, count in meter.calls.items() if count} == {"get": 1}


async def test_missing_tables_are_named_with_their_command(location: StoreLocation) -> None:
    empty = await open_store(location, clock=SystemClock())
    expected = "ResourceNotFound" if isinstance(location, DynamoDbLocation) else "tables create"
    with pytest.raises(StoreMisconfiguredError, match=expected):
        await require_format(empty)
    await empty.close()


def test_every_module_that_opens_a_store_checks_its_format() -> None:
    """A module that opens a store without the check would half-read a store of another format."""
    package = Path(pricekeeper.__file__).parent
    openers = {}
    for path in package.rglob("*.py"):
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if "open_store" in called:
            openers[path.relative_to(package).as_posix()] = "require_format" in called
    assert openers == {
        "bootstrap/services.py": True,
        "cli/aggregator_lambda.py": True,
        "cli/opening.py": True,
    }
