"""Counts writes to logs for the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pricekeeper.telemetry import Family, counted

_WORK: Final = Family(
    "pricekeeper_ledger_work", "What continuing the logs of organisations took, by kind.", ("kind",)
)


@dataclass(slots=True)
class LedgerMeter:
    """Counts of the logs' work."""

    sheets_written: int = counted(_WORK, "sheet_written")
    sheets_read: int = counted(_WORK, "sheet_read")
    """Of other writers, or at a start."""
    lost_races: int = counted(_WORK, "lost_race")
    chapters_filed: int = counted(_WORK, "chapter_filed")
