"""The names of AWS's meters: what a ``usagetype`` of the price list says it charges for.

Three spellings are in use at once, and nothing but the usage type tells batch, tier, scope and
context length apart (the other attributes are often absent, or the same on a batch row)::

    USE1-MP:USE1_CacheWrite1hInputTokenCount_LCtx_Global-Units      older marketplace models
    USE1-MP:USE1_cache_write_tokens_1h_global_standard-Units        newer marketplace models
    USE1-Nova2.0Lite-input-tokens-flex-cross-region-global          models that AWS sells itself
    USE1-openai.gpt-oss-120b-mantle-output-tokens-batch             the same, by model id

All are brought into the third form and read word by word. A word that is not known makes the
whole meter unknown: images, speech, training, reserved capacity, a cache of another duration,
and whatever AWS adds next are not mistaken for plain tokens.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pricekeeper.pricing.model_ids import RateScope
from pricekeeper.pricing.prices import Component, Variant

_MARKETPLACE: Final = re.compile(r"[A-Z]{2,4}\d?-MP:(?:[A-Z]{2,4}\d?_)?(?P<meter>\w+)-Units")
_CAMEL: Final = re.compile(r"(?P<kind>[A-Za-z0-9]+)TokenCount(?P<rest>\w*)")
_CAMEL_KINDS: Final = {
    "Input": "input-tokens",
    "Output": "output-tokens",
    "CacheReadInput": "cache-read-tokens",
    "CacheWriteInput": "cache-write-tokens",
    "CacheWrite1hInput": "cache-write-tokens-1h",
}
_OWN: Final = re.compile(
    r"[A-Z]{2,4}\d?-(?P<name>.+?)(?:-mantle)?-(?:text-)?"
    r"(?P<meter>(?:cache-(?:read|write)-)?(?:input-|output-)?token(?:s|-count)(?:-[a-z0-9-]+)?)"
)
_METER: Final = re.compile(
    r"(?P<kind>input|output|cache-read|cache-write)(?:-input)?-token(?:s|-count)(?P<words>.*)"
)
_COMPONENTS: Final = {
    "input": Component.INPUT,
    "output": Component.OUTPUT,
    "cache-read": Component.CACHE_READ,
}
_CACHE_WRITES: Final = {
    "": Component.CACHE_WRITE_5M,
    "5m": Component.CACHE_WRITE_5M,
    "1h": Component.CACHE_WRITE_1H,
}
_PHRASES: Final = (
    ("cross-region-global", "global"),
    ("long-context", "long"),
    ("long-ctx", "long"),
    ("lctx", "long"),
)
_VARIANTS: Final = {
    "standard": Variant.DEFAULT,
    "batch": Variant.BATCH,
    "flex": Variant.FLEX,
    "priority": Variant.PRIORITY,
}


class Meter(msgspec.Struct, frozen=True):
    """What a row of the price list charges for."""

    component: Component
    variant: Variant = Variant.DEFAULT
    scope: RateScope = RateScope.REGIONAL
    long_context: bool = False


def read_usage_type(usage_type: str) -> tuple[str, Meter] | None:
    """The model's name inside the usage type (empty if it has none) and the meter, if known.

    Words before the meter that are not known end up in the name (``NovaSonic-speech``), which
    is why a model is matched by its whole name and by nothing else.
    """
    if marketplace := _MARKETPLACE.fullmatch(usage_type):
        meter = _read(_hyphenated(marketplace["meter"]))
        return ("", meter) if meter else None
    if own := _OWN.fullmatch(usage_type):
        meter = _read(own["meter"])
        return (own["name"], meter) if meter else None
    return None


def _hyphenated(meter: str) -> str:
    if (camel := _CAMEL.fullmatch(meter)) and camel["kind"] in _CAMEL_KINDS:
        return _CAMEL_KINDS[camel["kind"]] + camel["rest"].lower().replace("_", "-")
    return meter.replace("_", "-")


def _read(text: str) -> Meter | None:
    for phrase, word in _PHRASES:
        text = text.replace(phrase, word)
    found = _METER.fullmatch(text)
    if found is None:
        return None
    words = found["words"].split("-")[1:]
    lasts = [word for word in words if word in _CACHE_WRITES]
    tiers = [word for word in words if word in _VARIANTS]
    known = {*lasts, *tiers, "global", "long", "geo"}
    if found["words"][:1] not in ("", "-") or len(lasts) > 1 or len(tiers) > 1:
        return None
    if len(set(words)) < len(words) or not known.issuperset(words):
        return None
    component = _COMPONENTS.get(found["kind"])
    if component is None:
        component = _CACHE_WRITES["".join(lasts)]
    elif lasts:
        return None
    return Meter(
        component,
        _VARIANTS["".join(tiers) or "standard"],
        RateScope.GLOBAL if "global" in words else RateScope.REGIONAL,
        "long" in words,
    )
