"""Asks Bedrock's CountTokens for the length of a prompt, for models with `Model.counts_tokens`.

The bytes of a body give a safe bound, but four times a text's tokens and a thousand times a
document's. A count costs a round trip, so only long prompts are counted. It replaces the bound of
the members that CountTokens takes; others are reserved by their bytes. The whole body is if:

- CountTokens does not answer, or answers with an error;
- the model may read data that is not in the request;
- the path names no model family, or the model's family is not the body's.

Bounds: `SECS_MAX` for all requests about a call, one for each model that it may use, and
`AT_ONCE_MAX` calls of an app, because AWS limits the rate of all apps together.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Annotated, Final

import msgspec
import structlog
from msgspec.structs import replace

from pricekeeper.bedrock import BETA_HEADER, NOT_JSON, NOT_PROMPT, WINDOW_TOKENS
from pricekeeper.gateway.errors import Refusal
from pricekeeper.gateway.http_client import NotSentError
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.planning import Plan, family_of, models_to_take
from pricekeeper.gateway.routes import COUNT_TOKENS, Dialect
from pricekeeper.gateway.sharing import COUNTS, CallShare
from pricekeeper.gateway.upstream import LOST, NoCredentialsError, Upstream, read_whole
from pricekeeper.pricing import Catalogue, Model
from pricekeeper.tenants import Policy

COUNTED_FROM_TOKENS: Final = 2_048
"""A shorter prompt's bound is less than a cent too wide."""
COUNTED_BYTES_MAX: Final = 4 << 20
"""Encoding a longer body for CountTokens would block the event loop."""
SECS_MAX: Final = 3
AT_ONCE_MAX: Final = 16
AGAIN_MS: Final = 1_000
_OK: Final = 200
_HEADERS: Final = {"content-type": "application/json", "accept": "application/json"}
_OF_CONVERSE: Final = ("messages", "system", "toolConfig", "additionalModelRequestFields")
_NOT_OF_INVOKE: Final = frozenset(
    {"model", "stream", "stream_options", "service_tier", "metadata", "user"}
)
"""Of OpenAI's and Anthropic's paths; InvokeModel does not need them, or may refuse them."""
_VERSION: Final = "bedrock-2023-05-31"
_encode: Final = msgspec.json.Encoder().encode
log = structlog.get_logger("pricekeeper.gateway")


class _Counted(msgspec.Struct, frozen=True):
    tokens: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="inputTokens")


_decode: Final = msgspec.json.Decoder(_Counted).decode


class NotCountedError(Exception):
    """Bedrock has not returned the length of the prompt."""


_FAILURES: Final = (*LOST, *NOT_JSON, NotSentError, NoCredentialsError, NotCountedError)


class Counting:
    """Has prompts counted before their cost is reserved."""

    def __init__(self, catalogue: Catalogue, upstream: Upstream, meter: GatewayMeter) -> None:
        self._catalogue = catalogue
        self._upstream = upstream
        self._meter = meter
        self._under_way: Counter[str] = Counter()
        self.is_wanted = any(model.counts_tokens for model in catalogue)

    async def count(self, plan: Plan, policy: Policy, headers: Mapping[str, str]) -> Plan:
        """The plan with the counted length of the prompt; unchanged if it is unknown."""
        bounds = plan.call.bounds
        if bounds.input_tokens < COUNTED_FROM_TOKENS or bounds.is_open or bounds.has_addresses:
            return plan
        models = models_to_take(plan, policy, self._catalogue)
        if not models or not all(_can_count(plan, model) for model in models):
            return plan
        if not self._has_room(policy):
            return plan
        # CountTokens takes ids of foundation models, not of profiles.
        ids = {model.ref.base for model in models}
        tokens = await self._try(_body(plan, headers), policy.client_id, ids)
        self._meter.counts["failed" if tokens is None else "counted"] += 1
        if tokens is None:
            return plan
        tokens = min(tokens + _tokens_beside(plan), WINDOW_TOKENS)
        bounds = replace(bounds, input_tokens=tokens)
        return replace(plan, call=replace(plan.call, bounds=bounds))

    @contextmanager
    def asking(self, policy: Policy, share: CallShare) -> Iterator[None]:
        """Pass on a client's own CountTokens call; raises if the client has too many under way."""
        if not self._has_room(policy):
            share.note_refusal(COUNTS)
            message = f"the app has {AT_ONCE_MAX} prompts counted at once; wait for one to end"
            raise Refusal(429, "ThrottlingException", message, AGAIN_MS)
        with self._one(policy.client_id), share.using(COUNTS):
            yield

    def _has_room(self, policy: Policy) -> bool:
        if self._under_way[policy.client_id] < AT_ONCE_MAX:
            return True
        self._meter.counts["no_room"] += 1
        return False

    @contextmanager
    def _one(self, client_id: str) -> Iterator[None]:
        self._under_way[client_id] += 1
        try:
            yield
        finally:
            self._under_way[client_id] -= 1
            if not self._under_way[client_id]:
                del self._under_way[client_id]

    async def _try(self, body: bytes, client_id: str, model_ids: Collection[str]) -> int | None:
        try:
            with self._one(client_id):
                return await self._count_all(body, model_ids)
        except _FAILURES as error:
            log.warning("count_failed", error=str(error) or type(error).__name__)
            return None

    async def _count_all(self, body: bytes, model_ids: Collection[str]) -> int:
        async with asyncio.timeout(SECS_MAX):
            counts = await asyncio.gather(
                *(self._count(one, body) for one in model_ids), return_exceptions=True
            )
        most = 0
        for one in counts:
            if isinstance(one, BaseException):
                raise one
            most = max(most, one)
        return most

    async def _count(self, model_id: str, body: bytes) -> int:
        response = await self._upstream.send(COUNT_TOKENS, model_id, _HEADERS, body)
        with closing(response):
            data = await read_whole(await response.head())
        if response.status != _OK:
            raise NotCountedError(f"{model_id}: status {response.status}")
        return _decode(data).tokens


def _can_count(plan: Plan, model: Model) -> bool:
    is_own = plan.route.operation is not None or family_of(model) is plan.call.family
    return model.counts_tokens and is_own


def _body(plan: Plan, headers: Mapping[str, str]) -> bytes:
    counted = {name: value for name, value in plan.body.items() if _is_counted(plan, name)}
    if _is_converse(plan):
        return _encode({"input": {"converse": counted}})
    if plan.route.dialect is Dialect.ANTHROPIC:
        counted["anthropic_version"] = _VERSION
        betas = [one.strip() for one in headers.get(BETA_HEADER, "").split(",") if one.strip()]
        if betas:  # a beta may add instructions
            listed = counted.get("anthropic_beta")
            counted["anthropic_beta"] = [*betas, *(listed if isinstance(listed, list) else ())]
    body = replace(plan.call, body=counted).encoded(plan.call.bounds.longest_answer())
    return _encode({"input": {"invokeModel": {"body": b64encode(body).decode()}}})


def _tokens_beside(plan: Plan) -> int:
    left = {
        name: value
        for name, value in plan.body.items()
        if name not in NOT_PROMPT and not _is_counted(plan, name)
    }
    return len(_encode(left)) if left else 0


def _is_counted(plan: Plan, name: str) -> bool:
    if plan.route.operation is None:
        return name not in _NOT_OF_INVOKE
    return name in _OF_CONVERSE or not _is_converse(plan)


def _is_converse(plan: Plan) -> bool:
    operation = plan.route.operation
    return operation is not None and operation.is_converse
