"""What a call asks for and can cost, and which model it may be sent to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pricekeeper.activity import DeniedKind
from pricekeeper.authorizations import Authorization, AuthorizationRequest, find_label
from pricekeeper.bedrock import (
    CallBounds,
    Family,
    WrongLengthError,
    answers_with_text,
    bounds_of,
    family_of_body,
    family_of_model,
    read_max_output,
    with_max_output,
)
from pricekeeper.bedrock.usage import NOT_JSON
from pricekeeper.bootstrap import Services
from pricekeeper.gateway.errors import Refusal
from pricekeeper.gateway.routes import Dialect, Route
from pricekeeper.pricing import CacheWrite, Catalogue, Model, ModelRef, normalise_model_id
from pricekeeper.tenants import Policy
from pricekeeper.usecases.denying import DENIALS, note_denial

AUTO: Final = "auto"
MAX_OUTPUT_TOKENS: Final = 4_096
"""The longest answer of a call that does not say one: it is written into the call."""
TAG_PREFIX: Final = "x-pricekeeper-tag-"
TAGS_MAX: Final = 16
VALUES_MAX: Final = 100_000
"""What the body of a call may have in it: each takes half a microsecond of the event loop."""
EXPONENT_VALUES: Final = 20
"""A number with an exponent takes as long to read as so many values."""
DIGITS_AS_A_VALUE: Final = 32
WEIGHED_FROM_BYTES: Final = 16_384
"""A shorter body can't have too many."""
NESTED_MAX: Final = 100
"""A body with fewer lists and objects is surely not nested too deeply for Python; and by how much
the stack may differ between one moment of a call and another."""
TAG_BYTES_MAX: Final = 256
_CACHE_WRITES: Final = {one.value: one for one in CacheWrite}
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


class Plan(msgspec.Struct, frozen=True):
    """One call, before it is decided about."""

    route: Route
    model: str
    """As it was asked for."""
    body: dict[str, Any]
    bounds: CallBounds
    tags: dict[str, str]
    family: Family | None
    """The family whose body it is; ``None`` if it fits every model."""
    among: tuple[str, ...] = ()
    """The labels that `AUTO` may take; empty is any of them."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in parts."""
        if self.route.operation is None:
            return self.body.get("stream") is True
        return self.route.operation.is_stream

    @property
    def hides_usage(self) -> bool:
        """Whether the usage in its stream is not for the caller, who did not ask for it."""
        if self.route.dialect is not Dialect.OPENAI or not self.is_stream:
            return False
        options = self.body.get("stream_options")
        return not (isinstance(options, dict) and options.get("include_usage") is True)


def plan_call(
    route: Route, body: bytes, headers: Mapping[str, str], policy: Policy, catalogue: Catalogue
) -> Plan:
    """Read a request; raises `Refusal` for a body that can't be one, or for no model."""
    if len(body) > WEIGHED_FROM_BYTES and weigh(body) > VALUES_MAX:
        raise _invalid(f"the body may have {VALUES_MAX} values at most, and fewer long numbers")
    try:
        parsed = _decode(body)
        if body.count(b"[") + body.count(b"{") > NESTED_MAX:
            _check_writable(parsed)
    except NOT_JSON:
        raise _invalid("the body is no JSON object that could be sent on") from None
    model = route.model or parsed.get("model")
    if not isinstance(model, str) or not model:
        raise _invalid("model: must name a model")
    family = _family(route, model, parsed, policy, catalogue)
    try:
        most = read_max_output(parsed, family)
    except WrongLengthError as error:
        raise _invalid(str(error)) from None
    if most is None and not _answers(model, policy, catalogue):
        most = 0
    bounds = bounds_of(parsed, headers, lambda _: most)
    among: tuple[str, ...] = ()
    if model == AUTO and family is not None:
        among = _labels_of(family, policy, catalogue)
    return Plan(route, model, parsed, bounds, _tags(bounds, headers), family, among)


def _check_writable(parsed: Any) -> None:
    """Raise `RecursionError` for what is nested too deeply to be written when it is sent on.

    By then the stack may be higher than it is now.
    """
    for _ in range(NESTED_MAX):
        parsed = [parsed]
    _encode(parsed)


def weigh(body: bytes) -> int:
    """How many values a JSON text has, at the most, with what numbers take longer than others.

    In time by its length, and without reading it. A text in it ends where a quotation mark is not
    escaped. Outside of texts a value is the first of something or has a comma before it.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    named = bare.count(b'"') // 4  # a value has two texts at the most: its name, and itself
    if named > VALUES_MAX:  # nobody makes a list of them
        return named
    outside = b"".join(bare.split(b'"')[::2]).translate(None, b" \t\r\n")
    marks = outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    numbers = outside.replace(b"true", b"").replace(b"false", b"")
    exponents = numbers.count(b"e") + numbers.count(b"E")
    return 1 + marks + EXPONENT_VALUES * exponents + len(outside) // DIGITS_AS_A_VALUE


def _invalid(message: str) -> Refusal:
    return Refusal(400, "ValidationException", message)


def _family(
    route: Route, model: str, body: Mapping[str, Any], policy: Policy, catalogue: Catalogue
) -> Family | None:
    """Whose body it is: that of the model that is named, else what the body looks like."""
    if route.is_free or (route.operation is not None and route.operation.is_converse):
        return None
    if route.dialect is Dialect.OPENAI:
        return Family.OPENAI
    if route.dialect is Dialect.ANTHROPIC:
        return Family.ANTHROPIC
    if model == AUTO:
        return family_of_body(body)
    return family_of(catalogue.model(find_label(catalogue, policy, model)))


def _answers(model: str, policy: Policy, catalogue: Catalogue) -> bool:
    """Whether there is an answer to be bounded; the body for vectors has no place for it."""
    if model == AUTO:
        return True
    return answers_with_text(catalogue.model(find_label(catalogue, policy, model)).ref.base)


def family_of(model: Model) -> Family:
    """The family of a model of the deployment, also of one that an opaque ARN names."""
    return family_of_model(model.ref.base)


def _labels_of(family: Family, policy: Policy, catalogue: Catalogue) -> tuple[str, ...]:
    """The labels of the app's ordering whose models take such a body; raises if there are none."""
    known = [label for label in policy.model_ordering if label in catalogue]
    fitting = tuple(label for label in known if family_of(catalogue.model(label)) is family)
    if not fitting:
        message = f"the body is for {family.value} models, and no label of the app is one"
        raise _invalid(message)
    return fitting


def labels_to_take(plan: Plan, policy: Policy, catalogue: Catalogue) -> tuple[str, ...]:
    """The labels that the call may be made with."""
    if plan.model != AUTO:
        return (find_label(catalogue, policy, plan.model),)
    return plan.among or tuple(label for label in policy.model_ordering if label in catalogue)


async def authorize(services: Services, policy: Policy, plan: Plan) -> Authorization:
    """Hold the most that the call can cost; raises if something denies it.

    A body that is of one family goes to models of that family alone.
    """
    bounds = plan.bounds
    stated = bounds.max_output_tokens
    request = AuthorizationRequest(
        input_tokens=bounds.input_tokens,
        max_output_tokens=MAX_OUTPUT_TOKENS if stated is None else stated,
        model=plan.model,
        among=plan.among,
        cache_write=_CACHE_WRITES[bounds.cache_write],
        service_tier=bounds.service_tier,
        tags=plan.tags,
        allow_lower_max_output=stated is None,
        by_gateway=True,
    )
    try:
        authorized = await services.authorizations.authorize(policy, request)
    except DENIALS as denied:
        note_denial(services, policy, DeniedKind.GATEWAY, plan.model, plan.tags, denied)
        raise
    return authorized.authorization


def free_model(plan: Plan, policy: Policy, catalogue: Catalogue) -> str:
    """The id to send a call to for which nothing is held."""
    label = policy.model_ordering[0] if plan.model == AUTO else plan.model
    return model_to_call(plan, catalogue.model(find_label(catalogue, policy, label)))


def model_to_call(plan: Plan, model: Model) -> str:
    """The id to send the call to: the caller's own spelling, if that model was granted."""
    if plan.model == model.bedrock_model_id or plan.model in model.aliases:
        return plan.model
    asked, granted = (normalise_model_id(one) for one in (plan.model, model.bedrock_model_id))
    if isinstance(asked, ModelRef) and isinstance(granted, ModelRef) and asked.same_rate(granted):
        return plan.model
    return model.bedrock_model_id


def body_to_send(plan: Plan, model_id: str, max_output_tokens: int) -> bytes:
    """The body for the model that was granted, made from what was measured.

    It is written anew, because two readers of the caller's own bytes could understand them
    differently: of a name that is there twice, one takes the first and the other the last.
    """
    body = plan.body
    if plan.bounds.max_output_tokens != max_output_tokens:
        body = with_max_output(body, max_output_tokens, plan.family)
    if not plan.route.model and plan.model != model_id:
        body = {**body, "model": model_id}
    if plan.hides_usage:
        options = body.get("stream_options")
        asked = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        body = {**body, "stream_options": asked}
    return _encode(body)


def _tags(bounds: CallBounds, headers: Mapping[str, str]) -> dict[str, str]:
    start = len(TAG_PREFIX)
    found = {name[start:]: value for name, value in headers.items() if name[:start] == TAG_PREFIX}
    if not (found or bounds.tags):
        return found
    found |= {name: value for name, value in bounds.tags.items() if name not in found}
    fitting = {
        name: value
        for name, value in found.items()
        if 1 <= _bytes(name) <= TAG_BYTES_MAX and _bytes(value) <= TAG_BYTES_MAX
    }
    return dict(list(fitting.items())[:TAGS_MAX])


def _bytes(text: str) -> int:
    # Lone surrogates are refused later, with a message of their own.
    return len(text.encode("utf-8", "surrogatepass"))
