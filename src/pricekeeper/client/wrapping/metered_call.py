"""One call of a wrapped client, from its authorization to its settlement.

botocore may make several attempts for one call. An attempt that Bedrock refused costs nothing, and
the next one goes on under the same authorization. An attempt whose answer was lost may be billed:
what is held for it stays held, and the next attempt needs an authorization of its own.

Whatever ends a call earlier, also an error in another handler or an interrupt: if an attempt was
sent whose outcome is not known to be free, it counts as billed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypedDict
from urllib.parse import quote, unquote

from pricekeeper.bedrock import (
    CallBounds,
    Family,
    Operation,
    StreamUsage,
    Usage,
    answers_with_text,
    bounds_of,
    family_of_body,
    family_of_model,
    read_max_output,
    usage_of_converse,
    usage_of_invoke,
    with_max_output,
)
from pricekeeper.bedrock.refusals import is_refusal, was_never_sent
from pricekeeper.client.answers import AS_ASKED, Authorization
from pricekeeper.client.engine import Engine
from pricekeeper.client.errors import RejectedError, ServiceProblem
from pricekeeper.client.fields import AuthorizeFields
from pricekeeper.client.wrapping.later import later

TAGS_MAX: Final = 16
TAG_NAME_MAX: Final = 64
TAG_BYTES_MAX: Final = 256
"""What the service takes: a call is not refused because of what it is called."""
_AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Options:
    """How calls of one client are authorized."""

    fallback: bool | None = None
    allow_lower_max_output: bool = False
    min_output_tokens: int = 1
    hold_secs: int | None = None
    tags: Mapping[str, str] | None = None


class Ask(TypedDict):
    """The arguments of `Engine.authorize` that every call has."""

    input_tokens: int
    max_output_tokens: int
    model: str


class MeteredCall:
    """The state of one call. All of its methods return at once."""

    def __init__(
        self, engine: Engine, options: Options, operation: Operation, request: dict[str, Any]
    ) -> None:
        self._engine = engine
        self._options = options
        self._operation = operation
        self._path = str(request["url_path"])
        self._body, self._is_object = _body_of(request)
        self._asked = _model_of(self._path)
        headers = {str(name).lower(): str(value) for name, value in request["headers"].items()}
        self._bounds: CallBounds = bounds_of(self._body, headers)
        self._authorization: Authorization | None = None
        self._label = self._model_id = self._asked
        self._max_output = 0
        self._may_be_billed = False
        later.ready()

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the client and of the call's own ``requestMetadata``, as far as they fit."""
        found = {**(self._options.tags or {}), **self._bounds.tags}
        fitting = [(name, value) for name, value in found.items() if _is_tag(name, value)]
        return dict(fitting[:TAGS_MAX])

    @property
    def deadline_secs(self) -> float:
        """How long a program that ends waits for its calls."""
        return self._engine.configuration.deadline_ms / 1000

    @property
    def _meant_family(self) -> Family:
        """The family that the body of an ``invoke`` is for, as far as the request tells."""
        named = family_of_model(self._asked)
        return family_of_body(self._body) if named is Family.OTHER else named

    @property
    def _stated(self) -> int | None:
        """The longest answer that the model reads from the request."""
        family = None if self._operation.is_converse else self._meant_family
        if family is Family.OTHER:
            return self._bounds.max_output_tokens
        return read_max_output(self._body, family)

    @property
    def needs_authorization(self) -> bool:
        """Whether the next attempt may not be sent yet."""
        return self._authorization is None

    def ask(self) -> tuple[Ask, AuthorizeFields]:
        """What to authorize for the first attempt."""
        bounds, options = self._bounds, self._options
        stated = self._stated
        more: AuthorizeFields = {
            "cache_write": bounds.cache_write,
            "tags": self.tags,
            "allow_lower_max_output": options.allow_lower_max_output or stated is None,
            "min_output_tokens": options.min_output_tokens,
        }
        if bounds.service_tier is not None:
            more["service_tier"] = bounds.service_tier
        if options.fallback is not None:
            more["fallback"] = options.fallback
        if options.hold_secs is not None:
            more["hold_secs"] = options.hold_secs
        most = self._engine.configuration.max_output_tokens if stated is None else stated
        return Ask(
            input_tokens=bounds.input_tokens, max_output_tokens=most, model=self._asked
        ), more

    def ask_again(self) -> tuple[Ask, AuthorizeFields]:
        """What to authorize for an attempt after one whose answer was lost: exactly the same."""
        asked, more = self.ask()
        asked["model"], asked["max_output_tokens"] = self._label, self._max_output
        more["allow_lower_max_output"] = more["fallback"] = False
        return asked, more

    def grant(self, authorization: Authorization, request: MutableMapping[str, Any]) -> None:
        """Have the request ask for what was authorized."""
        self._authorization = authorization
        self._label, self._max_output = authorization.label, authorization.max_output_tokens
        family = None if self._operation.is_converse else self._family(authorization)
        if not self._is_asked_by_id(authorization):
            self._model_id = authorization.model_id
            model = quote(self._model_id, safe="-._~")
            path = f"/model/{model}/{self._operation.path_end}"
            request["url"] = request["url"].replace(self._path, path, 1)
            request["url_path"] = path
        if self._needs_other_length():
            body = with_max_output(self._body, self._max_output, family)
            request["body"] = json.dumps(body).encode()

    def grant_again(self, authorization: Authorization) -> None:
        """Go on with another attempt."""
        self._authorization = authorization
        self._may_be_billed = False

    def _is_asked_by_id(self, authorization: Authorization) -> bool:
        """Whether the model was asked for by an id of its own, in whatever spelling.

        It is called as it was spelled: a profile of another region, or for another department's
        costs, has the same price and is not the same to AWS.
        """
        by_name = self._asked in (_AUTO, authorization.label)
        return not by_name and authorization.reason == AS_ASKED

    def _needs_other_length(self) -> bool:
        stated = self._stated
        if stated == self._max_output or not self._is_object:
            return False
        return stated is not None or answers_with_text(self._model_id)

    def _family(self, authorization: Authorization) -> Family:
        """The family of the body; raises if the model that was authorized is of another."""
        family, meant = family_of_model(authorization.model_id), self._meant_family
        if Family.OTHER in (family, meant):  # an opaque profile, or a body that does not tell
            return meant if family is Family.OTHER else family
        if meant is not family:
            self._give_back("its body is of another model family")
            detail = (
                f"{authorization.model_id} was chosen, and the body is for {meant} models; "
                "name a model of that family, or use converse"
            )
            raise RejectedError(ServiceProblem(400, "INVALID_REQUEST", detail))
        return family

    def note_attempt(self) -> None:
        """Note that an attempt is about to be sent."""
        self._may_be_billed = True

    def note_outcome(
        self, parsed: Mapping[str, Any] | None, exception: BaseException | None
    ) -> None:
        """Note what came of an attempt; there may be another."""
        if exception is not None:
            self._may_be_billed = not was_never_sent(exception)
        else:
            about = (parsed or {}).get("ResponseMetadata", {})
            status = int(about.get("HTTPStatusCode", 0))
            code = str((parsed or {}).get("Error", {}).get("Code", ""))
            if status < HTTPStatus.MULTIPLE_CHOICES:
                return  # it is billed, and will say how much
            self._may_be_billed = not is_refusal(code, status)
        if self._may_be_billed:
            self._leave_unknown()

    def finish_failed(self, reason: str) -> None:
        """End a call without an answer: give back what is held, unless an attempt may be billed."""
        if self._may_be_billed:
            self._leave_unknown()
        else:
            self._give_back(reason)

    def finish_elsewhere(self) -> None:
        """Give back what is held: the gateway that the call went through has counted it."""
        self._give_back("the gateway has counted it")

    def finish_converse(self, parsed: Mapping[str, Any]) -> None:
        """Count what Converse's reply says was used."""
        self.finish(usage_of_converse(parsed))

    def finish_invoke(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Count what the model's own reply, or its headers, say was used."""
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            reply = {}
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        self.finish(usage_of_invoke(reply if isinstance(reply, dict) else {}, lower))

    def stream_usage(self, service_tier: str | None) -> StreamUsage:
        """What will know what the stream used."""
        return StreamUsage(self._operation, service_tier)

    def finish(self, usage: Usage | None) -> None:
        """Count what was used; ``None`` if the answer did not say it."""
        if usage is None:
            self._leave_unknown()
            return
        authorization, self._authorization = self._authorization, None
        if authorization is not None:
            self._engine.settle(authorization, usage.record(self._model_id), self.tags)

    def _give_back(self, reason: str) -> None:
        authorization, self._authorization = self._authorization, None
        if authorization is not None:
            self._engine.give_back(authorization, reason)

    def _leave_unknown(self) -> None:
        authorization, self._authorization = self._authorization, None
        if authorization is not None:
            self._engine.leave_unknown(authorization, self._bounds.input_tokens, self.tags)

    def __del__(self) -> None:
        # A caller that was interrupted or cancelled fires no other event.
        authorization = getattr(self, "_authorization", None)
        if authorization is None:
            return
        engine, input_tokens, tags = self._engine, self._bounds.input_tokens, self.tags
        if self._may_be_billed:
            later.put(lambda: engine.leave_unknown(authorization, input_tokens, tags))
        else:
            later.put(lambda: engine.give_back(authorization, "its caller was interrupted"))


def _body_of(request: MutableMapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The JSON of a request's body, and whether it is an object, as every model's is.

    A file is read, and replaced by what was in it.
    """
    body = request["body"]
    if hasattr(body, "read"):
        body = request["body"] = body.read()
    try:
        found = json.loads(body)
    except (TypeError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found, True
    return {"prompt": _as_text(body)}, False  # as many tokens as bytes


def _as_text(body: Any) -> str:
    if isinstance(body, bytes | bytearray):
        return bytes(body).decode("utf-8", "replace")
    return str(body)


def _is_tag(name: str, value: str) -> bool:
    try:
        return 1 <= len(name) <= TAG_NAME_MAX and len(value.encode()) <= TAG_BYTES_MAX
    except UnicodeEncodeError:  # half of a character
        return False


def _model_of(path: str) -> str:
    return unquote(path.split("/")[2])
