"""One call of a wrapped client, from its authorization to its settlement.

An attempt that Bedrock refused is free; the next one uses the same authorization. An attempt
without an answer may be billed: its hold stays, and the next one needs its own.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec

from pricekeeper.bedrock import (
    AUTO,
    NOT_JSON,
    BedrockCall,
    BodyRefusedError,
    Family,
    Operation,
    StreamUsage,
    Terms,
    Usage,
    answers_with_text,
    decode_telling,
    family_of_body,
    family_of_model,
    judge,
    read_error,
    usage_of_converse,
    usage_of_invoke,
    was_never_sent,
)
from pricekeeper.client.answers import AS_ASKED, Authorization
from pricekeeper.client.engine import Engine
from pricekeeper.client.errors import RejectedError, invalid_request
from pricekeeper.client.threads import later

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Options:
    """How the calls of one client are authorized."""

    fallback: bool | None = None
    allow_lower_max_output: bool = False
    min_output_tokens: int = 1
    hold_secs: int | None = None
    tags: Mapping[str, str] | None = None


class Ask(Terms, total=False):
    """The arguments of `Engine.authorize`."""

    fallback: bool
    hold_secs: int


class MeteredCall:
    """The state of one call. No method waits."""

    def __init__(
        self, engine: Engine, options: Options, operation: Operation, request: dict[str, Any]
    ) -> None:
        self._engine = engine
        self._options = options
        self._operation = operation
        self._path = str(request["url_path"])
        self._asked = _model_of(self._path)
        self._call = self._judged(_body_of(request), request["headers"])
        self._authorization: Authorization | None = None
        self._label = self._model_id = self._asked
        self._max_output = 0
        self._may_be_billed = False
        later.ready()

    @property
    def tags(self) -> dict[str, str]:
        return self._call.bounds.tags

    @property
    def deadline_secs(self) -> float:
        return self._engine.configuration.deadline_ms / 1000

    def _judged(self, body: dict[str, Any], headers: Mapping[Any, Any]) -> BedrockCall:
        """Judge the call as the gateway does; unknown members hold the whole window."""
        family = None
        if not self._operation.is_converse:
            named = family_of_model(self._asked)
            family = family_of_body(body) if named is Family.OTHER else named
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        try:
            call = judge(
                body,
                family,
                lower,
                has_answer=self._operation.is_converse or answers_with_text(self._asked),
                is_strict=False,
                tags=self._options.tags,
            )
        except BodyRefusedError as error:
            raise invalid_request(error) from None
        return call.opened_by([self._asked])

    @property
    def needs_authorization(self) -> bool:
        return self._authorization is None

    def ask(self) -> Ask:
        options = self._options
        default = self._engine.configuration.max_output_tokens
        asked = cast("Ask", self._call.terms(self._asked, default=default))
        asked["allow_lower_max_output"] |= options.allow_lower_max_output
        asked["min_output_tokens"] = max(options.min_output_tokens, asked["min_output_tokens"])
        if options.fallback is not None:
            asked["fallback"] = options.fallback
        if options.hold_secs is not None:
            asked["hold_secs"] = options.hold_secs
        return asked

    def ask_again(self) -> Ask:
        """Authorize another attempt after a lost answer: the same call exactly."""
        asked = self.ask()
        asked["model"], asked["max_output_tokens"] = self._label, self._max_output
        asked["allow_lower_max_output"] = asked["fallback"] = False
        return asked

    def grant(self, authorization: Authorization, request: MutableMapping[str, Any]) -> None:
        """Put the authorized model and, for text, its longest answer into the request."""
        self._authorization = authorization
        self._label, self._max_output = authorization.label, authorization.max_output_tokens
        has_answer = self._max_output > 0
        if self._operation.is_converse and not has_answer:
            raise self._refuse(
                f"{authorization.model_id} writes no text; name a model that does, or use "
                "invoke_model"
            )
        family = None if self._operation.is_converse else self._family(authorization)
        call = self._call = msgspec.structs.replace(
            self._call, family=family, has_answer=has_answer
        )
        if not self._is_asked_by_id(authorization):
            self._model_id = authorization.model_id
            model = quote(self._model_id, safe="-._~")
            path = f"/model/{model}/{self._operation.path_end}"
            request["url"] = request["url"].replace(self._path, path, 1)
            request["url_path"] = path
        request["body"] = call.encoded(self._max_output)

    def grant_again(self, authorization: Authorization) -> None:
        self._authorization = authorization
        self._may_be_billed = False

    def _is_asked_by_id(self, authorization: Authorization) -> bool:
        """Whether the request named a model id. Its spelling is kept: AWS tells profiles apart."""
        by_name = self._asked in (AUTO, authorization.label)
        return not by_name and authorization.reason == AS_ASKED

    def _family(self, authorization: Authorization) -> Family:
        """The body's family; raises if the authorized model is of another."""
        family = family_of_model(authorization.model_id)
        meant = self._call.family or Family.OTHER
        if Family.OTHER in (family, meant):  # an opaque profile, or a body that does not tell
            return meant if family is Family.OTHER else family
        if meant is not family:
            raise self._refuse(
                f"{authorization.model_id} was chosen, and the body is for {meant} models; "
                "name a model of that family, or use converse"
            )
        return family

    def _refuse(self, detail: str) -> RejectedError:
        """The error for a call that its model can't take; the hold is voided."""
        self._give_back("the model can't take the call")
        return invalid_request(detail)

    def note_attempt(self) -> None:
        """Note that an attempt is about to be sent."""
        self._may_be_billed = True

    def note_outcome(
        self, response: Mapping[str, Any] | None, exception: BaseException | None
    ) -> None:
        if exception is not None:
            self._may_be_billed = not was_never_sent(exception)
        elif response is None or response["status_code"] < HTTPStatus.MULTIPLE_CHOICES:
            return  # it is billed, and its answer will state the usage
        else:
            status, headers = response["status_code"], response["headers"]
            reply = read_error(status, headers, response["body"])
            self._may_be_billed = not reply.is_free
            if reply.usage is not None:
                self.finish(reply.usage)
        if self._may_be_billed:
            self._leave_unknown()

    def finish_failed(self, reason: str) -> None:
        """Void the hold, unless an attempt may be billed."""
        if self._may_be_billed:
            self._leave_unknown()
        else:
            self._give_back(reason)

    def finish_elsewhere(self) -> None:
        """Void the hold: the gateway has counted the call."""
        self._give_back("the gateway has counted it")

    def finish_converse(self, parsed: Mapping[str, Any]) -> None:
        self.finish(usage_of_converse(parsed))

    def finish_invoke(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Settle with the usage in the reply or its headers."""
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        has_answer = self._call.has_answer
        self.finish(usage_of_invoke(decode_telling(body), lower, has_answer=has_answer))

    def stream_usage(self, service_tier: str | None) -> StreamUsage:
        return StreamUsage(self._operation, service_tier)

    def finish_stream(self, usage: StreamUsage) -> None:
        """Settle with a stream's usage, unless it is a refusal."""
        if usage.is_refused:
            self._give_back("Bedrock refused the call")
        else:
            self.finish(usage.usage())

    def finish(self, usage: Usage | None) -> None:
        """Settle with this usage; ``None`` if the answer stated none."""
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
            self._engine.leave_unknown(authorization, self._call.bounds.input_tokens, self.tags)

    def __del__(self) -> None:
        # An interrupted or cancelled caller fires no other event.
        authorization = getattr(self, "_authorization", None)
        if authorization is None:
            return
        engine, input_tokens, tags = self._engine, self._call.bounds.input_tokens, self.tags
        if self._may_be_billed:
            later.put(lambda: engine.leave_unknown(authorization, input_tokens, tags))
        else:
            later.put(lambda: engine.give_back(authorization, "its caller was interrupted"))


def _body_of(request: MutableMapping[str, Any]) -> dict[str, Any]:
    """The JSON object in a request's body, in UTF-8 only. A file is replaced by its content."""
    body = request["body"]
    if hasattr(body, "read"):
        body = request["body"] = body.read()
    try:
        return _decode(body)
    except (TypeError, *NOT_JSON):
        raise invalid_request(
            "the body must be a JSON object in UTF-8 without a byte order mark"
        ) from None


def _model_of(path: str) -> str:
    return unquote(path.split("/")[2])
