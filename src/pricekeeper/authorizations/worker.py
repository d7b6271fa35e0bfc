"""One worker for each organisation and process: what waits is decided together and written once.

Commands wait in a queue. The worker takes what is there and carries it out (`attempts`). Only one
transaction is under way, so an instance never gets into its own way; what arrives meanwhile goes
into the next. Among other instances it pauses between them (`pace`), and tokens that are given back
go along with those that are taken (`refunds`).

Bounds: `WAITING_MAX` commands of an organisation, `COMMANDS_MAX` and `OPERATIONS_MAX` in a
transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pricekeeper.authorizations.attempts import Attempts
from pricekeeper.authorizations.commands import (
    Command,
    fail,
    items_of,
    name_of,
    operations_of,
)
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.refunds import Refunds
from pricekeeper.errors import OverloadedError, StoreError

WAITING_MAX: Final = 2_000
COMMANDS_MAX: Final = 48
OPERATIONS_MAX: Final = 96


class Worker:
    """Decides and writes the commands of one organisation."""

    def __init__(self, desk: Desk, org_id: str, end: Callable[[], None]) -> None:
        self._desk = desk
        self._org_id = org_id
        self._end = end
        self._refunds = Refunds(desk)
        self._pace = desk.pace_of(org_id)
        self._waiting: deque[Command] = deque()
        self.task: asyncio.Task[None] | None = None

    def submit(self, command: Command) -> None:
        """Have the command carried out; its future is set in any case."""
        if len(self._waiting) >= WAITING_MAX:
            raise OverloadedError("too many authorizations of this organisation are waiting")
        self._waiting.append(command)
        if self.task is None:
            self.task = asyncio.create_task(self._run(), name="pricekeeper-authorizations")

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # what comes in this turn of the loop is decided with it
                await self._carry_out(self._take())
                await self._refunds.write(others_wait=bool(self._waiting))
                await self._pause()
        except BaseException as error:
            for command in self._waiting:
                fail(command, error)
            raise
        finally:
            self.task = None
            self._end()

    async def _pause(self) -> None:
        """Leave other instances a moment, a shorter one the more there is to do."""
        full = len(self._waiting) // COMMANDS_MAX
        pause_ms = self._pace.pause_ms(self._desk.random, full)
        if pause_ms:
            await self._desk.clock.sleep_ms(pause_ms)

    def _take(self) -> list[Command]:
        """As many commands as one transaction can carry; one for each authorization."""
        taken: list[Command] = []
        operations, names, items = 0, set[str](), set[object]()
        while self._waiting and len(taken) < COMMANDS_MAX:
            command = self._waiting[0]
            operations += operations_of(command)
            items.update(*items_of(command))
            name = name_of(command)
            if taken and (operations + len(items) > OPERATIONS_MAX or name in names):
                break
            if name:
                names.add(name)
            taken.append(self._waiting.popleft())
        return taken

    async def _carry_out(self, commands: Sequence[Command]) -> None:
        """Decide and write them, and answer everybody, whatever happens."""
        error: BaseException = StoreError("the authorization was not decided")
        try:
            await Attempts(self._desk, self._org_id, self._refunds, self._pace, commands).run()
        except StoreError as failure:
            error = failure
        except BaseException as failure:
            error = failure
            raise
        finally:
            for command in commands:
                fail(command, error)


class Workers:
    """The workers of a process, one for each organisation that has something to do."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._workers: dict[str, Worker] = {}

    def submit(self, org_id: str, command: Command) -> None:
        """Have the command carried out; its future is set in any case."""
        worker = self._workers.get(org_id)
        if worker is None:
            worker = Worker(self._desk, org_id, lambda: self._end(org_id))
            self._workers[org_id] = worker
        worker.submit(command)

    async def close(self) -> None:
        """Carry out what was accepted, then stop."""
        while self._workers:
            tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
            if not tasks:
                return
            await asyncio.wait(tasks)

    def _end(self, org_id: str) -> None:
        self._workers.pop(org_id, None)
