"""Who has failed too often: a right secret is still recognised, a weak one only slowly."""

import asyncio
from collections.abc import AsyncIterator

import bcrypt
import pytest

from credentials.conftest import OLD_PEPPER, Instance, instance
from pricekeeper.clock import ManualClock
from pricekeeper.credentials import Peppers, Secret
from pricekeeper.credentials.verification import DOUBTED_PLACES_MAX, TURN_MS
from pricekeeper.errors import InvalidClientError, OverloadedError
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import Set, Update, open_store
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, config_key
from pricekeeper.values import AppId
from tenants.conftest import new_org_id

IMPORTED = Secret("a-password-of-a-person")


class Doubtful:
    """One instance, a client with an imported secret, and a manual clock."""

    def __init__(self, one: Instance, clock: ManualClock, meter: StoreMeter) -> None:
        self.one = one
        self.clock = clock
        self.meter = meter
        self.client = Client(new_org_id())
        self.others = 0
        """Who else waits for the clock: the store sweeps now and then."""
        self._tasks: list[asyncio.Task[object]] = []

    async def plant(self, stored: str, client: Client | None = None) -> None:
        """Put a hash where an import would."""
        key, planted = config_key(client or self.client), (Set("client_secret_hash", stored),)
        await self.one.store.update(Update(CONFIG, key, planted))

    def guess(self, secret: str, name: str = "") -> "asyncio.Task[object]":
        """Try a secret as a doubted caller."""
        name = name or self.client.client_id
        task: asyncio.Task[object] = asyncio.create_task(
            self.one.credentials.authenticate(name, secret, doubted=True)
        )
        self._tasks.append(task)
        return task

    async def settle(self) -> None:
        """Let everybody get as far as the clock allows: one has the turn, the others wait."""
        while self.clock.sleepers <= self.others:
            if all(task.done() for task in self._tasks):
                return
            await asyncio.sleep(0)
        store = self.one.store
        assert isinstance(store, SqliteStore)
        for _ in range(3):  # a guess reads once, or twice; reads are done one after the other
            for _ in range(2 * DOUBTED_PLACES_MAX):
                await asyncio.sleep(0)
            await store._read(lambda *_: None)
        for _ in range(6 * DOUBTED_PLACES_MAX):
            await asyncio.sleep(0)


@pytest.fixture
async def doubtful() -> AsyncIterator[Doubtful]:
    clock, meter = ManualClock(), StoreMeter()
    store = await open_store(SqliteLocation(MEMORY), clock=clock, meter=meter)
    await store.create_tables()
    one = instance(store, clock, Peppers(OLD_PEPPER))
    made = Doubtful(one, clock, meter)
    await one.secret_of(made.client)
    made.others = clock.sleepers
    yield made
    await store.close()


async def test_a_secret_of_ours_does_not_wait(doubtful: Doubtful) -> None:
    """256 bits can't be guessed, so right ones are accepted at any rate, and wrong ones refused."""
    secret = await doubtful.one.rotated(doubtful.client, 0)
    guesses = [await doubtful.one.rotated(doubtful.client, 0) for _ in range(2)]
    assert await doubtful.guess(guesses[-1].reveal())
    with pytest.raises(InvalidClientError):
        await doubtful.guess(secret.reveal())


async def test_a_secret_of_another_make_waits_for_its_turn(doubtful: Doubtful) -> None:
    """One after the other, a few a second; before its turn none costs more than a read."""
    await doubtful.plant(Peppers(OLD_PEPPER).hash(doubtful.client.client_id, IMPORTED.reveal()))
    before = sum(doubtful.meter.calls.values())
    wrong = [doubtful.guess(f"password-{n}") for n in range(3)]
    right = doubtful.guess(IMPORTED.reveal())
    pending = {*wrong, right}
    for turn in range(4):
        await doubtful.settle()
        assert len(pending) == 4 - turn
        assert sum(doubtful.meter.calls.values()) - before == 4 + turn
        doubtful.clock.advance_ms(TURN_MS)
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    assert await right
    refused = await asyncio.gather(*wrong, return_exceptions=True)
    assert all(isinstance(error, InvalidClientError) for error in refused)


async def test_a_slow_hash_waits_whatever_the_secret_looks_like(doubtful: Doubtful) -> None:
    """Or guesses in the shape of our own secrets would keep the processors busy."""
    ours = await doubtful.one.rotated(doubtful.client, 0)
    stored = bcrypt.hashpw(ours.reveal().encode(), bcrypt.gensalt(4)).decode()
    await doubtful.plant(stored)
    right = doubtful.guess(ours.reveal())
    await doubtful.settle()
    assert not right.done()
    doubtful.clock.advance_ms(TURN_MS)
    assert await right


async def test_guesses_at_one_organisation_leave_turns_to_the_others(doubtful: Doubtful) -> None:
    """However many of its clients they are at: another's right secret waits for two of them."""
    apps = [Client(doubtful.client.org_id, AppId(f"app-{n}")) for n in range(DOUBTED_PLACES_MAX)]
    for app in apps:
        await doubtful.one.secret_of(app)
    neighbour = Client(new_org_id())
    await doubtful.one.secret_of(neighbour)
    await doubtful.plant(
        Peppers(OLD_PEPPER).hash(neighbour.client_id, IMPORTED.reveal()), neighbour
    )
    flood = [doubtful.guess("password", app.client_id) for app in apps]
    await doubtful.settle()
    share = DOUBTED_PLACES_MAX // 2
    assert [task.done() for task in flood] == [False] * share + [True] * (
        DOUBTED_PLACES_MAX - share
    )
    with pytest.raises(OverloadedError):
        flood[-1].result()

    right = doubtful.guess(IMPORTED.reveal(), neighbour.client_id)
    for _ in range(3):  # one of them has its turn, and so has one more of the flood
        await doubtful.settle()
        doubtful.clock.advance_ms(TURN_MS)
    assert await right
    assert not flood[2].done()
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    again = doubtful.guess("password")  # who has left, has left the line
    await doubtful.settle()
    doubtful.clock.advance_ms(TURN_MS)
    with pytest.raises(InvalidClientError):
        await again


async def test_made_up_names_take_no_turns_and_wait_as_long(doubtful: Doubtful) -> None:
    """Anyone can make up names; the wait does not show that they are unknown."""
    await doubtful.plant(Peppers(OLD_PEPPER).hash(doubtful.client.client_id, IMPORTED.reveal()))
    names = [Client(new_org_id()).client_id for _ in range(5 * DOUBTED_PLACES_MAX)]
    flood = [doubtful.guess("password", name) for name in names]
    await doubtful.settle()
    right = doubtful.guess(IMPORTED.reveal())
    late = doubtful.guess("password", names[0])
    await doubtful.settle()
    assert not any(task.done() for task in (*flood, right, late))
    doubtful.clock.advance_ms(TURN_MS)
    assert await right
    refused = await asyncio.gather(*flood, return_exceptions=True)
    assert all(isinstance(error, InvalidClientError) for error in refused)
    assert not late.done()  # it came after one who had a turn
    doubtful.clock.advance_ms(TURN_MS)
    with pytest.raises(InvalidClientError):
        await late


async def test_who_is_not_doubted_does_not_wait(doubtful: Doubtful) -> None:
    await doubtful.plant(Peppers(OLD_PEPPER).hash(doubtful.client.client_id, IMPORTED.reveal()))
    waiting = doubtful.guess("password")
    await doubtful.settle()
    assert await doubtful.one.opens(doubtful.client, IMPORTED)
    assert not waiting.done()
    waiting.cancel()
