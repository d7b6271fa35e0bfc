"""The ASGI machinery: from a request to an operation's handler and back.

`Shell` is around everything: the request's id, errors turned into problems, the headers every
answer has, the access log and the latency metric. `Endpoint` is the gate of one operation:
who is calling, may they, how often, and with what body. Both are plain Python: on the hot path
there is no framework layer between the server and a handler.

The access log: a JSON line per request, written once per turn of the event loop.

A line that goes through the ordinary logging costs as much as the rest of a quick request. These
have a fixed shape, so they are gathered, encoded directly, and written together; they go through
the same redacting sink as every other line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import getrandbits
from time import perf_counter_ns
from typing import Any, Final, cast

import msgspec

from pricekeeper.concurrency.deadline import DEADLINES
from pricekeeper.errors import NotFoundError, PriceKeeperError, RequestRefusedError
from pricekeeper.gateway.routes import PREFIX
from pricekeeper.http.answering import (
    NOBODY_LEFT,
    RequestAtOnce,
    Target,
    begin_in_task,
    note_error,
    problem_answer,
    send_answer,
)
from pricekeeper.http.edge import BodyTooLargeError, refuse_repeated
from pricekeeper.http.encoding import EncodedAnswers
from pricekeeper.http.exchange import EXCHANGE, Exchange
from pricekeeper.http.gate import (
    admit,
    admit_at_once,
    bearer_in,
    check_metrics_token,
    count_failure,
    is_guess,
)
from pricekeeper.http.incoming import (
    CallerLeftError,
    Incoming,
    Lifespan,
    Receive,
    Scope,
    Send,
    run_lifespan,
)
from pricekeeper.http.oauth import oauth_error
from pricekeeper.http.operation import Access, Answer, Call, Operation
from pricekeeper.http.problems import MethodNotAllowedError
from pricekeeper.http.routing import Paths
from pricekeeper.telemetry.logs import GatheredLines, timestamp
from pricekeeper.tokens import digest_of

GATEWAY: Final = "gateway"
"""The name in the server's state under which the gateway is, if there is one."""
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Endpoint:
    """The gate of one operation."""

    __slots__ = ("_counted_errors", "_counts_failures", "operation")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        public = operation.access is Access.PUBLIC
        self._counted_errors: tuple[type[PriceKeeperError], ...] = ()
        """Errors that count against an address, as guesses do."""
        if public and operation.body is not None:
            # Whoever has proved who they are is limited by that, and may misspell a body.
            self._counted_errors = (RequestRefusedError, BodyTooLargeError)
        by_metrics_token = operation.access is Access.METRICS
        self._counts_failures = operation.oauth or by_metrics_token or bool(self._counted_errors)

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
            note_error(error, answer.status, call.metrics, call.request_id)
            return answer

    async def _answer_or_count(self, call: Call) -> Answer:
        """As `_answer`; what proved wrong there is charged to the address that it came from."""
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
        elif call.operation is None:  # else it was admitted before there was a task for it
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
    """Around everything that is served. ``lifespan`` is open while the server runs."""

    def __init__(
        self, operations: Sequence[Operation], lifespan: Lifespan, access_log: AccessLog
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
            await run_lifespan(self._lifespan, scope, receive, send)
            return
        if scope.get("raw_path", b"").startswith(PREFIX):
            gateway = scope["state"].get(GATEWAY)
            if gateway is not None:
                await gateway(scope, receive, send, scope.pop(EXCHANGE, None))
                return
        exchange: Exchange | None = scope.get(EXCHANGE)
        started_ns = perf_counter_ns()
        path, parameters = self._find(scope)
        call = None
        if exchange is not None and exchange.admitted is not None:
            call, exchange.admitted = exchange.admitted, None
            del scope[EXCHANGE]
        if call is None:
            call = self._make_call(Incoming(scope, receive), parameters)
        status, elapsed_us = NOBODY_LEFT, None
        try:
            answer = await _answer(call, path, scope["method"])
            status = answer.status
            if answer.stream is not None:  # how long it is listened to is not how slow we are
                elapsed_us = _us_since(started_ns)
            await send_answer(send, answer, call)
        except CallerLeftError:
            status = NOBODY_LEFT
        finally:
            if elapsed_us is None:
                elapsed_us = _us_since(started_ns)
            self._note(call, "none" if path is None else path.route, status, elapsed_us)

    def begin(self, exchange: Exchange) -> bool:
        """Begin a request without the usual task, if it can be; returns whether it did.

        It has to be whole, unless its operation says otherwise.

        If it did not, the request may be admitted all the same: then it is not charged again.
        """
        started_ns, known, scope = perf_counter_ns(), exchange.known, cast("Scope", exchange.scope)
        if scope["raw_path"].startswith(PREFIX):
            gateway = scope["state"].get(GATEWAY)
            if gateway is not None:
                exchange.start(gateway(scope, exchange.receive, exchange.send, exchange))
                return True
        target: Target | None = None if known is None else known.memo
        if target is None:
            target = self._find_target(scope)
            if target is None:
                return False
            if known is not None:
                known.memo = target
        operation = target.operation
        if exchange.more_body and not operation.begins_early:
            return False
        receive: Any = exchange.receive
        request = Incoming(scope, receive, exchange, target.headers)
        call = self._make_call(request, target.parameters)
        if not admit_at_once(call, operation, target.token_digest):
            return False
        reply = RequestAtOnce(exchange, call, target.route, started_ns, self._note)
        try:
            if target.begin(call, reply):
                return True
        except Exception as error:  # noqa: BLE001 - it is told and logged
            reply.fail(error)
            return True
        reply.withdraw()
        request.headers = dict(scope["headers"])  # those of the target have another length
        exchange.admitted = call
        return False

    def _find_target(self, scope: Scope) -> Target | None:
        """What the head asks for; ``None`` if that is not begun at once, or if it is refused."""
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
        """Note in the log and the metrics that a request was answered."""
        method = call.request.scope["method"]
        call.metrics.note_request(method, route, status, elapsed_us)
        self._access_log.note(method, route, status, elapsed_us, call.request_id)

    def _find(self, scope: Scope) -> tuple[Path | None, Mapping[str, str]]:
        """The path that is asked for; an escaped slash is part of a name, and no name has one."""
        raw: bytes = scope.get("raw_path", b"")
        if b"%" in raw and b"%2f" in raw.lower():
            return None, {}
        return self._paths.find(scope["path"])


async def _answer(call: Call, path: Path | None, method: str) -> Answer:
    """What the operation answers; if it fails, the problem."""
    try:
        refuse_repeated(call.request)
        if path is None:
            raise NotFoundError("path")
        endpoint = path.endpoints.get(method)
        if endpoint is None:
            raise MethodNotAllowedError(path.allowed)
        answer = await endpoint.answer(call)
        return answer.encoded()
    except CallerLeftError:
        raise
    except Exception as error:  # noqa: BLE001 - it is told and logged
        return problem_answer(call, error)


def _us_since(started_ns: int) -> int:
    return (perf_counter_ns() - started_ns) // 1000


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return str(given, "ascii")
    # Not a secret: it only has to be different, and asking the kernel each time is dear.
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
        """Write a line, soon."""
        if not self._enabled:
            return
        line = _Line("request", "info", timestamp(), request_id, method, route, status, elapsed_us)
        self._lines.add(self._encode(line))
