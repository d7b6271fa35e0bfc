"""Random leaps, pauses, corrections and restarts, against what an honest clock would say.

The honest time is known to the simulation alone. The machine shows it with an error that comes and
goes; the service sees wall time, monotonic time and its file. From one moment at which the service
believes the right time to the next such moment, the machine is wrong for 20 hours at most.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import apsw
import pytest

from attribution import BY
from http_fixtures import ORG
from logins import log_in
from pricekeeper.bootstrap import Services, open_services
from pricekeeper.clock import STEADY_MS, Clock, ManualClock, doubt_of
from pricekeeper.errors import ClockInDoubtError, InvalidTokenError
from pricekeeper.settings import Settings, SqliteLocation
from pricekeeper.storage import Put
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.storage.tables import REQUEST_DEDUP
from pricekeeper.tenants import Client
from pricekeeper.values import parse_org_id
from slowness import slow

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WRONG_MS_MAX = 20 * HOUR_MS
STEPS = 160


class World:
    """A machine whose wall clock is wrong at times, and the service on it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.path = folder / "store.db"
        self.settings = Settings(SqliteLocation(str(self.path)), data_dir=folder / "data")
        self.machine = ManualClock()
        self.wrong_by_ms = 0
        self.wrong_for_ms = 0
        self.right_for_ms = 0
        self.items: dict[str, int] = {}
        self.revoked: list[str] = []
        self.refused = self.issued = self.healed = self.restarts = 0

    @property
    def honest_ms(self) -> int:
        return self.machine.now_ms() - self.wrong_by_ms

    def pass_time(self, duration_ms: int, clock: Clock) -> None:
        """Let time pass; the service reads its clock each minute, as its sweeper does."""
        for _ in range(0, duration_ms, MINUTE_MS):
            if self.wrong_by_ms and self.wrong_for_ms >= WRONG_MS_MAX:
                self.set_right()
            self.machine.advance_ms(MINUTE_MS)
            if self.wrong_by_ms:
                self.wrong_for_ms += MINUTE_MS
            else:
                self.right_for_ms += MINUTE_MS
            clock.now_ms()

    def leap(self) -> None:
        if self.wrong_for_ms >= WRONG_MS_MAX:
            return
        by_ms = self.random.choice([MINUTE_MS * 2, HOUR_MS, DAY_MS, 50 * HOUR_MS, 400 * DAY_MS])
        by_ms *= self.random.choice([-1, 1])
        self.machine.jump_ms(by_ms)
        self.wrong_by_ms += by_ms
        self.right_for_ms = 0

    def pause(self) -> None:
        """The virtual machine is paused: afterwards only wall time is right."""
        self.machine.jump_ms(self.random.choice([MINUTE_MS * 5, HOUR_MS, 3 * DAY_MS]))
        self.right_for_ms = 0

    def set_right(self) -> None:
        self.machine.jump_ms(-self.wrong_by_ms)
        self.wrong_by_ms = self.right_for_ms = 0


@asynccontextmanager
async def running(world: World) -> AsyncIterator[tuple[Services, SqliteStore]]:
    async with open_services(world.settings, clock=world.machine) as services:
        assert isinstance(services.store, SqliteStore)
        services.store._sweeper.cancel()  # the simulation sweeps when it wants to
        services.store._writer._connection.execute("PRAGMA synchronous = OFF")
        yield services, services.store


def kept(path: Path) -> set[str]:
    connection = apsw.Connection(str(path))
    names = {str(pk) for (pk,) in connection.execute('SELECT pk FROM "RequestDedup"')}
    connection.close()
    return names


async def work(world: World, services: Services, credentials: tuple[str, str]) -> None:
    """What clients do: record something, log in, revoke at once."""
    name, now_ms = str(uuid.UUID(int=world.random.getrandbits(128))), services.clock.now_ms()
    expires_ms = now_ms + world.random.choice([HOUR_MS, 48 * HOUR_MS])
    item = {"PK": name, "expires_at_epoch": expires_ms // 1000}
    await services.store.put(Put(REQUEST_DEDUP, item))
    world.items[name] = expires_ms
    try:
        grant = await log_in(services.identity, *credentials)
    except ClockInDoubtError:
        assert doubt_of(services.clock) is not None
        world.refused += 1
        return
    world.issued += 1
    await services.identity.revoke(credentials[0], grant.access_token)
    world.revoked.append(grant.access_token)


async def check(world: World, services: Services, store: SqliteStore) -> None:
    """Nothing that is needed is gone, no revoked token counts, and a right clock is believed."""
    await store.sweep()
    needed = {name for name, expires_ms in world.items.items() if expires_ms > world.honest_ms}
    assert needed <= kept(world.path)
    for token in world.revoked[-30:]:
        with pytest.raises(InvalidTokenError):
            await services.identity.validate(token)
    if world.right_for_ms > 2 * STEADY_MS:
        assert doubt_of(services.clock) is None
        assert services.clock.now_ms() == world.honest_ms
        world.healed += 1
        world.wrong_for_ms = 0


@pytest.mark.parametrize("seed", [0, 1, *slow(2, 3, 4, 5)])
async def test_no_leap_destroys_and_every_leap_heals(tmp_path: Path, seed: int) -> None:
    """Days of it, on a real file, with everything that a service is made of."""
    world = World(seed, tmp_path)
    org_id = parse_org_id(str(uuid.UUID(int=seed)))
    async with AsyncExitStack() as closing:
        services, store = await closing.enter_async_context(running(world))
        made = await services.credentials.provision(Client(org_id), ORG, BY)
        assert made.retrieval is not None
        claimed = await services.credentials.claim(made.retrieval.token.reveal(), BY)
        credentials = (claimed.client_id, claimed.client_secret.reveal())
        await store.sweep()
        for _ in range(STEPS):
            match world.random.choices(
                ["pass", "leap", "right", "pause", "restart"], [12, 2, 2, 1, 1]
            ):
                case ["pass"]:
                    long_ms = world.random.choice([MINUTE_MS, 10 * MINUTE_MS, 2 * HOUR_MS])
                    world.pass_time(long_ms, services.clock)
                case ["leap"]:
                    world.leap()
                case ["right"]:
                    world.set_right()
                case ["pause"]:
                    world.pause()
                case ["restart"]:
                    await closing.aclose()
                    services, store = await closing.enter_async_context(running(world))
                    world.restarts += 1
            await work(world, services, credentials)
            await check(world, services, store)
        world.set_right()
        world.pass_time(3 * STEADY_MS, services.clock)
        await check(world, services, store)
    assert min(world.refused, world.issued, world.healed, world.restarts) > 0
