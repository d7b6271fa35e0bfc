"""How long a prompt is, as Bedrock's own CountTokens says, for models that are to be counted.

The bound that is made from a body is safe and wide: a text has about a quarter as many tokens as
bytes, and a document may have a thousandth of what is stated for it. Bedrock counts for nothing but
a round trip, so it is asked only where the deployment file says so (`Model.counts_tokens`), and for
prompts that are long enough to matter. If it does not answer, the bound from the body holds; and of
what CountTokens does not take, such as the schema of an answer, it holds in any case.

Bounds: `SECS_MAX` for all that is asked about one call, one request for each model that the call
may go to, and `AT_ONCE_MAX` calls of one app: AWS limits how often one may ask, and an app that
asks too often should not keep the others from it. What is beyond that is not counted.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from typing import Annotated, Final

import msgspec
import structlog
from msgspec.structs import replace

from pricekeeper.bedrock.bounds import INPUT_TOKENS_MAX, NOT_PROMPT, bounds_of
from pricekeeper.bedrock.usage import NOT_JSON
from pricekeeper.gateway.http_client import NotSentError
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.gateway.planning import MAX_OUTPUT_TOKENS, Plan, body_to_send, labels_to_take
from pricekeeper.gateway.routes import COUNT_TOKENS
from pricekeeper.gateway.upstream import LOST, NoCredentialsError, Upstream, read_whole
from pricekeeper.pricing import Catalogue
from pricekeeper.tenants import Policy

COUNTED_FROM_TOKENS: Final = 2_048
"""Of a shorter prompt the bound from its body is good enough: it is below a cent too wide."""
SECS_MAX: Final = 3
AT_ONCE_MAX: Final = 16
_OK: Final = 200
_HEADERS: Final = {"content-type": "application/json", "accept": "application/json"}
_OF_CONVERSE: Final = ("messages", "system", "toolConfig", "additionalModelRequestFields")
"""What of a body CountTokens takes."""
_encode: Final = msgspec.json.Encoder().encode
log = structlog.get_logger("pricekeeper.gateway")


class _Counted(msgspec.Struct, frozen=True):
    """What CountTokens answers; a prompt without a token is none."""

    tokens: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="inputTokens")


_decode: Final = msgspec.json.Decoder(_Counted).decode


class NotCountedError(Exception):
    """Bedrock has not said how long the prompt is."""


_FAILURES: Final = (*LOST, *NOT_JSON, NotSentError, NoCredentialsError, NotCountedError)


class Counting:
    """Has prompts counted before something is held for them."""

    def __init__(self, catalogue: Catalogue, upstream: Upstream, meter: GatewayMeter) -> None:
        self._catalogue = catalogue
        self._upstream = upstream
        self._meter = meter
        self._under_way: Counter[str] = Counter()
        """How many calls of an app are being counted; those that have none are not in it."""
        self.is_wanted = any(model.counts_tokens for model in catalogue)
        """Whether any model of the deployment is to be counted."""

    async def count(self, plan: Plan, policy: Policy) -> Plan:
        """The plan with the prompt as long as Bedrock says; the same if that is not known."""
        bounds = plan.bounds
        if (
            plan.route.operation is None
            or bounds.input_tokens < COUNTED_FROM_TOKENS
            or bounds.is_open
            or policy.freeze is not None
        ):
            return plan
        models = [
            self._catalogue.model(label) for label in labels_to_take(plan, policy, self._catalogue)
        ]
        if not models or not all(model.counts_tokens for model in models):
            return plan  # for one of them nobody would know
        if self._under_way[policy.client_id] >= AT_ONCE_MAX:
            self._meter.counts["no_room"] += 1
            return plan
        # CountTokens takes the ids of foundation models, and not those of profiles.
        tokens = await self._try(plan, policy.client_id, {model.ref.base for model in models})
        self._meter.counts["failed" if tokens is None else "counted"] += 1
        if tokens is None:
            return plan
        tokens = min(tokens + _tokens_beside(plan), INPUT_TOKENS_MAX)
        return replace(plan, bounds=replace(plan.bounds, input_tokens=tokens))

    async def _try(self, plan: Plan, client_id: str, model_ids: Collection[str]) -> int | None:
        self._under_way[client_id] += 1
        try:
            return await self._count_all(plan, model_ids)
        except _FAILURES as error:
            log.warning("count_failed", error=str(error) or type(error).__name__)
            return None
        finally:
            self._under_way[client_id] -= 1
            if not self._under_way[client_id]:
                del self._under_way[client_id]

    async def _count_all(self, plan: Plan, model_ids: Collection[str]) -> int:
        """The most that any of these models makes of the prompt."""
        body = _body(plan)
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
            data = await read_whole(response)
        if response.status != _OK:
            raise NotCountedError(f"{model_id}: status {response.status}")
        return _decode(data).tokens


def _body(plan: Plan) -> bytes:
    if _is_converse(plan):
        prompt = {name: plan.body[name] for name in _OF_CONVERSE if name in plan.body}
        return _encode({"input": {"converse": prompt}})
    stated = plan.bounds.max_output_tokens
    sent = body_to_send(plan, plan.model, MAX_OUTPUT_TOKENS if stated is None else stated)
    return _encode({"input": {"invokeModel": {"body": b64encode(sent).decode()}}})


def _tokens_beside(plan: Plan) -> int:
    """The most that can be in the fields of a body that were not counted."""
    if not _is_converse(plan):
        return 0
    left = {
        name: value
        for name, value in plan.body.items()
        if name not in NOT_PROMPT and name not in _OF_CONVERSE
    }
    return bounds_of(left).input_tokens if left else 0


def _is_converse(plan: Plan) -> bool:
    operation = plan.route.operation
    return operation is not None and operation.is_converse
