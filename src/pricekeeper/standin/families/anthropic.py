"""Claude: Anthropic's Messages API."""

from __future__ import annotations

from typing import Any, Final

from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.read_request import Body, ReadRequest, chat_request, count_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

_STOP_REASONS: Final = {"content_filtered": "refusal", "guardrail_intervened": "refusal"}
"""Stop reasons whose name differs from Converse's."""


def _read(body: Body) -> ReadRequest:
    if "anthropic_version" not in body:
        raise AwsFault("ValidationException", "anthropic_version: Field required")
    return read_message(body)


def read_message(body: Body) -> ReadRequest:
    """Read a message, of InvokeModel or the Messages API."""
    if "max_tokens" not in body:
        raise AwsFault("ValidationException", "max_tokens: Field required")
    return chat_request(body, count_of(body, "max_tokens"))


def _reply(turn: Turn) -> dict[str, Any]:
    message = _message(turn)
    message["content"] = [{"type": "text", "text": turn.text}]
    message["stop_reason"] = _stop_reason(turn)
    if turn.reports_usage:
        message["usage"] = _usage(turn, turn.tokens.output_tokens)
    return message


def _chunks(turn: Turn) -> list[dict[str, Any]]:
    start = _message(turn)
    end: dict[str, Any] = {
        "type": "message_delta",
        "delta": {"stop_reason": _stop_reason(turn), "stop_sequence": None},
    }
    if turn.reports_usage:
        start["usage"] = _usage(turn, min(1, turn.tokens.output_tokens))
        end["usage"] = {"output_tokens": turn.tokens.output_tokens}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": piece},
            }
            for piece in turn.pieces
        ),
        {"type": "content_block_stop", "index": 0},
        end,
        {"type": "message_stop"},
    ]


def _message(turn: Turn) -> dict[str, Any]:
    return {
        "id": f"msg_bdrk_{turn.id.replace('-', '')}",
        "type": "message",
        "role": "assistant",
        "model": turn.model_id.rpartition("anthropic.")[2],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop_reason(turn: Turn) -> str:
    return _STOP_REASONS.get(turn.stop_reason, turn.stop_reason)


def _usage(turn: Turn, output_tokens: int) -> dict[str, Any]:
    tokens = turn.tokens
    return {
        "input_tokens": tokens.input_tokens,
        "cache_creation_input_tokens": tokens.cache_write_tokens,
        "cache_read_input_tokens": tokens.cache_read_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.cache_write_5m_tokens,
            "ephemeral_1h_input_tokens": tokens.cache_write_1h_tokens,
        },
        "output_tokens": output_tokens,
    }


ANTHROPIC: Final = ModelFamily(_read, _reply, _chunks)
