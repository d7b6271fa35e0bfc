"""Titan, Llama, Mistral and Cohere: prompt in, text out, or chat.

Mistral's and Cohere's bodies have no token counts; headers and metrics have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.read_request import (
    Body,
    ReadRequest,
    bytes_of,
    chat_request,
    count_of,
    object_of,
    texts_of,
)
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn


def _text_request(body: Body, name: str, output_tokens_max: int | None) -> ReadRequest:
    text = body.get(name)
    if not isinstance(text, str):
        raise AwsFault("ValidationException", f"{name}: must be a string")
    return ReadRequest(bytes_of([text]), text, output_tokens_max)


def _reason(turn: Turn, ended: str, length: str) -> str:
    return length if turn.stop_reason == "max_tokens" else ended


def _read_titan(body: Body) -> ReadRequest:
    config = object_of(body, "textGenerationConfig")
    return _text_request(body, "inputText", count_of(config, "maxTokenCount"))


def _titan(turn: Turn) -> dict[str, Any]:
    tokens = turn.tokens
    result = {"outputText": turn.text, "completionReason": _reason(turn, "FINISH", "LENGTH")}
    if not turn.reports_usage:
        return {"results": [result]}
    counted = {"tokenCount": tokens.output_tokens, **result}
    return {"inputTextTokenCount": tokens.input_tokens, "results": [counted]}


def _titan_chunks(turn: Turn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "outputText": piece,
            "index": 0,
            "totalOutputTextTokenCount": None,
            "completionReason": None,
            "inputTextTokenCount": None,
        }
        for piece in turn.pieces
    ]
    found[-1]["completionReason"] = _reason(turn, "FINISH", "LENGTH")
    if turn.reports_usage:
        found[0]["inputTextTokenCount"] = turn.tokens.input_tokens
        found[-1]["totalOutputTextTokenCount"] = turn.tokens.output_tokens
    return found


def _read_llama(body: Body) -> ReadRequest:
    return _text_request(body, "prompt", count_of(body, "max_gen_len"))


def _llama(turn: Turn) -> dict[str, Any]:
    answer = {"generation": turn.text, "stop_reason": _reason(turn, "stop", "length")}
    if not turn.reports_usage:
        return answer
    return {
        **answer,
        "prompt_token_count": turn.tokens.input_tokens,
        "generation_token_count": turn.tokens.output_tokens,
    }


def _llama_chunks(turn: Turn) -> list[dict[str, Any]]:
    """Only the first chunk counts the prompt."""
    pieces, tokens = turn.pieces, turn.tokens
    found: list[dict[str, Any]] = [
        {
            "generation": piece,
            "prompt_token_count": None,
            "generation_token_count": tokens.output_tokens * index // len(pieces),
            "stop_reason": None,
        }
        for index, piece in enumerate(pieces, start=1)
    ]
    found[0]["prompt_token_count"] = tokens.input_tokens
    found[-1]["stop_reason"] = _reason(turn, "stop", "length")
    if not turn.reports_usage:
        for chunk in found:
            del chunk["prompt_token_count"], chunk["generation_token_count"]
    return found


def _read_mistral(body: Body) -> ReadRequest:
    allowed = count_of(body, "max_tokens")
    if "messages" in body:
        return chat_request(body, allowed, is_chat=True)
    return _text_request(body, "prompt", allowed)


def _mistral(turn: Turn) -> dict[str, Any]:
    return _mistral_chunk(turn, turn.text, _reason(turn, "stop", "length"))


def _mistral_chunks(turn: Turn) -> list[dict[str, Any]]:
    pieces = turn.pieces
    found = [_mistral_chunk(turn, piece, None) for piece in pieces[:-1]]
    return [*found, _mistral_chunk(turn, pieces[-1], _reason(turn, "stop", "length"))]


def _mistral_chunk(turn: Turn, text: str, reason: str | None) -> dict[str, Any]:
    if not turn.asked.is_chat:
        return {"outputs": [{"text": text, "stop_reason": reason}]}
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "stop_reason": reason}]}


def _read_cohere(body: Body) -> ReadRequest:
    allowed = count_of(body, "max_tokens")
    if "message" not in body:
        return _text_request(body, "prompt", allowed)
    asked = _text_request(body, "message", allowed)
    said = [*texts_of(body.get("chat_history")), *texts_of(body.get("preamble"))]
    return replace(asked, text_bytes=asked.text_bytes + bytes_of(said), is_chat=True)


def _cohere(turn: Turn) -> dict[str, Any]:
    reason = _reason(turn, "COMPLETE", "MAX_TOKENS")
    if not turn.asked.is_chat:
        generation = {"id": turn.id, "text": turn.text, "finish_reason": reason}
        return {"id": turn.id, "prompt": turn.asked.user_text, "generations": [generation]}
    said = [
        {"role": "USER", "message": turn.asked.user_text},
        {"role": "CHATBOT", "message": turn.text},
    ]
    return {
        "response_id": turn.id,
        "generation_id": turn.id,
        "text": turn.text,
        "chat_history": said,
        "finish_reason": reason,
    }


def _cohere_chunks(turn: Turn) -> list[dict[str, Any]]:
    reason = _reason(turn, "COMPLETE", "MAX_TOKENS")
    parts: list[dict[str, Any]] = [{"is_finished": False, "text": piece} for piece in turn.pieces]
    end: dict[str, Any] = {"is_finished": True, "finish_reason": reason}
    if not turn.asked.is_chat:
        return [*parts, end]
    start = {"is_finished": False, "event_type": "stream-start", "generation_id": turn.id}
    return [
        start,
        *({**part, "event_type": "text-generation"} for part in parts),
        {**end, "event_type": "stream-end", "response": _cohere(turn)},
    ]


TITAN: Final = ModelFamily(_read_titan, _titan, _titan_chunks)
LLAMA: Final = ModelFamily(_read_llama, _llama, _llama_chunks)
MISTRAL: Final = ModelFamily(_read_mistral, _mistral, _mistral_chunks)
COHERE: Final = ModelFamily(_read_cohere, _cohere, _cohere_chunks)
