"""How much a request can cost at the most, read from its own body.

A prompt has at most as many tokens as it has bytes in UTF-8: tokenizers that begin with single
bytes never make more. Names, numbers and the marks of JSON are counted, too: a model is shown them
with tools, and else they stand for the markers that its template puts around a message. Pictures,
documents and sound are not text: what they can come to is stated below. A capture above its hold is
counted in full all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from pricekeeper.bedrock.families import Family
from pricekeeper.bedrock.usage import LATENCY_HEADER, TIER_HEADER, tier_with

TEMPLATE_TOKENS: Final = 64
"""What a model's template adds to any prompt."""
TOOL_TOKENS: Final = 1_024
"""What the instructions for tools add, if there are tools."""
IMAGE_TOKENS: Final = 8_192
"""More than any model on Bedrock makes of one picture."""
AUDIO_TOKENS: Final = 100_000
VIDEO_TOKENS: Final = 300_000
DOCUMENT_TOKENS: Final = 8_192
"""What is added for each document to `PLAIN_TOKENS_PER_BYTE` for each byte of it."""
PLAIN_TOKENS_PER_BYTE: Final = 3
"""A document that is plain text, with what is put between its cells or lines."""
UNKNOWN_TOKENS: Final = 1_000_000
"""What a document can come to whose length does not say it. One of another form may be compressed,
or show the same part on each of a thousand pages; or Bedrock reads it at another address."""
INPUT_TOKENS_MAX: Final = 2_000_000
"""No model on Bedrock reads more, so no prompt costs more."""
TAGS_MAX: Final = 16
METADATA_HEADER: Final = "x-amzn-bedrock-request-metadata"

_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
_DOCUMENTS: Final = frozenset(
    {"document", "document_url", "file", "file_url", "input_file", "container_upload"}
)
_MEDIA: Final = {
    **dict.fromkeys(_IMAGES, IMAGE_TOKENS),
    **dict.fromkeys(("audio", "input_audio", "audio_url"), AUDIO_TOKENS),
    **dict.fromkeys(("video", "video_url"), VIDEO_TOKENS),
    **dict.fromkeys(_DOCUMENTS, DOCUMENT_TOKENS),
}
_SERVED: Final = frozenset({"systemTool", "mcp_servers", "web_search_options", "connectors"})
_SERVED_TYPES: Final = ("web_search", "web_fetch", "code_execution", "mcp_")
"""Tools that run at the other side: what they find is read by the model, and charged."""
_COMPACTION: Final = "compact"
"""How an edit of the context begins that has the model read everything once more, and sum it up."""
_PLAIN: Final = frozenset({"txt", "md", "csv", "html", "text/plain"})
"""Forms of documents that are plain text."""
_DATA: Final = frozenset({"bytes", "data", "url"})
"""What of the block of a medium is the medium itself, or its address."""
_HOLDERS: Final = frozenset({"source", "image_url", "input_audio"})
"""What has that inside of it."""
_MARKS: Final = _DATA | _HOLDERS
_CACHE_MARKS: Final = frozenset({"cachePoint", "cache_control"})
_FREE_JSON: Final = frozenset(
    {"input", "json", "inputSchema", "input_schema", "parameters", "arguments"}
)
"""What a program says to its tools, and they to it: nothing in there is a picture."""
NOT_PROMPT: Final = frozenset({"requestMetadata", "inferenceConfig", "serviceTier"})
"""Fields of a body of which a model reads nothing."""
_TIER: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_OWN_TIERS: Final = frozenset({"priority", "default", "flex"})
"""Those that the body of OpenAI's models may ask for; other families mean other things by it."""


class WrongLengthError(ValueError):
    """What a body says of the length of its answer is nothing that bounds it; names the field."""


class CallBounds(msgspec.Struct, frozen=True):
    """What a call can use at the most, and what it says about itself."""

    input_tokens: int
    max_output_tokens: int | None
    """``None`` if the request does not say."""
    cache_write: str = "none"
    """``none``, ``5m`` or ``1h``: what is written to the cache at the most."""
    service_tier: str | None = None
    tags: dict[str, str] = {}
    is_open: bool = False
    """Whether the model may read more than is in the request."""


class _Sum:
    """Adds up a body.

    What is inside of a value is put off, on a stack of its own: a body may be nested deeper than
    Python calls itself.
    """

    def __init__(self) -> None:
        self.tokens = TEMPLATE_TOKENS
        self.cache_write = "none"
        self.is_open = False
        """Whether the model may be shown more than is in the body."""
        self._waiting: list[tuple[Any, bool]] = []

    def add(self, body: Mapping[str, Any]) -> None:
        """Add all of a body."""
        prompt = {name: value for name, value in body.items() if name not in NOT_PROMPT}
        pictures = prompt.get("images")
        if isinstance(pictures, list):  # Llama's
            self.tokens += IMAGE_TOKENS * len(pictures)
            prompt["images"] = [one for one in pictures if not isinstance(one, str)]
        waiting = self._waiting
        waiting.append((prompt, False))
        while waiting:
            value, is_free = waiting.pop()
            if isinstance(value, list):
                self.tokens += 2 + 2 * len(value)
                waiting += [(one, is_free) for one in value]
            elif not isinstance(value, dict):
                self._add_plain(value, is_free=is_free)
            elif is_free:
                self.tokens += 2 + sum(4 + len(json.dumps(name)) for name in value)
                waiting += [(one, True) for one in value.values()]
            else:
                self._add_block(value)

    def _add_plain(self, value: Any, *, is_free: bool) -> None:
        """Add what has nothing inside of it."""
        if isinstance(value, str):
            self.tokens += len(json.dumps(value)) if is_free else 2 + _bytes(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            self.tokens += 2 + value.bit_length() // 3  # no fewer than its digits and its sign
        else:
            self.tokens += len(str(value))

    def _add_block(self, block: Mapping[str, Any]) -> None:
        kind = block.get("type")
        tokens = 2
        if isinstance(kind, str):
            if kind in _MEDIA:
                self.tokens += 2
                self._add_medium(kind, block)
                return
            self.is_open |= kind.startswith(_SERVED_TYPES)
        for name, inner in block.items():
            tokens += 4 + (len(name) if name.isascii() else _bytes(name))
            if name in _CACHE_MARKS:
                self._note_cache(inner)
            elif name in _SERVED:
                self.is_open |= inner is not None
            if name in _FREE_JSON:
                self._waiting.append((inner, True))
            elif isinstance(inner, str):
                tokens += 2 + (len(inner) if inner.isascii() else _bytes(inner))
            elif name in _MEDIA and isinstance(inner, dict) and not _MARKS.isdisjoint(inner):
                self._add_medium(name, inner)
            else:
                self._waiting.append((inner, False))
        self.tokens += tokens

    def _note_cache(self, mark: Any) -> None:
        """Note what is written; the longest, if the mark does not say as it should."""
        if mark is None:
            return
        is_short = isinstance(mark, dict) and mark.get("ttl") in (None, "5m")
        self.cache_write = "5m" if is_short and self.cache_write != "1h" else "1h"

    def _add_medium(self, kind: str, block: Mapping[str, Any]) -> None:
        """Add a picture, a document or a recording, and the text that comes with it."""
        self.tokens += _MEDIA[kind]
        data: list[str] = []
        has_text = False
        holders = [block, *(one for name, one in block.items() if _is_holder(name, one))]
        for holder in holders:
            for name, inner in holder.items():
                self.tokens += _bytes(name) + 4
                if name in _DATA and isinstance(inner, str):
                    data.append(inner if name != "url" else "")
                elif not _is_holder(name, inner):
                    if name in _CACHE_MARKS:
                        self._note_cache(inner)
                    has_text |= holder is not block and name in ("text", "content")
                    self._waiting.append((inner, False))
        if kind in _DOCUMENTS:
            if any(data) and _are_plain(holders):
                self.tokens += PLAIN_TOKENS_PER_BYTE * sum(_bytes(one) for one in data)
            elif any(data) or not has_text:
                self.tokens += UNKNOWN_TOKENS


def _are_plain(holders: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a document says that it is plain text, and nothing else of it."""
    said = [one[name] for one in holders for name in ("format", "media_type") if name in one]
    return bool(said) and all(isinstance(one, str) and one in _PLAIN for one in said)


def _is_holder(name: str, value: Any) -> bool:
    return name in _HOLDERS and isinstance(value, dict)


def bounds_of(
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    read_most: Callable[[Mapping[str, Any]], int | None] | None = None,
) -> CallBounds:
    """The bounds of the JSON body of ``converse`` or ``invoke``, in one pass over it.

    ``headers``, with lower-case names, are where an ``invoke`` says its tier and its tags.
    ``read_most`` reads the longest answer, if that is not simply the longest that is stated.
    """
    headers = headers or {}
    total = _Sum()
    total.add(body)
    if "toolConfig" in body or "tools" in body:
        total.tokens += TOOL_TOKENS
    most = (read_most or _stated_max_output)(body)
    is_compacting = _is_compacting(body)
    if total.is_open:
        total.tokens += UNKNOWN_TOKENS
    if is_compacting:
        total.tokens *= 2
    return CallBounds(
        input_tokens=min(total.tokens, INPUT_TOKENS_MAX),
        max_output_tokens=most,
        is_open=total.is_open or is_compacting,
        cache_write=total.cache_write,
        service_tier=_asked_tier(body, headers),
        tags=tags_of(body.get("requestMetadata") or _json_or_none(headers.get(METADATA_HEADER))),
    )


def tags_of(metadata: Any) -> dict[str, str]:
    """The pairs of ``requestMetadata`` that are text, as many as Bedrock takes."""
    if not isinstance(metadata, dict):
        return {}
    pairs = [(key, value) for key, value in metadata.items() if isinstance(value, str)]
    return dict(pairs[:TAGS_MAX])


def _asked_tier(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """The tier that Converse, the header of an ``invoke``, or OpenAI's body asks for."""
    stated, own = body.get("serviceTier"), body.get("service_tier")
    tier = stated.get("type") if isinstance(stated, dict) else headers.get(TIER_HEADER)
    if not isinstance(tier, str) or not _TIER.fullmatch(tier):
        tier = own if isinstance(own, str) and own in _OWN_TIERS else None
    config = body.get("performanceConfig")
    latency = config.get("latency") if isinstance(config, dict) else headers.get(LATENCY_HEADER)
    return tier_with(tier, latency)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


_ADDITIONAL: Final = "additionalModelRequestFields"
"""What Converse hands to the model as it is."""
_STATED: Final = ("max_tokens", "max_completion_tokens", "max_gen_len", "max_tokens_to_sample")
_INSIDE: Final = (
    ("inferenceConfig", ("maxTokens", "max_new_tokens")),
    ("textGenerationConfig", ("maxTokenCount",)),
    (_ADDITIONAL, _STATED),
)
_TIMES: Final = ("n", "num_generations", "best_of", "numResults", "candidate_count")
_READ_BY: Final[Mapping[Family | None, tuple[tuple[str | None, str], ...]]] = {
    None: (("inferenceConfig", "maxTokens"),),
    Family.ANTHROPIC: ((None, "max_tokens"), (None, "max_tokens_to_sample")),
    Family.NOVA: (("inferenceConfig", "maxTokens"), ("inferenceConfig", "max_new_tokens")),
    Family.TITAN: (("textGenerationConfig", "maxTokenCount"),),
    Family.LLAMA: ((None, "max_gen_len"),),
    Family.MISTRAL: ((None, "max_tokens"),),
    Family.COHERE: ((None, "max_tokens"),),
    Family.OPENAI: ((None, "max_completion_tokens"), (None, "max_tokens")),
    Family.OTHER: ((None, "max_tokens"),),
}
"""Where each family reads the longest answer, ``None`` being ``converse``; as `_stated` has it.
What stands elsewhere it does not read. What is not stated is written to the first."""


def _stated(body: Mapping[str, Any]) -> dict[tuple[str | None, str], Any]:
    """The longest answers that a body states: by the name, and what it is inside of.

    What is ``null`` is not stated.
    """
    found: dict[tuple[str | None, str], Any] = {}
    for name in _STATED:
        if body.get(name) is not None:
            found[None, name] = body[name]
    for outer, names in _INSIDE:
        inside = body.get(outer)
        if isinstance(inside, dict):
            for name in names:
                if inside.get(name) is not None:
                    found[outer, name] = inside[name]
    return found


def _stated_max_output(body: Mapping[str, Any]) -> int | None:
    stated = [one for one in _stated(body).values() if _is_count(one)]
    if not stated:
        return None
    return int(max(stated)) * _answers(body)


def read_max_output(body: Mapping[str, Any], family: Family | None) -> int | None:
    """The longest answer that a model of that family reads from the body; ``None`` if it is open.

    It is open if it stands only where such a model does not look. ``family`` is ``None`` for
    ``converse``. Raises `WrongLengthError` if nobody knows what the model makes of what stands
    there: who may want to spend more than is held writes such bodies.
    """
    stated = _stated(body)
    most = 0
    for (outer, name), one in stated.items():
        if not _is_count(one):
            path = name if outer is None else f"{outer}.{name}"
            raise WrongLengthError(f"{path}: must be a whole number above zero")
        most = max(most, one)
    for outer, _ in _INSIDE:
        inside = body.get(outer)
        if inside is None:
            continue
        if not isinstance(inside, dict):
            raise WrongLengthError(f"{outer}: must be an object")
        if outer == _ADDITIONAL:
            _check_additional(inside)
    for path, one in _times(body):
        if not _is_count(one):
            raise WrongLengthError(f"{path}: must be a whole number above zero")
    return None if stated.keys().isdisjoint(_READ_BY[family]) else most * _answers(body)


def _check_additional(fields: Mapping[str, Any]) -> None:
    """Raise for a longest answer that the model would read past what Converse says."""
    for outer, name in _stated(fields):
        if outer is not None:
            path = f"{_ADDITIONAL}.{outer}.{name}"
            raise WrongLengthError(f"{path}: say maxTokens in inferenceConfig")


def _answers(body: Mapping[str, Any]) -> int:
    """How many answers to the one prompt are asked for."""
    most = max([1, *(int(one) for _, one in _times(body) if _is_count(one))])
    return 2 * most if _is_compacting(body) else most


def _is_compacting(body: Mapping[str, Any]) -> bool:
    """Whether the model may read all of it once more, to sum it up, and answer with that, too."""
    if "context_management" not in body and _ADDITIONAL not in body:
        return False
    for holder in (body, body.get(_ADDITIONAL)):
        context = holder.get("context_management") if isinstance(holder, dict) else None
        edits = context.get("edits") if isinstance(context, dict) else None
        if isinstance(edits, list) and any(
            isinstance(one, dict) and str(one.get("type")).startswith(_COMPACTION) for one in edits
        ):
            return True
    return False


def _times(body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a body says of how many answers it wants, by the name that it is said under."""
    found = [(name, body[name]) for name in _TIMES if body.get(name) is not None]
    inside = body.get(_ADDITIONAL)
    if isinstance(inside, dict):
        times = [name for name in _TIMES if inside.get(name) is not None]
        found += [(f"{_ADDITIONAL}.{name}", inside[name]) for name in times]
    return found


def with_max_output(
    body: Mapping[str, Any], max_output_tokens: int, family: Family | None
) -> dict[str, Any]:
    """The body with that longest answer. ``family`` is ``None`` for ``converse``."""
    changed: dict[str, Any] = dict(body)
    max_output_tokens = max(1, max_output_tokens // _answers(body))
    stated, read = _stated(body), _READ_BY[family]
    missing = read[:1] if stated.keys().isdisjoint(read) else ()
    for outer, name in (*stated, *missing):
        if outer is None:
            changed[name] = max_output_tokens
        else:
            inside = changed.get(outer)
            changed[outer] = {**inside} if isinstance(inside, dict) else {}
            changed[outer][name] = max_output_tokens
    return changed


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _json_or_none(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
