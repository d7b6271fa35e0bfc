"""Amazon Nova: Converse's names, and cached tokens under two names."""

from __future__ import annotations

from typing import Any, Final

from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.read_request import Body, ReadRequest, chat_request, count_of, object_of
from pricekeeper.standin.turn import Turn


def _read(body: Body) -> ReadRequest:
    # with either name of the limit
    config = object_of(body, "inferenceConfig")
    allowed = count_of(config, "maxTokens") or count_of(config, "max_new_tokens")
    return chat_request(body, allowed)


def _reply(turn: Turn) -> dict[str, Any]:
    message = {"content": [{"text": turn.text}], "role": "assistant"}
    answer: dict[str, Any] = {"output": {"message": message}, "stopReason": turn.stop_reason}
    return {**answer, "usage": _usage(turn)} if turn.reports_usage else answer


def _chunks(turn: Turn) -> list[dict[str, Any]]:
    known = {"usage": _usage(turn)} if turn.reports_usage else {}
    return [
        {"messageStart": {"role": "assistant"}},
        *(
            {"contentBlockDelta": {"delta": {"text": piece}, "contentBlockIndex": 0}}
            for piece in turn.pieces
        ),
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": turn.stop_reason}},
        {"metadata": {**known, "metrics": {}, "trace": {}}},
    ]


def _usage(turn: Turn) -> dict[str, int]:
    tokens = turn.tokens
    return {
        "inputTokens": tokens.input_tokens,
        "outputTokens": tokens.output_tokens,
        "totalTokens": tokens.prompt_tokens + tokens.output_tokens,
        "cacheReadInputTokenCount": tokens.cache_read_tokens,
        "cacheReadInputTokens": tokens.cache_read_tokens,
        "cacheWriteInputTokenCount": tokens.cache_write_tokens,
        "cacheWriteInputTokens": tokens.cache_write_tokens,
    }


NOVA: Final = ModelFamily(_read, _reply, _chunks)
