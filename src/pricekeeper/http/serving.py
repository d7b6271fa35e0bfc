"""From a request to its operation's handler, and back.

`Shell` finds the operation, turns errors into problems, and notes each request. `Endpoint`
authenticates, limits and parses for one operation. `AccessLog` writes its lines once per turn of
the event loop: a line through ordinary logging costs as much as a quick request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import getrandbits
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.concurrency.deadline import DEADLINES
from pricekeeper.errors import NotFoundError, PriceKeeperError, RequestRefusedError
from pricekeeper.gateway.routes import PREFIX
from pricekeeper.http.answering import (
    RequestAtOnce,
    answer_with,
    begin_in_task,
    note_error,
)
from pricekeeper.http.edge import BodyTooLargeError, refuse_repeated
from pricekeeper.http.encoding import EncodedAnswers
from pricekeeper.http.exchange import Exchange
from pricekeeper.http.gate import (
    admit,
    admit_at_once,
    bearer_in,
    check_metrics_token,
    count_failure,
    is_guess,
)
from pricekeeper.http.identity import oauth_error
from pricekeeper.http.incoming import (
    Incoming,
    Lifespan,
    Receive,
    Scope,
    Send,
    run_lifespan,
)
from pricekeeper.http.operation import Answer, Beginning, Call, Route
from pricekeeper.http.problems import MethodNotAllowedError
from pricekeeper.http.routing import Paths
from pricekeeper.telemetry.logs import GatheredLines, timestamp
from pricekeeper.tokens import digest_of
from pricekeeper.wire.operation import Access

GATEWAY: Final = "gateway"
NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Endpoint:
    """One operation behind its gate."""

    __slots__ = ("_counted_errors", "_counts_failures", "begin", "begins_early", "operation")

    def __init__(self, operation: Route) -> None:
        self.operation = operation
        self.begin = operation.begin or (begin_in_task if operation.is_plain else None)
        self.begins_early = operation.begins_early
        public = operation.access is Access.PUBLIC
        self._counted_errors: tuple[type[PriceKeeperError], ...] = ()
        """Charged to the caller's address, like guesses."""
        if public and operation.body is not None:
            # Authenticated callers are limited by identity, and may send a malformed body.
            self._counted_errors = (RequestRefusedError, BodyTooLargeError)
        by_metrics_token = operation.access is Access.METRICS
        self._counts_failures = operation.oauth or by_metrics_token or bool(self._counted_errors)

    async def answer(self, call: Call) -> Answer:
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
            note_error(error, answer.status, call.metrics, call.request_id)
            return answer

    async def _answer_or_count(self, call: Call) -> Answer:
        try:
            return await self._answer(call)
        except PriceKeeperError as error:
            if is_guess(error) or isinstance(error, self._counted_errors):
                await count_failure(call)
            raise

    async def _answer(self, call: Call) -> Answer:
        operation = self.operation
        if operation.access is Access.METRICS:
            check_metrics_token(call)
        elif call.operation is None:
            await admit(call, operation)
        return await operation.perform(call)


class Path:
    """An endpoint for each method of a path."""

    __slots__ = ("allowed", "endpoints", "route")

    def __init__(self, route: str) -> None:
        self.route = route
        self.endpoints: dict[str, Endpoint] = {}
        self.allowed: tuple[str, ...] = ()

    def add(self, operation: Route) -> None:
        """Serves HEAD with GET."""
        self.endpoints[operation.method] = endpoint = Endpoint(operation)
        if operation.method == "GET":
            self.endpoints["HEAD"] = endpoint
        self.allowed = tuple(sorted(self.endpoints))


class Target(NamedTuple):
    """The target of a head, and how it can begin without a task."""

    route: str
    parameters: Mapping[str, str]
    path: Path | None = None
    endpoint: Endpoint | None = None
    begin: Beginning | None = None
    headers: dict[bytes, bytes] | None = None
    token_digest: bytes = b""


class Shell:
    """The ASGI application. ``lifespan`` is open while the server runs."""

    def __init__(
        self, operations: Sequence[Route], lifespan: Lifespan, access_log: AccessLog
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
        await run_lifespan(self._lifespan, scope, receive, send)

    def begin(self, exchange: Exchange) -> None:
        """Begin a request: without a task if nothing must be awaited first, else in one.

        A request that was admitted without a task is not charged again in its task.
        """
        started_ns = perf_counter_ns()
        scope: Any = exchange.scope
        if scope["raw_path"].startswith(PREFIX):
            gateway = scope["state"].get(GATEWAY)
            if gateway is not None:
                exchange.start(gateway(scope, exchange.receive, exchange.send, exchange))
                return
        known = exchange.known
        target: Target | None = None if known is None else known.memo
        if target is None:
            target = self._find_target(scope)
            if known is not None:
                known.memo = target
        endpoint, begin = target.endpoint, target.begin
        if endpoint is None or begin is None or (exchange.more_body and not endpoint.begins_early):
            call = self._make_call(Incoming(exchange), target.parameters)
        else:
            call = self._make_call(Incoming(exchange, target.headers), target.parameters)
            if admit_at_once(call, endpoint.operation, target.token_digest):
                reply = RequestAtOnce(exchange, call, target.route, started_ns, self._note)
                try:
                    if begin(call, reply):
                        if not reply.is_answered:
                            reply.wait()
                        return
                except Exception as error:  # noqa: BLE001 - it is answered and logged
                    reply.fail(error)
                    return
            # Those headers have the content-length of another request.
            call.request.headers = dict(scope["headers"])
        work = _perform(call, target)
        exchange.start(answer_with(exchange, call, target.route, started_ns, self._note, work))

    def _find_target(self, scope: Any) -> Target:
        raw: bytes = scope["raw_path"]
        # An escaped slash would be part of a name, and no name has one.
        is_odd = b"%" in raw and b"%2f" in raw.lower()
        path, parameters = (None, NO_PARAMETERS) if is_odd else self._paths.find(scope["path"])
        if path is None:
            return Target("none", parameters)
        endpoint = path.endpoints.get(scope["method"])
        if endpoint is not None and endpoint.begin is not None:
            headers = dict(scope["headers"])
            token = bearer_in(headers)
            if token is not None and len(headers) == len(scope["headers"]):
                digest = digest_of(token)
                return Target(
                    path.route, parameters, path, endpoint, endpoint.begin, headers, digest
                )
        return Target(path.route, parameters, path, endpoint)

    def _make_call(self, request: Incoming, parameters: Mapping[str, str]) -> Call:
        state = request.scope["state"]
        return Call(
            state["services"],
            state["api_limits"],
            state["metrics"],
            self._encoded,
            request,
            _request_id(request.headers),
            parameters,
        )

    def _note(self, call: Call, route: str, status: int, elapsed_us: int) -> None:
        method = call.request.scope["method"]
        call.metrics.note_request(method, route, status, elapsed_us)
        self._access_log.note(method, route, status, elapsed_us, call.request_id)


async def _perform(call: Call, target: Target) -> Answer:
    refuse_repeated(call.request)
    if target.endpoint is not None:
        return await target.endpoint.answer(call)
    if target.path is None:
        raise NotFoundError("path")
    raise MethodNotAllowedError(target.path.allowed)


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return str(given, "ascii")
    # Unique, not secret; asking the kernel each time is expensive.
    return f"{getrandbits(128):032x}"


class _Line(msgspec.Struct):
    event: str
    level: str
    timestamp: str
    request_id: str
    method: str
    route: str
    status: int
    elapsed_us: int


class AccessLog:
    """Writes its lines together at the end of the loop's turn."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._encode = msgspec.json.Encoder().encode
        self._lines = GatheredLines()

    def note(self, method: str, route: str, status: int, elapsed_us: int, request_id: str) -> None:
        if not self._enabled:
            return
        line = _Line("request", "info", timestamp(), request_id, method, route, status, elapsed_us)
        self._lines.add(self._encode(line))
