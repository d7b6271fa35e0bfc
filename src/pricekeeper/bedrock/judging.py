"""Judges a request: the most that it can use, and the body to send.

The body is encoded again from the judged values, so Bedrock can't read the caller's bytes
differently. A capture above its hold is still counted in full.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict

import msgspec

from pricekeeper.bedrock.families import Family
from pricekeeper.bedrock.lengths import (
    ADDITIONAL,
    answers_of,
    budget_of,
    holders_of,
    is_compacting,
    take_lengths,
    write_length,
)
from pricekeeper.bedrock.shapes import (
    GUARDRAIL,
    TOOL_TOKENS,
    BodyRefusedError,
    CacheWrite,
    Findings,
    grammar,
)
from pricekeeper.bedrock.usage import LATENCY_HEADER, NOT_JSON, OPTIMIZED, TIER_HEADER
from pricekeeper.errors import InvalidValueError
from pricekeeper.tags import TAG_PREFIX, check_tags

TEMPLATE_TOKENS: Final = 64
WINDOW_TOKENS: Final = 100_000_000
"""Reserved if the length of a prompt is unknown. No deployment file can state a longer window, and
a hold never exceeds the model's own window."""
MAX_OUTPUT_TOKENS: Final = 4_096
"""Written into calls that state no longest answer."""
METADATA_HEADER: Final = "x-amzn-bedrock-request-metadata"
GUARDRAIL_HEADER: Final = "x-amzn-bedrock-guardrailidentifier"
GUARDRAIL_MEMBER: Final = "amazon-bedrock-guardrailConfig"
STORED_PROMPT: Final = ":prompt/"
"""Part of the id of a prompt that is stored at Bedrock."""
_INSTRUCTING: Final = (
    frozenset({"toolConfig", "tools", "functions"}),
    frozenset({"outputConfig", "output_config", "output_format", "response_format"}),
)
"""Members for which Bedrock adds instructions to the prompt: for tools or a schema."""
NOT_PROMPT: Final = ("requestMetadata", "inferenceConfig", "serviceTier")
SERVICE_TIER: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_DEFAULT_TIERS: Final = frozenset({"default", "standard", "standard_only"})
_TIER_MEMBERS: Final = frozenset({"serviceTier", "service_tier", "performanceConfig", ADDITIONAL})
BETA_HEADER: Final = "anthropic-beta"
_LONGER_WINDOW: Final = re.compile(r"context-([0-9]{1,3})([km])(?![a-z0-9])")
_THOUSANDS: Final = {"k": 1_000, "m": 1_000_000}
_USUAL_PRICES: Final = {"speed": ("standard",), "inference_geo": ("global", "not_available")}
"""Members that multiply the price of all tokens, and their values for the usual price."""
_ASCII: Final = bytes(range(128))
_COMPOSED_CHARS: Final = 64
"""Python's time for composing a group grows quadratically."""
_COMPOSED_MAX: Final = 250_000
"""A longer text is reserved at `_COMPOSED_GROWTH`."""
_COMPOSED_GROWTH: Final = 10
"""Bytes that each byte of a character may add in composed form."""
_TIER_HEADERS: Final = frozenset({TIER_HEADER, LATENCY_HEADER})
_REQUESTS: Final = {
    None: "ConverseRequest",
    Family.ANTHROPIC: "AnthropicRequest",
    Family.NOVA: "NovaRequest",
    Family.TITAN: "TitanRequest",
    Family.LLAMA: "LlamaRequest",
    Family.COHERE: "CohereRequest",
}
"""The shape of each family's body; ``None`` is ``converse``. The others have OpenAI's."""
_encode: Final = msgspec.json.Encoder().encode
_decode_tags: Final = msgspec.json.Decoder(dict[str, str]).decode


class Terms(TypedDict):
    """What to authorize for a call."""

    model: str
    input_tokens: int
    max_output_tokens: int
    cache_write: CacheWrite
    service_tier: str | None
    uses: tuple[str, ...]
    window_tokens: int
    tags: dict[str, str]
    allow_lower_max_output: bool
    min_output_tokens: int


class CallBounds(msgspec.Struct, frozen=True):
    """What a call can use at most, and what it states."""

    input_tokens: int
    max_output_tokens: int | None
    cache_write: CacheWrite = CacheWrite.NONE
    service_tier: str | None = None
    tags: dict[str, str] = {}
    is_open: bool = False
    """Whether the model may read more than is in the request."""
    uses: tuple[str, ...] = ()
    """Billed beside tokens, such as ``guardrail`` or ``tool_call:web_search``."""
    window_tokens: int = 0
    """The requested window, if longer than the model's default."""
    least_output_tokens: int = 1
    """The shortest possible answer: one token each, and the model's thoughts."""
    has_addresses: bool = False

    def longest_answer(self, cap: int | None = None, default: int = MAX_OUTPUT_TOKENS) -> int:
        """The longest answer to request: the stated one, lowered to ``cap`` or the least."""
        least, asked = self.least_output_tokens, self.max_output_tokens
        if asked is None:
            asked = max(default, least)
        return asked if cap is None else min(asked, max(cap, least))


class BedrockCall(msgspec.Struct, frozen=True):
    """A judged request."""

    family: Family | None
    """``None`` for ``converse``."""
    body: dict[str, Any]
    """Without the longest answer."""
    bounds: CallBounds
    answers: int = 1
    """They share the reserved length."""
    has_answer: bool = True
    """False if the model writes no text: then no longest answer is read or written."""

    def opened_by(self, model_ids: Iterable[str]) -> BedrockCall:
        if not any(STORED_PROMPT in one for one in model_ids):
            return self
        bounds = msgspec.structs.replace(self.bounds, input_tokens=WINDOW_TOKENS, is_open=True)
        return msgspec.structs.replace(self, bounds=bounds)

    def terms(self, model: str, cap: int | None = None, default: int = MAX_OUTPUT_TOKENS) -> Terms:
        bounds = self.bounds
        return Terms(
            model=model,
            input_tokens=bounds.input_tokens,
            max_output_tokens=bounds.longest_answer(cap, default),
            cache_write=bounds.cache_write,
            service_tier=bounds.service_tier,
            uses=bounds.uses,
            window_tokens=bounds.window_tokens,
            tags=bounds.tags,
            allow_lower_max_output=bounds.max_output_tokens is None,
            min_output_tokens=bounds.least_output_tokens,
        )

    def encoded(self, max_output_tokens: int, **changes: Any) -> bytes:
        """The body to send, with that longest answer."""
        members = self.written(max_output_tokens) | changes
        if not any(type(value) is msgspec.Raw for value in members.values()):
            return _encode(members)
        parts: list[Any] = []
        for name, value in members.items():
            text = value if type(value) is msgspec.Raw else _encode(value)
            parts += (b"," if parts else b"{", _encode(name), b":", text)
        return b"".join((*parts, b"}"))

    def written(self, max_output_tokens: int) -> dict[str, Any]:
        if not self.has_answer:
            return self.body
        return write_length(self.body, max(1, max_output_tokens // self.answers), self.family)


def judge(
    body: dict[str, Any],
    family: Family | None,
    headers: Mapping[str, str] | None = None,
    *,
    has_answer: bool = True,
    is_strict: bool = True,
    tags: Mapping[str, str] | None = None,
) -> BedrockCall:
    """Judge the body of a call in one pass. The body is changed and kept.

    - ``family`` is ``None`` for ``converse``.
    - ``headers`` have lower-case names.
    - ``is_strict`` refuses unknown members of ``converse``; otherwise they reserve the window.
    - ``tags`` are the client's; the call's own replace them.

    Raises `BodyRefusedError`.
    """
    headers = headers or {}
    try:
        own = _tags_of(body, headers, tags or {})
        return _judge(body, family, headers, own, has_answer=has_answer, is_strict=is_strict)
    except RecursionError:
        raise BodyRefusedError("the body is nested too deeply") from None


def _judge(
    body: dict[str, Any],
    family: Family | None,
    headers: Mapping[str, str],
    tags: dict[str, str],
    *,
    has_answer: bool,
    is_strict: bool,
) -> BedrockCall:
    holders = holders_of(body)
    is_compacted = is_compacting(holders)
    longest: int | None = 0
    answers, budget = 1, 0
    if has_answer:
        longest = take_lengths(holders, family)
        answers = answers_of(holders) * (2 if is_compacted else 1)
        budget = budget_of(holders)
        if longest is not None and budget >= longest:
            raise BodyRefusedError(
                "thinking.budget_tokens must be below the longest answer; state a longer one"
            )
    _check_price(body)
    found = Findings(has_answer=has_answer)
    grammar(is_strict=is_strict)[_REQUESTS.get(family, "OpenAIRequest")].judge(body, found)
    if GUARDRAIL_HEADER in headers or GUARDRAIL_MEMBER in body:
        found.uses.add(GUARDRAIL)
    for names in _INSTRUCTING:
        if not (names.isdisjoint(body) and names.isdisjoint(body.get(ADDITIONAL, ()))):
            found.tokens += TOOL_TOKENS
    written = body
    if has_answer:
        written = write_length(body, MAX_OUTPUT_TOKENS if longest is None else longest, family)
    tokens = WINDOW_TOKENS
    if not found.is_open:
        tokens = TEMPLATE_TOKENS + found.tokens + _length_of(_encode(written))
        tokens -= sum(len(_encode(written[name])) for name in NOT_PROMPT if name in written)
        tokens = min(tokens * (2 if is_compacted else 1), WINDOW_TOKENS)
    bounds = CallBounds(
        tokens,
        None if longest is None else longest * answers,
        found.cache_write,
        _tier_of(body, headers),
        tags,
        found.is_open or is_compacted,
        tuple(sorted(found.uses)),
        _longer_window(body, headers),
        answers * (budget + 1),
        found.has_addresses,
    )
    return BedrockCall(family, body, bounds, answers, has_answer)


def _length_of(data: bytes) -> int:
    """An upper bound of a text's tokens: its bytes, or those of its composed form if more.

    Some tokenizers normalise text to NFKC first; one character may become 18.
    """
    if data.isascii():
        return len(data)
    rest = data.translate(None, _ASCII)
    text = rest.decode()
    if unicodedata.is_normalized("NFKC", text):
        return len(data)
    if len(text) > _COMPOSED_MAX:
        return len(data) + _COMPOSED_GROWTH * len(rest)
    groups = (text[at : at + _COMPOSED_CHARS] for at in range(0, len(text), _COMPOSED_CHARS))
    composed = sum(len(unicodedata.normalize("NFKC", one).encode()) for one in groups)
    return len(data) + max(0, composed - len(rest))


def _check_price(body: Mapping[str, Any]) -> None:
    for holder in (body, body.get(ADDITIONAL) or {}):
        for name, usual in _USUAL_PRICES.items():
            if holder.get(name) is not None and holder[name] not in usual:
                raise BodyRefusedError(
                    f"{name}: it changes the price of all tokens, and there is no price for it; "
                    "leave it out"
                )


def _longer_window(body: Mapping[str, Any], headers: Mapping[str, str]) -> int:
    """The longest window that an Anthropic beta opens; zero if none does."""
    stated: list[Any] = [headers.get(BETA_HEADER)]
    stated += [holder.get("anthropic_beta") for holder in (body, body.get(ADDITIONAL, {}))]
    if not any(stated):
        return 0
    found = _LONGER_WINDOW.findall(_encode(stated).decode().lower())
    return max((int(count) * _THOUSANDS[unit] for count, unit in found), default=0)


def _tags_of(
    body: Mapping[str, Any], headers: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Headers win over ``requestMetadata``, which wins over ``given``."""
    start = len(TAG_PREFIX)
    named = {name[start:]: value for name, value in headers.items() if name[:start] == TAG_PREFIX}
    metadata: Any = body.get("requestMetadata") or headers.get(METADATA_HEADER) or {}
    if not (named or metadata or given):
        return named
    try:
        is_text = isinstance(metadata, str)
        pairs = _decode_tags(metadata) if is_text else msgspec.convert(metadata, dict[str, str])
        tags = {**given, **pairs, **named}
        check_tags(tags)
    except NOT_JSON:
        raise BodyRefusedError("requestMetadata: must be an object with string values") from None
    except InvalidValueError as error:
        raise BodyRefusedError(str(error)) from None
    return tags


def _tier_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """The tier that the body or the headers request.

    Path and model decide where Bedrock reads it, so two different tiers are refused.
    """
    if body.keys().isdisjoint(_TIER_MEMBERS) and headers.keys().isdisjoint(_TIER_HEADERS):
        return None
    additional = body.get(ADDITIONAL, {})
    stated = [headers.get(TIER_HEADER), body.get("service_tier"), additional.get("service_tier")]
    latencies = [headers.get(LATENCY_HEADER)]
    for holder in (body, additional):
        stated += _inside(holder, "serviceTier", "type")
        latencies += _inside(holder, "performanceConfig", "latency")
    tiers = [one for one in stated if one is not None]
    if any(type(one) is not str or not SERVICE_TIER.fullmatch(one) for one in tiers):
        raise BodyRefusedError("the service tier must be a name, such as priority or flex")
    if any(one != tiers[0] for one in tiers):
        raise BodyRefusedError("two service tiers are requested; state one")
    tier = tiers[0] if tiers else None
    tier = None if tier in _DEFAULT_TIERS else tier
    if OPTIMIZED not in latencies:
        return tier
    if tier not in (None, OPTIMIZED):
        raise BodyRefusedError(
            f"the tier {tier} and the latency {OPTIMIZED} are both requested; state one of them"
        )
    return OPTIMIZED


def _inside(holder: Mapping[str, Any], outer: str, name: str) -> list[Any]:
    inside = holder.get(outer)
    if inside is None:
        return []
    if not isinstance(inside, dict):
        raise BodyRefusedError(f"{outer}: must be an object")
    return [inside.get(name)]
