"""What each client is made to do, and what has to come of it.

The prompts carry directives for the stand-in, so that the bill of each call is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from client_matrix.environments import Client, Kind

STANDARD: Final = "us.anthropic.claude-sonnet-5-5"
PRICES_USD_MICROS_PER_1M: Final = {
    "us.anthropic.claude-opus-5-5": (4_400_000, 22_000_000),
    STANDARD: (2_200_000, 11_000_000),
    "us.anthropic.claude-haiku-5-5": (110_000, 550_000),
}
"""Input and output of the labels premium, standard and economy in the deployment file."""

ORG: Final[Mapping[str, Any]] = {
    "org_name": "Clients",
    "timezone": "UTC",
    "quota_scope": "APP",
    "model_ordering": ["standard", "economy"],
    "quotas": {"standard": 10**9, "economy": 10**9},
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
_SHORT: Final = _prompt("Go on for a while.", events=20, between_ms=30)
_LONG: Final = _prompt("Go on for long.", events=20, between_ms=300)
"""Longer than a program waits at its end for a stream that it has abandoned."""


def _do(what: Literal["call", "stream", "abandon"], prompt: str, model: str = STANDARD) -> Step:
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
    """The error of Bedrock's that every step has to end with."""
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


_ONE_IN_FIVE_SECS: Final = {"capacity": 1, "refill_amount": 1, "refill_period_ms": 5_000}

SCENARIOS: Final = (
    Scenario("plain", [_do("call", _PLAIN)]),
    Scenario("stream", [_do("stream", _SHORT)]),
    Scenario("label", [_do("call", _PLAIN, "economy"), _do("stream", _PLAIN, "economy")]),
    Scenario("auto", [_do("call", _PLAIN, "auto"), _do("stream", _PLAIN, "auto")]),
    Scenario(
        "abandoned",
        [_do("abandon", _SHORT), {"do": "pause", "secs": 1}, _do("call", _PLAIN)],
    ),
    # The program ends while the stream that it has abandoned goes on.
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
            {**step, "prompt": f"I am {client.name}. {step['prompt']}"}
            if "prompt" in step
            else step
            for step in scenario.steps
            if client.streams or step["do"] == "call"
        ]
        error = scenario.error_of_gateway if kind == "gateway" else None
        yield replace(scenario, steps=steps, error=error or scenario.error)
