"""What there is to see of the day so far. The company writes it, the view reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pricekeeper.cli.demo.ledger import Sums


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling."""

    at_ms: int
    app_id: str
    kind: str
    """``flip``, ``denied``, ``evicted``, ``duplicate``, ``midnight``, ``granted`` or ``deploy``."""
    told: str


@dataclass(slots=True)
class AppState:
    """One app, as its own people see it."""

    app_id: str
    quotas_usd_micros: dict[str, int]
    label: str = ""
    calls: int = 0
    spent_usd_micros: dict[str, int] = field(default_factory=dict)
    """Today, by label."""

    @property
    def total_usd_micros(self) -> int:
        return sum(self.spent_usd_micros.values())


@dataclass(slots=True)
class Board:
    """The state of the demo."""

    day_starts_at_ms: int
    day_ends_at_ms: int
    apps: dict[str, AppState]
    today: str = ""
    events: list[Event] = field(default_factory=list)
    """All of them: a handful each of few kinds."""
    counts: Counter[str] = field(default_factory=Counter)
    """By kind of event, also those that were not told."""

    def note(self, event: Event, *, tell: bool = True) -> None:
        """Count what happened, and tell of it unless it is one of many."""
        self.counts[event.kind] += 1
        if tell:
            self.events.append(event)

    def spend(self, app_id: str, day: str, label: str, sums: Sums) -> None:
        """What an app has spent on a label that day; a new day begins with nothing."""
        if day > self.today:
            self.today = day
            for app in self.apps.values():
                app.spent_usd_micros.clear()
        if day == self.today:
            self.apps[app_id].spent_usd_micros[label] = sums.cost_usd_micros

    @property
    def calls(self) -> int:
        return sum(app.calls for app in self.apps.values())
