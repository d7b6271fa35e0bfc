"""Commands without a waiting caller share the sheet of those with one.

They run on a loop whose time passes only while there is nothing to do, so that it says how
long anything has waited.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import TypeAlias

import pytest

from ledger.conftest import ACCOUNT, ITEM, a_log, used
from memory_store import MemoryStore
from pricekeeper.budgets import Balance
from pricekeeper.clock import ManualClock
from pricekeeper.ledger.draft import Command, Decision, Draft
from pricekeeper.ledger.log import OrgLog
from pricekeeper.ledger.worker import COMMANDS_MAX, LINGER_MS, Worker
from quick_loop import TimelessLoop, run


class Spend(Command[float]):
    """Adds one to an account; its answer is when that was decided, in milliseconds."""

    keys = (ITEM,)

    def __init__(self, *, lingers: bool = False) -> None:
        self.lingers = lingers

    def decide(self, draft: Draft) -> Decision:
        draft.add(ITEM, ACCOUNT, Balance(1))
        self.result = asyncio.get_running_loop().time() * 1000
        return Decision.WRITES


Play: TypeAlias = Callable[[OrgLog, ManualClock], Coroutine[None, None, None]]


def timeless(play: Play) -> Callable[[OrgLog, ManualClock], None]:
    @wraps(play)
    def test(log: OrgLog, clock: ManualClock) -> None:
        run(play(log, clock), TimelessLoop)

    return test


def a_worker(log: OrgLog, clock: ManualClock) -> Worker:
    return Worker(log, clock, Random(1), {})


def submit(worker: Worker, count: int = 1, *, lingers: bool = False) -> list[Spend]:
    commands = [Spend(lingers=lingers) for _ in range(count)]
    for command in commands:
        worker.submit(command)
    return commands


def is_read(log: OrgLog) -> bool:
    return log.known is not None


async def finish(worker: Worker) -> None:
    while worker.task is not None:
        await worker.task


@pytest.fixture
def log(memory: MemoryStore, clock: ManualClock) -> OrgLog:
    return a_log(memory, clock)


@timeless
async def test_they_share_the_next_sheet(log: OrgLog, clock: ManualClock) -> None:
    """Two wait; the one that comes then is written at once, and they with it."""
    worker = a_worker(log, clock)
    lingering = submit(worker, 2, lingers=True)
    await asyncio.sleep(0.001)
    assert not is_read(log)  # nothing was even looked up for them
    (awaited,) = submit(worker)
    assert await awaited.future == 1
    await finish(worker)
    assert [one.result for one in lingering] == [1, 1]
    assert await used(log) == 3
    assert log.book.next.number == 1


@timeless
async def test_alone_they_are_written_after_a_moment(log: OrgLog, clock: ManualClock) -> None:
    """Also those that come while the first one lingers: the moment is the first one's."""
    worker = a_worker(log, clock)
    lingering = submit(worker, lingers=True)
    await asyncio.sleep(LINGER_MS / 2000)
    lingering += submit(worker, lingers=True)
    await finish(worker)
    assert [one.result for one in lingering] == [LINGER_MS, LINGER_MS]
    assert await used(log) == 2


@timeless
async def test_what_is_left_behind_an_awaited_one_lingers_anew(
    log: OrgLog, clock: ManualClock
) -> None:
    """The worker counts who waits, and does not take one of these for another."""
    worker = a_worker(log, clock)
    awaited = submit(worker, 2)
    lingering = submit(worker, COMMANDS_MAX - 1, lingers=True)
    await finish(worker)
    assert [one.result for one in awaited] == [0, 0]
    assert [one.result for one in lingering] == [0] * (COMMANDS_MAX - 2) + [LINGER_MS]


@timeless
async def test_a_full_sheet_does_not_wait(log: OrgLog, clock: ManualClock) -> None:
    """There is nothing that it could wait for."""
    worker = a_worker(log, clock)
    lingering = submit(worker, COMMANDS_MAX, lingers=True)
    await finish(worker)
    assert [one.result for one in lingering] == [0] * COMMANDS_MAX


@timeless
async def test_who_ends_does_not_wait(log: OrgLog, clock: ManualClock) -> None:
    """What lingers is written at once, and so is what is left for the next sheet."""
    worker = a_worker(log, clock)
    lingering = submit(worker, lingers=True)
    await asyncio.sleep(0)
    worker.hurry()
    lingering += submit(worker, COMMANDS_MAX, lingers=True)
    await finish(worker)
    assert [one.result for one in lingering] == [0] * (COMMANDS_MAX + 1)
