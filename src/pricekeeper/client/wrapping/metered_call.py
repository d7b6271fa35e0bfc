"""One call of a wrapped client, from its authorization to its settlement.

botocore may make several attempts for one call. An attempt that Bedrock refused costs nothing, and
the next one goes on under the same authorization. An attempt whose answer was lost may be billed:
what is held for it stays held, and the next attempt needs an authorization of its own.

Whatever ends a call earlier, also an error in another handler or an interrupt: if an attempt was
sent whose outcome is not known to be free, it counts as billed.
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
    BedrockCall,
    BodyRefusedError,
    Family,
    Operation,
    StreamUsage,
    Terms,
    Usage,
    answers_with_text,
    family_of_body,
    family_of_model,
    judge,
    usage_of_converse,
    usage_of_invoke,
)
from pricekeeper.bedrock.refusals import read_error, was_never_sent
from pricekeeper.bedrock.usage import NOT_JSON, decode_telling
from pricekeeper.client.answers import AS_ASKED, Authorization
from pricekeeper.client.engine import Engine
from pricekeeper.client.errors import RejectedError, invalid_request
from pricekeeper.client.wrapping.later import later

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Options:
    """How calls of one client are authorized."""

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
    """The state of one call. All of its methods return at once."""

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
        """The tags of the client and of the call; the call's own win."""
        return self._call.bounds.tags

    @property
    def deadline_secs(self) -> float:
        """How long a program that ends waits for its calls."""
        return self._engine.configuration.deadline_ms / 1000

    def _judged(self, body: dict[str, Any], headers: Mapping[Any, Any]) -> BedrockCall:
        """The call as the gateway would judge it; what is unknown holds the window.

        The caller's AWS client may know newer members than we do. A conversation has an answer
        whatever the model, so that the service refuses a model that writes no text.
        """
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
        """Whether the next attempt may not be sent yet."""
        return self._authorization is None

    def ask(self) -> Ask:
        """What to authorize for the first attempt."""
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
        """What to authorize for an attempt after one whose answer was lost: exactly the same."""
        asked = self.ask()
        asked["model"], asked["max_output_tokens"] = self._label, self._max_output
        asked["allow_lower_max_output"] = asked["fallback"] = False
        return asked

    def grant(self, authorization: Authorization, request: MutableMapping[str, Any]) -> None:
        """Have the request ask for what was authorized.

        No output is granted for a model that writes no text: its body gets no longest answer.
        """
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
        """Go on with another attempt."""
        self._authorization = authorization
        self._may_be_billed = False

    def _is_asked_by_id(self, authorization: Authorization) -> bool:
        """Whether the model was asked for by an id of its own, in whatever spelling.

        It is called as it was spelled: a profile of another region, or for another department's
        costs, has the same price and is not the same to AWS.
        """
        by_name = self._asked in (AUTO, authorization.label)
        return not by_name and authorization.reason == AS_ASKED

    def _family(self, authorization: Authorization) -> Family:
        """The family of the body; raises if the model that was authorized is of another."""
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
        """The error for a call that the authorized model can't take; nothing stays held for it."""
        self._give_back("the model can't take the call")
        return invalid_request(detail)

    def note_attempt(self) -> None:
        """Note that an attempt is about to be sent."""
        self._may_be_billed = True

    def note_outcome(
        self, response: Mapping[str, Any] | None, exception: BaseException | None
    ) -> None:
        """Note the result of an attempt, as botocore's event has it; there may be another."""
        if exception is not None:
            self._may_be_billed = not was_never_sent(exception)
        elif response is None or response["status_code"] < HTTPStatus.MULTIPLE_CHOICES:
            return  # it is billed, and will say how much
        else:
            status, headers = response["status_code"], response["headers"]
            reply = read_error(status, headers, response["body"])
            self._may_be_billed = not reply.is_free
            if reply.usage is not None:
                self.finish(reply.usage)
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
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        has_answer = self._call.has_answer
        self.finish(usage_of_invoke(decode_telling(body), lower, has_answer=has_answer))

    def stream_usage(self, service_tier: str | None) -> StreamUsage:
        """What will know what the stream used."""
        return StreamUsage(self._operation, service_tier)

    def finish_stream(self, usage: StreamUsage) -> None:
        """Count what a stream says was used, unless it is a refusal."""
        if usage.is_refused:
            self._give_back("Bedrock refused the call")
        else:
            self.finish(usage.usage())

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
            self._engine.leave_unknown(authorization, self._call.bounds.input_tokens, self.tags)

    def __del__(self) -> None:
        # A caller that was interrupted or cancelled fires no other event.
        authorization = getattr(self, "_authorization", None)
        if authorization is None:
            return
        engine, input_tokens, tags = self._engine, self._call.bounds.input_tokens, self.tags
        if self._may_be_billed:
            later.put(lambda: engine.leave_unknown(authorization, input_tokens, tags))
        else:
            later.put(lambda: engine.give_back(authorization, "its caller was interrupted"))


def _body_of(request: MutableMapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a request's body. A file is read, and replaced by what was in it.

    Bedrock may read other bytes, such as UTF-16, and nothing could be held for what they say.
    """
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
