"""Converse, InvokeModel, both as streams, and CountTokens, which runs no model and is free."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any, Final

import msgspec

from pricekeeper.standin.endpoint import (
    JSON,
    MEDIA_TYPE,
    Headers,
    ModelApi,
    ModelReply,
    ModelRequest,
    ModelStream,
    event_frame,
)
from pricekeeper.standin.families import family_of, require_text
from pricekeeper.standin.read_request import Body, ReadRequest, chat_request, count_of, object_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

METADATA_PAIRS_MAX: Final = 16
_encode: Final = msgspec.json.Encoder().encode
_MESSAGE_START: Final = event_frame("messageStart", b'{"role":"assistant"}')
_BLOCK_STOP: Final = event_frame("contentBlockStop", b'{"contentBlockIndex":0}')


class Converse(ModelApi):
    """Converse, whole or as a stream."""

    def __init__(self, *, streams: bool) -> None:
        self.name = "ConverseStream" if streams else "Converse"
        self._streams = streams

    def read(self, request: ModelRequest) -> ReadRequest:
        require_text(request.model_id)
        return read_converse(request.body, streams=self._streams)

    def reply(self, turn: Turn) -> ModelReply:
        message = {"role": "assistant", "content": [{"text": turn.text}]}
        body = {
            "output": {"message": message},
            "stopReason": turn.stop_reason,
            **_turn_metadata(turn),
        }
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
            frames.append(event_frame("metadata", _encode(_turn_metadata(turn))))
        return ModelStream(MEDIA_TYPE, frames, ends_after=1 + (len(deltas) + 1) // 2)


def read_converse(body: Body, *, streams: bool) -> ReadRequest:
    """Read a Converse request."""
    return chat_request(
        body,
        count_of(object_of(body, "inferenceConfig"), "maxTokens"),
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


def _turn_metadata(turn: Turn) -> dict[str, Any]:
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


METRICS: Final = "amazon-bedrock-invocationMetrics"
_TIER: Final = b"x-amzn-bedrock-service-tier"
_LATENCY: Final = b"x-amzn-bedrock-performanceconfig-latency"
_METADATA: Final = b"x-amzn-bedrock-request-metadata"


class InvokeModel(ModelApi):
    """InvokeModel, whole or as a stream."""

    def __init__(self, *, streams: bool) -> None:
        self.name = "InvokeModelWithResponseStream" if streams else "InvokeModel"
        self._streams = streams

    def read(self, request: ModelRequest) -> ReadRequest:
        family = family_of(request.model_id)
        if self._streams and not family.writes_text:
            raise AwsFault("ValidationException", "The model is unsupported for streaming")
        asked = family.read(request.body)
        headers = request.headers
        return replace(
            asked,
            streams=self._streams,
            service_tier=_text(headers.get(_TIER)) or asked.service_tier,
            latency=_text(headers.get(_LATENCY)),
            metadata=_metadata_in(headers.get(_METADATA)),
        )

    def reply(self, turn: Turn) -> ModelReply:
        headers = _headers(turn)
        headers.append((b"x-amzn-bedrock-invocation-latency", b"%d" % turn.latency_ms))
        family = family_of(turn.model_id)
        if turn.reports_usage and family.counts_tokens:
            counted = _token_headers(turn)
            headers += counted if family.writes_text else counted[:1]
        return ModelReply(_encode(family.reply(turn)), headers)

    def stream(self, turn: Turn) -> ModelStream:
        chunks = family_of(turn.model_id).chunks(turn)
        if turn.reports_usage:
            chunks[-1] = {**chunks[-1], METRICS: _metrics(turn)}
        frames = [event_frame("chunk", _part(chunk)) for chunk in chunks]
        headers = [*_headers(turn), (b"x-amzn-bedrock-content-type", JSON)]
        return ModelStream(MEDIA_TYPE, frames, (len(frames) + 1) // 2, headers)


def _headers(turn: Turn) -> Headers:
    return [(_TIER, turn.service_tier.encode()), (_LATENCY, turn.latency.encode())]


def _token_headers(turn: Turn) -> Headers:
    tokens = turn.tokens
    return [
        (b"x-amzn-bedrock-input-token-count", b"%d" % turn.reported_input_tokens),
        (b"x-amzn-bedrock-output-token-count", b"%d" % tokens.output_tokens),
        (b"x-amzn-bedrock-cache-read-input-token-count", b"%d" % tokens.cache_read_tokens),
        (b"x-amzn-bedrock-cache-write-input-token-count", b"%d" % tokens.cache_write_tokens),
    ]


def _metrics(turn: Turn) -> dict[str, int]:
    tokens = turn.tokens
    return {
        "inputTokenCount": turn.reported_input_tokens,
        "outputTokenCount": tokens.output_tokens,
        "invocationLatency": turn.latency_ms,
        "firstByteLatency": turn.first_byte_ms,
        "cacheReadInputTokenCount": tokens.cache_read_tokens,
        "cacheWriteInputTokenCount": tokens.cache_write_tokens,
    }


def _part(chunk: dict[str, Any]) -> bytes:
    return b'{"bytes":"%b"}' % b64encode(_encode(chunk))


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")


def _metadata_in(header: bytes | None) -> dict[str, str]:
    if header is None:
        return {}
    try:
        return checked_metadata(msgspec.json.decode(header, type=dict[str, Any]))
    except msgspec.DecodeError:
        raise AwsFault("ValidationException", "requestMetadata: must be JSON") from None


_ONE_OF: Final = "input: must have one of converse and invokeModel"


class CountTokens(ModelApi):
    """CountTokens."""

    name = "CountTokens"
    is_free = True

    def read(self, request: ModelRequest) -> ReadRequest:
        given = object_of(request.body, "input")
        if given.keys() == {"converse"}:
            return read_converse(object_of(given, "converse"), streams=False)
        if given.keys() != {"invokeModel"}:
            raise AwsFault("ValidationException", _ONE_OF)
        try:
            raw = b64decode(object_of(given, "invokeModel").get("body", ""), validate=True)
            body = msgspec.json.decode(raw, type=dict[str, Any])
        except (TypeError, ValueError):  # includes msgspec's errors
            raise AwsFault("ValidationException", "body: must be JSON in base64") from None
        return family_of(request.model_id).read(body)

    def reply(self, turn: Turn) -> ModelReply:
        return ModelReply(b'{"inputTokens":%d}' % turn.tokens.prompt_tokens)
