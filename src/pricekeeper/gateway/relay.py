"""One call through the gateway: who, may it, send it on, pass the answer back, settle.

A caller that hangs up does not end its call: Bedrock bills it to its end, so the answer is read to
its end, within bounds, and counted. A caller that does not read makes the gateway wait with what
fits into one buffer; the server cuts it off after a while, and then it has hung up. What can't be
known in the end stays charged at what was held for it, and is marked when it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from random import getrandbits
from time import perf_counter_ns
from typing import Any, Final

import aiohttp
import msgspec
import structlog

from pricekeeper.authorizations import Authorization
from pricekeeper.bedrock import Operation, StreamUsage, Usage
from pricekeeper.bedrock.refusals import is_refusal
from pricekeeper.bedrock.usage import usage_of_body, usage_of_converse, usage_of_invoke
from pricekeeper.bootstrap import Services
from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    NotFoundError,
    PriceKeeperError,
    StoreError,
)
from pricekeeper.gateway.connection import ABORT
from pricekeeper.gateway.errors import (
    Refusal,
    ReplyLost,
    refusal_of,
)
from pricekeeper.gateway.identity import Identification
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.planning import (
    Plan,
    authorize,
    body_to_send,
    model_to_call,
    plan_call,
    says_usage,
)
from pricekeeper.gateway.routes import Dialect, Route, find_route
from pricekeeper.gateway.sse import SseUsage
from pricekeeper.gateway.upstream import LOST, NOT_SENT, NoCredentialsError, Upstream
from pricekeeper.metering import Usage as UsageRecord
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.telemetry.logs import write_lines
from pricekeeper.tenants import Policy
from pricekeeper.tokens import Principal

DRAINS_MAX: Final = 512
"""How many answers are read on at once after their callers have left."""
DRAIN_SECS_MAX: Final = 120
SETTLE_ATTEMPTS_MAX: Final = 5
SETTLE_PAUSE_MS: Final = 200
REPLY_BYTES_MAX: Final = 64 << 20
"""The longest answer that is not a stream."""
_NOT_PASSED: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_encode: Final = msgspec.json.Encoder().encode
log = structlog.get_logger("pricekeeper.gateway")

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@dataclass(slots=True)
class _Call:
    """What is known of one call, for its end and for the log."""

    request_id: str
    dialect: Dialect
    route: str = "none"
    label: str = ""
    authorization_id: str = ""
    status: int = 0
    outcome: str = "refused"
    cost_usd_micros: int | None = None


class Gateway:
    """The ASGI application of all paths below ``/bedrock/``."""

    def __init__(
        self,
        services: Services,
        upstream: Upstream,
        *,
        note_guess: Callable[[str | None], Awaitable[None]],
        body_bytes_max: int,
        logs: bool,
    ) -> None:
        """``note_guess`` is told the address that credentials came from which are not valid."""
        self._services = services
        self._upstream = upstream
        self._note_guess = note_guess
        self._body_bytes_max = body_bytes_max
        self._logs = logs
        self._identification = Identification(services.identity, services.clock)
        self.meter = GatewayMeter()
        self._draining = 0
        self._settling: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request, whatever happens inside."""
        started_ns = perf_counter_ns()
        route = find_route(scope["raw_path"])
        call = _Call(f"{getrandbits(128):032x}", Dialect.AWS)
        if route is not None:
            call.dialect, call.route = route.dialect, route.name
        try:
            await self._serve(scope, receive, send, route, call)
        except Refusal as refusal:
            await self._refuse(send, refusal, call)
        except PriceKeeperError as error:
            await self._refuse(send, refusal_of(error, self._services.clock.now_ms()), call)
        finally:
            self._note(call, perf_counter_ns() - started_ns)

    async def close(self) -> None:
        """Let settlements that are under way end."""
        if self._settling:
            await asyncio.wait(self._settling)

    async def _serve(
        self, scope: Any, receive: Receive, send: Send, route: Route | None, call: _Call
    ) -> None:
        if route is None:
            raise Refusal(404, "UnknownOperationException", "there is no such path")
        if scope["method"] != "POST":
            raise Refusal(405, "UnknownOperationException", "use POST")
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = await self._read(receive, headers)
        if body is None:
            call.outcome = "left"
            return
        began_ns = perf_counter_ns()
        policy = await self._identify(scope, headers, body)
        plan = plan_call(route, body, headers)
        if route.is_free:
            await self._relay_free(send, plan, headers, body, call)
            return
        authorization = await authorize(self._services, policy, plan)
        call.label, call.authorization_id = authorization.grant.label, authorization.shown_id
        one = _Relay(self, policy, plan, authorization, headers, call)
        self.meter.added.note((perf_counter_ns() - began_ns) // 1000)
        await one.run(receive, send, body)

    async def _read(self, receive: Receive, headers: Mapping[str, str]) -> bytes | None:
        """The whole body; ``None`` if the caller left before its end."""
        most = self._body_bytes_max
        declared = headers.get("content-length", "")
        too_large = Refusal(413, "ValidationException", f"the body may have {most} bytes at most")
        if declared.isdigit() and int(declared) > most:
            raise too_large
        body = bytearray()
        while True:  # ends with the body, or with the bound on it
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise too_large
            if not message.get("more_body", False):
                return bytes(body)

    async def _identify(self, scope: Any, headers: Mapping[str, str], body: bytes) -> Policy:
        try:
            principal = await self._identification.identify(
                method=scope["method"],
                raw_path=scope["raw_path"].decode("latin-1"),
                query=scope["query_string"].decode("latin-1"),
                headers=headers,
                body=body,
            )
        except (Refusal, InvalidTokenError, InvalidClientError) as error:
            if not (isinstance(error, InvalidTokenError) and error.genuine):
                client = scope.get("client")
                await self._note_guess(None if client is None else str(client[0]))
            raise
        return await self._policy_of(principal)

    async def _policy_of(self, principal: Principal) -> Policy:
        if principal.app_id is None:
            raise Refusal(
                403,
                "AccessDeniedException",
                "these are an organisation's credentials; use an app's",
            )
        try:
            return await self._services.tenants.find_policy(principal.org_id, principal.app_id)
        except NotFoundError:
            raise Refusal(403, "AccessDeniedException", "the app does not exist") from None

    async def _relay_free(
        self, send: Send, plan: Plan, headers: Mapping[str, str], body: bytes, call: _Call
    ) -> None:
        """Pass on what runs no model."""
        catalogue = self._services.prices.catalogue
        model = plan.model
        if model in catalogue:
            model = catalogue.model(model).bedrock_model_id
        try:
            response = await self._upstream.send(plan.route, model, headers, body)
            async with response:
                data = await response.content.read(REPLY_BYTES_MAX)
        except (*LOST, NoCredentialsError) as error:
            raise Refusal(503, "ServiceUnavailableException", _named(error), 1000) from error
        call.outcome, call.status = "free", response.status
        await _answer(send, response.status, passed_headers(response), data)

    async def _refuse(self, send: Send, refusal: Refusal, call: _Call) -> None:
        call.status = refusal.status
        if call.outcome == "refused" and call.authorization_id:
            call.outcome = "upstream_lost" if isinstance(refusal, ReplyLost) else "unreachable"
        elif refusal.code == "ServiceQuotaExceededException":
            call.outcome = "denied"
        elif refusal.code == "ThrottlingException":
            call.outcome = "throttled"
        body = refusal.body(call.dialect)
        await _answer(send, refusal.status, refusal.headers(call.request_id), body)

    def _note(self, call: _Call, elapsed_ns: int) -> None:
        self.meter.calls[call.label or "none", call.outcome] += 1
        if self._logs:
            line = {
                "event": "gateway",
                "request_id": call.request_id,
                "route": call.route,
                "status": call.status,
                "outcome": call.outcome,
                "label": call.label,
                "authorization_id": call.authorization_id,
                "cost_usd_micros": call.cost_usd_micros,
                "elapsed_us": elapsed_ns // 1000,
            }
            write_lines([_encode(line)])

    @property
    def upstream(self) -> Upstream:
        """Where calls are sent on to."""
        return self._upstream

    @property
    def services(self) -> Services:
        """The services of this process."""
        return self._services

    def begin_drain(self) -> bool:
        """Whether there is room to read another answer on whose caller has left."""
        if self._draining >= DRAINS_MAX:
            return False
        self._draining += 1
        return True

    def end_drain(self, *, whole: bool) -> None:
        """Note the end of what `begin_drain` allowed."""
        self._draining -= 1
        self.meter.drains["whole" if whole else "given_up"] += 1

    def settle_later(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Try a settlement again in the background, a few times."""

        async def settle() -> None:
            for attempt in range(SETTLE_ATTEMPTS_MAX):
                await self._services.clock.sleep_ms(SETTLE_PAUSE_MS << attempt)
                try:
                    await work()
                except StoreError as error:
                    log.warning("settlement_failed", attempt=attempt, error=str(error))
                else:
                    return
            self.meter.unsettled += 1

        task = asyncio.get_running_loop().create_task(settle())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


class _Relay:
    """An authorized call, from the request to Bedrock to the settlement."""

    def __init__(
        self,
        gateway: Gateway,
        policy: Policy,
        plan: Plan,
        authorization: Authorization,
        headers: Mapping[str, str],
        call: _Call,
    ) -> None:
        self._gateway = gateway
        self._services = gateway.services
        self._policy = policy
        self._plan = plan
        self._authorization = authorization
        self._headers = headers
        self._call = call
        self._model_id = model_to_call(self._services, plan, authorization)

    async def run(self, receive: Receive, send: Send, body: bytes) -> None:
        """Send the call on, pass the answer back, and settle."""
        sent = body_to_send(self._plan, body, self._model_id, self._authorization)
        began_ns = perf_counter_ns()
        try:
            response = await self._gateway.upstream.send(
                self._plan.route, self._model_id, self._headers, sent
            )
        except NoCredentialsError as error:
            await self._void("the service has no AWS credentials")
            raise Refusal(503, "ServiceUnavailableException", _named(error)) from error
        except NOT_SENT as error:
            await self._void("Bedrock could not be reached")
            raise Refusal(
                503, "ServiceUnavailableException", "Bedrock can't be reached", 1000
            ) from error
        except LOST as error:
            self._leave()
            raise ReplyLost from error
        self._gateway.meter.first_byte.note((perf_counter_ns() - began_ns) // 1000)
        async with response:
            self._call.status = response.status
            if response.status >= HTTPStatus.MULTIPLE_CHOICES:
                await self._pass_refusal(send, response)
            elif self._plan.is_stream:
                await self._pass_stream(receive, send, response)
            else:
                await self._pass_reply(send, response)

    async def _pass_refusal(self, send: Send, response: aiohttp.ClientResponse) -> None:
        """Pass on what Bedrock answered instead, as it is."""
        self._gateway.meter.upstream_errors[str(response.status)] += 1
        self._call.outcome = "upstream_refused"
        try:
            data = await response.content.read(REPLY_BYTES_MAX)
        except LOST as error:
            self._leave()
            raise ReplyLost from error
        code = response.headers.get("x-amzn-errortype", "").partition(":")[0]
        is_dialect = self._plan.route.dialect is not Dialect.AWS
        client_error = response.status < HTTPStatus.INTERNAL_SERVER_ERROR
        if is_refusal(code, response.status) or (is_dialect and client_error):
            await self._void("Bedrock refused the call")
        else:
            self._leave()
        await _answer(send, response.status, self._passed(response), data)

    async def _pass_reply(self, send: Send, response: aiohttp.ClientResponse) -> None:
        """Pass on a whole answer, once it is counted."""
        try:
            data = await response.content.read(-1)
        except LOST as error:
            self._leave()
            raise ReplyLost from error
        await self._settle(self._usage_of_reply(data, response.headers))
        headers = self._passed(response)
        if self._call.cost_usd_micros is not None:
            cost = b"%d" % self._call.cost_usd_micros
            headers.append((b"x-pricekeeper-cost-usd-micros", cost))
        await _answer(send, response.status, headers, data)

    async def _pass_stream(
        self, receive: Receive, send: Send, response: aiohttp.ClientResponse
    ) -> None:
        """Pass on a stream as it comes, and read it to its end in any case."""
        skimmed = self._skim(response.headers)
        caller = _Caller(receive)
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": self._passed(response),
            }
        )
        is_whole, drains = False, False
        try:
            async with asyncio.timeout(None) as limit:
                while chunk := await response.content.readany():
                    passed = skimmed.feed(chunk)
                    if caller.has_left:
                        if not drains:
                            drains = self._gateway.begin_drain()
                            if not drains:
                                break
                            now = asyncio.get_running_loop().time()
                            limit.reschedule(now + DRAIN_SECS_MAX)
                    elif passed:
                        await send(
                            {"type": "http.response.body", "body": passed, "more_body": True}
                        )
                else:
                    is_whole = True
        except LOST as error:
            log.warning("stream_broken", error=type(error).__name__)
        finally:
            caller.forget()
            if drains:
                self._gateway.end_drain(whole=is_whole)
        await self._finish_stream(send, skimmed, caller, is_whole=is_whole)

    async def _finish_stream(
        self, send: Send, skimmed: _Skimmed, caller: _Caller, *, is_whole: bool
    ) -> None:
        if not caller.has_left:
            if is_whole:
                await send({"type": "http.response.body", "body": skimmed.rest()})
            else:
                # Without an end the caller knows that something is missing.
                await send({"type": ABORT})
        await self._settle(skimmed.usage())
        if caller.has_left:
            self._call.outcome = "left"

    async def _settle(self, usage: Usage | None) -> None:
        """Count what was used; what is not known stays held, and expires into unsettled."""
        self._call.outcome = "served"
        if usage is None:
            self._leave()
            return
        found = usage.record(self._model_id)
        record = UsageRecord(
            request_id="",
            model_label="",
            calling_region=self._gateway.upstream.region,
            **found,
        )

        async def capture() -> int:
            captured = await self._services.authorizations.capture(
                self._policy, self._authorization.id, record
            )
            return captured.recorded.receipt.cost_usd_picos // PICOS_PER_MICRO

        try:
            self._call.cost_usd_micros = await capture()
        except StoreError as error:
            log.warning("capture_put_off", error=str(error))
            self._gateway.settle_later(capture)
        except PriceKeeperError as error:
            log.error("capture_refused", code=error.code, error=str(error))  # noqa: TRY400 - it says all
            self._leave()

    async def _void(self, reason: str) -> None:
        async def void() -> None:
            await self._services.authorizations.void(self._policy, self._authorization.id, reason)

        try:
            await void()
        except StoreError:
            self._gateway.settle_later(void)

    def _leave(self) -> None:
        """Leave the call charged at what is held for it."""
        self._gateway.meter.unsettled += 1

    def _passed(self, response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
        grant = self._authorization.grant
        held_micros = -(-grant.held_usd_picos // PICOS_PER_MICRO)
        return [
            *passed_headers(response),
            (b"x-pricekeeper-authorization-id", self._authorization.shown_id.encode()),
            (b"x-pricekeeper-model-label", grant.label.encode()),
            (b"x-pricekeeper-held-usd-micros", b"%d" % held_micros),
        ]

    def _usage_of_reply(self, data: bytes, headers: Mapping[str, str]) -> Usage | None:
        try:
            reply = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            reply = {}
        if self._plan.route.operation is None:
            return usage_of_body(reply)
        if self._plan.route.operation is Operation.CONVERSE:
            return usage_of_converse(reply)
        lower = {name.lower(): value for name, value in headers.items()}
        return usage_of_invoke(reply, lower)

    def _skim(self, headers: Mapping[str, str]) -> _Skimmed:
        operation = self._plan.route.operation
        if operation is None:
            hides = self._plan.route.dialect is Dialect.OPENAI and not says_usage(self._plan)
            return SseUsage(hides_usage=hides)
        tier = headers.get("x-amzn-bedrock-service-tier")
        return _Frames(StreamUsage(operation, tier))


class _Frames:
    """Frames of AWS's encoding, passed on as they are."""

    def __init__(self, usage: StreamUsage) -> None:
        self._usage = usage

    def feed(self, chunk: bytes) -> bytes:
        """Look at the next bytes."""
        self._usage.feed(chunk)
        return chunk

    def rest(self) -> bytes:
        """Nothing was held back."""
        return b""

    def usage(self) -> Usage | None:
        """What was used, if the stream has said it."""
        return self._usage.usage()


_Skimmed = SseUsage | _Frames


class _Caller:
    """Whoever waits for a stream, and whether it still does."""

    def __init__(self, receive: Receive) -> None:
        self._left = asyncio.get_running_loop().create_task(self._wait(receive))

    @property
    def has_left(self) -> bool:
        """Whether nobody waits any more."""
        return self._left.done()

    def forget(self) -> None:
        """Stop looking."""
        if not self._left.done():
            self._left.cancel()

    @staticmethod
    async def _wait(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue


def passed_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that go back to the caller."""
    return [
        (name.lower(), value)
        for name, value in response.raw_headers
        if name.lower().decode("latin-1") not in _NOT_PASSED
    ]


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _named(error: BaseException) -> str:
    return str(error) or type(error).__name__
