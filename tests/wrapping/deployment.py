"""One model of each family with prices of its own, and what a stand-in's entries come to.

The arithmetic here is the judge's: it shares nothing with that of the service.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from pricekeeper.standin import BilledCall

PROFILE = "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/abcd1234efgh"
PROFILE_ELSEWHERE = (
    "arn:aws:bedrock:us-west-2:111122223333:application-inference-profile/wxyz5678ijkl"
)
FOUNDATION = "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-5-5"

MODELS = {
    "premium": "us.anthropic.claude-opus-5-5",
    "standard": "us.anthropic.claude-sonnet-5-5",
    "nova": "amazon.nova-pro-v1:0",
    "titan": "amazon.titan-text-premier-v1:0",
    "llama": "us.meta.llama3-3-70b-instruct-v1:0",
    "mistral": "mistral.mistral-large-2407-v1:0",
    "cohere": "cohere.command-r-plus-v1:0",
    "gpt": "us.openai.gpt-6-sol",
    "profile": PROFILE,
}
WITHOUT_TEXT = {
    "vectors": "amazon.titan-embed-text-v2:0",
    "cohere-vectors": "us.cohere.embed-english-v3",
    "ranks": "cohere.rerank-v3-5:0",
    "amazon-ranks": "amazon.rerank-v1:0",
    "image-captions": "amazon.nova-lite-v1:0",
    "pictures": "amazon.nova-canvas-v1:0",
}
"""Models that write no text; and one that does, whose label sounds as if it did not."""
ALIASES = {FOUNDATION: "premium", "eu.anthropic.claude-opus-5-5": "premium"}
ALIASES[PROFILE_ELSEWHERE] = "profile"
ALL = MODELS | WITHOUT_TEXT
LABELS = {model_id: label for label, model_id in ALL.items()} | ALIASES

KINDS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
PRICES = {
    label: {
        "input": 1_000_001 + 300_000 * index,
        "output": 7_000_003 + 900_000 * index,
        "cache_read": 100_007 + 10_000 * index,
        "cache_write_5m": 1_250_009 + 400_000 * index,
        "cache_write_1h": 2_000_011 + 500_000 * index,
    }
    for index, label in enumerate(ALL)
}
"""In micro-dollars for a million tokens; no two are the same, and none is a multiple of another."""
TIERS_PERMILLE = {"default": 1000, "priority": 1750, "flex": 500}


def write_deployment(folder: Path) -> Path:
    """The deployment file with all of it."""
    path = folder / "deployment.yaml"
    models = {label: _model(label) for label in ALL}
    path.write_text(yaml.safe_dump({"version": 1, "models": models}))
    return path


def _model(label: str) -> dict[str, Any]:
    prices = {f"{kind}_price_usd_micros_per_1m": PRICES[label][kind] for kind in KINDS}
    more: dict[str, Any] = {}
    if label == "gpt":
        more["input_includes_cache_tokens"] = True
    if label in WITHOUT_TEXT:
        more["context_window_tokens"] = 8_192
        more["max_output_tokens"] = 8_192 if label == "image-captions" else 1
    if label == "profile":
        more["priced_as"] = "anthropic.claude-3-5-sonnet-20241022-v2:0"
        more["aliases"] = [PROFILE_ELSEWHERE]
    return {
        "bedrock_model_id": ALL[label],
        "family": label,
        "tier": "standard",
        "description": label,
        "default_pricing": prices,
        "service_tiers": {
            "priority": {"multiplier_permille": TIERS_PERMILLE["priority"]},
            "flex": {"multiplier_permille": TIERS_PERMILLE["flex"]},
        },
        **more,
    }


def bill_usd_micros(entries: Iterable[BilledCall]) -> int:
    """What the stand-in billed, in whole micro-dollars as the service shows it."""
    picos = sum(_entry_usd_picos(entry) for entry in entries)
    return picos // 1_000_000


def _entry_usd_picos(entry: BilledCall) -> int:
    prices, permille = PRICES[LABELS[entry.model_id]], TIERS_PERMILLE[entry.service_tier]
    return sum(
        getattr(entry.tokens, f"{kind}_tokens") * -(-prices[kind] * permille // 1000)
        for kind in KINDS
    )
