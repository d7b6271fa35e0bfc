"""Server-sent events, and the APIs of OpenAI and Anthropic, with their errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from pricekeeper.standin.endpoint import BROKE_OFF, ModelApi, ModelReply, ModelRequest, ModelStream
from pricekeeper.standin.families.anthropic import ANTHROPIC, read_message
from pricekeeper.standin.families.openai import OPENAI
from pricekeeper.standin.read_request import Body, ReadRequest, object_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

MEDIA_TYPE: Final = b"text/event-stream; charset=utf-8"
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_encode: Final = msgspec.json.Encoder().encode


class ChatCompletions(ModelApi):
    """OpenAI's API."""

    name = "ChatCompletions"

    def read(self, request: ModelRequest) -> ReadRequest:
        _require_model(request.body)
        return replace(OPENAI.read(request.body), metadata=_metadata(request.body))

    def reply(self, turn: Turn) -> ModelReply:
        return ModelReply(_encode(OPENAI.reply(turn)))

    def stream(self, turn: Turn) -> ModelStream:
        frames = [b"data: %b\n\n" % _encode(chunk) for chunk in OPENAI.chunks(turn)]
        return ModelStream(MEDIA_TYPE, [*frames, b"data: [DONE]\n\n"], 1 + (turn.events + 1) // 2)

    def failure(self) -> bytes:
        return b"data: %b\n\n" % _encode({"error": {"message": BROKE_OFF, "type": "server_error"}})

    def refuse(self, refusal: AwsFault) -> ModelReply:
        error = {"message": refusal.message, "type": _error_type(refusal), "code": refusal.name}
        return ModelReply(_encode({"error": {**error, "param": None}}), status=refusal.status)


class Messages(ModelApi):
    """Anthropic's API."""

    name = "Messages"

    def read(self, request: ModelRequest) -> ReadRequest:
        body = request.body
        _require_model(body)
        return replace(
            read_message(body), streams=body.get("stream") is True, metadata=_metadata(body)
        )

    def reply(self, turn: Turn) -> ModelReply:
        return ModelReply(_encode(ANTHROPIC.reply(turn)))

    def stream(self, turn: Turn) -> ModelStream:
        frames = [_named_event(event) for event in ANTHROPIC.chunks(turn)]
        return ModelStream(MEDIA_TYPE, frames, 2 + (turn.events + 1) // 2)

    def failure(self) -> bytes:
        return _named_event(_anthropic_error("api_error", BROKE_OFF))

    def refuse(self, refusal: AwsFault) -> ModelReply:
        error = _anthropic_error(_error_type(refusal), refusal.message)
        return ModelReply(_encode(error), status=refusal.status)


def _require_model(body: Body) -> None:
    if not isinstance(body.get("model"), str):
        raise AwsFault("ValidationException", "model: Field required")


def _metadata(body: Body) -> dict[str, str]:
    """The text pairs, without Converse's limit."""
    pairs = object_of(body, "metadata")
    return {name: value for name, value in pairs.items() if isinstance(value, str)}


def _named_event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


def _anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _error_type(refusal: AwsFault) -> str:
    return _ERROR_TYPES.get(refusal.status, "api_error")
