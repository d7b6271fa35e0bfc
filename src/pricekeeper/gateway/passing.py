"""An authorized call: send it to Bedrock, pass the answer back, settle.

Bedrock bills the whole answer even if the caller hangs up, so it is read to its end, within bounds,
and counted. For a slow reader the gateway waits with one full buffer; after a while the server
disconnects it. A call that Bedrock refused is given back (`bedrock.refusals`). If the cost stays
unknown, the call stays charged at its hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter_ns
from typing import Final

import msgspec
import structlog

from pricekeeper.authorizations import Authorization
from pricekeeper.bedrock import (
    LATENCY_HEADER,
    OPTIMIZED,
    TIER_HEADER,
    Operation,
    SseUsage,
    StreamUsage,
    Usage,
    decode_telling,
    read_error,
    tier_with,
    usage_of_converse,
    usage_of_invoke,
)
from pricekeeper.gateway.caller import ABORT, Caller, Drains, Exchange, Receive, Send
from pricekeeper.gateway.errors import Refusal, reply_lost, unavailable
from pricekeeper.gateway.http_client import HttpReply, NotSentError, Take
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.planning import Plan
from pricekeeper.gateway.routes import Dialect
from pricekeeper.gateway.settling import Settlements
from pricekeeper.gateway.upstream import LOST, NoCredentialsError, passed_headers, read_whole
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.tenants import Policy

_DEARER: Final = frozenset({"priority", OPTIMIZED})
_REFUSED_FROM: Final = int(HTTPStatus.MULTIPLE_CHOICES)
log = structlog.get_logger("pricekeeper.gateway")


class CallState(msgspec.Struct):
    """The state of one call, for its end and for the log."""

    request_id: str
    dialect: Dialect
    exchange: Exchange | None
    route: str
    policy: Policy | None = None
    label: str = ""
    authorization_id: str = ""
    status: int = 0
    outcome: str = "refused"
    cost_usd_micros: int | None = None
    has_begun: bool = False


class GrantedCall(msgspec.Struct, frozen=True):
    """An authorized call."""

    policy: Policy
    authorization: Authorization
    model_id: str
    plan: Plan
    """Without its body, which is released once it is sent."""


@dataclass(slots=True)
class Passage:
    """One authorized call, from the request to Bedrock to the settlement."""

    _meter: GatewayMeter
    _settlements: Settlements
    _drains: Drains
    _granted: GrantedCall
    _state: CallState
    _began_ns: int = 0

    async def send(self, sending: Awaitable[HttpReply]) -> HttpReply:
        self._began_ns = perf_counter_ns()
        try:
            return await sending
        except NoCredentialsError as error:
            await self._void("the service has no AWS credentials")
            self._state.outcome = "unreachable"
            raise Refusal(503, "ServiceUnavailableException", str(error)) from error
        except NotSentError as error:
            await self._void("Bedrock could not be reached")
            self._state.outcome = "unreachable"
            log.warning("upstream_unreachable", error=str(error) or type(error).__name__)
            raise unavailable("Bedrock can't be reached: try again in a moment") from error
        except LOST as error:
            raise self._lose(error) from error

    async def run(self, response: HttpReply, receive: Receive, send: Send) -> None:
        try:
            await response.head()
        except LOST as error:
            raise self._lose(error) from error
        self._meter.first_byte.note((perf_counter_ns() - self._began_ns) // 1000)
        self._state.status = response.status
        try:
            if response.status >= _REFUSED_FROM:
                await self._pass_error(send, response)
            elif self._granted.plan.is_stream:
                await self._pass_stream(receive, send, response)
            else:
                await self._pass_reply(send, response)
        finally:
            response.close()

    async def _pass_error(self, send: Send, response: HttpReply) -> None:
        """Pass on an error that is a refusal, or that reports its usage.

        Any other error may follow a model's run, and clients that repeat it would pay twice. So it
        is answered as a lost reply.
        """
        self._meter.upstream_errors[str(response.status)] += 1
        try:
            data = await read_whole(response)
        except LOST as error:
            raise self._lose(error) from error
        has_objects = self._granted.plan.route.dialect is not Dialect.AWS
        reply = read_error(response.status, response.headers, data, has_objects=has_objects)
        if reply.is_free:
            await self._refuse()
        elif reply.usage is None:
            raise self._lose(f"status {response.status}")
        else:
            await self._settle(reply.usage)
        await self._answer(send, response, data)

    async def _pass_reply(self, send: Send, response: HttpReply) -> None:
        try:
            data = await read_whole(response)
        except LOST as error:
            raise self._lose(error) from error
        await self._settle(self._usage_of_reply(data, response))
        await self._answer(send, response, data)

    async def _answer(self, send: Send, response: HttpReply, data: bytes) -> None:
        headers = self._headers(response)
        if self._state.cost_usd_micros is not None:
            cost = b"%d" % self._state.cost_usd_micros
            headers.append((b"x-pricekeeper-cost-usd-micros", cost))
        await answer(send, self._state, response.status, headers, data)

    async def _pass_stream(self, receive: Receive, send: Send, response: HttpReply) -> None:
        """A stream is read to its end in any case."""
        skimmed = self._skim(response.headers)
        self._state.has_begun = True
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": self._headers(response),
            }
        )
        # At once, with the bytes so far: a caller that has seen the head does not repeat
        # the call if the rest is lost.
        come = skimmed.feed(await response.read()) if response.size else b""
        await send({"type": "http.response.body", "body": come, "more_body": True})
        is_whole = False
        try:
            async with asyncio.timeout(None) as limit:
                caller = Caller(receive, self._state.exchange, limit, self._drains)
                take = _taking(self._state.exchange, skimmed, caller)
                try:
                    while chunk := await response.read(take):
                        passed = skimmed.feed(chunk)
                        if passed and not caller.has_left:
                            await send(
                                {"type": "http.response.body", "body": passed, "more_body": True}
                            )
                    is_whole = True
                finally:
                    caller.forget(is_whole=is_whole)
        except LOST as error:
            log.warning("stream_broken", error=type(error).__name__)
        if not caller.has_left:
            if is_whole:
                rest = skimmed.rest() if isinstance(skimmed, SseUsage) else b""
                await send({"type": "http.response.body", "body": rest})
            else:
                # Without an end the caller knows that bytes are missing.
                await send({"type": ABORT})
        if skimmed.is_refused:
            await self._refuse()
        else:
            await self._settle(skimmed.usage())
        if caller.has_left:
            self._state.outcome = "left"
        elif not is_whole:
            self._state.outcome = "upstream_broken"

    async def _settle(self, usage: Usage | None) -> None:
        self._state.outcome = "served"
        granted = self._granted
        asked = granted.plan.call.bounds.service_tier
        if usage is not None and usage.service_tier is None and asked in _DEARER:
            # The reply does not name its tier, so it may be the requested one.
            usage = msgspec.structs.replace(usage, service_tier=asked)
        self._state.cost_usd_micros = await self._settlements.capture(
            granted.policy, granted.authorization, usage, granted.model_id
        )

    async def _refuse(self) -> None:
        await self._void("Bedrock refused the call")
        self._state.outcome = "upstream_refused"

    async def _void(self, reason: str) -> None:
        granted = self._granted
        await self._settlements.void(granted.policy, granted.authorization, reason)

    def _lose(self, why: object) -> Refusal:
        self._settlements.leave()
        self._state.outcome = "upstream_lost"
        told = type(why).__name__ if isinstance(why, BaseException) else why
        log.warning("reply_lost", error=told, authorization_id=self._state.authorization_id)
        return reply_lost()

    def _headers(self, response: HttpReply) -> list[tuple[bytes, bytes]]:
        authorization = self._granted.authorization
        held_micros = -(-authorization.grant.held_usd_picos // PICOS_PER_MICRO)
        return [
            *passed_headers(response),
            (b"x-pricekeeper-authorization-id", self._state.authorization_id.encode()),
            (b"x-pricekeeper-model-label", authorization.grant.terms.label.encode()),
            (b"x-pricekeeper-held-usd-micros", b"%d" % held_micros),
            (b"x-pricekeeper-max-output-tokens", b"%d" % authorization.grant.max_output_tokens),
        ]

    def _usage_of_reply(self, data: bytes, response: HttpReply) -> Usage | None:
        plan, reply = self._granted.plan, decode_telling(data)
        if plan.route.operation is Operation.CONVERSE:
            return usage_of_converse(reply)
        return usage_of_invoke(reply, response.headers, has_answer=plan.call.has_answer)

    def _skim(self, headers: Mapping[str, str]) -> SseUsage | StreamUsage:
        operation = self._granted.plan.route.operation
        if operation is None:
            return SseUsage(headers, hides_usage=self._granted.plan.hides_usage)
        tier = tier_with(headers.get(TIER_HEADER), headers.get(LATENCY_HEADER))
        return StreamUsage(operation, tier)


def _taking(
    exchange: Exchange | None, skimmed: SseUsage | StreamUsage, caller: Caller
) -> Take | None:
    """Writes bytes at once; ``None`` if they must be sent because their reader is slow.

    Nothing is written after the caller has left.
    """
    if exchange is None:
        return None

    def take(chunk: bytes) -> bool:
        if caller.has_left:
            skimmed.feed(chunk)
            return True
        if exchange.is_read_slowly:
            return False
        passed = skimmed.feed(chunk)
        if passed:
            exchange.write_part(passed)
        return True

    return take


async def answer(
    send: Send, state: CallState, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send a complete answer."""
    state.has_begun = True
    headers.append((b"content-length", b"%d" % len(body)))
    if state.exchange is not None and state.exchange.write_whole(status, headers, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
