"""A request for the model, as all families share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pricekeeper.standin.refusals import AwsFault

NESTED_MAX: Final = 32
"""Depth of text in a message. A tool's result is at five."""
_CARRIERS: Final = ("text", "content", "toolResult", "guardContent", "message")
"""Members that hold text, in all families."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request, as far as the stand-in needs it."""

    text_bytes: int
    """Of all text in UTF-8."""
    user_text: str
    """The last text, which may contain a directive."""
    output_tokens_max: int | None
    streams: bool = False
    service_tier: str | None = None
    latency: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    wants_usage: bool = True
    """Whether a stream states its usage."""
    is_chat: bool = False
    """Whether a text completion model got its chat body."""


def texts_of(value: object) -> list[str]:
    """All text in messages, blocks or strings, in order."""
    texts: list[str] = []
    _gather(value, texts, NESTED_MAX)
    return texts


def _gather(value: object, texts: list[str], deeper: int) -> None:
    if isinstance(value, str):
        texts.append(value)
        return
    if deeper == 0:
        raise AwsFault("ValidationException", "the content is nested too deep")
    if isinstance(value, list):
        for part in value:
            _gather(part, texts, deeper - 1)
    elif isinstance(value, dict):
        for carrier in _CARRIERS:
            if carrier in value:
                _gather(value[carrier], texts, deeper - 1)


def bytes_of(texts: list[str]) -> int:
    """Their length in UTF-8."""
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _messages_of(body: Body) -> list[Body]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise AwsFault("ValidationException", "messages: at least one is required")
    if not all(isinstance(message, dict) and "role" in message for message in messages):
        raise AwsFault("ValidationException", "messages: each is an object with a role")
    return messages


def _last_user_text(messages: list[Body]) -> str:
    for message in reversed(messages):
        if message["role"] == "user":
            return "\n".join(texts_of(message))
    return ""


def count_of(body: Body, name: str) -> int | None:
    """A count, at least one; ``None`` if missing."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise AwsFault("ValidationException", f"{name}: must be a whole number of at least 1")
    return value


def object_of(body: Body, name: str) -> Body:
    """A member that is an object; empty if missing."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise AwsFault("ValidationException", f"{name}: must be an object")
    return value


def chat_request(body: Body, output_tokens_max: int | None, **more: Any) -> ReadRequest:
    """Read a chat; ``more`` are other fields of the request."""
    messages = _messages_of(body)
    text_bytes = bytes_of(texts_of(body.get("system"))) + bytes_of(texts_of(messages))
    return ReadRequest(text_bytes, _last_user_text(messages), output_tokens_max, **more)
