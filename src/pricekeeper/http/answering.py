"""Answers a call with its result or a problem, at once or in a task.

Most calls of an app wait only for a shared commit, and a task would cost more than the rest of such
a call. So the code that commits it also answers it (`RequestAtOnce`). Other handlers run in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import Any, Final, TypeAlias

import msgspec
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
from pricekeeper.http.incoming import CallerLeftError
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.operation import (
    JSON_TYPE,
    SECURITY,
    Answer,
    Call,
    Reply,
    Stream,
)
from pricekeeper.http.problems import problem_of

log = structlog.get_logger("pricekeeper.http")

CALLER_LEFT: Final = 499
"""nginx's number, for the log and the metrics only."""
_PROBLEM: Final = b"application/problem+json"
_NO_STORE: Final = (b"cache-control", b"no-store")
_LOGGED_OTHERWISE: Final = (OverloadedError, StoreDamagedError, StoreReplacedError)
_USUAL: Final = (
    render_lines(SECURITY) + b"content-type: %b\r\nx-request-id: %%b\r\ncontent-length: %%d\r\n"
) % JSON_TYPE
_LIMIT_HEADERS: Final = 3
_encode: Final = msgspec.json.Encoder().encode
_LIMITED: Final = b"%b: %b\r\n" * _LIMIT_HEADERS + _USUAL


class _Refusal:
    """The 503 for overload, rendered once: an overloaded server sends thousands a second."""

    def __init__(self) -> None:
        problem = problem_of(OverloadedError(), 0)
        mark = "0" * 32
        before, _, after = problem.body(mark).partition(mark.encode())
        lines = render_lines([*problem.headers, _NO_STORE, *SECURITY, (b"content-type", _PROBLEM)])
        self.status = problem.status
        self._body = before.replace(b"%", b"%%") + b"%b" + after.replace(b"%", b"%%")
        self._lines = lines.replace(b"%", b"%%") + b"x-request-id: %b\r\ncontent-length: %d\r\n"

    def write(self, exchange: Exchange, call: Call) -> bool:
        request_id = call.request_id.encode()
        body = self._body % request_id
        lines = render_lines(call.limit_headers) + self._lines % (request_id, len(body))
        return exchange.write_lines(self.status, lines, body)


OVERLOADED: Final = _Refusal()


def problem_answer(call: Call, error: Exception) -> Answer:
    """The answer for an error, which is counted, and logged unless the caller caused it."""
    if isinstance(error, PriceKeeperError):
        problem = problem_of(error, call.services.clock.now_ms())
        note_error(error, problem.status, call.metrics, call.request_id)
    else:
        log.error("unhandled", request_id=call.request_id, exc_info=error)
        call.metrics.note_problem(PriceKeeperError.code)
        problem = problem_of(PriceKeeperError(), 0)
    known = call.principal is not None or call.authority is not None
    if problem.status == 404 and known and not call.coverage.is_all:  # noqa: PLR2004
        # Refused before it is counted, so that the answers for another tenant's resource look the
        # same as for an absent one.
        call.limit_headers = ()
    headers = (*problem.headers, _NO_STORE)
    return Answer(problem.status, problem.body(call.request_id), headers, _PROBLEM)


def note_error(error: PriceKeeperError, status: int, metrics: Metrics, request_id: str) -> None:
    """Count an error, and log it unless the caller caused it or it was logged before.

    Overload is only counted: a traceback costs more than the refused request.
    """
    metrics.note_problem(error.code)
    if status >= 500 and not isinstance(error, _LOGGED_OTHERWISE):  # noqa: PLR2004
        trace = None if isinstance(error, DeadlineExceededError) else error
        log.warning("problem", request_id=request_id, code=error.code, exc_info=trace)


def write_at_once(exchange: Exchange, answer: Answer, body: bytes | None, call: Call) -> bool:
    """Write an answer that is no stream; ``False`` if its reader is slow."""
    if (
        body is not None
        and not answer.headers
        and answer.media_type is JSON_TYPE
        and answer.security is SECURITY
    ):
        limits, own = call.limit_headers, (call.request_id.encode(), len(body))
        if len(limits) == _LIMIT_HEADERS:
            lines = _LIMITED % (*limits[0], *limits[1], *limits[2], *own)
        else:
            lines = render_lines(limits) + _USUAL % own
        return exchange.write_lines(answer.status, lines, body)
    return exchange.write_whole(answer.status, _headers(answer, body, call), body or b"")


async def send_answer(exchange: Exchange, answer: Answer, body: bytes | None, call: Call) -> None:
    """Send an answer with this body, or the parts of a stream."""
    if answer.stream is not None:
        await _stream(exchange, answer.stream, answer, call)
    elif not write_at_once(exchange, answer, body, call):
        await exchange.drain()
        if not write_at_once(exchange, answer, body, call):
            raise RuntimeError("the answer could not be written")


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


async def _stream(exchange: Exchange, stream: Stream, answer: Answer, call: Call) -> None:
    send, headers = exchange.send, _headers(answer, None, call)
    exchange.watch(stream.leave)
    try:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for part in stream.parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await stream.close()


Note: TypeAlias = Callable[[Call, str, int, int], None]
"""Its call, route, status and microseconds."""


async def answer_with(
    exchange: Exchange,
    call: Call,
    route: str,
    started_ns: int,
    note: Note,
    work: Coroutine[Any, Any, Answer],
) -> None:
    """Send the result of ``work``, or the problem that it raised, and note it."""
    status, elapsed_us = CALLER_LEFT, None
    try:
        answer, body = await _answer_of(call, work)
        status = answer.status
        if answer.stream is not None:
            elapsed_us = _us_since(started_ns)
        await send_answer(exchange, answer, body, call)
    except CallerLeftError:
        status = CALLER_LEFT
    finally:  # also if the server cancels it
        note(call, route, status, _us_since(started_ns) if elapsed_us is None else elapsed_us)


async def _answer_of(call: Call, work: Coroutine[Any, Any, Answer]) -> tuple[Answer, bytes | None]:
    try:
        answer = await work
        return answer, _encoded_body(answer)
    except CallerLeftError:
        raise
    except Exception as error:  # noqa: BLE001 - it is answered and logged
        answer = problem_answer(call, error)
        return answer, answer.body


def _encoded_body(answer: Answer) -> bytes | None:
    body = answer.body
    return body if body is None or type(body) is bytes else _encode(body)


def _us_since(started_ns: int) -> int:
    return (perf_counter_ns() - started_ns) // 1000


class RequestAtOnce:
    """A request without a task. The first that answers it wins."""

    __slots__ = (
        "_call", "_deadlines", "_due", "_exchange", "_note", "_route", "_started_ns",
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
        self._due: tuple[float, int] | None = None
        """Its deadline, once it waits."""

    def wait(self) -> None:
        """Begin its deadline."""
        self._due = self._deadlines.add(self, self._deadlines.secs)

    def send(self, answer: Answer) -> None:
        if self.is_answered:
            return
        try:
            body = _encoded_body(answer)
            if not write_at_once(self._exchange, answer, body, self._call):
                self.finish(_later(answer))
                return
        except Exception as error:  # noqa: BLE001 - it is answered and logged
            self.fail(error)
            return
        self._end_wait()
        self._note_end(answer.status)

    def finish(self, work: Coroutine[Any, Any, Answer]) -> None:
        if self.is_answered:
            work.close()
            return
        work = self._within(work, self._end_wait())
        self._exchange.start(
            answer_with(self._exchange, self._call, self._route, self._started_ns, self._note, work)
        )

    def refuse_for_room(self) -> None:
        if self.is_answered:
            return
        if not OVERLOADED.write(self._exchange, self._call):
            self.fail(OverloadedError())
            return
        self._call.metrics.note_problem(OverloadedError.code)
        self._end_wait()
        self._note_end(OVERLOADED.status)

    def fail(self, error: Exception) -> None:
        self.finish(_failing(error))

    def expire(self) -> None:
        if not self.is_answered:
            self.fail(DeadlineExceededError(may_be_applied=self.may_be_applied))

    def _end_wait(self) -> float:
        """Returns the seconds that are left."""
        self.is_answered = True
        if self._due is None:
            return self._deadlines.secs
        return self._deadlines.remove(self, *self._due)

    async def _within(self, work: Coroutine[Any, Any, Answer], left_secs: float) -> Answer:
        with self._deadlines.begin(left_secs) as deadline:
            deadline.may_be_applied = self.may_be_applied
            self._call.request.deadline = deadline
            return await work

    def _note_end(self, status: int) -> None:
        self._note(self._call, self._route, status, _us_since(self._started_ns))


def begin_in_task(call: Call, reply: Reply) -> bool:
    """Run the handler in a task, unless its body has not come."""
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
