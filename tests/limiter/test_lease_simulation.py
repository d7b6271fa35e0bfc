"""Histories of leases: lost replies, crashes between any two writes, retries, by a seed.

Three processes on one store acquire, adjust and release leases; consecutive steps of a lease may
use different processes. Messages are refused, lost, late and doubled. A process may crash before
or after any write and then loses its memory. A caller repeats each step until it gets an answer,
or gives up.

The buckets refill so slowly that each missing token is lost and each extra token was created:

- the debits minus refunds are at least what the leases hold (no token is created),
- and exceed it by no more than crashes and lost replies may have lost,
- a repetition gets the same answer and takes nothing more,
- no bucket admits more than it holds.
"""

import asyncio
import contextlib
import secrets
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

import pytest

from limiter.simulation import InstanceClock, Weather, Wire, World, excess, net_flow
from memory_store import MemoryStore
from pricekeeper.errors import (
    OutcomeUnknownError,
    RateLimitExceededError,
    StoreError,
    StoreUnavailableError,
)
from pricekeeper.limiter import Debit, Limit, Limiter, negated
from pricekeeper.limiter.items import LeaseRecord, lease_of
from pricekeeper.limiter.leases import Leases
from pricekeeper.limiter.records import record_update, released_record
from pricekeeper.limiter.returns import Returns
from pricekeeper.storage import Item, Key, Put, Update
from pricekeeper.storage.tables import RATE_BUCKETS
from slowness import slow

_T = TypeVar("_T")

CAPACITY = 40
SLOW = Limit("n", CAPACITY, 1, 30 * 86_400_000)
"""It refills no token during a history."""
ENTITIES = ("app-0", "app-1", "org")
NO_ANSWER = (StoreUnavailableError, OutcomeUnknownError)
STORM = Weather(delay_ms_max=9, refused_pct=4, request_lost_pct=4, reply_lost_pct=4, late_pct=4)
CALM = Weather(delay_ms_max=9)
HISTORIES = 30
LOST_MAX = 4 * 10 + CAPACITY // 2
"""The tokens that one lost write or crash may lose: four clients' requests, and a block."""


class CrashedError(Exception):
    """The process is gone; its callers get no answer."""


class Process:
    """A limiter that may crash at any of its writes."""

    def __init__(self, world: World, store: MemoryStore, weather: Weather, crash_pct: int) -> None:
        self.world = world
        self._store = store
        self._weather = weather
        self._crash_pct = crash_pct
        self.lost_writes = 0
        """Writes that may have lost tokens: by a crash, or by a lost reply."""
        self.crashes = 0
        self.dead: list[Any] = []
        """Tasks of former lives, kept until the end."""
        self._start()

    def _start(self) -> None:
        self.wire = Wire(self._store, self.world, self._weather)
        self.gone = asyncio.Event()
        wire = CrashingWire(self, self.wire, self.gone)
        self.limiter = Limiter(
            wire,
            clock=InstanceClock(self.world),
            limits=[SLOW],
            jitter=self.world.random.randrange,
        )

    def may_crash(self) -> bool:
        return self.world.random.randrange(100) < self._crash_pct

    def crash(self) -> None:
        """Lose the memory: blocks, pending refunds, steps in flight."""
        self.crashes += 1
        self.gone.set()
        self._start()

    async def ask(self, step: Callable[[Limiter], Awaitable[_T]]) -> _T:
        """Run a step; raises `CrashedError` if the process crashes before it answers."""
        limiter, gone = self.limiter, self.gone
        self.world.events += 1
        asked = asyncio.ensure_future(step(limiter))
        crashed = asyncio.ensure_future(gone.wait())
        await asyncio.wait({asked, crashed}, return_when=asyncio.FIRST_COMPLETED)
        crashed.cancel()
        if asked.done() and not gone.is_set():
            return asked.result()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        raise CrashedError


class CrashingWire:
    """The wire of one life of a process: after a crash no call gets through."""

    def __init__(self, process: Process, wire: Wire, gone: asyncio.Event) -> None:
        self._process = process
        self._wire = wire
        self._gone = gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    async def get(self, table: Any, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._live(self._wire.get(table, key, consistent=consistent))

    async def batch_get(self, keys: Sequence[Any], *, consistent: bool = True) -> list[Any]:
        return await self._live(self._wire.batch_get(keys, consistent=consistent))

    async def put(self, operation: Put) -> None:
        await self._write(lambda: self._wire.put(operation))

    async def update(self, operation: Update) -> Item:
        return await self._write(lambda: self._wire.update(operation))

    async def _write(self, send: Callable[[], Awaitable[_T]]) -> _T:
        if not self._gone.is_set() and self._process.may_crash():
            self._process.crash()
        await self._live(asyncio.sleep(0))
        try:
            result = await send()
        except OutcomeUnknownError:
            self._process.lost_writes += 1
            raise
        finally:
            if not self._gone.is_set() and self._process.may_crash():
                self._process.crash()
        return await self._live(asyncio.sleep(0, result))

    async def _live(self, call: Awaitable[_T]) -> _T:
        result = await call
        if self._gone.is_set():
            self._process.lost_writes += 1
            self._process.dead.append(asyncio.current_task())
            await asyncio.Event().wait()  # for ever: a dead process does nothing
        return result


class Client:
    """An app that takes, settles and gives back, and repeats steps at any process."""

    def __init__(self, world: World, processes: Sequence[Process], seed: int) -> None:
        self._random = Random(seed)
        self._world = world
        self._processes = processes
        self.outcomes: Counter[str] = Counter()

    async def live(self) -> None:
        for _ in range(5):
            await self._once()

    async def _once(self) -> None:
        dice = self._random
        app, name = f"app-{dice.randrange(2)}", uuid.UUID(int=dice.getrandbits(128))
        tokens = dice.randint(1, 6)
        lease = await self._repeat(
            lambda limiter: limiter.acquire(app, "r", {"n": tokens}, parents=["org"], lease_id=name)
        )
        self.outcomes["denied" if lease is None else "granted"] += 1
        if lease is None:
            return
        assert lease.held == {"n": tokens}
        if dice.random() < 0.4:
            again = await self._repeat(
                lambda limiter: limiter.acquire(
                    app, "r", {"n": tokens}, parents=["org"], lease_id=name
                ),
                may_be_denied=False,
            )
            assert again is None or (again.id, again.held) == (lease.id, {"n": tokens})
        held = tokens
        for _ in range(dice.randrange(3)):
            delta = dice.randint(-held, 4)
            change = uuid.UUID(int=dice.getrandbits(128))
            times = dice.randint(1, 2)
            for _ in range(times):
                after = await self._repeat(
                    partial(
                        Limiter.adjust,
                        entity=app,
                        lease_id=name,
                        delta={"n": delta},
                        adjustment_id=change,
                    )
                )
                if after is not None:
                    assert after == {"n": held + delta}, "it was adjusted twice, or not at all"
                    self.outcomes["up" if delta > 0 else "down"] += 1
            if after is None:
                return  # it gave up, and does not know what it holds
            held += delta
        if dice.random() < 0.7:
            for _ in range(dice.randint(1, 2)):
                await self._repeat(lambda limiter: limiter.release(app, name))
            self.outcomes["released"] += 1

    async def _repeat(
        self, step: Callable[[Limiter], Awaitable[_T]], *, may_be_denied: bool = True
    ) -> _T | None:
        """Ask any process until one answers; ``None`` is a denial, or giving up."""
        for _ in range(8):
            process = self._random.choice(self._processes)
            try:
                return await process.ask(step)
            except RateLimitExceededError:
                assert may_be_denied, "it was granted before"
                return None
            except (CrashedError, *NO_ANSWER):
                await self._world.sleep_ms(self._random.randrange(20))
        self.outcomes["gave up"] += 1
        return None


class History:
    """One run, and the sums over its store."""

    def __init__(self, seed: int, weather: Weather, crash_pct: int) -> None:
        self.world = World(seed)
        self.store = MemoryStore(InstanceClock(self.world))
        self.processes = [Process(self.world, self.store, weather, crash_pct) for _ in range(3)]
        self.clients = [Client(self.world, self.processes, seed * 7 + n) for n in range(4)]

    @property
    def lost_writes(self) -> int:
        return sum(one.lost_writes for one in self.processes)

    async def play(self) -> None:
        await self.world.run(*(one.live() for one in self.clients))
        await self.world.pass_ms(5_000)  # late messages arrive, blocks and refunds go back
        for process in self.processes:
            process._weather = CALM
            process.wire._weather = CALM
        await self.world.run(*(one.limiter.close() for one in self.processes))

    def consumed(self, entity: str) -> int:
        """Return the bucket's debits minus its refunds."""
        item = self.store.partitions.get((RATE_BUCKETS.name, entity), {}).get("r")
        return 0 if item is None else int(item["tc.n"])

    def held(self, entity: str) -> int:
        """Return the tokens that all leases hold from the bucket."""
        total = 0
        for (table, partition), items in self.store.partitions.items():
            if table == RATE_BUCKETS.name and "#LEASE#" in partition:
                app, _, name = partition.split("#")
                record = lease_of(app, name, items["LEASE"])
                assert record is not None
                if not record.released and entity in (app, *record.parents):
                    total += record.held["n"]
        return total

    def check(self) -> None:
        for entity in ENTITIES:
            lost = self.consumed(entity) - self.held(entity)
            assert lost >= 0, f"{-lost} tokens of {entity} were created"
            assert lost <= self.lost_writes * LOST_MAX, f"{lost} tokens of {entity} were lost"
            assert excess(net_flow(self.world, entity, SLOW), SLOW) <= SLOW.capacity_units


async def play(seed: int, weather: Weather, crash_pct: int) -> History:
    history = History(seed, weather, crash_pct)
    try:
        await history.play()
    finally:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
    history.check()
    return history


WEATHERS = {"calm": (CALM, 0), "storm": (STORM, 0), "crashes": (CALM, 3), "both": (STORM, 2)}


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("both", 0),
        *slow(*((kind, 0) for kind in ("calm", "storm", "crashes"))),
        *slow(*((kind, n * HISTORIES) for kind in WEATHERS for n in range(1, 9))),
    ],
)
async def test_no_history_creates_tokens_and_only_lost_writes_lose_any(
    kind: str, first: int
) -> None:
    weather, crash_pct = WEATHERS[kind]
    outcomes, lost, crashes = Counter[str](), 0, 0
    for seed in range(first, first + HISTORIES):
        history = await play(seed, weather, crash_pct)
        lost += history.lost_writes
        crashes += sum(one.crashes for one in history.processes)
        for client in history.clients:
            outcomes += client.outcomes
    for outcome in ("granted", "denied", "up", "down", "released"):
        assert outcomes[outcome] > HISTORIES // 2, outcomes
    assert (lost > 0) == (kind != "calm")
    assert (crashes > HISTORIES) == (crash_pct > 0)


async def keep_all(*_: object) -> None:
    """Give nothing back."""


async def release_first(self: Leases, record: LeaseRecord) -> LeaseRecord:
    """Give back before the record is closed."""
    if record.released:
        return record
    await self._give_back(negated(record.debits(record.held)))
    after = released_record(record, "nonce")
    sent = await self._send(record, record_update(record, after))
    return sent.record or after


async def owe_what_may_be_written(self: Returns, owed: Debit) -> None:
    """Repeat a refund that may have been written."""
    try:
        await self._adjust(owed, again=False)
    except StoreError:
        self.give_back([owed])


async def believe_in_charges(self: Returns, debits: Sequence[Debit]) -> dict[str, int]:
    """Hold tokens that may not have been charged."""
    for debit in debits:
        with contextlib.suppress(OutcomeUnknownError):
            await self._adjust(debit, again=False)
    return {"n": debits[0].tokens["n"]} if debits else {}


def same_nonce(_: int) -> str:
    """Make every record look like one's own."""
    return "nonce"


PLANTED = {
    "a repetition keeps its tokens": (Leases, "_give_back", keep_all),
    "given back before it is marked": (Leases, "_release", release_first),
    "given back twice": (Returns, "_write_owed", owe_what_may_be_written),
    "held though never charged": (Returns, "charge", believe_in_charges),
    "one nonce for all": (secrets, "token_hex", same_nonce),
}


@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])

    async def play_all() -> None:
        for seed in range(4 * HISTORIES):
            for weather, crash_pct in WEATHERS.values():
                await play(seed, weather, crash_pct)

    with pytest.raises(AssertionError):
        await play_all()
