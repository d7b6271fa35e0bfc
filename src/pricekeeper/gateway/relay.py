"""Bedrock's paths as an ASGI application: who calls, may it, and then its passage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from random import getrandbits
from time import perf_counter_ns
from typing import Any, Final

import msgspec
import structlog

from pricekeeper.bootstrap import Services
from pricekeeper.client_ids import Client
from pricekeeper.concurrency.deadline import Deadlines
from pricekeeper.errors import (
    DeadlineExceededError,
    InvalidClientError,
    InvalidTokenError,
    NotFoundError,
    PriceKeeperError,
)
from pricekeeper.gateway.caller import Drains, Receive, Send
from pricekeeper.gateway.connection import ABORT, Exchange
from pricekeeper.gateway.counting import Counting
from pricekeeper.gateway.errors import Refusal, failed, refusal_of, reply_lost, unavailable
from pricekeeper.gateway.http_client import NotSentError
from pricekeeper.gateway.identity import ACTED_ON, Identification, NotOursRefusal
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.passing import CallState, GrantedCall, Passage, answer
from pricekeeper.gateway.planning import (
    authorize,
    body_to_send,
    free_model,
    model_to_call,
    plan_call,
)
from pricekeeper.gateway.routes import Dialect, Route, find_route
from pricekeeper.gateway.settling import Settlements
from pricekeeper.gateway.upstream import (
    LOST,
    NoCredentialsError,
    Upstream,
    passed_headers,
    read_whole,
)
from pricekeeper.telemetry.logs import GatheredLines
from pricekeeper.tenants import Policy
from pricekeeper.tokens import Principal

_ONCE: Final = frozenset(
    {
        "authorization",
        "content-type",
        "host",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        "x-amzn-bedrock-request-metadata",
        "x-amzn-bedrock-service-tier",
        "x-api-key",
    }
)
_encode: Final = msgspec.json.Encoder().encode
log = structlog.get_logger("pricekeeper.gateway")


class Gateway:
    """The ASGI application of all paths below ``/bedrock/``."""

    def __init__(
        self,
        services: Services,
        upstream: Upstream,
        *,
        note_guess: Callable[[str | None], Awaitable[None]],
        is_barred: Callable[[str | None], bool],
        body_bytes_max: int,
        logs: bool,
    ) -> None:
        """``note_guess`` is told the address that credentials came from which are not valid.

        ``is_barred`` says whether that happened too often.
        """
        self._services = services
        self._upstream = upstream
        self._note_guess = note_guess
        self._body_bytes_max = body_bytes_max
        self._deadlines = Deadlines(services.settings.request_deadline_ms)
        self._logs = logs
        self._lines = GatheredLines()
        self._identification = Identification(services.identity, services.clock, is_barred)
        self.meter = GatewayMeter()
        self._settlements = Settlements(services, self.meter, upstream.region, self._deadlines)
        self._drains = Drains(self.meter)
        self._counting = Counting(services.prices.catalogue, upstream, self.meter)

    async def __call__(
        self, scope: Any, receive: Receive, send: Send, exchange: Exchange | None = None
    ) -> None:
        """Serve one request, whatever happens inside."""
        started_ns = perf_counter_ns()
        route = find_route(scope["raw_path"])
        state = CallState(f"{getrandbits(128):032x}", Dialect.AWS, exchange)
        if route is not None:
            state.dialect, state.route = route.dialect, route.name
        try:
            await self._serve(scope, receive, send, route, state)
        except Refusal as refusal:
            await _refuse(send, refusal, state)
        except PriceKeeperError as error:
            await _refuse(send, refusal_of(error, self._services.clock.now_ms()), state)
        except Exception:
            log.exception("unhandled", request_id=state.request_id)
            await self._fail(send, state)
        finally:
            self._note(state, perf_counter_ns() - started_ns)

    async def close(self) -> None:
        """Let settlements that are under way end."""
        await self._settlements.close()
        self._deadlines.close()

    async def _serve(
        self, scope: Any, receive: Receive, send: Send, route: Route | None, state: CallState
    ) -> None:
        if route is None:
            raise Refusal(404, "UnknownOperationException", "there is no such path")
        if scope["method"] != "POST":
            raise Refusal(405, "UnknownOperationException", "use POST")
        headers = _headers_of(scope)
        body = await self._read(receive, headers, state.exchange)
        if body is None:
            state.outcome = "left"
            return
        began_ns = perf_counter_ns()
        try:
            with self._deadlines.begin() as deadline:
                policy = await self._identify(scope, headers, body)
                plan = plan_call(route, body, headers, policy, self._services.prices.catalogue)
                if self._counting.is_wanted:
                    with deadline.pause():  # it has a bound of its own, and the call goes on
                        plan = await self._counting.count(plan, policy)
                if route.is_free:
                    model_id = free_model(plan, policy, self._services.prices.catalogue)
                else:
                    authorization = await authorize(self._services, policy, plan)
        except (DeadlineExceededError, TimeoutError):
            raise unavailable("the price keeper has no time") from None
        if route.is_free:
            await self._relay_free(send, route, model_id, headers, body, state)
            return
        grant = authorization.grant
        state.label, state.authorization_id = grant.terms.label, authorization.shown_id
        model_id = model_to_call(plan, self._services.prices.catalogue.model(grant.terms.label))
        sending = self._upstream.send(
            route, model_id, headers, body_to_send(plan, model_id, grant.max_output_tokens)
        )
        granted = GrantedCall(
            policy,
            authorization,
            route,
            model_id,
            plan.is_stream,
            plan.hides_usage,
            plan.bounds.service_tier,
        )
        del body, plan  # an answer may take minutes, and a body have megabytes
        self.meter.added.note((perf_counter_ns() - began_ns) // 1000)
        passage = Passage(self.meter, self._settlements, self._drains, granted, state)
        await passage.run(sending, receive, send)

    async def _read(
        self, receive: Receive, headers: Mapping[str, str], exchange: Exchange | None
    ) -> bytes | None:
        """The whole body; ``None`` if the caller left before its end."""
        most = self._body_bytes_max
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise _too_large(most)
        whole = None if exchange is None else exchange.take_body()
        if whole is not None:
            if len(whole) > most:
                raise _too_large(most)
            return whole
        body = bytearray()
        while True:  # ends with the body, or with the bound on it
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise _too_large(most)
            if not message.get("more_body", False):
                return bytes(body)

    async def _identify(self, scope: Any, headers: Mapping[str, str], body: bytes) -> Policy:
        client = scope.get("client")
        address = None if client is None else str(client[0])
        try:
            principal = await self._identification.identify(
                method=scope["method"],
                raw_path=scope["raw_path"].decode("latin-1"),
                query=scope["query_string"].decode("latin-1"),
                headers=headers,
                body=body,
                address=address,
            )
        except (NotOursRefusal, InvalidTokenError, InvalidClientError) as error:
            if not (isinstance(error, InvalidTokenError) and error.genuine):
                await self._note_guess(address)
            raise
        return await self._policy_of(principal)

    async def _policy_of(self, principal: Principal) -> Policy:
        if principal.app_id is None:
            raise Refusal(
                403,
                "AccessDeniedException",
                "these are an organisation's credentials; use an app's",
            )
        tenants, client = self._services.tenants, Client(principal.org_id, principal.app_id)
        try:
            return tenants.recall_policy(client) or await tenants.find_policy(*client)
        except NotFoundError:
            raise Refusal(403, "AccessDeniedException", "the app does not exist") from None

    async def _relay_free(
        self,
        send: Send,
        route: Route,
        model_id: str,
        headers: Mapping[str, str],
        body: bytes,
        state: CallState,
    ) -> None:
        """Pass on what runs no model."""
        try:
            response = await self._upstream.send(route, model_id, headers, body)
            with closing(response):
                data = await read_whole(response)
        except (*LOST, NotSentError, NoCredentialsError) as error:
            log.warning("upstream_failed", error=str(error) or type(error).__name__)
            raise unavailable("Bedrock can't be reached") from error
        state.outcome, state.status = "free", response.status
        await answer(send, state, response.status, passed_headers(response), data)

    async def _fail(self, send: Send, state: CallState) -> None:
        """Answer for a mistake of ours; after an authorization, not so that it is repeated."""
        if state.has_begun:
            await send({"type": ABORT})
        elif state.authorization_id:
            self._settlements.leave()
            await _refuse(send, reply_lost(), state)
        else:
            await _refuse(send, failed(), state)
        state.outcome = "failed"

    def _note(self, state: CallState, elapsed_ns: int) -> None:
        self.meter.calls[state.label or "none", state.outcome] += 1
        if self._logs:
            line = {
                "event": "gateway",
                "request_id": state.request_id,
                "route": state.route,
                "status": state.status,
                "outcome": state.outcome,
                "label": state.label,
                "authorization_id": state.authorization_id,
                "cost_usd_micros": state.cost_usd_micros,
                "elapsed_us": elapsed_ns // 1000,
            }
            self._lines.add(_encode(line))


def _headers_of(scope: Any) -> dict[str, str]:
    """The headers; raises `Refusal` for one that is there twice, and that readers take one of."""
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if len(found) < len(scope["headers"]):
        names = Counter(name.decode("latin-1") for name, _ in scope["headers"])
        twice = [
            name
            for name in sorted(names)
            if names[name] > 1 and (name in _ONCE or name.startswith(ACTED_ON))
        ]
        if twice:
            raise Refusal(400, "ValidationException", f"sent more than once: {', '.join(twice)}")
    return found


def _too_large(most: int) -> Refusal:
    return Refusal(413, "ValidationException", f"the body may have {most} bytes at most")


async def _refuse(send: Send, refusal: Refusal, state: CallState) -> None:
    state.status = refusal.status
    if refusal.code == "ServiceQuotaExceededException":
        state.outcome = "denied"
    elif refusal.code == "ThrottlingException":
        state.outcome = "throttled"
    headers = refusal.headers(state.request_id)
    await answer(send, state, refusal.status, headers, refusal.body(state.dialect))
