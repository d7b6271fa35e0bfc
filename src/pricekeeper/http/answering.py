"""How answers and errors go out: the headers every answer has, and the problem that tells an error.

An answer whose headers are the usual ones is put together from parts that are ready; any other one
header by header.

Requests that are begun as soon as they are whole: most without a task of their own.

A task, the coroutines on the way to its handler and the future that it waits for cost more than
what most requests of an app need done: their token, policy and prices are in memory, and what they
wait for is a commit that many of them share. Such a request is begun as soon as it is whole
(`Operation.begin`), and whoever commits it answers it. Everything else goes the usual way: what is
refused, and what has to be read first.

Where a handler has to wait for something else, it gets a task and nothing around it: the gate, the
body and the policy are done with by then (`begin_in_task`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, TypeAlias

import structlog

from pricekeeper.concurrency.deadline import DEADLINES, Deadlines
from pricekeeper.errors import (
    DeadlineExceededError,
    OverloadedError,
    PriceKeeperError,
    StoreDamagedError,
    StoreReplacedError,
)
from pricekeeper.http.edge import take_json
from pricekeeper.http.exchange import Exchange, render_lines
from pricekeeper.http.incoming import CallerLeftError, Send
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.operation import (
    JSON_TYPE,
    SECURITY,
    Answer,
    Beginning,
    Call,
    Operation,
    Reply,
    encode_body,
)
from pricekeeper.http.problems import problem_of

log = structlog.get_logger("pricekeeper.http")

NOBODY_LEFT: Final = 499
"""Whoever asked has gone: nginx's number for it, in the log and the metrics only."""
_PROBLEM: Final = b"application/problem+json"
_NO_STORE: Final = (b"cache-control", b"no-store")
_LOGGED_OTHERWISE: Final = (OverloadedError, StoreDamagedError, StoreReplacedError)
_USUAL: Final = (
    render_lines(SECURITY) + b"content-type: %b\r\nx-request-id: %%b\r\ncontent-length: %%d\r\n"
) % JSON_TYPE
_LIMIT_HEADERS: Final = 3
_LIMITED: Final = b"%b: %b\r\n" * _LIMIT_HEADERS + _USUAL


class _Refusal:
    """The problem that tells there is no room, ready but for the request's id.

    Nothing of it depends on who asks. Under overload there are thousands of them a second, and what
    they take is taken from the records of those who have a place.
    """

    def __init__(self) -> None:
        problem = problem_of(OverloadedError(), 0)
        mark = "0" * 32
        before, _, after = problem.body(mark).partition(mark.encode())
        lines = render_lines([*problem.headers, _NO_STORE, *SECURITY, (b"content-type", _PROBLEM)])
        self.status = problem.status
        self._body = before.replace(b"%", b"%%") + b"%b" + after.replace(b"%", b"%%")
        self._lines = lines.replace(b"%", b"%%") + b"x-request-id: %b\r\ncontent-length: %d\r\n"

    def write(self, exchange: Exchange, call: Call) -> bool:
        """Write it; returns whether that was done."""
        request_id = call.request_id.encode()
        body = self._body % request_id
        lines = render_lines(call.limit_headers) + self._lines % (request_id, len(body))
        return exchange.write_lines(self.status, lines, body)


OVERLOADED: Final = _Refusal()


def problem_answer(call: Call, error: Exception) -> Answer:
    """The answer that tells an error; it is counted, and logged if it is no fault of the caller."""
    if isinstance(error, PriceKeeperError):
        problem = problem_of(error, call.services.clock.now_ms())
        note_error(error, problem.status, call.metrics, call.request_id)
    else:
        log.error("unhandled", request_id=call.request_id, exc_info=error)
        call.metrics.note_problem(PriceKeeperError.code)
        problem = problem_of(PriceKeeperError(), 0)
    known = call.principal is not None or call.authority is not None
    if problem.status == 404 and known and not call.coverage.is_all:  # noqa: PLR2004
        # Another tenant's resource is refused before it is counted: nothing may tell it apart.
        call.limit_headers = ()
    headers = (*problem.headers, _NO_STORE)
    return Answer(problem.status, problem.body(call.request_id), headers, _PROBLEM)


def note_error(error: PriceKeeperError, status: int, metrics: Metrics, request_id: str) -> None:
    """Count an error that is about to be told; what is no fault of the caller's is logged too.

    A refusal because of overload is counted and has its access line; a traceback for each would
    cost more than the request that it refuses. A file that
    is unusable was logged when it was found.
    """
    metrics.note_problem(error.code)
    if status >= 500 and not isinstance(error, _LOGGED_OTHERWISE):  # noqa: PLR2004
        trace = None if isinstance(error, DeadlineExceededError) else error  # it is always the same
        log.warning("problem", request_id=request_id, code=error.code, exc_info=trace)


def write_at_once(exchange: Exchange, answer: Answer, body: bytes | None, call: Call) -> bool:
    """Write an answer that is no stream; returns whether it did. Else it has to be sent."""
    if (
        body is not None
        and not answer.headers
        and answer.media_type is JSON_TYPE
        and answer.security is SECURITY
    ):
        limits, own = call.limit_headers, (call.request_id.encode(), len(body))
        if len(limits) == _LIMIT_HEADERS:  # what is left of a limit is in whole numbers
            lines = _LIMITED % (*limits[0], *limits[1], *limits[2], *own)
        else:
            lines = render_lines(limits) + _USUAL % own
        return exchange.write_lines(answer.status, lines, body)
    return exchange.write_whole(answer.status, _headers(answer, body, call), body or b"")


async def send_answer(send: Send, answer: Answer, call: Call) -> None:
    """Send an encoded answer, or the parts of a stream."""
    if answer.stream is not None:
        await _stream(send, answer, _headers(answer, None, call), call)
        return
    exchange = call.request.exchange
    if exchange is None or not write_at_once(exchange, answer, answer.body, call):
        headers = _headers(answer, answer.body, call)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body or b""})


def _headers(answer: Answer, body: bytes | None, call: Call) -> list[tuple[bytes, bytes]]:
    headers = [
        *answer.headers,
        *call.limit_headers,
        *answer.security,
        (b"x-request-id", call.request_id.encode()),
    ]
    if answer.stream is not None:
        headers.append((b"content-type", answer.media_type))
    elif body is not None:
        headers += ((b"content-type", answer.media_type), (b"content-length", b"%d" % len(body)))
    elif answer.status != 204:  # noqa: PLR2004 - a 204 has no length
        headers.append((b"content-length", b"0"))
    return headers


async def _stream(
    send: Send, answer: Answer, headers: list[tuple[bytes, bytes]], call: Call
) -> None:
    """Send the parts of an answer as they come, until it ends or its reader leaves."""
    stream = answer.stream
    if stream is None:
        return
    leaving = asyncio.create_task(_wait_until_left(call), name="pricekeeper-leaving")
    leaving.add_done_callback(lambda _: stream.leave())
    try:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for part in stream.parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        leaving.cancel()
        await stream.close()


async def _wait_until_left(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        continue


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
