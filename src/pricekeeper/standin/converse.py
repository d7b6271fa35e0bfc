"""Converse and ConverseStream, with the members that botocore's service model has."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pricekeeper.standin.endpoint import ModelApi, ModelReply, ModelRequest, ModelStream
from pricekeeper.standin.families.choosing import require_text
from pricekeeper.standin.frames import MEDIA_TYPE, event_frame
from pricekeeper.standin.prompt import Body, Prompt, chat_prompt, count_of, messages_of, object_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

METADATA_PAIRS_MAX: Final = 16
_encode: Final = msgspec.json.Encoder().encode
_MESSAGE_START: Final = event_frame("messageStart", b'{"role":"assistant"}')
_BLOCK_STOP: Final = event_frame("contentBlockStop", b'{"contentBlockIndex":0}')


class Converse(ModelApi):
    """The operation in one piece, or as a stream."""

    def __init__(self, *, streams: bool) -> None:
        self.name = "ConverseStream" if streams else "Converse"
        self._streams = streams

    def read(self, request: ModelRequest) -> Prompt:
        require_text(request.model_id)
        return read_converse(request.body, streams=self._streams)

    def reply(self, turn: Turn) -> ModelReply:
        message = {"role": "assistant", "content": [{"text": turn.text}]}
        body = {"output": {"message": message}, "stopReason": turn.stop_reason, **_metadata(turn)}
        return ModelReply(_encode(body))

    def stream(self, turn: Turn) -> ModelStream:
        deltas = [event_frame("contentBlockDelta", _encode(_delta(piece))) for piece in turn.pieces]
        frames = [
            _MESSAGE_START,
            *deltas,
            _BLOCK_STOP,
            event_frame("messageStop", _encode({"stopReason": turn.stop_reason})),
        ]
        if turn.reports_usage:
            frames.append(event_frame("metadata", _encode(_metadata(turn))))
        return ModelStream(MEDIA_TYPE, frames, ends_after=1 + (len(deltas) + 1) // 2)


def read_converse(body: Body, *, streams: bool) -> Prompt:
    """What a request of Converse asks for."""
    return chat_prompt(
        messages_of(body),
        count_of(object_of(body, "inferenceConfig"), "maxTokens"),
        system=body.get("system"),
        streams=streams,
        service_tier=object_of(body, "serviceTier").get("type"),
        latency=object_of(body, "performanceConfig").get("latency"),
        metadata=checked_metadata(object_of(body, "requestMetadata")),
    )


def checked_metadata(pairs: Body) -> dict[str, str]:
    """At most 16 pairs of strings."""
    if len(pairs) > METADATA_PAIRS_MAX:
        raise AwsFault("ValidationException", "requestMetadata: at most 16 pairs")
    if not all(isinstance(value, str) for value in pairs.values()):
        raise AwsFault("ValidationException", "requestMetadata: values are strings")
    return pairs


def _delta(text: str) -> dict[str, Any]:
    return {"contentBlockIndex": 0, "delta": {"text": text}}


def _metadata(turn: Turn) -> dict[str, Any]:
    """What an answer in one piece, and the last event of a stream, say of the turn."""
    known = {"usage": _usage(turn)} if turn.reports_usage else {}
    return {
        **known,
        "metrics": {"latencyMs": turn.latency_ms},
        "performanceConfig": {"latency": turn.latency},
        "serviceTier": {"type": turn.service_tier},
    }


def _usage(turn: Turn) -> dict[str, Any]:
    tokens = turn.tokens
    usage: dict[str, Any] = {
        "inputTokens": turn.reported_input_tokens,
        "outputTokens": tokens.output_tokens,
        "totalTokens": tokens.prompt_tokens + tokens.output_tokens,
        "cacheReadInputTokens": tokens.cache_read_tokens,
        "cacheWriteInputTokens": tokens.cache_write_tokens,
    }
    written = {"5m": tokens.cache_write_5m_tokens, "1h": tokens.cache_write_1h_tokens}
    details = [{"ttl": ttl, "inputTokens": count} for ttl, count in written.items() if count]
    return {**usage, "cacheDetails": details} if details else usage
