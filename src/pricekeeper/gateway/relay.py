"""Bedrock's paths as an ASGI application: identify, judge, authorize, then pass on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from itertools import chain
from random import getrandbits
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from pricekeeper.activity import DeniedKind
from pricekeeper.bedrock.reading import SHORT_BODY_BYTES, Bytes, Judged, read_and_judge
from pricekeeper.bootstrap import Services
from pricekeeper.client_ids import Client
from pricekeeper.concurrency.deadline import Deadlines
from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    NotFoundError,
    PriceKeeperError,
)
from pricekeeper.gateway.caller import ABORT, Drains, Exchange, Receive, Send
from pricekeeper.gateway.counting import COUNTED_BYTES_MAX, Counting
from pricekeeper.gateway.errors import (
    Refusal,
    failed,
    refusal_of,
    reply_lost,
    unavailable,
    unknown_path,
    wrong_method,
)
from pricekeeper.gateway.http_client import HttpReply, NotSentError
from pricekeeper.gateway.identity import ACTED_ON, Identification, NotOursRefusal, Signed
from pricekeeper.gateway.measuring import Measuring
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.passing import CallState, GrantedCall, Passage, answer
from pricekeeper.gateway.planning import (
    Plan,
    authorize,
    body_to_send,
    free_model,
    headers_to_send,
    model_to_call,
    plan_call,
    question_of,
)
from pricekeeper.gateway.routes import Route, dialect_of, find_route
from pricekeeper.gateway.settling import Settlements
from pricekeeper.gateway.sharing import BYTES, CALLS, JUDGING, CallShare, Sharing
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
from pricekeeper.usecases.denying import note_denial

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
LARGE_CALLS_MAX: Final = 8
"""Of the largest bodies, for all clients together."""
BODIES_BYTES: Final = 64 << 20
"""For all other bodies and heads."""
_encode: Final = msgspec.json.Encoder().encode
log = structlog.get_logger("pricekeeper.gateway")


class _Request(NamedTuple):
    scope: Any
    route: Route
    headers: Mapping[str, str]
    receive: Receive
    state: CallState
    head_bytes: int
    """Held until it is answered."""

    @property
    def address(self) -> str | None:
        client = self.scope.get("client")
        return None if client is None else str(client[0])

    def let_go(self) -> None:
        """Take its bytes out of the server's count: its client's share counts them."""
        if self.state.exchange is not None:
            self.state.exchange.let_go()


class _Judging(NamedTuple):
    policy: Policy
    signed: Signed | None
    request: _Request
    body: Bytes
    share: CallShare


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
        calls_max: int,
        logs: bool,
    ) -> None:
        """``note_guess`` gets the address of invalid credentials, ``is_barred`` limits them."""
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
        self.sharing = self._sharing = Sharing(
            calls_max, BODIES_BYTES + LARGE_CALLS_MAX * body_bytes_max
        )
        self._measuring = Measuring()

    async def __call__(
        self, scope: Any, receive: Receive, send: Send, exchange: Exchange | None = None
    ) -> None:
        started_ns = perf_counter_ns()
        route = find_route(scope["raw_path"])
        dialect = dialect_of(scope["raw_path"]) if route is None else route.dialect
        name = "none" if route is None else route.name
        state = CallState(f"{getrandbits(128):032x}", dialect, exchange, name)
        try:
            await self._serve(scope, receive, send, route, state)
        except (Refusal, PriceKeeperError) as error:
            if state.policy is not None:
                await self._sharing.pace_refusal(state.policy, state.exchange)
            await _refuse(send, refusal_of(error, self._services.clock.now_ms()), state)
        except Exception:
            log.exception("unhandled", request_id=state.request_id)
            await self._fail(send, state)
        finally:
            self._note(state, perf_counter_ns() - started_ns)

    async def close(self) -> None:
        await self._settlements.close()
        await self._measuring.close()
        self._deadlines.close()

    async def _serve(
        self, scope: Any, receive: Receive, send: Send, route: Route | None, state: CallState
    ) -> None:
        if route is None:
            raise unknown_path(scope["raw_path"], state.dialect)
        if scope["method"] != "POST":
            raise wrong_method(scope["raw_path"])
        headers = _headers_of(scope)
        head_bytes = len(scope["raw_path"]) + sum(map(len, chain(headers, headers.values())))
        request = _Request(scope, route, headers, receive, state, head_bytes)
        policy, signed = await self._identify(request)
        share = CallShare(self._sharing, policy)
        with closing(share):
            await share.take(CALLS, 1)
            body = await self._read(request, share)
            if body is None:
                state.outcome = "left"
                return
            if share.has_waited:  # meanwhile it may have been frozen, or its token revoked
                policy, signed = await self._identify(request)
            call = _Judging(policy, signed, request, body, share)
            if route.is_free:
                await self._relay_free(send, call)
                return
            began_ns = perf_counter_ns()
            passage, sending = await self._begin(call)
            self.meter.added.note((perf_counter_ns() - began_ns) // 1000)
            del body, call  # an answer may take minutes
            response = await passage.send(sending)
            share.keep(BYTES, request.head_bytes)
            await passage.run(response, receive, send)

    async def _begin(self, call: _Judging) -> tuple[Passage, Awaitable[HttpReply]]:
        policy, state = call.policy, call.request.state
        with self._deadlines.begin() as deadline:
            plan = await self._plan(call)
            if self._counting.is_wanted and len(call.body) <= COUNTED_BYTES_MAX:
                with deadline.pause():
                    plan = await self._counting.count(plan, policy, call.request.headers)
            authorization = await authorize(self._services, policy, plan)
        grant = authorization.grant
        state.label, state.authorization_id = grant.terms.label, authorization.shown_id
        model = self._services.prices.catalogue.model(grant.terms.label)
        model_id = model_to_call(plan, model)
        sending = self._upstream.send(
            plan.route,
            model_id,
            headers_to_send(plan.route, call.request.headers),
            body_to_send(plan, model_id, grant.max_output_tokens),
        )
        granted = GrantedCall(policy, authorization, model_id, plan.without_body())
        return Passage(self.meter, self._settlements, self._drains, granted, state), sending

    async def _plan(self, call: _Judging) -> Plan:
        request, policy, body = call.request, call.policy, call.body
        catalogue = self._services.prices.catalogue
        question = question_of(request.route, request.headers, policy, catalogue)
        judged: Judged | None = None
        if len(body) > SHORT_BODY_BYTES:
            with call.share.using(JUDGING, waits=self._measuring.is_busy):
                judged = await self._measuring.judge(policy.client, question, body)
        await self._sharing.take_turn(policy)
        if judged is None:
            judged = read_and_judge(question, body)
        if call.signed is not None:
            await self._check_signature(call.signed, request, judged.content_sha256)
        return plan_call(request.route, judged, policy, catalogue)

    async def _read(self, request: _Request, share: CallShare) -> Bytes | None:
        """``None`` if the caller left before the end of the body."""
        most, exchange = self._body_bytes_max, request.state.exchange
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise _too_large(most)
        whole = None if exchange is None else exchange.take_body()
        if whole is not None:
            if len(whole) > most:
                raise _too_large(most)
            request.let_go()
            await share.take(BYTES, request.head_bytes + len(whole))
            return whole
        if declared.isdigit():
            await share.take(BYTES, request.head_bytes + int(declared))
        share.has_waited = True
        body = bytearray()
        while True:  # ends with the body, or with the bound on it
            message = await request.receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise _too_large(most)
            request.let_go()
            await share.take(BYTES, request.head_bytes + len(body))
            if not message.get("more_body", False):
                return body

    async def _identify(self, request: _Request) -> tuple[Policy, Signed | None]:
        """The client and its signature, which is checked when the body is judged.

        A frozen client is refused here, before its body is read or anything is sent.
        """
        address = request.address
        try:
            with self._deadlines.begin():
                principal, signed = await self._identification.identify(request.headers, address)
                policy = request.state.policy = await self._policy_of(principal)
        except (NotOursRefusal, InvalidTokenError, InvalidClientError) as error:
            if not (isinstance(error, InvalidTokenError) and error.genuine):
                await self._note_guess(address)
            raise
        if policy.freeze is not None:
            denied = policy.freeze.error()
            model = request.route.model or request.route.name
            note_denial(self._services, policy, DeniedKind.GATEWAY, model, None, denied)
            raise denied
        return policy, signed

    async def _check_signature(self, signed: Signed, request: _Request, digest: str) -> None:
        scope = request.scope
        try:
            self._identification.check_signature(
                signed,
                method=scope["method"],
                raw_path=scope["raw_path"].decode("latin-1"),
                query=scope["query_string"].decode("latin-1"),
                headers=request.headers,
                content_sha256=digest,
            )
        except NotOursRefusal:
            await self._note_guess(request.address)
            raise

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
            raise Refusal(
                403, "AccessDeniedException", "the app of these credentials does not exist"
            ) from None

    async def _relay_free(self, send: Send, call: _Judging) -> None:
        policy, request = call.policy, call.request
        state, catalogue = request.state, self._services.prices.catalogue
        with self._deadlines.begin():
            plan = await self._plan(call)
        try:
            model_id, body = free_model(plan, policy, catalogue), bytes(call.body)
            sent = headers_to_send(plan.route, request.headers)
            with self._counting.asking(policy, call.share):
                response = await self._upstream.send(plan.route, model_id, sent, body)
                with closing(response):
                    data = await read_whole(await response.head())
        except (*LOST, NotSentError, NoCredentialsError) as error:
            log.warning("upstream_failed", error=str(error) or type(error).__name__)
            raise unavailable("Bedrock can't be reached: try again in a moment") from error
        state.outcome, state.status = "free", response.status
        call.share.close()
        await answer(send, state, response.status, passed_headers(response), data)

    async def _fail(self, send: Send, state: CallState) -> None:
        """Answer for our own error; after an authorization, so that clients do not retry."""
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
    """Raises `Refusal` for duplicates of headers of which readers take only one."""
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if len(found) < len(scope["headers"]):
        names = Counter(name.decode("latin-1") for name, _ in scope["headers"])
        twice = [
            name
            for name in sorted(names)
            if names[name] > 1 and (name in _ONCE or name.startswith(ACTED_ON))
        ]
        if twice:
            message = f"headers sent more than once: {', '.join(twice)}; send each once"
            raise Refusal(400, "ValidationException", message)
    return found


def _too_large(most: int) -> Refusal:
    return Refusal(413, "ValidationException", f"the body is too large: at most {most} bytes")


async def _refuse(send: Send, refusal: Refusal, state: CallState) -> None:
    state.status = refusal.status_in(state.dialect)
    if refusal.code == "ServiceQuotaExceededException":
        state.outcome = "denied"
    elif refusal.code == "ThrottlingException":
        state.outcome = "throttled"
    headers = refusal.headers(state.request_id, state.dialect)
    await answer(send, state, state.status, headers, refusal.body(state.dialect))
