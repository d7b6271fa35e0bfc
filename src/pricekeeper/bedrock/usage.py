"""Reads the usage that a reply reports; never raises.

The tier and the model that *served* the call count, not the requested ones. Unreported usage is
``None``, never zero. Tokens are returned as reported. Some models count cache reads in their input
(``input_includes_cache_tokens`` in the deployment file); pricing subtracts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, TypeGuard

import msgspec

INPUT_HEADER: Final = "x-amzn-bedrock-input-token-count"
OUTPUT_HEADER: Final = "x-amzn-bedrock-output-token-count"
CACHE_READ_HEADER: Final = "x-amzn-bedrock-cache-read-input-token-count"
CACHE_WRITE_HEADER: Final = "x-amzn-bedrock-cache-write-input-token-count"
TIER_HEADER: Final = "x-amzn-bedrock-service-tier"
LATENCY_HEADER: Final = "x-amzn-bedrock-performanceconfig-latency"
OPTIMIZED: Final = "optimized"
"""The latency with prices of its own, and the tier that it is counted under."""
_DEFAULT: Final = "default"
_OWN_TIERS: Final = frozenset({"priority", _DEFAULT, "flex", "reserved"})
"""Tier names that count in a family's own reply; other words mean other things."""
_METRICS: Final = "amazon-bedrock-invocationMetrics"
_PROMPT, _GENERATION, _INPUT = "prompt_token_count", "generation_token_count", "inputTextTokenCount"
_VECTORS: Final = ("embedding", "embeddings", "embeddingsByType")
_MAPPINGS: Final = (dict, Mapping)
"""Checking for `Mapping` alone is many times slower; nearly all are dictionaries."""
TELLING: Final = (
    "usage",
    "serviceTier",
    "service_tier",
    "performanceConfig",
    "trace",
    "results",
    _METRICS,
    _PROMPT,
    _GENERATION,
    _INPUT,
    *_VECTORS,
)
"""The names at the top of a reply that are read here; all others are the answer."""
_Telling = TypedDict("_Telling", dict.fromkeys(TELLING, Any), total=False)  # type: ignore[misc]
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_telling: Final = msgspec.json.Decoder(_Telling).decode
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as Bedrock counted them, and what served them."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    service_tier: str | None = None
    model_id: str | None = None
    """The model that answered, if it is not the requested one."""

    def record(self, model_id: str) -> dict[str, Any]:
        """Its fields in a usage record, without those that are zero or unknown."""
        found = {name: value for name in _IN_A_RECORD if (value := getattr(self, name))}
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "bedrock_model_id": self.model_id or model_id,
            **found,
        }


_TOKENS: Final = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))
_IN_A_RECORD: Final = (*_TOKENS, "service_tier")


def decode_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object; ``None`` if the bytes are none."""
    try:
        return _decode(data)
    except NOT_JSON:
        return None


def decode_telling(data: bytes) -> Mapping[str, Any]:
    """The members of a reply that report usage; empty if it is no JSON."""
    try:
        return _decode_telling(data)
    except NOT_JSON:
        return {}


def usage_of_converse(reply: Mapping[str, Any]) -> Usage | None:
    """The usage in Converse's reply, or in the ``metadata`` event of its stream."""
    usage = reply.get("usage")
    if not _has_counts(usage, "inputTokens", "outputTokens"):
        return None
    for_an_hour = _written_for_an_hour(usage.get("cacheDetails"))
    tier = _text(_member(reply.get("serviceTier"), "type"))
    router = _member(reply.get("trace"), "promptRouter")
    return Usage(
        input_tokens=usage["inputTokens"],
        output_tokens=usage["outputTokens"],
        cache_read_tokens=_count(usage, "cacheReadInputTokens"),
        cache_write_5m_tokens=max(0, _count(usage, "cacheWriteInputTokens") - for_an_hour),
        cache_write_1h_tokens=for_an_hour,
        service_tier=tier_with(tier, _member(reply.get("performanceConfig"), "latency")),
        model_id=_text(_member(router, "invokedModelId")),
    )


def usage_of_invoke(
    body: Mapping[str, Any], headers: Mapping[str, str], *, has_answer: bool = True
) -> Usage | None:
    """The usage in the model's own reply or in the headers, which have lower-case names.

    ``has_answer`` is false for a model that writes no text: it reports only its prompt.
    """
    has_answer = has_answer and not _is_vectors(body)
    found = usage_of_body(body) or usage_of_headers(headers, has_answer=has_answer)
    return with_tier_of(found, headers)


def states_usage(body: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Whether a reply mentions usage, even in a form that can't be counted."""
    if any(headers.get(name, "0") != "0" for name in (INPUT_HEADER, OUTPUT_HEADER)):
        return True
    usage = body.get("usage")
    return (isinstance(usage, _MAPPINGS) and len(usage) > 0) or _METRICS in body


def with_tier_of(found: Usage | None, headers: Mapping[str, str]) -> Usage | None:
    """The usage with the tier of the headers, if any."""
    if found is None:
        return None
    tier = tier_with(headers.get(TIER_HEADER, found.service_tier), headers.get(LATENCY_HEADER))
    if tier == found.service_tier:
        return found
    return msgspec.structs.replace(found, service_tier=tier)


def tier_with(tier: str | None, latency: Any) -> str | None:
    """The one tier that counts with that latency."""
    return OPTIMIZED if latency == OPTIMIZED and tier in (None, _DEFAULT) else tier


def usage_of_body(body: Mapping[str, Any]) -> Usage | None:
    """The usage and tier in a family's own reply."""
    found = _usage_in(body)
    for holder in (body, body.get("usage")):
        tier = _member(holder, "service_tier")
        if found is not None and isinstance(tier, str) and tier in _OWN_TIERS:
            return msgspec.structs.replace(found, service_tier=tier)
    return found


def _usage_in(body: Mapping[str, Any]) -> Usage | None:
    usage = body.get("usage")
    if _has_counts(usage, "input_tokens", "output_tokens"):
        return _anthropic(body["usage"])
    if _has_counts(usage, "inputTokens", "outputTokens"):
        return usage_of_converse(body)
    if _has_counts(usage, "prompt_tokens", "completion_tokens"):
        return _openai(body["usage"])
    if _has_counts(body, _PROMPT, _GENERATION):
        return Usage(body[_PROMPT], body[_GENERATION])
    if _has_counts(body, _INPUT) and isinstance(body.get("results"), list):
        output = sum(_count(one, "tokenCount") for one in body["results"])
        return Usage(body[_INPUT], output)
    if _has_counts(body, _INPUT) and _is_vectors(body):
        return Usage(body[_INPUT], 0)
    return usage_of_metrics(body)


def usage_of_metrics(body: Mapping[str, Any]) -> Usage | None:
    """The usage in the last event of an ``invoke`` stream, for any model."""
    metrics = body.get(_METRICS)
    if not _has_counts(metrics, "inputTokenCount", "outputTokenCount"):
        return None
    return Usage(
        metrics["inputTokenCount"],
        metrics["outputTokenCount"],
        cache_read_tokens=_count(metrics, "cacheReadInputTokenCount"),
        cache_write_5m_tokens=_count(metrics, "cacheWriteInputTokenCount"),
    )


def usage_of_headers(headers: Mapping[str, str], *, has_answer: bool) -> Usage | None:
    """The counts in the headers of an ``invoke`` reply; vectors have no output tokens."""
    counts = {
        name: int(headers[name])
        for name in (INPUT_HEADER, OUTPUT_HEADER, CACHE_READ_HEADER, CACHE_WRITE_HEADER)
        if headers.get(name, "").isascii() and headers.get(name, "").isdigit()
    }
    if INPUT_HEADER not in counts or (has_answer and OUTPUT_HEADER not in counts):
        return None
    return Usage(
        counts[INPUT_HEADER],
        counts.get(OUTPUT_HEADER, 0),
        cache_read_tokens=counts.get(CACHE_READ_HEADER, 0),
        cache_write_5m_tokens=counts.get(CACHE_WRITE_HEADER, 0),
    )


def with_rounds(total: Usage, usage: Mapping[str, Any]) -> Usage:
    """The usage with all rounds in Anthropic's form.

    A round that compacted the conversation is billed, and is not in the totals beside the list.
    """
    rounds = usage.get("iterations")
    if not isinstance(rounds, list):
        return total
    each = [_anthropic_round(one) for one in rounds if isinstance(one, _MAPPINGS)]
    most = {name: max(getattr(total, name), sum(getattr(one, name) for one in each))
            for name in _TOKENS}  # fmt: skip
    return msgspec.structs.replace(total, **most)


def _anthropic(usage: Mapping[str, Any]) -> Usage:
    return with_rounds(_anthropic_round(usage), usage)


def _anthropic_round(usage: Mapping[str, Any]) -> Usage:
    written = _count(usage, "cache_creation_input_tokens")
    for_an_hour = _count(usage.get("cache_creation"), "ephemeral_1h_input_tokens")
    return Usage(
        _count(usage, "input_tokens"),
        _count(usage, "output_tokens"),
        cache_read_tokens=_count(usage, "cache_read_input_tokens"),
        cache_write_5m_tokens=max(0, written - for_an_hour),
        cache_write_1h_tokens=for_an_hour,
    )


def _openai(usage: Mapping[str, Any]) -> Usage:
    read = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], cache_read_tokens=read)


def _is_vectors(body: Mapping[str, Any]) -> bool:
    return any(name in body for name in _VECTORS)


def _written_for_an_hour(details: Any) -> int:
    if not isinstance(details, list):
        return 0
    return sum(
        _count(one, "inputTokens")
        for one in details
        if isinstance(one, _MAPPINGS) and one.get("ttl") != "5m"
    )


def _has_counts(value: Any, *names: str) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, _MAPPINGS) and all(_is_count(value.get(name)) for name in names)


def _member(value: Any, name: str) -> Any:
    """A member of an object; ``None`` of anything else."""
    return value.get(name) if value is not None and isinstance(value, _MAPPINGS) else None


def _count(value: Any, name: str) -> int:
    found = _member(value, name)
    return found if _is_count(found) else 0


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
