"""InvokeModel and InvokeModelWithResponseStream: the family's own body inside of Bedrock's."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any, Final

import msgspec

from pricekeeper.standin.converse import checked_metadata
from pricekeeper.standin.endpoint import (
    JSON,
    Headers,
    ModelApi,
    ModelReply,
    ModelRequest,
    ModelStream,
)
from pricekeeper.standin.families.choosing import family_of
from pricekeeper.standin.frames import MEDIA_TYPE, event_frame
from pricekeeper.standin.prompt import Prompt
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

METRICS: Final = "amazon-bedrock-invocationMetrics"
_TIER: Final = b"x-amzn-bedrock-service-tier"
_LATENCY: Final = b"x-amzn-bedrock-performanceconfig-latency"
_METADATA: Final = b"x-amzn-bedrock-request-metadata"
_encode: Final = msgspec.json.Encoder().encode


class InvokeModel(ModelApi):
    """The operation in one piece, or as a stream."""

    def __init__(self, *, streams: bool) -> None:
        self.name = "InvokeModelWithResponseStream" if streams else "InvokeModel"
        self._streams = streams

    def read(self, request: ModelRequest) -> Prompt:
        family = family_of(request.model_id)
        if self._streams and not family.writes_text:
            raise AwsFault("ValidationException", "The model is unsupported for streaming")
        prompt = family.read(request.body)
        headers = request.headers
        return replace(
            prompt,
            streams=self._streams,
            service_tier=_text(headers.get(_TIER)) or prompt.service_tier,
            latency=_text(headers.get(_LATENCY)),
            metadata=_metadata(headers.get(_METADATA)),
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
    """The counts, that of the prompt first."""
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


def _metadata(header: bytes | None) -> dict[str, str]:
    """The pairs are JSON in a header, where Converse has them in its body."""
    if header is None:
        return {}
    try:
        return checked_metadata(msgspec.json.decode(header, type=dict[str, Any]))
    except msgspec.DecodeError:
        raise AwsFault("ValidationException", "requestMetadata: must be JSON") from None
