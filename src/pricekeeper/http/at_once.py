"""Requests that are begun as soon as they are whole: most without a task of their own.

A task, the coroutines on the way to its handler and the future that it waits for cost more than
what most requests of an app need done: their token, policy and prices are in memory, and what they
wait for is a commit that many of them share. Such a request is begun as soon as it is whole
(`Operation.begin`), and whoever commits it answers it. Everything else goes the usual way: what is
refused, and what has to be read first.

Where a handler has to wait for something else, it gets a task and nothing around it: the gate, the
body and the policy are done with by then (`begin_in_task`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from pricekeeper.concurrency.deadline import DEADLINES, Deadlines
from pricekeeper.errors import DeadlineExceededError, OverloadedError
from pricekeeper.http.answering import (
    NOBODY_LEFT,
    OVERLOADED,
    problem_answer,
    send_answer,
    write_at_once,
)
from pricekeeper.http.asgi import CallerLeftError
from pricekeeper.http.edge import take_json
from pricekeeper.http.exchange import Exchange
from pricekeeper.http.operation import Answer, Beginning, Call, Operation, Reply, encode_body

Note: TypeAlias = Callable[[Call, str, int, int], None]
"""Notes in the log and the metrics which route was answered, with what status, in how many
microseconds."""


class Target(NamedTuple):
    """What a head asks for, if requests with that head can be begun at once."""

    route: str
    operation: Operation
    begin: Beginning
    parameters: Mapping[str, str]
    headers: dict[bytes, bytes]
    token_digest: bytes


class RequestAtOnce:
    """A request that was begun; it is answered once, by whoever comes first."""

    __slots__ = (
        "_call", "_deadlines", "_due", "_exchange", "_note", "_route", "_started_ns", "_tick",
        "is_answered", "may_be_applied",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, call: Call, route: str, started_ns: int, note: Note
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._route = route
        self._started_ns = started_ns
        self._note = note
        self.is_answered = False
        self.may_be_applied = True
        self._deadlines: Deadlines = call.request.scope["state"][DEADLINES]
        self._due, self._tick = self._deadlines.add(self, self._deadlines.secs)

    def send(self, answer: Answer) -> None:
        """Answer the request, unless its time was up."""
        if self.is_answered:
            return
        try:
            body = encode_body(answer)
            if not write_at_once(self._exchange, answer, body, self._call):
                self.finish(_later(answer))  # its reader is slow
                return
        except Exception as error:  # noqa: BLE001 - it is told and logged
            self.fail(error)
            return
        self.is_answered = True
        self._deadlines.remove(self, self._due, self._tick)
        self._note_end(answer.status)

    def finish(self, work: Coroutine[Any, Any, Answer]) -> None:
        """Answer it with what that comes to, within what is left of its time."""
        if self.is_answered:
            work.close()
            return
        left_secs = self._deadlines.remove(self, self._due, self._tick)
        self.is_answered = True
        self._exchange.start(self._finish(work, left_secs))

    def refuse_for_room(self) -> None:
        """Answer it with `OverloadedError`, without another thought."""
        if self.is_answered:
            return
        if not OVERLOADED.write(self._exchange, self._call):
            self.fail(OverloadedError())
            return
        self._call.metrics.note_problem(OverloadedError.code)
        self.is_answered = True
        self._deadlines.remove(self, self._due, self._tick)
        self._note_end(OVERLOADED.status)

    def fail(self, error: Exception) -> None:
        """Answer it with the problem that tells the error."""
        self.finish(_failing(error))

    def expire(self) -> None:
        """Its time is up."""
        if not self.is_answered:
            self.fail(DeadlineExceededError(may_be_applied=self.may_be_applied))

    def withdraw(self) -> None:
        """Forget about it: it was not begun after all."""
        self._deadlines.remove(self, self._due, self._tick)

    async def _finish(self, work: Coroutine[Any, Any, Answer], left_secs: float) -> None:
        call, status = self._call, NOBODY_LEFT
        try:
            answer = await self._work_out(work, left_secs)
            status = answer.status
            await send_answer(self._exchange.send, answer, call)
        except CallerLeftError:
            status = NOBODY_LEFT
        finally:  # also if the server ends it
            self._note_end(status)

    async def _work_out(self, work: Coroutine[Any, Any, Answer], left_secs: float) -> Answer:
        """What that comes to, or the problem that tells what it has raised."""
        try:
            with self._deadlines.begin(left_secs) as deadline:
                deadline.may_be_applied = self.may_be_applied
                self._call.request.deadline = deadline
                return (await work).encoded()
        except CallerLeftError:
            raise
        except Exception as error:  # noqa: BLE001 - it is told and logged
            return problem_answer(self._call, error)

    def _note_end(self, status: int) -> None:
        elapsed_us = (perf_counter_ns() - self._started_ns) // 1000
        self._note(self._call, self._route, status, elapsed_us)


def begin_in_task(call: Call, reply: Reply) -> bool:
    """Let the handler do its work in a task, if there is nothing to be read for it first."""
    operation = call.operation
    if operation is None:
        return False
    if operation.body is not None:
        call.body = take_json(call.request, operation.body)
        if call.body is None:
            return False
    reply.may_be_applied = operation.method != "GET"
    reply.finish(operation.handler(call))
    return True


async def _later(answer: Answer) -> Answer:
    return answer


async def _failing(error: Exception) -> Answer:
    raise error
