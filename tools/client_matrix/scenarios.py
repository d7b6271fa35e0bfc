"""The steps of each client, and their expected results.

The prompts carry directives for the stand-in, so that the bill of each call is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from client_matrix.environments import Client, Family, Kind

OPEN: Final = "open"
DEPLOYMENT: Final = f"""
  {OPEN}:
    bedrock_model_id: openai.gpt-oss-120b-1:0
    family: gpt-oss
    tier: open
    description: a model for the paths of OpenAI's API
    default_pricing:
      input_price_usd_micros_per_1m: 150_000
      output_price_usd_micros_per_1m: 600_000
    context_window_tokens: 128_000
    max_output_tokens: 16_000
"""
"""The label that the built-in deployment file gets beside its own."""

REAL: Final = "a real id"
LABEL: Final = "a label"
AUTO: Final = "auto"
MODELS: Final[Mapping[Family, Mapping[str, str]]] = {
    "anthropic": {REAL: "us.anthropic.claude-sonnet-5-5", LABEL: "economy", AUTO: AUTO},
    "openai": {REAL: "openai.gpt-oss-120b-1:0", LABEL: OPEN, AUTO: AUTO},
}
PRICES_USD_MICROS_PER_1M: Final = {
    "us.anthropic.claude-opus-5-5": (4_400_000, 22_000_000),
    "us.anthropic.claude-sonnet-5-5": (2_200_000, 11_000_000),
    "us.anthropic.claude-haiku-5-5": (110_000, 550_000),
    "openai.gpt-oss-120b-1:0": (150_000, 600_000),
}
"""Input and output of the labels premium, standard, economy and open in the deployment file."""

ORG: Final[Mapping[str, Any]] = {
    "org_name": "Clients",
    "timezone": "UTC",
    "quota_scope": "APP",
    "model_ordering": ["standard", "premium", "economy", OPEN],
    "quotas": dict.fromkeys(("standard", "premium", "economy", OPEN), 10**9),
}
STATUS: Final = {
    "ModelErrorException": 424,
    "ServiceQuotaExceededException": 400,
    "ThrottlingException": 429,
    "ValidationException": 400,
}
"""By which status clients that are not AWS's know its errors."""
BUDGET: Final = "clients"
WIDE_USD_MICROS: Final = 10**9

Step: TypeAlias = Mapping[str, Any]


def _prompt(text: str, **directive: object) -> str:
    asked = {"input_tokens": 100, "output_tokens": 60, **directive}
    return f"{text} [[standin {json.dumps(asked)}]]"


_PLAIN: Final = _prompt("Say something.")
_SHORT: Final = _prompt("Write for a while.", events=20, between_ms=30)
_LONG: Final = _prompt("Write for long.", events=20, between_ms=300)
"""Longer than a program waits at its end for a stream that it has abandoned."""


def _do(what: Literal["call", "stream", "abandon"], prompt: str, model: str = REAL) -> Step:
    return {"do": what, "model": model, "prompt": prompt}


def is_error(name: str | None, errors: Sequence[str]) -> bool:
    """Whether that error of Bedrock's is among those that a client has told."""
    return name is not None and (name in errors or f"HTTP {STATUS[name]}" in errors)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Some calls of one program, under one budget."""

    name: str
    steps: Sequence[Step]
    error: str | None = None
    """The error of Bedrock's that every step must end with."""
    may_fail_with: str | None = None
    """The error that steps after the first may end with."""
    error_of_gateway: str | None = None
    """The same, through the gateway only."""
    may_be_above: bool = False
    """Whether what the calls used can't be known, so that more may be charged than was billed."""
    limit_usd_micros: int = WIDE_USD_MICROS
    rate_limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> list[Step]:
        """The steps that call a model."""
        return [step for step in self.steps if step["do"] != "pause"]


SNIPPET: Final = "snippet"
"""The scenario of a document's own program; it is one step to us."""


def snippet_scenario(line: int) -> Scenario:
    """A program in a document, at that line."""
    return Scenario(f"{SNIPPET}, line {line}", [{"do": "call"}])


_ONE_IN_FIVE_SECS: Final = {"capacity": 1, "refill_amount": 1, "refill_period_ms": 5_000}

SCENARIOS: Final = (
    Scenario("plain", [_do("call", _PLAIN)]),
    Scenario("stream", [_do("stream", _SHORT)]),
    Scenario("label", [_do("call", _PLAIN, LABEL), _do("stream", _PLAIN, LABEL)]),
    Scenario("auto", [_do("call", _PLAIN, AUTO), _do("stream", _PLAIN, AUTO)]),
    Scenario(
        "abandoned",
        [_do("abandon", _SHORT), {"do": "pause", "secs": 1}, _do("call", _PLAIN)],
    ),
    # The program ends while the stream that it has abandoned continues.
    Scenario("left", [_do("abandon", _LONG)], may_be_above=True),
    Scenario(
        "denied",
        [_do("call", _PLAIN), _do("stream", _PLAIN)],
        error="ServiceQuotaExceededException",
        limit_usd_micros=1,
    ),
    Scenario(
        "throttled",
        [_do("call", _PLAIN), _do("call", _PLAIN)],
        may_fail_with="ThrottlingException",
        rate_limits={"*": {"rpm": _ONE_IN_FIVE_SECS}},
    ),
    Scenario(
        "refused",
        [_do("call", _prompt("No.", fate="ValidationException"))],
        error="ValidationException",
    ),
    # The first answer is lost after the model has run, and the client asks again.
    Scenario(
        "lost",
        [_do("call", _prompt("Where are you?", fate="hangs-up", fate_times=1))],
        error_of_gateway="ModelErrorException",  # one that clients do not try again
        may_be_above=True,
    ),
)


def scenarios_of(kind: Kind, client: Client, scenarios: Sequence[Scenario]) -> Iterator[Scenario]:
    """Those that the client is for, with prompts of its own: the stand-in tells retries by them."""
    for scenario in scenarios:
        if client.scenarios is not None and scenario.name not in client.scenarios:
            continue
        if not client.streams and scenario.steps[0]["do"] != "call":
            continue
        steps = [
            _step_of(client, step)
            for step in scenario.steps
            if client.streams or step["do"] == "call"
        ]
        error = scenario.error_of_gateway if kind == "gateway" else None
        yield replace(scenario, steps=steps, error=error or scenario.error)


def _step_of(client: Client, step: Step) -> Step:
    if step["do"] == "pause":
        return step
    model, prompt = MODELS[client.family][step["model"]], f"I am {client.name}. {step['prompt']}"
    return {**step, "model": model, "prompt": prompt}
