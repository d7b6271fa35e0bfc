"""OpenAI's open models: Chat Completions. ``prompt_tokens`` includes cached tokens."""

from __future__ import annotations

from typing import Any, Final

from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.read_request import Body, ReadRequest, chat_request, count_of, object_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

CREATED: Final = 1_767_225_600
"""Start of 2026, as no clock is read."""
_FINISH_REASONS: Final = {
    "content_filtered": "content_filter",
    "end_turn": "stop",
    "guardrail_intervened": "content_filter",
    "max_tokens": "length",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
}


def _read(body: Body) -> ReadRequest:
    # with either name of the limit
    allowed = count_of(body, "max_completion_tokens") or count_of(body, "max_tokens")
    tier = body.get("service_tier")
    if tier is not None and not isinstance(tier, str):
        raise AwsFault("ValidationException", "service_tier: must be a string")
    options = object_of(body, "stream_options")
    return chat_request(
        body,
        allowed,
        streams=body.get("stream") is True,
        service_tier=None if tier == "auto" else tier,
        wants_usage=options.get("include_usage") is True,
    )


def _reply(turn: Turn) -> dict[str, Any]:
    message = {"role": "assistant", "content": turn.text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(turn)}
    completion = _completion(turn, "chat.completion", [choice])
    return {**completion, "usage": _usage(turn)} if turn.reports_usage else completion


def _chunks(turn: Turn) -> list[dict[str, Any]]:
    found = [_chunk(turn, {"role": "assistant", "content": ""})]
    found += [_chunk(turn, {"content": piece}) for piece in turn.pieces]
    found.append(_chunk(turn, {}, _finish_reason(turn)))
    if turn.reports_usage and turn.asked.wants_usage:
        last = _completion(turn, "chat.completion.chunk", [])
        found.append({**last, "usage": _usage(turn)})
    return found


def _chunk(turn: Turn, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return _completion(turn, "chat.completion.chunk", [choice])


def _completion(turn: Turn, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{turn.id}",
        "object": kind,
        "created": CREATED,
        "model": turn.model_id,
        "service_tier": turn.service_tier,
        "choices": choices,
    }


def _finish_reason(turn: Turn) -> str:
    return _FINISH_REASONS.get(turn.stop_reason, turn.stop_reason)


def _usage(turn: Turn) -> dict[str, Any]:
    tokens = turn.tokens
    return {
        "prompt_tokens": tokens.prompt_tokens,
        "completion_tokens": tokens.output_tokens,
        "total_tokens": tokens.prompt_tokens + tokens.output_tokens,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read_tokens},
    }


OPENAI: Final = ModelFamily(_read, _reply, _chunks)
