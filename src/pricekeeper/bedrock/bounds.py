"""How much a request can cost at the most, read from its own body.

A prompt has at most as many tokens as it has bytes in UTF-8: tokenizers that begin with single
bytes never make more. Names, roles and numbers of the JSON are counted, too; they stand for the
markers that a model's template puts around them. Pictures, documents and sound are not text: what
they can come to is stated below. A capture above its hold is counted in full all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pricekeeper.bedrock.families import Family
from pricekeeper.bedrock.usage import TIER_HEADER

TEMPLATE_TOKENS: Final = 64
"""What a model's template adds to any prompt."""
TOOL_TOKENS: Final = 1_024
"""What the instructions for tools add, if there are tools."""
IMAGE_TOKENS: Final = 8_192
"""More than any model on Bedrock makes of one picture."""
AUDIO_TOKENS: Final = 100_000
VIDEO_TOKENS: Final = 300_000
DOCUMENT_TOKENS: Final = 8_192
"""What is added for each document to `DOCUMENT_TOKENS_PER_BYTE` for each byte of it."""
DOCUMENT_TOKENS_PER_BYTE: Final = 3
"""A compressed document has more text than bytes."""
INPUT_TOKENS_MAX: Final = 2_000_000
"""No model on Bedrock reads more, so no prompt costs more."""
TAGS_MAX: Final = 16
METADATA_HEADER: Final = "x-amzn-bedrock-request-metadata"

_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
_MEDIA: Final = {"audio": AUDIO_TOKENS, "video": VIDEO_TOKENS, "input_audio": AUDIO_TOKENS}
_NOT_TEXT: Final = frozenset({*_IMAGES, *_MEDIA, "document"})
_PACKED: Final = frozenset({"bytes", "data", "text"})
"""Where a document has what it is made of."""
_CACHE_MARKS: Final = frozenset({"cachePoint", "cache_control"})
_NOT_PROMPT: Final = frozenset({"requestMetadata", "inferenceConfig", "serviceTier"})


@dataclass(frozen=True, slots=True)
class CallBounds:
    """What a call can use at the most, and what it says about itself."""

    input_tokens: int
    max_output_tokens: int | None
    """``None`` if the request does not say."""
    cache_write: str = "none"
    """``none``, ``5m`` or ``1h``: what is written to the cache at the most."""
    service_tier: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Sum:
    tokens: int = TEMPLATE_TOKENS
    cache_write: str = "none"


def bounds_of(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> CallBounds:
    """The bounds of the JSON body of ``converse`` or ``invoke``, in one pass over it.

    ``headers``, with lower-case names, are where an ``invoke`` says its tier and its tags.
    """
    headers = headers or {}
    total = _Sum()
    # A stack of its own: a body may be nested deeper than Python calls itself.
    waiting: list[Any] = [
        value for name, value in body.items() if name not in _NOT_PROMPT and value is not None
    ]
    while waiting:
        _add(waiting.pop(), total, waiting)
    if "toolConfig" in body or "tools" in body:
        total.tokens += TOOL_TOKENS
    tier = body.get("serviceTier") or headers.get(TIER_HEADER)
    return CallBounds(
        input_tokens=min(total.tokens, INPUT_TOKENS_MAX),
        max_output_tokens=_stated_max_output(body),
        cache_write=total.cache_write,
        service_tier=_text(tier.get("type")) if isinstance(tier, dict) else _text(tier),
        tags=tags_of(body.get("requestMetadata") or _json_or_none(headers.get(METADATA_HEADER))),
    )


def tags_of(metadata: Any) -> dict[str, str]:
    """The pairs of ``requestMetadata`` that are text, as many as Bedrock takes."""
    if not isinstance(metadata, dict):
        return {}
    pairs = [(key, value) for key, value in metadata.items() if isinstance(value, str)]
    return dict(pairs[:TAGS_MAX])


def _add(value: Any, total: _Sum, waiting: list[Any]) -> None:
    """Count one value; what is inside of it is put off."""
    if isinstance(value, str):
        total.tokens += len(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, dict):
        _add_mapping(value, total, waiting)
    elif isinstance(value, list):
        total.tokens += len(value)
        waiting.extend(value)
    elif value is not None:
        total.tokens += len(str(value))


def _add_mapping(block: Mapping[str, Any], total: _Sum, waiting: list[Any]) -> None:
    kind = block.get("type")
    # In the schema of a tool, a type may be a list, or the name of a property.
    if isinstance(kind, str) and kind in _NOT_TEXT:
        _add_media(kind, block, total, waiting)
        return
    for name, inner in block.items():
        total.tokens += len(name.encode("utf-8", "surrogatepass")) + 1
        if name in _CACHE_MARKS and isinstance(inner, dict):
            is_long = inner.get("ttl") == "1h" or total.cache_write == "1h"
            total.cache_write = "1h" if is_long else "5m"
        elif name in _NOT_TEXT and _is_block(inner):
            _add_media(name, inner, total, waiting)
        elif name == "images" and isinstance(inner, list):
            total.tokens += IMAGE_TOKENS * len(inner)
        else:
            waiting.append(inner)


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and ("source" in value or "url" in value)


def _add_media(kind: str, block: Mapping[str, Any], total: _Sum, waiting: list[Any]) -> None:
    if kind in _IMAGES:
        total.tokens += IMAGE_TOKENS
        return
    if kind in _MEDIA:
        total.tokens += _MEDIA[kind]
        return
    source = block.get("source")
    inner = source if isinstance(source, dict) else {}
    total.tokens += DOCUMENT_TOKENS
    for name, value in inner.items():
        if name in _PACKED and isinstance(value, str):
            total.tokens += DOCUMENT_TOKENS_PER_BYTE * len(value.encode("utf-8", "surrogatepass"))
        else:
            waiting.append(value)
    # Its title and what is said about it are text like any other.
    waiting.extend(value for name, value in block.items() if name != "source")


_STATED: Final = ("max_tokens", "max_completion_tokens", "max_gen_len", "max_tokens_to_sample")
_INSIDE: Final = (
    ("inferenceConfig", "maxTokens"),
    ("inferenceConfig", "max_new_tokens"),
    ("textGenerationConfig", "maxTokenCount"),
)
_TIMES: Final = ("n", "num_generations")
_READ_BY: Final[Mapping[Family | None, tuple[tuple[str, ...], ...]]] = {
    None: (("inferenceConfig", "maxTokens"),),
    Family.ANTHROPIC: (("max_tokens",), ("max_tokens_to_sample",)),
    Family.NOVA: (("inferenceConfig", "maxTokens"), ("inferenceConfig", "max_new_tokens")),
    Family.TITAN: (("textGenerationConfig", "maxTokenCount"),),
    Family.LLAMA: (("max_gen_len",),),
    Family.MISTRAL: (("max_tokens",),),
    Family.COHERE: (("max_tokens",),),
    Family.OPENAI: (("max_completion_tokens",), ("max_tokens",)),
    Family.OTHER: (("max_tokens",),),
}
"""Where each family reads the longest answer, ``None`` being ``converse``. What stands elsewhere it
does not read. If there is none, it is written to the first."""


def stated_max_output(body: Mapping[str, Any], family: Family | None) -> int | None:
    """The longest answer that a model of the family reads from the body; ``None`` if it is open.

    It is open too if something stands there that is no count: nobody knows what a model makes of
    it. ``family`` is ``None`` for ``converse``.
    """
    found = [_at(body, place) for place in _READ_BY[family] if _has(body, place)]
    if not found or not all(map(_is_count, found)):
        return None
    return int(max(found)) * _answers(body)


def _has(body: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    *outer, name = place
    inside = body.get(outer[0]) if outer else body
    return isinstance(inside, Mapping) and name in inside


def _at(body: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    *outer, name = place
    return (body[outer[0]] if outer else body)[name]


def _stated_max_output(body: Mapping[str, Any]) -> int | None:
    found = [body[name] for name in _STATED if name in body]
    for outer, inner in _INSIDE:
        inside = body.get(outer)
        if isinstance(inside, dict) and inner in inside:
            found.append(inside[inner])
    stated = [one for one in found if _is_count(one)]
    if not stated:
        return None
    return int(max(stated)) * _answers(body)


def _answers(body: Mapping[str, Any]) -> int:
    """How many answers to the one prompt are asked for."""
    return max([1, *(int(body[name]) for name in _TIMES if _is_count(body.get(name)))])


def with_max_output(
    body: Mapping[str, Any], max_output_tokens: int, family: Family | None
) -> dict[str, Any]:
    """The body with that longest answer. ``family`` is ``None`` for ``converse``."""
    changed: dict[str, Any] = dict(body)
    max_output_tokens = max(1, max_output_tokens // _answers(body))
    places = _READ_BY[family]
    for place in [one for one in places if _has(body, one)] or places[:1]:
        _set(changed, place, max_output_tokens)
    return changed


def _set(body: MutableMapping[str, Any], place: tuple[str, ...], value: int) -> None:
    *outer, name = place
    if not outer:
        body[name] = value
        return
    inside = body.get(outer[0])
    body[outer[0]] = {**(inside if isinstance(inside, dict) else {}), name: value}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _json_or_none(text: str | None) -> Any:
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
