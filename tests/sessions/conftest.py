"""Every store, keys, and a client of each test's own."""

import asyncio
import uuid
from collections.abc import Callable, Sequence

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.sessions import (
    Labels,
    Lifetimes,
    Login,
    Opened,
    RefreshKey,
    Session,
    Sessions,
)
from pricekeeper.storage import Page, Query, Store, Write
from stores import ShiftedClock, clock, location, meter, store, table_prefix

__all__ = ["clock", "location", "meter", "store", "table_prefix"]

LIMIT = 5
GENERATION = "first"


class FixedKeys:
    """Two keys, of which the first is in use."""

    def __init__(self) -> None:
        self.keys = [RefreshKey("k1", b"1" * 32), RefreshKey("k2", b"2" * 32)]

    def current_refresh_key(self) -> RefreshKey:
        return self.keys[0]

    def find_refresh_key(self, key_id: str) -> RefreshKey | None:
        return next((key for key in self.keys if key.id == key_id), None)


class InstantClock:
    """A clock whose pauses take no time; it remembers how long they would have been."""

    def __init__(self, clock: ShiftedClock, paused: list[int] | None = None) -> None:
        self._clock = clock
        self.paused = [] if paused is None else paused

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        self.paused.append(duration_ms)
        await asyncio.sleep(0)


class MeetingStore(FaultyStore):
    """A store whose readers wait for each other, so that all of them have seen the same."""

    def __init__(self, store: Store, readers: int) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self._awaited = readers
        self._met = asyncio.Event()

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        page = await super().query(query, consistent=consistent)
        self._awaited -= 1
        if self._awaited == 0:
            self._met.set()
        await self._met.wait()
        return page


class RecordingStore(FaultyStore):
    """A store that remembers the transactions it was asked for."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.transactions: list[tuple[Write, ...]] = []

    async def transact(self, operations: Sequence[Write]) -> None:
        self.transactions.append(tuple(operations))
        await super().transact(operations)


class Client:
    """A client with one token generation, seen through as many instances as a test wants."""

    def __init__(self, store: Store, clock: ShiftedClock, keys: FixedKeys) -> None:
        self.id = f"org-{uuid.uuid4()}"
        self.generation = GENERATION
        self.store = store
        self.clock = clock
        self.keys = keys
        self.lifetimes = Lifetimes()

    def instance(self) -> Sessions:
        """One more instance of the service: it shares nothing with the others but the store."""
        return Sessions(self.store, clock=self.clock, keys=self.keys, lifetimes=self.lifetimes)

    def login(self, limit: int = LIMIT) -> Login:
        labels = Labels("curl/8", "192.0.2.1")
        return Login(self.id, self.generation, limit, labels)

    async def open(self, limit: int = LIMIT) -> Opened:
        self.clock.shift_ms += 1  # so that no two of them are equally old
        return await self.instance().open_session(self.login(limit))

    async def refresh(self, token: str) -> Opened:
        sessions = self.instance()
        return await sessions.refresh(sessions.open_refresh_token(token), self.generation)

    async def live(self) -> tuple[Session, ...]:
        return await self.instance().list_sessions(self.id, self.generation)


class Watch:
    """Counts the live sessions again and again while others log in."""

    def __init__(self, client: Client, allowed: Callable[[], int]) -> None:
        self._client = client
        self._allowed = allowed
        self.observations = 0
        self.too_many: list[int] = []

    async def until(self, done: asyncio.Event) -> None:
        while not done.is_set():
            await self.look()
            await asyncio.sleep(0)

    async def look(self) -> None:
        allowed = self._allowed()
        live = len(await self._client.live())
        self.observations += 1
        if live > allowed:
            self.too_many.append(live)


@pytest.fixture
def keys() -> FixedKeys:
    return FixedKeys()


@pytest.fixture
def client(store: Store, clock: ShiftedClock, keys: FixedKeys) -> Client:
    return Client(store, clock, keys)
