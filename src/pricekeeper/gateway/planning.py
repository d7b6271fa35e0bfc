"""Plans a call: what it can cost, and which models it may be sent to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pricekeeper.activity import DeniedKind
from pricekeeper.authorizations import Authorization, AuthorizationRequest, find_label
from pricekeeper.bedrock import (
    AUTO,
    BETA_HEADER,
    GUARDRAIL_HEADER,
    LATENCY_HEADER,
    METADATA_HEADER,
    TIER_HEADER,
    BedrockCall,
    Family,
    family_of_model,
)
from pricekeeper.bedrock.reading import Judged, Question
from pricekeeper.bootstrap import Services
from pricekeeper.gateway.errors import Refusal
from pricekeeper.gateway.routes import Dialect, Route
from pricekeeper.pricing import Catalogue, Model, ModelRef, normalise_model_id, require_text
from pricekeeper.tags import TAG_PREFIX
from pricekeeper.tenants import Policy
from pricekeeper.usecases.denying import DENIALS, note_denial

_GUARDRAIL_HEADERS: Final = (
    GUARDRAIL_HEADER,
    "x-amzn-bedrock-guardrailversion",
    "x-amzn-bedrock-trace",
)
_OF_INVOKE: Final = (TIER_HEADER, LATENCY_HEADER, METADATA_HEADER, *_GUARDRAIL_HEADERS)
_READ_HEADERS: Final = {
    "invoke": _OF_INVOKE,
    "invoke-with-response-stream": _OF_INVOKE,
    "chat-completions": _GUARDRAIL_HEADERS,
    "messages": ("anthropic-version", BETA_HEADER, *_GUARDRAIL_HEADERS),
}
"""Read by Bedrock on a path, so they are judged, too."""
SIGNED_BY: Final = "x-amz-security-token"
_JUDGED_HEADERS: Final[Sequence[str]] = (
    TIER_HEADER,
    LATENCY_HEADER,
    METADATA_HEADER,
    GUARDRAIL_HEADER,
)
NAMED_MAX: Final = 5


class Plan(msgspec.Struct, frozen=True):
    """One call, before its authorization."""

    route: Route
    model: str
    call: BedrockCall
    among: tuple[str, ...] = ()
    """The labels that `AUTO` may take; all if empty."""
    is_stream: bool = False
    hides_usage: bool = False
    """Whether the usage in its stream is hidden from the caller, who did not request it."""

    @property
    def body(self) -> dict[str, Any]:
        return self.call.body

    def without_body(self) -> Plan:
        return replace(self, call=replace(self.call, body={}))


def question_of(
    route: Route, headers: Mapping[str, str], policy: Policy, catalogue: Catalogue
) -> Question:
    """What to find out about the body; raises if the path names no model of the app."""
    operation, model = route.operation, route.model
    is_told_by_body, has_answer = False, True
    family: Family | None = None
    judged = _JUDGED_HEADERS
    if route.dialect is Dialect.OPENAI:
        family = Family.OPENAI
    elif route.dialect is Dialect.ANTHROPIC:
        family, judged = Family.ANTHROPIC, (*_JUDGED_HEADERS, BETA_HEADER)
    elif operation is not None:
        models = _models(model, policy, catalogue)
        if not operation.is_converse:
            is_told_by_body = model == AUTO
            has_answer = any(one.writes_text for one in models)
            family = None if is_told_by_body else family_of(models[0])
    read = {
        name: text
        for name, text in headers.items()
        if name in judged or name.startswith(TAG_PREFIX)
    }
    return Question(family, is_told_by_body, read, has_answer, route.is_free, SIGNED_BY in headers)


def plan_call(route: Route, judged: Judged, policy: Policy, catalogue: Catalogue) -> Plan:
    """Raises `Refusal` for a body that can't be a call, or for an unknown model."""
    call, model = judged.call, route.model or judged.model
    if call is None:
        raise _invalid(judged.refused)
    if not model:
        raise _invalid("model: must name a model")
    if route.is_free:
        return Plan(route, model, call)
    models = _models(model, policy, catalogue)
    if model != AUTO:
        if call.has_answer:
            require_text(models[0])
        fitting = models
    else:
        fitting = _of_family(call, models, catalogue)
    among = tuple(one.label for one in fitting) if len(fitting) < len(models) else ()
    call = call.opened_by(one.bedrock_model_id for one in fitting)
    operation, options = route.operation, call.body.get("stream_options")
    is_stream = call.body.get("stream") is True if operation is None else operation.is_stream
    asks = isinstance(options, dict) and options.get("include_usage") is True
    hides_usage = is_stream and route.dialect is Dialect.OPENAI and not asks
    return Plan(route, model, call, among, is_stream, hides_usage)


def _models(model: str, policy: Policy, catalogue: Catalogue) -> Sequence[Model]:
    """The model that a call names, or all that `AUTO` may mean."""
    if model != AUTO:
        return (catalogue.model(find_label(catalogue, policy, model)),)
    return [catalogue.model(label) for label in policy.model_ordering if label in catalogue]


def _of_family(call: BedrockCall, models: Sequence[Model], catalogue: Catalogue) -> Sequence[Model]:
    """The models of the app that take such a body; raises `Refusal` if none does.

    If none of the family writes text, all of it is returned: the authorization refuses each.
    """
    family = call.family
    found = [one for one in models if family is None or family_of(one) is family]
    if not found and family is not None:
        raise _invalid(_no_family(family, models, catalogue))
    return [one for one in found if one.writes_text == call.has_answer] or found


def _no_family(family: Family, models: Sequence[Model], catalogue: Catalogue) -> str:
    """The refusal of `AUTO` with the body of a family that the app has no model of."""
    has = ", ".join(f"{one.label} ({one.bedrock_model_id})" for one in models) or "no model"
    told = f"the body is for {family.value} models, and the app's model_ordering has none: {has}"
    others = [one.label for one in catalogue if family_of(one) is family and one.writes_text]
    if not others:
        return f"{told}; add one to the deployment file and to model_ordering, or use Converse"
    return f"{told}; add {' or '.join(others[:NAMED_MAX])} to model_ordering, or use Converse"


def _invalid(message: str) -> Refusal:
    return Refusal(400, "ValidationException", message)


def family_of(model: Model) -> Family:
    """The family of a model of the deployment, also if an opaque ARN names it."""
    return family_of_model(model.ref.base)


def models_to_take(plan: Plan, policy: Policy, catalogue: Catalogue) -> Sequence[Model]:
    """The models that the call may use."""
    models = _models(plan.model, policy, catalogue)
    return [one for one in models if not plan.among or one.label in plan.among]


def request_of(plan: Plan, policy: Policy) -> AuthorizationRequest:
    """What to authorize for the call."""
    terms = plan.call.terms(plan.model, policy.max_output_tokens_cap)
    return AuthorizationRequest(**terms, among=plan.among, by_gateway=True)


async def authorize(services: Services, policy: Policy, plan: Plan) -> Authorization:
    """Reserve the maximum cost of the call; raises if that is denied."""
    request = request_of(plan, policy)
    try:
        authorized = await services.authorizations.authorize(policy, request)
    except DENIALS as denied:
        note_denial(services, policy, DeniedKind.GATEWAY, plan.model, request.tags, denied)
        raise
    return authorized.authorization


def free_model(plan: Plan, policy: Policy, catalogue: Catalogue) -> str:
    """The model id for a call that costs nothing."""
    models = _models(plan.model, policy, catalogue)
    if plan.model != AUTO:
        return model_to_call(plan, models[0])
    family = plan.call.family
    writing = [one for one in models if one.writes_text]
    fitting = [one for one in writing if family in (None, family_of(one))]
    if not fitting:
        raise _invalid(
            "none of the app's models can count this prompt: name one of its labels that writes "
            "text, or add one to model_ordering"
        )
    return model_to_call(plan, fitting[0])


def model_to_call(plan: Plan, model: Model) -> str:
    """The caller's own spelling of the model id, if that model was granted."""
    if plan.model == model.bedrock_model_id or plan.model in model.aliases:
        return plan.model
    asked, granted = (normalise_model_id(one) for one in (plan.model, model.bedrock_model_id))
    if isinstance(asked, ModelRef) and isinstance(granted, ModelRef) and asked.same_rate(granted):
        return plan.model
    return model.bedrock_model_id


def body_to_send(plan: Plan, model_id: str, max_output_tokens: int) -> bytes:
    """The judged body, for the model that was granted."""
    changes: dict[str, Any] = {}
    if not plan.route.model:
        changes["model"] = model_id
    if plan.hides_usage:
        options = plan.body.get("stream_options")
        asked = options if isinstance(options, dict) else {}
        changes["stream_options"] = {**asked, "include_usage": True}
    return plan.call.encoded(max_output_tokens, **changes)


def headers_to_send(route: Route, headers: Mapping[str, str]) -> dict[str, str]:
    """Only the headers that Bedrock reads on that path."""
    names = _READ_HEADERS.get(route.name, ())
    sent = {name: headers[name] for name in names if name in headers}
    is_whole = route.operation is not None and not route.operation.is_stream
    accept = "application/json" if is_whole else "*/*"
    return {**sent, "content-type": "application/json", "accept": accept}
