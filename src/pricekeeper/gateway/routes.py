"""Bedrock's paths, read raw: ids may be percent-encoded, and ARNs contain slashes."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import msgspec

from pricekeeper.bedrock import Operation

PREFIX: Final = b"/bedrock/"
_MODEL: Final = "model/"
_OPERATIONS: Final = {operation.path_end: operation for operation in Operation}
_COUNT: Final = "count-tokens"
_CHAT: Final = "openai/v1/chat/completions"
_MESSAGES: Final = "anthropic/v1/messages"
_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_BYTES_MAX: Final = 512
"""Callers choose paths, so longer ones are not cached."""


class Dialect(Enum):
    """The API whose errors a caller understands."""

    AWS = auto()
    OPENAI = auto()
    ANTHROPIC = auto()


_DIALECTS: Final = {b"openai": Dialect.OPENAI, b"anthropic": Dialect.ANTHROPIC}
_BELOW: Final = PREFIX.decode()
SERVED: Final = {
    Dialect.AWS: f"{_BELOW}{_MODEL}{{modelId}}/{{operation}} "
    f"({', '.join(_OPERATIONS)} or {_COUNT}), {_BELOW}{_CHAT} or {_BELOW}{_MESSAGES}",
    Dialect.OPENAI: _BELOW + _CHAT,
    Dialect.ANTHROPIC: _BELOW + _MESSAGES,
}


class Route(msgspec.Struct, frozen=True):
    """What a path requests."""

    dialect: Dialect
    operation: Operation | None
    """``None`` if no model runs, or if the body says whether it streams."""
    model: str
    is_free: bool = False
    name: str = ""


COUNT_TOKENS: Final = Route(Dialect.AWS, None, "", is_free=True, name=_COUNT)


def dialect_of(raw_path: bytes) -> Dialect:
    """The dialect of a path below the prefix, also of an unknown one."""
    return _DIALECTS.get(raw_path[len(PREFIX) :].partition(b"/")[0], Dialect.AWS)


def find_route(raw_path: bytes) -> Route | None:
    """The route of a path; ``None`` if the gateway does not serve it."""
    if len(raw_path) > _REMEMBERED_BYTES_MAX:
        return _read_path(raw_path)
    return _find_again(raw_path)


def _read_path(raw_path: bytes) -> Route | None:
    text = raw_path[len(PREFIX) :].decode("latin-1")
    if text == _CHAT:
        return Route(Dialect.OPENAI, None, "", name="chat-completions")
    if text == _MESSAGES:
        return Route(Dialect.ANTHROPIC, None, "", name="messages")
    if not text.startswith(_MODEL):
        return None
    encoded, _, end = text[len(_MODEL) :].rpartition("/")
    model = unquote(encoded)
    if not model:
        return None
    if end == _COUNT:
        return Route(Dialect.AWS, None, model, is_free=True, name=_COUNT)
    operation = _OPERATIONS.get(end)
    return None if operation is None else Route(Dialect.AWS, operation, model, name=end)


_find_again: Final = lru_cache(_REMEMBERED_MAX)(_read_path)
