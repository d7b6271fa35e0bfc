"""Which shard a commit goes to: one that is free, for as long as there is one."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from metering.conftest import CATALOGUE, a_policy, a_usage
from metering.scripted_store import Held, ScriptedStore
from metering.test_committing import QuickClock, clock, memory, shards, wire
from pricekeeper.metering import Metering
from pricekeeper.metering.committer import LANE_BACKLOG, LANES_MAX
from pricekeeper.pricing import PriceBook
from pricekeeper.tenants import Policy

__all__ = ["clock", "memory", "wire"]


class AlwaysFirst(Random):
    """Chance that would have everybody begin at the first shard."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        del start, stop, step
        return 0


@pytest.fixture
async def metering(wire: ScriptedStore, clock: QuickClock) -> AsyncIterator[Metering]:
    prices = PriceBook(wire, clock, CATALOGUE)
    made = Metering(wire, clock, prices, randomness=AlwaysFirst())
    yield made
    await made.close()


async def fill_lanes(metering: Metering, wire: ScriptedStore, policy: Policy) -> None:
    """Have as many commits in flight at once as there may be, then let all of them end."""
    held = [Held() for _ in range(LANES_MAX)]
    wire.script.extend(held)
    tasks = [
        asyncio.create_task(metering.record(policy, a_usage()))
        for _ in range(LANES_MAX * LANE_BACKLOG)
    ]
    await held[-1].reached.wait()
    for one in held:
        one.let_go.set()
    await asyncio.gather(*tasks)


async def test_commits_at_the_same_time_take_different_shards(
    metering: Metering, wire: ScriptedStore
) -> None:
    """Whatever chance says; and a shard is free again once its commit has ended."""
    policy = a_policy()
    await fill_lanes(metering, wire, policy)
    assert shards(wire)[:LANES_MAX] == [str(shard) for shard in range(LANES_MAX)]
    wire.sent.clear()
    await metering.record(policy, a_usage())
    assert shards(wire) == ["0"]


async def test_with_fewer_shards_than_commits_some_share(
    metering: Metering, wire: ScriptedStore
) -> None:
    """Nobody waits for a shard."""
    await fill_lanes(metering, wire, a_policy(agg_shard_count=2))
    assert shards(wire)[:LANES_MAX] == ["0", "1", "0", "0"]
