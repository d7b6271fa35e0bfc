"""Walks a request body by its shapes, and finds what the bytes alone do not tell.

A prompt has at most as many tokens as its JSON has bytes. The walk adds what may be dearer
(documents, data at an address, tools that run at Bedrock), and subtracts only data that its shape
proves to be a picture, sound or film.

An unknown member may make the model read anything. ``converse`` and strict shapes refuse it; in a
family's body it reserves the window.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from pricekeeper.bedrock.body_shapes import CONVERSE, FAMILIES

TOOL_TOKENS: Final = 1_024
"""Added by instructions for tools or a schema, and by each tool that a model brings along."""
IMAGE_TOKENS: Final = 16_640
"""More than any model on Bedrock makes of a picture: Qwen3-VL makes up to 16,384."""
VIDEO_TOKENS: Final = 300_000
"""Nova reads at most 960 frames of 288 tokens; other models have shorter windows."""
DOCUMENT_TOKENS: Final = 8_192
PLAIN_TOKENS_PER_BYTE: Final = 3
"""For a plain-text document, with separators between its cells or lines."""
_PLAIN_FORMS: Final = frozenset({"txt", "md", "csv", "html", "text/plain"})
"""Other formats may be compressed, or show a part many times."""
GUARDRAIL: Final = "guardrail"
TOOL_CALL: Final = "tool_call:"
_SERVED_TYPES: Final = ("web_search", "web_fetch", "code_execution", "mcp")
"""Tools that run at Bedrock: the model reads their results, and each use is billed."""
_BILLED_MEMBERS: Final = {
    "web_search_options": f"{TOOL_CALL}web_search",
    "mcp_servers": f"{TOOL_CALL}mcp",
    "connectors": f"{TOOL_CALL}connectors",
    "prediction": "prediction",
}
_CACHES: Final = frozenset({"CachePointBlock", "AnthropicCache"})
_CACHE_NAMES: Final = frozenset({"cachePoint", "cache_control"})
_TIMES: Final = re.compile(
    "n|bestof|beamwidth|candidatecount|"
    "num(?:beams|candidates|completions|generations|outputs|results|returnsequences|samples)"
)
_DATE: Final = re.compile(r"_\d{8}$")
_NAME_CHARS_MAX: Final = 64
_UNKNOWN_TTL: Final[Mapping[str, Any]] = {"ttl": "unknown"}
_encode: Final = msgspec.json.Encoder().encode
_dumps: Final = json.JSONEncoder().encode
_CONTAINERS: Final = (dict, list)


class CacheWrite(StrEnum):
    """Whether a call writes its prompt to the cache, and for how long."""

    NONE = "none"
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


class BodyRefusedError(ValueError):
    """A body that can't be judged; the message names the member."""


class Findings:
    """The result of a walk."""

    __slots__ = ("cache_write", "has_addresses", "has_answer", "is_open", "tokens", "uses")

    def __init__(self, *, has_answer: bool = True) -> None:
        self.has_answer = has_answer
        """Whether the model writes text, so that a longest answer means something."""
        self.tokens = 0
        """Beyond the bytes of the body; negative if pictures have more bytes than tokens."""
        self.cache_write = CacheWrite.NONE
        self.is_open = False
        self.has_addresses = False
        self.uses: set[str] = set()

    def note_cache(self, mark: Mapping[str, Any]) -> None:
        longest = CacheWrite.ONE_HOUR
        is_short = mark.get("ttl") in (None, "5m") and self.cache_write is not longest
        self.cache_write = CacheWrite.FIVE_MINUTES if is_short else longest

    def note_unknown(self, value: Any) -> None:
        """Reserve the window for an unknown member. A longest answer in it is refused."""
        self.is_open = True
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if type(one) is list:
                waiting += one
            elif type(one) is dict:
                for name, inner in one.items():
                    if self.has_answer and is_length(name):
                        raise BodyRefusedError(
                            f"{_cropped(name)}: the longest answer can't be read there; state it "
                            "where the model's API has it"
                        )
                    if one is not value and name != "n" and is_times(name):
                        raise BodyRefusedError(
                            f"{_cropped(name)}: the number of answers can't be read there; state "
                            "it where the model's API has it"
                        )
                    if name in _BILLED_MEMBERS and inner is not None:
                        self.uses.add(_BILLED_MEMBERS[name])
                    if name in _CACHE_NAMES:
                        self.note_cache(inner if type(inner) is dict else _UNKNOWN_TTL)
                kind = one.get("type")
                if type(kind) is str and kind.startswith(_SERVED_TYPES):
                    self.uses.add(TOOL_CALL + _DATE.sub("", kind))
                waiting += one.values()


def is_length(name: str) -> bool:
    """Whether a name states how long an answer may be, in any family.

    ``max_tokens_per_doc`` of Cohere's rerank models is about the prompt.
    """
    if name[:1] not in "mMnN_-":
        return False
    plain = _plain_name(name)
    if not plain.startswith("max"):
        return plain in ("numpredict", "npredict")
    is_count = any(part in plain for part in ("token", "len", "output", "gen"))
    return is_count and not plain.endswith("perdoc")


def is_times(name: str) -> bool:
    """Whether a name says how many answers are requested, in any family's words."""
    return name[:1] in "nNbBcC_-" and _TIMES.fullmatch(_plain_name(name)) is not None


def _plain_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


@dataclass
class Plain:
    """A scalar. Its bytes count."""

    is_strict: bool
    takes_text = True

    def judge(self, value: Any, found: Findings) -> None:
        if type(value) in _CONTAINERS:
            if self.is_strict:
                raise BodyRefusedError("found an object or list where Bedrock reads a single value")
            found.note_unknown(value)


class Free:
    """JSON of the caller's own. A model may see it with spaces and escapes."""

    takes_text = False

    def judge(self, value: Any, found: Findings) -> None:
        if type(value) in _CONTAINERS or type(value) is str:
            found.tokens += max(0, len(_dumps(value)) - len(_encode(value)))


@dataclass
class ListOf:
    """A list whose items have one shape."""

    item: Shape
    is_strict: bool
    takes_text = False

    def judge(self, value: Any, found: Findings) -> None:
        if type(value) is not list:
            if self.is_strict:
                raise BodyRefusedError("expected a list where Bedrock reads one")
            found.note_unknown(value)
            return
        judge = self.item.judge
        for one in value:
            judge(one, found)


@dataclass
class TextOr:
    """A text, or something with a shape."""

    shape: Shape
    takes_text = True

    def judge(self, value: Any, found: Findings) -> None:
        if type(value) is not str:
            self.shape.judge(value, found)


@dataclass
class Structure:
    """``null`` members are dropped and not sent, so they hide nothing."""

    name: str
    is_union: bool
    is_strict: bool
    members: dict[str, Shape] = field(default_factory=dict)
    takes_text = False

    def __post_init__(self) -> None:
        self._rule = RULES.get(self.name)

    def judge(self, value: Any, found: Findings) -> None:
        if type(value) is not dict:
            self._note_unknown(value, found, "must be an object")
            return
        members, has_null = self.members, False
        for name, inner in value.items():
            if inner is None:
                has_null = True
                continue
            shape = members.get(name)
            if shape is None:
                self._note_unknown({name: inner}, found, f"has no member {_cropped(name)}")
            elif type(inner) is not str or not shape.takes_text:
                shape.judge(inner, found)
        if has_null:
            for name in [name for name, inner in value.items() if inner is None]:
                del value[name]
        if self.is_union and len(value) != 1:
            self._note_several(value, found)
        if self._rule is not None:
            self._rule(value, found)

    def _note_several(self, value: Mapping[str, Any], found: Findings) -> None:
        if not value or self.is_strict:
            raise BodyRefusedError(f"{self.name}: must have exactly one member")
        found.is_open = True

    def _note_unknown(self, value: Any, found: Findings, why: str) -> None:
        if self.is_strict:
            raise BodyRefusedError(f"{self.name} {why}; it may have {', '.join(self.members)}")
        if self.name in _CACHES:
            found.note_cache(_UNKNOWN_TTL)
        found.note_unknown(value)


@dataclass
class Tagged:
    """An object whose ``type`` names its shape."""

    name: str
    members: dict[str, Shape] = field(default_factory=dict)
    takes_text = False

    def judge(self, value: Any, found: Findings) -> None:
        kind = value.get("type") if type(value) is dict else None
        shape = self.members.get(kind) if type(kind) is str else self.members.get("-")
        if shape is None and type(kind) is str:
            shape = self.members.get(_DATE.sub("", kind))
        if shape is not None:
            shape.judge(value, found)
        elif type(kind) is str:
            if self.name.endswith("Tool"):  # it may run at Bedrock, and each use be billed
                found.uses.add(TOOL_CALL + _DATE.sub("", kind))
            found.note_unknown(value)
        else:
            raise BodyRefusedError(f"{self.name}: must be an object with a type")


Shape: TypeAlias = Plain | Free | ListOf | TextOr | Structure | Tagged
_FREE: Final = Free()


def _cropped(name: str) -> str:
    return repr(name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}...")


def _text_in(value: Any, *names: str) -> int:
    return sum(len(value[name]) for name in names if type(value.get(name)) is str)


def _is_address(url: Any) -> bool:
    return url is not None and not str(url).startswith("data:")


def _picture_data(value: dict[str, Any], found: Findings) -> None:
    found.tokens -= _text_in(value, "bytes", "url", "data")
    found.has_addresses |= "s3Location" in value or _is_address(value.get("url"))


def _video_data(value: dict[str, Any], found: Findings) -> None:
    found.tokens -= _text_in(value, "bytes")
    found.is_open |= "s3Location" in value


def _add(tokens: int) -> Callable[[dict[str, Any], Findings], None]:
    def rule(_: dict[str, Any], found: Findings) -> None:
        found.tokens += tokens

    return rule


def _picture_or_address(value: dict[str, Any], found: Findings) -> None:
    found.tokens += IMAGE_TOKENS - _text_in(value, "image_url")
    url = value.get("image_url")
    found.has_addresses |= type(url) is str and _is_address(url)


def _file(_: dict[str, Any], found: Findings) -> None:
    found.has_addresses = True


def _llama(value: dict[str, Any], found: Findings) -> None:
    pictures = value.get("images")
    if type(pictures) is list:
        texts = [one for one in pictures if type(one) is str]
        found.tokens += sum(IMAGE_TOKENS - len(one) for one in texts)
        found.is_open |= len(texts) < len(pictures)


def _document(value: dict[str, Any], found: Findings) -> None:
    """Converse's document: its length is known if it is text, or its format is plain."""
    source = value.get("source")
    if type(source) is not dict:
        raise BodyRefusedError("document: must have a source")
    found.tokens += DOCUMENT_TOKENS
    if "bytes" in source:
        _note_form(value.get("format"), "format", _text_in(source, "bytes"), found)
    elif "s3Location" in source:
        found.is_open = True
    else:
        _note_plain(source, found)


def _note_plain(source: dict[str, Any], found: Findings) -> None:
    found.tokens += (PLAIN_TOKENS_PER_BYTE - 1) * len(_encode(source))


def _note_form(form: Any, name: str, length: int, found: Findings) -> None:
    if type(form) is not str:
        raise BodyRefusedError(f"document: must state its {name}")
    if form in _PLAIN_FORMS:
        found.tokens += (PLAIN_TOKENS_PER_BYTE - 1) * length
    else:
        found.is_open = True


def _document_bytes(value: dict[str, Any], found: Findings) -> None:
    _note_form(value.get("media_type"), "media_type", _text_in(value, "data"), found)


def _anthropic_document(value: dict[str, Any], found: Findings) -> None:
    if type(value.get("source")) is not dict:
        raise BodyRefusedError("document: must have a source")
    found.tokens += DOCUMENT_TOKENS


def _system_tool(value: dict[str, Any], found: Findings) -> None:
    found.is_open = True
    found.uses.add(f"{TOOL_CALL}{value.get('name')}")


def _guardrail(value: dict[str, Any], found: Findings) -> None:
    if value.get("guardrailIdentifier"):
        found.uses.add(GUARDRAIL)


def _elsewhere(_: dict[str, Any], found: Findings) -> None:
    """Reserve the window: the length is unknown. A small file may play for hours."""
    found.is_open = True


def _converse(value: dict[str, Any], found: Findings) -> None:
    if "promptVariables" in value:
        found.is_open = True


RULES: Final[Mapping[str, Callable[[dict[str, Any], Findings], None]]] = {
    "AnthropicBytes": _picture_data,
    "AnthropicCache": lambda value, found: found.note_cache(value),
    "AnthropicContent": _note_plain,
    "AnthropicDocument": _anthropic_document,
    "AnthropicDocumentBytes": _document_bytes,
    "AnthropicFile": _file,
    "AnthropicImage": _add(IMAGE_TOKENS),
    "AnthropicOwnTool": _add(TOOL_TOKENS),
    "AnthropicUrl": _picture_data,
    "AudioBlock": _elsewhere,
    "CachePointBlock": lambda value, found: found.note_cache(value),
    "ConverseRequest": _converse,
    "DocumentBlock": _document,
    "GuardrailConfiguration": _guardrail,
    "GuardrailConverseImageBlock": _add(IMAGE_TOKENS),
    "GuardrailConverseImageSource": _picture_data,
    "ImageBlock": _add(IMAGE_TOKENS),
    "ImageSource": _picture_data,
    "LlamaRequest": _llama,
    "OpenAIImage": _picture_or_address,
    "OpenAIImageUrl": _picture_data,
    "OpenAIInput": _elsewhere,
    "SystemTool": _system_tool,
    "ToolAdditionBlock": _elsewhere,
    "VideoBlock": _add(VIDEO_TOKENS),
    "VideoSource": _video_data,
}


@lru_cache(2)
def grammar(*, is_strict: bool) -> Mapping[str, Structure | Tagged]:
    """All shapes by name; strict ones of ``converse`` refuse unknown members."""
    made: dict[str, Structure | Tagged] = {}
    lines = [(line, is_strict) for line in _lines(CONVERSE)]
    lines += [(line, False) for line in _lines(FAMILIES)]
    for (name, mark, *_), strict in lines:
        made[name] = (
            Tagged(name) if mark == "#" else Structure(name, is_union=mark == "|", is_strict=strict)
        )
    for (name, _, *members), strict in lines:
        for member in members:
            word, _, kind = member.partition("=")
            made[name].members[word] = _shape(word, kind, made, is_strict=strict)
    return made


def _lines(text: str) -> Iterator[list[str]]:
    for line in re.sub(r"\n\s+", " ", text.strip()).splitlines():
        yield line.split()


def _shape(
    word: str, kind: str, made: Mapping[str, Structure | Tagged], *, is_strict: bool
) -> Shape:
    if word == "additionalModelRequestFields":
        return made["AdditionalFields"]
    if kind == "{}":
        return _FREE
    if kind.startswith("~"):
        return TextOr(_shape(word, kind[1:], made, is_strict=is_strict))
    if kind.startswith("["):
        return ListOf(_shape(word, kind[1:-1], made, is_strict=is_strict), is_strict=is_strict)
    if kind:
        return made[kind]
    return Plain(is_strict=is_strict)
