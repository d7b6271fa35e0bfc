"""What Bedrock would bill at the most for a body that is sent to it.

This is the tests' own reading of Bedrock's documentation. It imports nothing of the judge that it
is compared with: Converse is read by botocore's model, and the bodies of families by hand. What
Bedrock refuses is billed nothing.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from botocore.loaders import Loader
from botocore.model import ListShape, ServiceModel, Shape, StructureShape

WINDOW = 100_000_000
LONGEST = 1_000_000
"""What a model writes at the most if its own name of the longest answer is missing."""
PICTURE = 16_384
"""Qwen3-VL: 16,777,216 pixels, a token for each square of 32."""
FILM = 276_480
"""Nova: 960 frames of 288 tokens; models that read more have a shorter window."""
INSTRUCTIONS = 800
SENTENCE = 2
"""More tokens for each byte of a document's text, for marks around cells and cited sentences."""
PLAIN = ("txt", "md", "csv", "html", "text/plain")
LONG_CONTEXT = "context-1m"
LONG_WINDOW = 1_000_000
_NATIVE = (
    ("max_tokens",), ("max_completion_tokens",), ("max_gen_len",), ("maxTokens",),
    ("max_new_tokens",), ("max_output_tokens",), ("max_tokens_to_sample",),
    ("inferenceConfig", "maxTokens"), ("inferenceConfig", "max_new_tokens"),
    ("textGenerationConfig", "maxTokenCount"),
)  # fmt: skip
_OWN = {
    None: (("inferenceConfig", "maxTokens"),),
    "anthropic": (("max_tokens",),),
    "nova": (("inferenceConfig", "maxTokens"), ("inferenceConfig", "max_new_tokens")),
    "titan": (("textGenerationConfig", "maxTokenCount"),),
    "llama": (("max_gen_len",),),
    "mistral": (("max_tokens",),),
    "cohere": (("max_tokens",),),
    "openai": (("max_completion_tokens",), ("max_tokens",)),
    "other": (("max_tokens",), ("max_completion_tokens",)),
}
_TIMES = ("n", "best_of", "num_generations", "numResults", "candidate_count", "candidateCount",
          "num_return_sequences")  # fmt: skip


class RefusedError(Exception):
    """Bedrock answers with a `ValidationException`."""


@dataclass
class Bill:
    """The most of each kind."""

    tokens: int = 64
    output: int = 0
    cache: str = "none"
    tiers: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    """What is billed by other units than tokens, or changes the price of all tokens."""
    window: int = 0
    """The longest prompt that the call makes the model take, if it says so."""

    composes: bool = False
    """Whether the model's tokenizer brings texts into Unicode's NFKC first."""

    def add(self, inner: "Bill") -> None:
        self.tokens += inner.tokens
        self.tiers |= inner.tiers
        self.beside |= inner.beside
        if inner.cache != "none":
            self.mark(inner.cache)

    def text(self, value: str) -> None:
        text = unicodedata.normalize("NFKC", value) if self.composes else value
        self.tokens += len(text.encode())

    def json(self, value: Any) -> None:
        self.tokens += len(json.dumps(value))

    def mark(self, ttl: Any) -> None:
        self.cache = "1h" if "1h" in (ttl, self.cache) else "5m"


def billed(family: str | None, sent: bytes, headers: Mapping[str, str]) -> Bill | None:
    """What is billed for these bytes and headers; ``None`` if Bedrock refuses them."""
    body = json.loads(sent)
    plain, composed = (_bill(family, body, headers, composes=one) for one in (False, True))
    return composed if plain and composed and composed.tokens > plain.tokens else plain


def _bill(
    family: str | None, body: dict[str, Any], headers: Mapping[str, str], *, composes: bool
) -> Bill | None:
    bill = Bill(composes=composes)
    try:
        if family is None:
            _read_shape(_request(), body, bill)
            _read_native(body.get("additionalModelRequestFields") or {}, bill)
        else:
            _FAMILIES[family](body, bill)
            _note_tier(bill, headers.get("x-amzn-bedrock-service-tier"))
            _note_latency(bill, headers.get("x-amzn-bedrock-performanceconfig-latency"))
            _note_price(body, bill)
            if headers.get("x-amzn-bedrock-guardrailidentifier"):
                bill.beside.add("guardrail")
    except RefusedError:
        return None
    bill.output = _output(family, body)
    if _is_long(body) or LONG_CONTEXT in headers.get("anthropic-beta", ""):
        bill.window = LONG_WINDOW
    return bill


def _output(family: str | None, body: dict[str, Any]) -> int:
    stated = _counts(body, _OWN[family])
    holders = [body]
    if family is None:
        more = body.get("additionalModelRequestFields") or {}
        stated += _counts(more, _NATIVE)
        holders = [more]
    longest = max(stated, default=LONGEST)
    if family in (None, "anthropic"):
        longest += max((_budget(one, longest) for one in holders), default=0)
    times = [one.get(name) for one in holders for name in _TIMES]
    return longest * max((one for one in times if type(one) is int), default=1)


def _budget(body: dict[str, Any], longest: int) -> int:
    """A budget for thoughts counts in the answer, unless thoughts come between calls of tools."""
    if "interleaved-thinking" not in json.dumps(body.get("anthropic_beta")):
        return 0
    thoughts = [body.get(name) for name in ("thinking", "reasoning_config")]
    budgets = [one.get("budget_tokens") for one in thoughts if type(one) is dict]
    return max((one for one in budgets if type(one) is int and one >= longest), default=0)


def _counts(body: Any, paths: Any) -> list[int]:
    found = []
    for path in paths:
        value = body
        for name in path:
            value = value.get(name) if type(value) is dict else None
        if type(value) is int:
            found.append(value)
    return found


def _is_long(body: dict[str, Any]) -> bool:
    more = body.get("additionalModelRequestFields")
    holders = [body, more if type(more) is dict else {}]
    return any(LONG_CONTEXT in json.dumps(one.get("anthropic_beta")) for one in holders)


def _note_tier(bill: Bill, tier: Any) -> None:
    if tier is not None and tier not in ("default", "standard", "standard_only", "flex"):
        bill.tiers.add(tier)


def _note_latency(bill: Bill, latency: Any) -> None:
    if latency == "optimized":
        bill.tiers.add("optimized")


def _note_price(body: dict[str, Any], bill: Bill) -> None:
    """Members of a family's body that change the price, or are billed by themselves."""
    if body.get("speed") not in (None, "standard"):
        bill.beside.add("speed")
    if body.get("inference_geo") not in (None, "global", "not_available"):
        bill.beside.add("inference_geo")
    for name in ("mcp_servers", "web_search_options", "prediction"):
        if body.get(name) is not None:
            bill.beside.add(name)


@cache
def _model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))


@cache
def _request() -> Shape:
    return _model().shape_for("ConverseRequest")


def _read_shape(shape: Shape, value: Any, bill: Bill) -> None:
    """Read a value as the shape says; raise for what Bedrock's parser refuses."""
    if getattr(shape, "is_document_type", False):
        bill.json(value)
    elif isinstance(shape, StructureShape):
        _read_structure(shape, value, bill)
    elif isinstance(shape, ListShape):
        if type(value) is not list:
            raise RefusedError
        for one in value:
            _read_shape(shape.member, one, bill)
    elif shape.type_name == "map":
        pass  # the metadata of a request, or variables of a prompt that holds the window
    elif type(value) in (dict, list):
        raise RefusedError
    elif shape.type_name == "string" and type(value) is str:
        bill.text(value)
    else:
        bill.json(value)


def _read_structure(shape: StructureShape, value: Any, bill: Bill) -> None:
    if type(value) is not dict:
        raise RefusedError
    stated = {name: one for name, one in value.items() if one is not None}
    if stated.keys() - shape.members.keys():
        raise RefusedError
    if shape.is_tagged_union and len(stated) != 1:
        raise RefusedError
    inner = Bill(0, composes=bill.composes)
    for name, one in stated.items():
        if name != "additionalModelRequestFields":
            _read_shape(shape.members[name], one, inner)
    rule = _RULES.get(shape.name)
    if rule is not None:
        rule(stated, inner)
    bill.add(inner)


def _is_elsewhere(block: dict[str, Any]) -> bool:
    return block["source"].get("s3Location") is not None if block.get("source") else True


def _read_video(block: dict[str, Any], inner: Bill) -> None:
    inner.tokens = WINDOW if _is_elsewhere(block) else FILM


def _read_document(block: dict[str, Any], inner: Bill) -> None:
    source = block.get("source") or {}
    is_text = source.get("text") is not None or source.get("content") is not None
    is_plain = source.get("bytes") is not None and block.get("format") in PLAIN
    inner.tokens = (1 + SENTENCE) * inner.tokens if is_text or is_plain else WINDOW


def _read_request(body: dict[str, Any], inner: Bill) -> None:
    inner.tokens += INSTRUCTIONS * ("outputConfig" in body)
    if "promptVariables" in body:
        inner.tokens = WINDOW


def _read_system_tool(tool: dict[str, Any], inner: Bill) -> None:
    inner.beside.add(f"tool {tool.get('name')}")
    inner.tokens = WINDOW


def _read_guardrail(config: dict[str, Any], inner: Bill) -> None:
    inner.tokens = 0
    if config.get("guardrailIdentifier"):
        inner.beside.add("guardrail")


def _set(tokens: int) -> Callable[[dict[str, Any], Bill], None]:
    def rule(_: dict[str, Any], inner: Bill) -> None:
        inner.tokens = tokens

    return rule


def _and(tokens: int) -> Callable[[dict[str, Any], Bill], None]:
    def rule(_: dict[str, Any], inner: Bill) -> None:
        inner.tokens += tokens

    return rule


_RULES: dict[str, Callable[[dict[str, Any], Bill], None]] = {
    "AudioBlock": _set(WINDOW),
    "CachePointBlock": lambda mark, inner: inner.mark(mark.get("ttl")),
    "ConverseRequest": _read_request,
    "DocumentBlock": _read_document,
    "GuardrailConfiguration": _read_guardrail,
    "GuardrailConverseImageBlock": _set(PICTURE),
    "ImageBlock": _set(PICTURE),
    "InferenceConfiguration": _set(0),
    "Message": _and(8),
    "PerformanceConfiguration": lambda one, inner: _note_latency(inner, one.get("latency")),
    "ServiceTier": lambda one, inner: _note_tier(inner, one.get("type")),
    "SystemTool": _read_system_tool,
    "ToolAdditionBlock": _set(WINDOW),
    "ToolConfiguration": _and(INSTRUCTIONS),
    "VideoBlock": _read_video,
}


def _read_native(more: Any, bill: Bill) -> None:
    """Converse's additional fields, which the model gets unchanged."""
    if type(more) is not dict:
        raise RefusedError
    bill.json(more)
    if not more.keys().isdisjoint(("output_config", "output_format", "response_format")):
        bill.tokens += INSTRUCTIONS
    _note_tier(bill, more.get("service_tier"))
    _read_tools(more.get("tools"), bill)
    _note_price(more, bill)
    _read_mark(more, bill)


def _read_tools(tools: Any, bill: Bill) -> None:
    for tool in tools if type(tools) is list else ():
        if type(tool) is not dict:
            continue
        bill.tokens += INSTRUCTIONS * (tool.get("type") not in (None, "custom", "function"))
        if re.match("web_|code_execution|mcp|advisor", str(tool.get("type"))):
            bill.tokens += WINDOW
            bill.beside.add(str(tool["type"]))
        _read_mark(tool, bill)
    if tools:
        bill.tokens += INSTRUCTIONS


def _read_content(content: Any, bill: Bill) -> None:
    """The parts of a message, in Anthropic's or OpenAI's words, or its text."""
    for part in content if type(content) is list else [content]:
        if type(part) is str:
            bill.text(part)
        elif type(part) is dict:
            _read_part(part, bill)


def _read_part(part: dict[str, Any], bill: Bill) -> None:
    _read_mark(part, bill)
    kind = part.get("type")
    if kind in ("image", "image_url"):
        bill.tokens += PICTURE
    elif kind == "document":
        _read_anthropic_document(part.get("source"), bill)
    elif kind in ("file", "input_audio", "video_url", "container_upload", "document_url"):
        bill.tokens += WINDOW
    elif kind == "tool_use":
        bill.json(part.get("input"))
    else:
        for name in ("text", "thinking", "data", "refusal", "title", "content"):
            _read_content(part.get(name), bill)


def _read_anthropic_document(source: Any, bill: Bill) -> None:
    source = source if type(source) is dict else {}
    inner = Bill(0, composes=bill.composes)
    is_plain = source.get("type") == "base64" and source.get("media_type") in PLAIN
    if source.get("type") == "text" or is_plain:
        inner.text(str(source.get("data")))
    elif source.get("type") == "content":
        _read_content(source.get("content"), inner)
    else:
        inner.tokens = WINDOW
    inner.tokens *= 1 + SENTENCE
    bill.add(inner)


def _read_mark(holder: dict[str, Any], bill: Bill) -> None:
    if type(holder.get("cache_control")) is dict:
        bill.mark(holder["cache_control"].get("ttl"))


def _read_chat(body: dict[str, Any], bill: Bill) -> None:
    messages = body.get("messages")
    for one in messages if type(messages) is list else ():
        bill.tokens += 8
        _read_content(one.get("content") if type(one) is dict else None, bill)
    _read_content(body.get("system"), bill)
    _read_tools(body.get("tools"), bill)
    if not body.keys().isdisjoint(("output_config", "output_format", "response_format")):
        bill.tokens += INSTRUCTIONS
    if type(body.get("tools")) is list:
        bill.json(body["tools"])
    _read_mark(body, bill)
    if type(body.get("mcp_servers")) is list:
        bill.tokens += WINDOW
    if type(body.get("prompt")) is str:
        bill.text(body["prompt"])


def _read_openai(body: dict[str, Any], bill: Bill) -> None:
    _read_chat(body, bill)
    _note_tier(bill, body.get("service_tier"))


def _read_nova(body: dict[str, Any], bill: Bill) -> None:
    known = ("messages", "system", "toolConfig")
    _read_shape(_request(), {name: body[name] for name in known if name in body}, bill)


def _read_plain(body: dict[str, Any], bill: Bill) -> None:
    for name in ("inputText", "prompt", "message", "preamble"):
        if type(body.get(name)) is str:
            bill.text(body[name])
    for name in ("chat_history", "documents", "tools", "tool_results"):
        if name in body:
            bill.json(body[name])
    pictures = body.get("images")
    bill.tokens += PICTURE * (len(pictures) if type(pictures) is list else 0)


_FAMILIES = {
    "anthropic": _read_chat,
    "nova": _read_nova,
    "titan": _read_plain,
    "llama": _read_plain,
    "cohere": _read_plain,
    "mistral": _read_chat,
    "openai": _read_openai,
    "other": _read_openai,
}
