"""The models of the tests' deployment, and what each token of them costs, in whole micro-dollars.

The judge multiplies by itself: it knows these prices, and nothing of how the service computes.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pricekeeper.standin import BilledCall

MICROS_PER_1M = 1_000_000
PRICED_UNIT = "tool_call:nova_grounding"
"""The one thing beside tokens that all of these models have a price for."""
ARN = "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/abcd1234efgh"
OTHER_ARN = "arn:aws:bedrock:us-west-2:111122223333:application-inference-profile/wxyz5678ijkl"


@dataclass(frozen=True)
class Priced:
    """A model, and what a token of it costs in micro-dollars."""

    label: str
    model_id: str
    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    aliases: tuple[str, ...] = ()
    priced_as: str = ""
    includes_cache: bool = False


MODELS = (
    Priced("premium", "us.anthropic.claude-opus-5-5", 5, 25, 1, 6, 10),
    Priced("standard", "us.anthropic.claude-sonnet-5-5", 3, 15, 1, 4, 6),
    Priced("economy", "us.anthropic.claude-haiku-5-5", 1, 5, 1, 2, 3),
    Priced("nova", "us.amazon.nova-pro-v1:0", 2, 7, 1, 2, 4),
    Priced("llama", "us.meta.llama4-maverick-17b-instruct-v1:0", 2, 3, 1, 2, 4),
    Priced("mistral", "mistral.mistral-large-2407-v1:0", 2, 6, 1, 2, 4),
    Priced("gpt", "openai.gpt-oss-120b-1:0", 2, 9, 1, 2, 4, includes_cache=True),
    Priced(
        "profile", ARN, 4, 11, 1, 5, 8, (OTHER_ARN,), "anthropic.claude-3-5-sonnet-20241022-v2:0"
    ),
)
BY_LABEL = {model.label: model for model in MODELS}


def write_deployment(folder: Path, counted: Collection[str] = ()) -> Path:
    """The deployment file; prompts for the labels ``counted`` are counted by Bedrock."""
    path = folder / "models.yaml"
    lines = ["version: 1", "models:"]
    for one in MODELS:
        lines += [
            f"  {one.label}:",
            f"    bedrock_model_id: {one.model_id}",
            *([f"    priced_as: {one.priced_as}"] if one.priced_as else []),
            *([f"    aliases: [{', '.join(one.aliases)}]"] if one.aliases else []),
            f"    input_includes_cache_tokens: {str(one.includes_cache).lower()}",
            f"    counts_tokens: {str(one.label in counted).lower()}",
            f"    family: {one.label}",
            "    tier: any",
            "    description: of the tests",
            "    context_window_tokens: 10_000_000",
            "    max_output_tokens: 1_000_000",
            f"    units: {{'{PRICED_UNIT}': 30_000_000}}",
            "    default_pricing:",
            *(
                f"      {name}_price_usd_micros_per_1m: {getattr(one, name) * MICROS_PER_1M}"
                for name in ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
            ),
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def model_of(model_id: str) -> Priced:
    """The model that an id names, with any geographic prefix."""
    base = model_id.rpartition("/")[2].removeprefix("us.").removeprefix("eu.")
    for one in MODELS:
        named = {one.model_id, *one.aliases}
        if model_id in named or base in {name.removeprefix("us.") for name in named}:
            return one
    raise LookupError(model_id)


def cost_of(entry: BilledCall) -> int:
    """What a call has really cost, in micro-dollars."""
    model, used = model_of(entry.model_id), entry.tokens
    return (
        used.input_tokens * model.input
        + used.output_tokens * model.output
        + used.cache_read_tokens * model.cache_read
        + used.cache_write_5m_tokens * model.cache_write_5m
        + used.cache_write_1h_tokens * model.cache_write_1h
    )


def bill(entries: Iterable[BilledCall]) -> int:
    """What all of them have cost."""
    return sum(map(cost_of, entries))
