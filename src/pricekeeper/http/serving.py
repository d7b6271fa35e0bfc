"""The ASGI machinery: from a request to an operation's handler and back.

`Shell` is around everything: the request's id, the headers every answer has, errors turned
into problems, the access log and the latency metric. `Endpoint` is the gate of one operation:
who is calling, may they, how often, and with what body. Both are plain ASGI callables; on the
hot path there is no framework layer between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import getrandbits
from time import perf_counter_ns
from typing import Final

import msgspec
import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pricekeeper.errors import NotFoundError, PriceKeeperError
from pricekeeper.http.access_log import AccessLog
from pricekeeper.http.edge import read_json
from pricekeeper.http.gate import REFUSALS, admit, count_failure
from pricekeeper.http.incoming import Incoming
from pricekeeper.http.metrics import Metrics
from pricekeeper.http.oauth import told as oauth_error
from pricekeeper.http.operation import Answer, Call, Operation
from pricekeeper.http.problems import MethodNotAllowedError, Problem, problem_of
from pricekeeper.http.routing import Paths

log = structlog.get_logger("pricekeeper.http")

SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROBLEM: Final = b"application/problem+json"
_encode = msgspec.json.Encoder().encode


class Endpoint:
    """The gate of one operation."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit, parse, handle, answer."""
        state = scope["state"]
        call = Call(
            services=state["services"],
            api_limits=state["api_limits"],
            metrics=state["metrics"],
            request=Incoming(scope, receive),
            request_id=scope["request_id"],
            path=scope["path_params"],
        )
        if not self.operation.oauth:
            await self._serve(call, send)
            return
        try:
            try:
                await self._serve(call, send)
            except REFUSALS:
                await count_failure(call)
                raise
        except PriceKeeperError as error:
            answer = oauth_error(error, call)
            _note(error, answer.status, call.metrics, call.request_id)
            await reply(send, answer)

    async def _serve(self, call: Call, send: Send) -> None:
        operation = self.operation
        limit_headers = await admit(call, operation)
        if operation.body is not None and not operation.reads_body:
            call.body = await read_json(call.request, operation.body)
        answer = await operation.handler(call)
        await reply(send, answer, limit_headers)


class Dispatch:
    """One path: the endpoint of the request's method."""

    __slots__ = ("allowed", "endpoints", "path")

    def __init__(self, path: str, endpoints: Mapping[str, Endpoint]) -> None:
        self.path = path
        self.endpoints = dict(endpoints)
        if "GET" in endpoints:
            self.endpoints["HEAD"] = endpoints["GET"]
        self.allowed = tuple(sorted(self.endpoints))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand over, or say which methods there are."""
        scope["route"] = self.path
        endpoint = self.endpoints.get(scope["method"])
        if endpoint is None:
            raise MethodNotAllowedError(self.allowed)
        await endpoint(scope, receive, send)


class Routes:
    """Every path of ours, and an answer for those that are not."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        endpoints: dict[str, dict[str, Endpoint]] = {}
        for operation in operations:
            endpoints.setdefault(operation.path, {})[operation.method] = Endpoint(operation)
        self._paths: Paths[Dispatch] = Paths()
        for path, methods in endpoints.items():
            self._paths.add(path, Dispatch(path, methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand over to what serves the path."""
        found = self._paths.find(scope["path"])
        if found is None:
            raise NotFoundError("path")
        dispatch, scope["path_params"] = found
        await dispatch(scope, receive, send)


class Shell:
    """Around everything that is served."""

    def __init__(self, app: ASGIApp, access_log: AccessLog) -> None:
        self.app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whatever happens inside."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_ns = perf_counter_ns()
        request_id = scope["request_id"] = _request_id(scope)
        common = ((b"x-request-id", request_id.encode()), *SECURITY_HEADERS)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(header for header in common if header[0] not in own),
                ]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = 499  # nobody is left to be told
        except PriceKeeperError as error:
            problem = problem_of(error, _now_ms(scope))
            _note(error, problem.status, scope["state"]["metrics"], request_id)
            await _tell(send_with_headers, problem, request_id, started=bool(status))
        except Exception:
            log.exception("unhandled", request_id=request_id)
            scope["state"]["metrics"].problem(PriceKeeperError.code)
            problem = problem_of(PriceKeeperError(), 0)
            await _tell(send_with_headers, problem, request_id, started=bool(status))
        finally:
            elapsed_us = (perf_counter_ns() - started_ns) // 1000
            self._observe(scope, status, elapsed_us)

    def _observe(self, scope: Scope, status: int, elapsed_us: int) -> None:
        method, route = scope["method"], scope.get("route", "none")
        scope["state"]["metrics"].request(method, route, status, elapsed_us)
        self._access_log.note(method, route, status, elapsed_us, scope["request_id"])


async def reply(
    send: Send, answer: Answer, more_headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send an answer."""
    body = answer.body
    data = body if isinstance(body, bytes) else b"" if body is None else _encode(body)
    headers = [*answer.headers, *more_headers]
    if body is not None:
        headers += [(b"content-type", answer.media_type), (b"content-length", b"%d" % len(data))]
    elif answer.status != 204:  # noqa: PLR2004 - a 204 has no length
        headers.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def _note(error: PriceKeeperError, status: int, metrics: Metrics, request_id: str) -> None:
    """Count an error that is about to be told; what is no fault of the caller's is logged too."""
    metrics.problem(error.code)
    if status >= 500:  # noqa: PLR2004
        log.warning("problem", request_id=request_id, code=error.code, exc_info=error)


async def _tell(send: Send, problem: Problem, request_id: str, *, started: bool) -> None:
    if started:
        return  # half an answer is out already; the log has the rest
    body = problem.body(request_id)
    answer = Answer(
        problem.status, body, (*problem.headers, (b"cache-control", b"no-store")), _PROBLEM
    )
    await reply(send, answer)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    # Not a secret: it only has to be different, and asking the kernel each time is dear.
    return f"{getrandbits(128):032x}"


def _now_ms(scope: Scope) -> int:
    now_ms: int = scope["state"]["services"].clock.now_ms()
    return now_ms
