"""One worker for each organisation and process: decides waiting commands together, and writes once.

It decides the queued commands on the log as this process knows it, and writes one sheet for all. If
another writer came first, its sheet is read and the commands are decided again. Before a denial the
log is read to its end. If other processes write, too, the worker pauses between sheets (`Pace`).
Commands without a waiting caller wait up to `LINGER_MS` for one, to share its sheet.

Bounds: `WAITING_MAX` commands, and one more that follows from each; `COMMANDS_MAX`, `KEYS_MAX` and
`OPERATIONS_MAX` for one sheet; `ATTEMPTS_MAX` attempts with the pauses of `BACKOFF`; `ERRANDS_MAX`
rounds of errands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import chain
from random import Random
from typing import Final

from pricekeeper.clock import Clock
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import (
    ContendedError,
    InvalidOperationError,
    OverloadedError,
    PriceKeeperError,
    ReasonCode,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.ledger.book import KEYS_MAX
from pricekeeper.ledger.draft import AnyCommand, Decision, Draft, Send
from pricekeeper.ledger.log import OrgLog, SheetTakenError
from pricekeeper.storage import Write
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX

WAITING_MAX: Final = 2_000
COMMANDS_MAX: Final = 200
OPERATIONS_MAX: Final = TRANSACTION_OPERATIONS_MAX - 1
ATTEMPTS_MAX: Final = 64
BACKOFF: Final = Backoff(4, 32)
ERRANDS_MAX: Final = 8
LINGER_MS: Final = 5
_AT_ONCE: Final = 16


class Worker:
    """Decides and writes the commands of one organisation."""

    def __init__(self, log: OrgLog, clock: Clock, random: Random, busy: dict[str, Worker]) -> None:
        """It is in ``busy`` while it has commands."""
        self.log = log
        self._clock = clock
        self._random = random
        self._busy = busy
        self._pace = Pace()
        self._others = 0
        """Sheets of other writers at the worker's last write."""
        self._waiting: deque[AnyCommand] = deque()
        self._awaited = 0
        self._hurries = False
        self._lingering: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None

    def submit(self, command: AnyCommand, *, follows: bool = False) -> None:
        """A command that ``follows`` from an accepted one is never refused for lack of room."""
        if not follows and len(self._waiting) >= WAITING_MAX:
            raise OverloadedError(
                "too many authorizations of this organisation are waiting; try again later"
            )
        self._waiting.append(command)
        if not command.lingers:
            self._awaited += 1
            self._stop_lingering()
        if self.task is None:
            self._busy[self.log.org_id] = self
            self._others = self.log.others
            self.task = asyncio.create_task(self._run(), name="pricekeeper-ledger")

    def hurry(self) -> None:
        self._hurries = True
        self._stop_lingering()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._linger()
                await asyncio.sleep(0)  # what comes in this turn of the loop is decided with it
                await self._carry_out(self._take())
                self.log.file_in_background()
                await self._leave_room()
        except BaseException as error:
            while self._waiting:
                self._waiting.popleft().fail(error)
            self._awaited = 0
            raise
        finally:
            self._hurries = False
            self.task = None
            del self._busy[self.log.org_id]

    async def _linger(self) -> None:
        if self._awaited or self._hurries or len(self._waiting) >= COMMANDS_MAX:
            return
        loop = asyncio.get_running_loop()
        self._lingering = loop.create_future()
        timer = loop.call_later(LINGER_MS / 1000, self._stop_lingering)
        try:
            await self._lingering
        finally:
            timer.cancel()

    def _stop_lingering(self) -> None:
        lingering, self._lingering = self._lingering, None
        if lingering is not None and not lingering.done():
            lingering.set_result(None)

    async def _leave_room(self) -> None:
        full = len(self._waiting) // COMMANDS_MAX
        pause_ms = self._pace.pause_ms(self._random, full)
        if pause_ms:
            await self._clock.sleep_ms(pause_ms)

    def _take(self) -> list[AnyCommand]:
        """As many commands as one sheet can carry, one for each name."""
        waiting = self._waiting
        taken = [waiting.popleft()]
        names, keys = {taken[0].name}, set(taken[0].keys)
        while taken[0].send is None and waiting and len(taken) < COMMANDS_MAX:
            command = waiting[0]
            keys.update(command.keys)
            is_repeated = command.name in names and command.name
            if command.send is not None or is_repeated or len(keys) > KEYS_MAX:
                break
            names.add(command.name)
            taken.append(waiting.popleft())
        self._awaited -= sum(not command.lingers for command in taken)
        return taken

    async def _carry_out(self, commands: Sequence[AnyCommand]) -> None:
        """Decide and write them, and answer all in any case."""
        error: BaseException = StoreError("the command was not decided")
        try:
            await self._attempt_all(commands)
        except StoreError as failure:
            error = failure
        except BaseException as failure:
            error = failure
            raise
        finally:
            for command in commands:
                if not command.is_answered:
                    command.fail(error)

    async def _attempt_all(self, commands: Sequence[AnyCommand]) -> None:
        left, is_fresh, attempts, errands = list(commands), False, 0, 0
        while left:
            draft = await self._prepare(left)
            writing, denied, is_sound = self._decide_all(draft, left)
            if not is_sound:
                pass  # the next round is without the one that has failed
            elif draft.errands:
                errands += 1
                if errands > ERRANDS_MAX:
                    raise ContendedError("the log kept changing before the decision; try again")
                await _run_errands(draft)
            elif writing:
                attempts += 1
                if attempts > ATTEMPTS_MAX:
                    raise ContendedError("other writers were first each time; try again")
                if await self._write(draft, writing, attempts):
                    is_fresh, attempts = True, 0
            elif is_fresh:
                for command in denied:
                    command.deny()
            else:
                await self.log.read()
                is_fresh = True
            left = [command for command in left if not command.is_over]

    async def _prepare(self, commands: Sequence[AnyCommand]) -> Draft:
        if self._pace.must_look:
            await self.log.read()
        keys = dict.fromkeys(chain.from_iterable(command.keys for command in commands))
        return await self.log.prepare(keys)

    def _decide_all(
        self, draft: Draft, commands: Sequence[AnyCommand]
    ) -> tuple[list[AnyCommand], list[AnyCommand], bool]:
        """The commands with changes, the denied ones, and whether none has failed half-way."""
        writing: list[AnyCommand] = []
        denied: list[AnyCommand] = []
        operations = 0
        for command in commands:
            needed = max(1, len(command.operations))
            if writing and (draft.is_full or operations + needed > OPERATIONS_MAX):
                break
            revision = draft.revision
            try:
                decision = command.decide(draft)
            except PriceKeeperError as refused:
                command.fail(refused)
                if draft.revision != revision:
                    return [], [], False
                continue
            if decision is Decision.WRITES:
                writing.append(command)
                operations += len(command.operations)
            elif decision is Decision.DENIED:
                denied.append(command)
        return writing, denied, True

    async def _write(self, draft: Draft, writing: Sequence[AnyCommand], attempts: int) -> bool:
        if attempts > _AT_ONCE:
            losses = attempts - _AT_ONCE
            await self._clock.sleep_ms(BACKOFF.pause_ms(losses, self._random.randrange))
        operations: list[Write] = [one for command in writing for one in command.operations]
        send: Send | None = writing[0].send
        began_ms = self._clock.monotonic_ms()
        try:
            await self.log.append(draft, operations, send)
        except (SheetTakenError, ContendedError):
            return False
        except TransactionCancelledError as cancelled:
            _note_refused(writing, cancelled)
            return False
        except InvalidOperationError as failure:
            await self._divide(writing, failure)
            return False
        others, self._others = self.log.others - self._others, self.log.others
        self._pace.note_sent(self.log.synced_ms - began_ms, others)
        for command in writing:
            command.note_written()
        draft.tell_gathered()
        return True

    async def _divide(self, commands: Sequence[AnyCommand], failure: InvalidOperationError) -> None:
        """Carry out the halves apart: one command that the store refuses must not fail others."""
        if len(commands) == 1:
            commands[0].fail(failure)
            return
        middle = len(commands) // 2
        for half in (commands[:middle], commands[middle:]):
            await self._carry_out(half)


async def _run_errands(draft: Draft) -> None:
    """An error of an errand fails the commands that requested it."""
    done = await asyncio.gather(
        *(errand() for errand, _ in draft.errands.values()), return_exceptions=True
    )
    for (_, asking), failure in zip(draft.errands.values(), done, strict=True):
        if isinstance(failure, PriceKeeperError):
            for fail in asking:
                fail(failure)
        elif failure is not None:
            raise failure


def _note_refused(writing: Sequence[AnyCommand], cancelled: TransactionCancelledError) -> None:
    """Pass each command the reasons of its own operations, if one was refused."""
    start = 0
    for command in writing:
        end = start + len(command.operations)
        reasons = cancelled.reasons[start:end]
        if any(reason.code is ReasonCode.CONDITION_FAILED for reason in reasons):
            command.note_refused(reasons)
        start = end


PAUSE_MS_MAX: Final = 64
_AT_ONCE_MS: Final = 1


class Pace:
    """Measures how often other processes write, and paces a worker between them."""

    def __init__(self) -> None:
        self._others = 0
        """Recent largest number of others' sheets for one of ours."""
        self._fastest_ms: int | None = None

    @property
    def must_look(self) -> bool:
        """Whether other writers were noticed recently, so the known log may be old."""
        return self._others > 0 and not self._is_at_once

    def note_sent(self, took_ms: int, others: int) -> None:
        fastest_ms = took_ms if self._fastest_ms is None else self._fastest_ms
        self._others = max(others, self._others - 1)
        self._fastest_ms = min(took_ms, fastest_ms + 1)  # it may have become slower for good

    def pause_ms(self, random: Random, full: int) -> int:
        if self._is_at_once or self._fastest_ms is None:
            return 0
        pause_ms = self._fastest_ms // 2 + self._others * self._fastest_ms
        pause_ms = min(PAUSE_MS_MAX, pause_ms) >> full
        return random.randint(pause_ms // 2, pause_ms)

    @property
    def _is_at_once(self) -> bool:
        return self._fastest_ms is None or self._fastest_ms <= _AT_ONCE_MS
