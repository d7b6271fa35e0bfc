"""What a call asks for and can cost, and which model it may be sent to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pricekeeper.authorizations import Authorization, AuthorizationRequest
from pricekeeper.bedrock import (
    CallBounds,
    Family,
    bounds_of,
    family_of_body,
    family_of_model,
    with_max_output,
)
from pricekeeper.bootstrap import Services
from pricekeeper.errors import AuthorizationDeniedError
from pricekeeper.gateway.errors import Refusal
from pricekeeper.gateway.routes import Dialect, Route
from pricekeeper.pricing import CacheWrite, ModelRef, normalise_model_id
from pricekeeper.tenants import Policy

AUTO: Final = "auto"
MAX_OUTPUT_TOKENS: Final = 4_096
"""The longest answer of a call that does not say one: it is written into the call."""
TAG_PREFIX: Final = "x-pricekeeper-tag-"
TAGS_MAX: Final = 16
TAG_BYTES_MAX: Final = 256
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Plan:
    """One call, before it is decided about."""

    route: Route
    model: str
    """As it was asked for."""
    body: dict[str, Any]
    bounds: CallBounds
    tags: Mapping[str, str]

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in parts."""
        if self.route.operation is None:
            return self.body.get("stream") is True
        return self.route.operation.is_stream

    @property
    def family(self) -> Family | None:
        """The family whose body it is; ``None`` if it fits every model."""
        operation = self.route.operation
        if operation is not None and operation.is_converse:
            return None
        if self.route.dialect is Dialect.OPENAI:
            return Family.OPENAI
        if self.route.dialect is Dialect.ANTHROPIC:
            return Family.ANTHROPIC
        named = family_of_model(self.model)
        return named if named is not Family.OTHER else family_of_body(self.body)


def plan_call(route: Route, body: bytes, headers: Mapping[str, str]) -> Plan:
    """Read a request; raises `Refusal` for a body that can't be one."""
    try:
        parsed = _decode(body)
    except msgspec.DecodeError:
        raise Refusal(400, "ValidationException", "the body is no JSON object") from None
    model = route.model or parsed.get("model")
    if not isinstance(model, str) or not model:
        raise Refusal(400, "ValidationException", "model: must name a model")
    bounds = bounds_of(parsed, headers)
    return Plan(route, model, parsed, bounds, _tags(bounds, headers))


async def authorize(services: Services, policy: Policy, plan: Plan) -> Authorization:
    """Hold the most that the call can cost; raises if something denies it.

    A body that is of one family goes to models of that family alone.
    """
    family = plan.family
    if family is None or plan.model != AUTO:
        return await _authorize_as(services, policy, plan, plan.model)
    models = {label: services.prices.catalogue.model(label) for label in policy.model_ordering}
    fitting = [
        label
        for label, model in models.items()
        if family_of_model(model.bedrock_model_id) is family
    ]
    if len(fitting) == len(models):
        return await _authorize_as(services, policy, plan, AUTO)
    denied: AuthorizationDeniedError | None = None
    for label in fitting:
        try:
            return await _authorize_as(services, policy, plan, label)
        except AuthorizationDeniedError as error:
            denied = error
    if denied is not None:
        raise denied
    message = f"the body is for {family.value} models, and no label of the app is one"
    raise Refusal(400, "ValidationException", message)


async def _authorize_as(
    services: Services, policy: Policy, plan: Plan, model: str
) -> Authorization:
    bounds = plan.bounds
    stated = bounds.max_output_tokens
    request = AuthorizationRequest(
        input_tokens=bounds.input_tokens,
        max_output_tokens=MAX_OUTPUT_TOKENS if stated is None else stated,
        model=model,
        cache_write=CacheWrite(bounds.cache_write),
        service_tier=bounds.service_tier,
        tags=dict(plan.tags),
        allow_lower_max_output=stated is None,
    )
    authorized = await services.authorizations.authorize(policy, request)
    return authorized.authorization


def model_to_call(services: Services, plan: Plan, authorization: Authorization) -> str:
    """The id to send the call to: the caller's own spelling, if that model was granted."""
    model = services.prices.catalogue.model(authorization.grant.label)
    asked, granted = (normalise_model_id(one) for one in (plan.model, model.bedrock_model_id))
    if isinstance(asked, ModelRef) and isinstance(granted, ModelRef) and asked.same_rate(granted):
        return plan.model
    return model.bedrock_model_id


def body_to_send(plan: Plan, original: bytes, model_id: str, authorization: Authorization) -> bytes:
    """The body for the model that was granted; the caller's own bytes, if nothing changes."""
    most = authorization.grant.max_output_tokens
    changed = plan.body
    if plan.bounds.max_output_tokens != most:
        changed = with_max_output(changed, most, plan.family)
    if not plan.route.model and plan.body.get("model") != model_id:
        changed = {**changed, "model": model_id}
    if plan.route.dialect is Dialect.OPENAI and plan.is_stream and not says_usage(plan):
        options = changed.get("stream_options")
        asked = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        changed = {**changed, "stream_options": asked}
    return original if changed is plan.body else _encode(changed)


def says_usage(plan: Plan) -> bool:
    """Whether the caller of an OpenAI stream has asked for the usage itself."""
    options = plan.body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _tags(bounds: CallBounds, headers: Mapping[str, str]) -> dict[str, str]:
    found = dict(bounds.tags)
    for name, value in headers.items():
        if name.startswith(TAG_PREFIX):
            found[name[len(TAG_PREFIX) :]] = value
    fitting = {
        name: value
        for name, value in found.items()
        if 1 <= len(name.encode()) <= TAG_BYTES_MAX and len(value.encode()) <= TAG_BYTES_MAX
    }
    return dict(list(fitting.items())[:TAGS_MAX])
