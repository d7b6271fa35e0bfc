"""What goes wrong beside the log: others are not told, and nothing is lost or counted twice."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from authorizations.conftest import HELD_USD_PICOS, Instance, a_budget
from memory_store import MemoryStore
from metering.conftest import a_policy
from pricekeeper.authorizations import Authorized
from pricekeeper.budgets import Balance, accounts_of
from pricekeeper.errors import OverloadedError
from pricekeeper.ledger import worker
from pricekeeper.ledger.log import OrgLog
from selection.conftest import NOON_MS, SettableClock


class World:
    """Instances on one store, and an app with a budget."""

    def __init__(self) -> None:
        self.clock = SettableClock(NOON_MS)
        self.store = MemoryStore(self.clock)
        self.policy = a_policy(budgets=(a_budget(),))
        self.instance = Instance(self.store, self.clock, seed=1)

    async def balance(self) -> Balance:
        """What the budget has, as another instance reads it."""
        (account,) = accounts_of(self.policy, self.clock.now_ms())
        ledger = Instance(self.store, self.clock, seed=9).ledger
        return (await ledger.read([account]))[account]


@pytest.fixture
def world() -> World:
    return World()


async def test_a_caller_that_leaves_when_too_many_wait_harms_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was granted goes back, and those who were granted with it are told so."""
    await world.instance.authorize(world.policy)
    monkeypatch.setattr(worker, "WAITING_MAX", 4)
    together = [asyncio.create_task(world.instance.authorize(world.policy)) for _ in range(3)]
    waiting: list[asyncio.Task[Authorized]] = []
    append = OrgLog.append

    async def fill_and_append(*args: Any) -> None:
        if not waiting:
            together[0].cancel()
            calls = (world.instance.authorize(world.policy) for _ in range(5))
            waiting.extend(map(asyncio.create_task, calls))
            for _ in range(20):
                await asyncio.sleep(0)
        await append(*args)

    monkeypatch.setattr(OrgLog, "append", fill_and_append)
    outcomes = await gather([*together])
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert all(isinstance(one, Authorized) for one in outcomes[1:]), outcomes
    later = await gather(waiting)
    assert sum(isinstance(one, OverloadedError) for one in later) == 1, later
    await world.instance.close()
    granted = 1 + sum(isinstance(one, Authorized) for one in (*outcomes, *later))
    assert await world.balance() == Balance(granted * HELD_USD_PICOS, granted * HELD_USD_PICOS)


async def gather(tasks: Sequence[asyncio.Task[Authorized]]) -> list[Authorized | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)
