"""Counts decided and delivered alerts for the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pricekeeper.alerts.alert import AlertKind
from pricekeeper.alerts.channel import ChannelKind
from pricekeeper.telemetry import Family, counted

_ALERTS: Final = Family("pricekeeper_alerts", "Decided alerts, by kind.", ("kind",))
_DELIVERIES: Final = Family(
    "pricekeeper_alert_deliveries",
    "Attempts to deliver an alert, by kind of channel and outcome.",
    ("channel", "outcome"),
)


@dataclass(slots=True)
class AlertMeter:
    """The counts of one instance, and the outbox as it last saw it."""

    decided: Counter[str] = counted(_ALERTS, shown=tuple(AlertKind), factory=Counter)
    delivered: Counter[str] = counted(
        _DELIVERIES, "delivered", shown=tuple(ChannelKind), factory=Counter
    )
    failed: Counter[str] = counted(_DELIVERIES, "failed", shown=tuple(ChannelKind), factory=Counter)
    given_up: Counter[str] = counted(
        _DELIVERIES, "given_up", shown=tuple(ChannelKind), factory=Counter
    )
    outbox_age_secs: int = 0
    """Of the oldest alert that could not be delivered."""
    outbox_channels: int = 0
