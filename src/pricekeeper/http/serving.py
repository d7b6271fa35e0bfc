"""From a request to its operation's handler, and back.

`Shell` finds the operation, turns errors into problems, and notes each request in the access log
and the metrics. `Endpoint` authenticates, limits and parses for one operation. There is no
framework between the server and a handler.

`AccessLog` writes its lines together, once per turn of the event loop: one line through the
ordinary logging costs as much as a quick request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import getrandbits
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, Final

import msgspec

from pricekeeper.concurrency.deadline import DEADLINES
from pricekeeper.errors import NotFoundError, PriceKeeperError, RequestRefusedError
from pricekeeper.gateway.routes import PREFIX
from pricekeeper.http.answering import (
    RequestAtOnce,
    Target,
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
from pricekeeper.http.incoming import (
    Incoming,
    Lifespan,
    Receive,
    Scope,
    Send,
    run_lifespan,
)
from pricekeeper.http.oauth import oauth_error
from pricekeeper.http.operation import Answer, Call, Route
from pricekeeper.http.problems import MethodNotAllowedError
from pricekeeper.http.routing import Paths
from pricekeeper.telemetry.logs import GatheredLines, timestamp
from pricekeeper.tokens import digest_of
from pricekeeper.wire.operation import Access

GATEWAY: Final = "gateway"
"""Key in the server's state of the gateway."""
NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Endpoint:
    """One operation behind its gate."""

    __slots__ = ("_counted_errors", "_counts_failures", "operation")

    def __init__(self, operation: Route) -> None:
        self.operation = operation
        public = operation.access is Access.PUBLIC
        self._counted_errors: tuple[type[PriceKeeperError], ...] = ()
        """Errors that count as failures of the caller's address, like guesses."""
        if public and operation.body is not None:
            # Authenticated callers are limited by their identity, and may send a malformed body.
            self._counted_errors = (RequestRefusedError, BodyTooLargeError)
        by_metrics_token = operation.access is Access.METRICS
        self._counts_failures = operation.oauth or by_metrics_token or bool(self._counted_errors)

    async def answer(self, call: Call) -> Answer:
        """Admit, parse and handle a call within its deadline."""
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
        """Answer, and charge a guess to the caller's address."""
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
        elif call.operation is None:  # else it was admitted before its task
            await admit(call, operation)
        return await operation.perform(call)


class Path:
    """One path: an endpoint for each of its methods."""

    __slots__ = ("allowed", "endpoints", "route")

    def __init__(self, route: str) -> None:
        self.route = route
        self.endpoints: dict[str, Endpoint] = {}
        self.allowed: tuple[str, ...] = ()

    def add(self, operation: Route) -> None:
        """Serve the operation's method, and HEAD with GET."""
        self.endpoints[operation.method] = endpoint = Endpoint(operation)
        if operation.method == "GET":
            self.endpoints["HEAD"] = endpoint
        self.allowed = tuple(sorted(self.endpoints))


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
        """Serve the lifespan. Requests come through `begin`."""
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
        target = self._target_of(exchange)
        if target is None or (exchange.more_body and not target.operation.begins_early):
            call = self._make_call(Incoming(exchange))
        else:
            call = self._make_call(Incoming(exchange, target.headers), target.parameters)
            if admit_at_once(call, target.operation, target.token_digest):
                reply = RequestAtOnce(exchange, call, target.route, started_ns, self._note)
                try:
                    if target.begin(call, reply):
                        return
                except Exception as error:  # noqa: BLE001 - it is answered and logged
                    reply.fail(error)
                    return
                reply.withdraw()
            # The target's headers have the content-length of another request.
            call.request.headers = dict(scope["headers"])
        path, call.path = self._find(scope)
        route = "none" if path is None else path.route
        work = _perform(call, path, scope["method"])
        exchange.start(answer_with(exchange, call, route, started_ns, self._note, work))

    def _target_of(self, exchange: Exchange) -> Target | None:
        """The target of a request; a known head remembers it."""
        known = exchange.known
        target: Target | None = None if known is None else known.memo
        if target is None:
            target = self._find_target(exchange.scope)
            if known is not None:
                known.memo = target
        return target

    def _find_target(self, scope: Any) -> Target | None:
        """The target of a head; ``None`` if its requests need a task, or are refused."""
        path, parameters = self._find(scope)
        endpoint = None if path is None else path.endpoints.get(scope["method"])
        if path is None or endpoint is None:
            return None
        operation = endpoint.operation
        begin = operation.begin or (begin_in_task if operation.is_plain else None)
        if begin is None:
            return None
        headers = dict(scope["headers"])
        token = bearer_in(headers)
        if token is None or len(headers) != len(scope["headers"]):
            return None
        return Target(path.route, operation, begin, parameters, headers, digest_of(token))

    def _make_call(self, request: Incoming, parameters: Mapping[str, str] = NO_PARAMETERS) -> Call:
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

    def _find(self, scope: Scope) -> tuple[Path | None, Mapping[str, str]]:
        """Find a path. An escaped slash would be part of a name, and no name has one."""
        raw: bytes = scope.get("raw_path", b"")
        if b"%" in raw and b"%2f" in raw.lower():
            return None, {}
        return self._paths.find(scope["path"])


async def _perform(call: Call, path: Path | None, method: str) -> Answer:
    """Perform the operation of a path and method, or refuse what is neither."""
    refuse_repeated(call.request)
    if path is None:
        raise NotFoundError("path")
    endpoint = path.endpoints.get(method)
    if endpoint is None:
        raise MethodNotAllowedError(path.allowed)
    return await endpoint.answer(call)


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return str(given, "ascii")
    # Not a secret, only unique; asking the kernel each time is expensive.
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
    """Gathers lines and writes them at the end of the loop's turn."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._encode = msgspec.json.Encoder().encode
        self._lines = GatheredLines()

    def note(self, method: str, route: str, status: int, elapsed_us: int, request_id: str) -> None:
        if not self._enabled:
            return
        line = _Line("request", "info", timestamp(), request_id, method, route, status, elapsed_us)
        self._lines.add(self._encode(line))
