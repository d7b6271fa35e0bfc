"""Counts calls through the gateway."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted
from pricekeeper.telemetry.families import Durations, Kind

_CALLS: Final = Family(
    "pricekeeper_gateway_calls",
    "Calls through the gateway by model label and outcome.",
    ("label", "outcome"),
)
_UPSTREAM: Final = Family(
    "pricekeeper_gateway_upstream_errors", "Answers of Bedrock that are errors.", ("status",)
)
_FIRST_BYTE: Final = Family(
    "pricekeeper_gateway_first_byte_seconds",
    "From the request to Bedrock to the first byte of its answer.",
    kind=Kind.DURATIONS,
)
_ADDED: Final = Family(
    "pricekeeper_gateway_added_seconds",
    "From a caller's whole request to the request to Bedrock.",
    kind=Kind.DURATIONS,
)
_DRAINS: Final = Family(
    "pricekeeper_gateway_drains",
    "Streams that were read on after their caller had left, by how that ended.",
    ("outcome",),
)
_COUNTS: Final = Family(
    "pricekeeper_gateway_counts",
    "Prompts that CountTokens was asked about before they were authorized, by how that ended.",
    ("outcome",),
)
_UNSETTLED: Final = Family(
    "pricekeeper_gateway_unsettled", "Calls that stay charged at their hold."
)


@dataclass(slots=True)
class GatewayMeter:
    """Metrics of the gateway."""

    calls: Counter[tuple[str, str]] = counted(_CALLS, factory=Counter)
    upstream_errors: Counter[str] = counted(_UPSTREAM, factory=Counter)
    first_byte: Durations = counted(_FIRST_BYTE, factory=Durations)
    added: Durations = counted(_ADDED, factory=Durations)
    drains: Counter[str] = counted(_DRAINS, factory=Counter, shown=("whole", "given_up", "no_room"))
    counts: Counter[str] = counted(_COUNTS, factory=Counter, shown=("counted", "failed", "no_room"))
    unsettled: int = counted(_UNSETTLED)
