"""Clients that ended, counted for the metrics endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

REVOCATIONS: Final = Family(
    "pricekeeper_revocations", "What ended before its time, by kind.", ("kind",)
)
"""Each feature counts what it ends."""


@dataclass(slots=True)
class TenantsMeter:
    """What one instance has deleted."""

    clients_deleted: int = counted(REVOCATIONS, "client")
    """Organisations and apps."""
