"""One call of a wrapped client, from its authorization to its settlement.

botocore may make several attempts for one call. An attempt that Bedrock refused costs nothing, and
the next one goes on under the same authorization. An attempt whose answer was lost may be billed:
what is held for it stays held, and the next attempt needs an authorization of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypedDict
from urllib.parse import quote

from pricekeeper.bedrock import (
    CallBounds,
    Family,
    Operation,
    StreamUsage,
    Usage,
    bounds_of,
    family_of_body,
    family_of_model,
    usage_of_converse,
    usage_of_invoke,
    with_max_output,
)
from pricekeeper.bedrock.refusals import is_refusal
from pricekeeper.client.answers import Authorization
from pricekeeper.client.engine import Engine
from pricekeeper.client.errors import Problem, RejectedError
from pricekeeper.client.fields import AuthorizeFields

TAG_BYTES_MAX: Final = 256
_NOT_SENT: Final = frozenset(
    {"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError"}
)
"""botocore's errors of connections that were never made."""


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
        self._body = _body_of(request)
        self._asked = _model_of(self._path)
        headers = {str(name).lower(): str(value) for name, value in request["headers"].items()}
        self._bounds: CallBounds = bounds_of(self._body, headers)
        self._authorization: Authorization | None = None
        self._label = self._asked
        self._max_output = 0
        self._is_sent = False
        self._is_settled = False

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the call, of the client and of its own ``requestMetadata``."""
        found = {**(self._options.tags or {}), **self._bounds.tags}
        return {
            name: value
            for name, value in found.items()
            if 1 <= len(name.encode()) <= TAG_BYTES_MAX and len(value.encode()) <= TAG_BYTES_MAX
        }

    @property
    def needs_authorization(self) -> bool:
        """Whether the next attempt may not be sent yet."""
        return self._authorization is None

    def ask(self) -> tuple[Ask, AuthorizeFields]:
        """What to authorize for the first attempt."""
        bounds, options = self._bounds, self._options
        stated = bounds.max_output_tokens
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
        if authorization.model_id != self._asked:
            path = f"/model/{quote(authorization.model_id, safe='-._~')}/{self._operation.path_end}"
            request["url"] = request["url"].replace(self._path, path, 1)
            request["url_path"] = path
        if self._bounds.max_output_tokens != self._max_output:
            body = with_max_output(self._body, self._max_output, family)
            request["body"] = json.dumps(body).encode()

    def grant_again(self, authorization: Authorization) -> None:
        """Go on with another attempt."""
        self._authorization = authorization
        self._is_sent = False

    def _family(self, authorization: Authorization) -> Family:
        """The family of the body; raises if the model that was authorized is of another."""
        family = family_of_model(authorization.model_id)
        meant = family_of_model(self._asked)
        if meant is Family.OTHER:
            meant = family_of_body(self._body)
        if meant not in (family, Family.OTHER):
            self._engine.give_back(authorization, "its body is of another model family")
            self._is_settled = True
            detail = (
                f"{authorization.model_id} was chosen, and the body is for {meant} models; "
                "name a model of that family, or use converse"
            )
            raise RejectedError(Problem(400, "INVALID_REQUEST", detail))
        return family

    def note_attempt(self) -> None:
        """Note that an attempt is about to be sent."""
        self._is_sent = True

    def note_outcome(
        self, parsed: Mapping[str, Any] | None, exception: BaseException | None
    ) -> None:
        """Note what came of an attempt; there may be another."""
        self._is_sent = False
        if exception is not None:
            if type(exception).__name__ not in _NOT_SENT:
                self._leave_unknown()
            return
        about = (parsed or {}).get("ResponseMetadata", {})
        status = int(about.get("HTTPStatusCode", 0))
        code = str((parsed or {}).get("Error", {}).get("Code", ""))
        if status >= HTTPStatus.MULTIPLE_CHOICES and not is_refusal(code, status):
            self._leave_unknown()

    def finish_refused(self, reason: str) -> None:
        """Give back what is held: no attempt that is left was billed."""
        if self._authorization is not None and not self._is_settled:
            self._is_settled = True
            self._engine.give_back(self._authorization, reason)

    def finish_converse(self, parsed: Mapping[str, Any]) -> None:
        """Count what Converse's reply says was used."""
        authorization = self._authorization
        if authorization is not None:
            self._finish(usage_of_converse(parsed, authorization.model_id))

    def finish_invoke(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Count what the model's own reply, or its headers, say was used."""
        if self._authorization is None:
            return
        try:
            reply = json.loads(body)
        except ValueError:
            reply = {}
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        model_id = self._authorization.model_id
        self._finish(usage_of_invoke(reply if isinstance(reply, dict) else {}, lower, model_id))

    def stream_usage(self, service_tier: str | None) -> StreamUsage:
        """What will know what the stream used."""
        model_id = "" if self._authorization is None else self._authorization.model_id
        return StreamUsage(self._operation, model_id, service_tier)

    def finish_stream(self, usage: Usage | None) -> None:
        """Count what a stream said was used; ``None`` if it did not say it."""
        self._finish(usage)

    def _finish(self, usage: Usage | None) -> None:
        if self._authorization is None or self._is_settled:
            return
        if usage is None:
            self._leave_unknown()
            return
        self._is_settled = True
        record = usage.record(self._authorization.model_id)
        self._engine.settle(self._authorization, record, self.tags)

    def _leave_unknown(self) -> None:
        if self._authorization is not None and not self._is_settled:
            self._engine.leave_unknown(self._authorization, self._bounds.input_tokens, self.tags)
            self._authorization = None

    def __del__(self) -> None:
        # A caller that was interrupted or cancelled before anything was sent fires no other event.
        # If an attempt was under way, what is held stays held.
        authorization = getattr(self, "_authorization", None)
        if authorization is None or self._is_settled:
            return
        if self._is_sent:
            self._leave_unknown()


def _body_of(request: MutableMapping[str, Any]) -> dict[str, Any]:
    """The JSON of a request's body; a file is read, and replaced by what was in it."""
    body = request["body"]
    if hasattr(body, "read"):
        body = request["body"] = body.read()
    try:
        found = json.loads(body)
    except (TypeError, ValueError):
        found = None
    # What is not JSON is text to us: as many tokens as bytes.
    return found if isinstance(found, dict) else {"prompt": _as_text(body)}


def _as_text(body: Any) -> str:
    if isinstance(body, bytes | bytearray):
        return bytes(body).decode("utf-8", "replace")
    return str(body)


def _model_of(path: str) -> str:
    from urllib.parse import unquote  # noqa: PLC0415 - its twin is what the module is about

    return unquote(path.split("/")[2])
