"""The ASGI machinery: from a request to an operation's handler and back.

`Shell` is around everything: the request's id, errors turned into problems, the headers every
answer has, the access log and the latency metric. `Endpoint` is the gate of one operation:
who is calling, may they, how often, and with what body. Both are plain Python: on the hot path
there is no framework layer between the server and a handler.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from random import getrandbits
from time import perf_counter_ns
from typing import Final

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from pricekeeper.concurrency.deadline import DEADLINES
from pricekeeper.errors import (
    DeadlineExceededError,
    NotFoundError,
    OverloadedError,
    PriceKeeperError,
    RequestRefusedError,
    StoreDamagedError,
    StoreReplacedError,
)
from pricekeeper.gateway.routes import PREFIX
from pricekeeper.http.access_log import AccessLog
from pricekeeper.http.edge import BodyTooLargeError, refuse_twofold
from pricekeeper.http.encoding import EncodedAnswers
from pricekeeper.http.exchange import EXCHANGE
from pricekeeper.http.gate import admit, count_failure, is_guess
from pricekeeper.http.incoming import Incoming
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.metrics_token import check_metrics_token
from pricekeeper.http.oauth import oauth_error
from pricekeeper.http.operation import Access, Answer, Call, Operation
from pricekeeper.http.problems import MethodNotAllowedError, problem_of
from pricekeeper.http.routing import Paths

log = structlog.get_logger("pricekeeper.http")

GATEWAY: Final = "gateway"
"""The name in the server's state under which the gateway is, if there is one."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROBLEM: Final = b"application/problem+json"
_LOGGED_OTHERWISE: Final = (OverloadedError, StoreDamagedError, StoreReplacedError)
_NOBODY_LEFT: Final = 499
"""Whoever asked has gone: nginx's number for it, in the log and the metrics only."""


class Endpoint:
    """The gate of one operation."""

    __slots__ = ("_counts_failures", "_unread", "operation")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        public = operation.access is Access.PUBLIC
        self._unread: tuple[type[PriceKeeperError], ...] = ()
        """What counts as a failure of its address, as a guess does."""
        if public and operation.body is not None:
            # Whoever has proved who they are is limited by that, and may misspell a body.
            self._unread = (RequestRefusedError, BodyTooLargeError)
        by_metrics_token = operation.access is Access.METRICS
        self._counts_failures = operation.oauth or by_metrics_token or bool(self._unread)

    async def answer(self, call: Call) -> Answer:
        """Admit, parse, handle, within the deadline."""
        if self.operation.bounds_itself:
            return await self._answer(call)
        try:
            with call.request.state[DEADLINES].begin() as deadline:
                call.request.deadline = deadline
                if self._counts_failures:
                    return await self._answer_or_count(call)
                return await self._answer(call)
        except PriceKeeperError as error:
            if not self.operation.oauth:
                raise
            answer = oauth_error(error, call)
            _note(error, answer.status, call.metrics, call.request_id)
            return answer

    async def _answer_or_count(self, call: Call) -> Answer:
        """As `_answer`; what proved wrong there is charged to the address that it came from."""
        try:
            return await self._answer(call)
        except PriceKeeperError as error:
            if is_guess(error) or isinstance(error, self._unread):
                await count_failure(call)
            raise

    async def _answer(self, call: Call) -> Answer:
        operation = self.operation
        if operation.access is Access.METRICS:
            check_metrics_token(call)
        else:
            await admit(call, operation)
        return await operation.perform(call)


class Path:
    """One path: an endpoint for each of its methods."""

    __slots__ = ("allowed", "endpoints", "route")

    def __init__(self, route: str) -> None:
        self.route = route
        self.endpoints: dict[str, Endpoint] = {}
        self.allowed: tuple[str, ...] = ()

    def add(self, operation: Operation) -> None:
        """Serve that operation's method, and with GET also HEAD."""
        self.endpoints[operation.method] = endpoint = Endpoint(operation)
        if operation.method == "GET":
            self.endpoints["HEAD"] = endpoint
        self.allowed = tuple(sorted(self.endpoints))


class Shell:
    """Around everything that is served. ``lifespan`` gets whatever is not HTTP."""

    def __init__(
        self, operations: Sequence[Operation], lifespan: ASGIApp, access_log: AccessLog
    ) -> None:
        self._lifespan = lifespan
        self._access_log = access_log
        self._encoded = EncodedAnswers()
        self._paths: Paths[Path] = Paths()
        made: dict[str, Path] = {}
        for operation in operations:
            if operation.path not in made:
                made[operation.path] = Path(operation.path)
                self._paths.add(operation.path, made[operation.path])
            made[operation.path].add(operation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whatever happens inside."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        if scope.get("raw_path", b"").startswith(PREFIX):
            gateway = scope["state"].get(GATEWAY)
            if gateway is not None:
                await gateway(scope, receive, send, scope.pop(EXCHANGE, None))
                return
        started_ns = perf_counter_ns()
        request = Incoming(scope, receive)
        request_id = _request_id(request)
        path, parameters = self._find(scope)
        state = scope["state"]
        call = Call(
            state["services"],
            state["api_limits"],
            state["metrics"],
            self._encoded,
            request,
            request_id,
            parameters,
        )
        status, elapsed_us = _NOBODY_LEFT, None
        try:
            answer = await _answer(call, path, scope["method"])
            status = answer.status
            if answer.stream is not None:  # how long it is listened to is not how slow we are
                elapsed_us = _us_since(started_ns)
            await _reply(send, answer, call)
        except ClientDisconnect:
            status = _NOBODY_LEFT
        finally:
            if elapsed_us is None:
                elapsed_us = _us_since(started_ns)
            route = "none" if path is None else path.route
            call.metrics.note_request(scope["method"], route, status, elapsed_us)
            self._access_log.note(scope["method"], route, status, elapsed_us, request_id)

    def _find(self, scope: Scope) -> tuple[Path | None, Mapping[str, str]]:
        """The path that is asked for; an escaped slash is part of a name, and no name has one."""
        raw: bytes = scope.get("raw_path", b"")
        if b"%" in raw and b"%2f" in raw.lower():
            return None, {}
        return self._paths.find(scope["path"])


async def _answer(call: Call, path: Path | None, method: str) -> Answer:
    """What the operation answers; if it fails, the problem."""
    try:
        refuse_twofold(call.request)
        if path is None:
            raise NotFoundError("path")
        endpoint = path.endpoints.get(method)
        if endpoint is None:
            raise MethodNotAllowedError(path.allowed)
        answer = await endpoint.answer(call)
        return answer.encoded()
    except ClientDisconnect:
        raise
    except PriceKeeperError as error:
        problem = problem_of(error, call.services.clock.now_ms())
        _note(error, problem.status, call.metrics, call.request_id)
    except Exception:
        log.exception("unhandled", request_id=call.request_id)
        call.metrics.note_problem(PriceKeeperError.code)
        problem = problem_of(PriceKeeperError(), 0)
    known = call.principal is not None or call.authority is not None
    if problem.status == 404 and known and not call.coverage.is_all:  # noqa: PLR2004
        # Another tenant's resource is refused before it is counted: nothing may tell it apart.
        call.limit_headers = ()
    headers = (*problem.headers, (b"cache-control", b"no-store"))
    return Answer(problem.status, problem.body(call.request_id), headers, _PROBLEM)


async def _reply(send: Send, answer: Answer, call: Call) -> None:
    headers = [
        *answer.headers,
        *call.limit_headers,
        *answer.security,
        (b"x-request-id", call.request_id.encode()),
    ]
    body = answer.body
    if answer.stream is not None:
        headers.append((b"content-type", answer.media_type))
        await _stream(send, answer, headers, call)
        return
    if body is not None:
        headers += ((b"content-type", answer.media_type), (b"content-length", b"%d" % len(body)))
    elif answer.status != 204:  # noqa: PLR2004 - a 204 has no length
        headers.append((b"content-length", b"0"))
    exchange = call.request.exchange
    if exchange is None or not exchange.write_whole(answer.status, headers, body or b""):
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body or b""})


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


def _us_since(started_ns: int) -> int:
    return (perf_counter_ns() - started_ns) // 1000


def _note(error: PriceKeeperError, status: int, metrics: Metrics, request_id: str) -> None:
    """Count an error that is about to be told; what is no fault of the caller's is logged too.

    A refusal because of overload is counted and has its access line; a traceback for each would
    cost more than the request that it refuses. A file that
    is unusable was logged when it was found.
    """
    metrics.note_problem(error.code)
    if status >= 500 and not isinstance(error, _LOGGED_OTHERWISE):  # noqa: PLR2004
        trace = None if isinstance(error, DeadlineExceededError) else error  # it is always the same
        log.warning("problem", request_id=request_id, code=error.code, exc_info=trace)


def _request_id(request: Incoming) -> str:
    given = request.raw_header(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return str(given, "ascii")
    # Not a secret: it only has to be different, and asking the kernel each time is dear.
    return f"{getrandbits(128):032x}"
