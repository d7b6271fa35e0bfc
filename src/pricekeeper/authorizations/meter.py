"""Counts the outcomes of authorizations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

_DECISIONS: Final = Family(
    "pricekeeper_authorizations", "Calls that asked to be authorized, by outcome.", ("outcome",)
)
_SETTLED: Final = Family(
    "pricekeeper_authorizations_settled",
    "Changes of authorizations by the state that they went into; open, if they were extended.",
    ("state",),
)
_STATES: Final = ("open", "captured", "voided", "unsettled")


@dataclass(slots=True)
class AuthorizationMeter:
    """Metrics of authorizations."""

    granted: int = counted(_DECISIONS, "granted")
    denied: int = counted(_DECISIONS, "denied")
    settled: Counter[str] = counted(_SETTLED, shown=_STATES, factory=Counter)
