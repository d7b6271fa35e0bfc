"""What there is to see of the day so far. The company writes it, the view reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pricekeeper.cli.demo.ledger import Sums
from pricekeeper.cli.demo.traffic import COMPANY, DAY_MS, ZONE
from pricekeeper.cli.drawing import FULL_PCT
from pricekeeper.cli.screen import Event, Frame, ScreenRow

TIGHT_PCT = 95


@dataclass(slots=True)
class AppState:
    """One app, as its own people see it."""

    app_id: str
    quotas_usd_micros: dict[str, int]
    label: str = ""
    calls: int = 0
    spent_usd_micros: Counter[str] = field(default_factory=Counter)
    """Today, by label."""

    def row(self) -> ScreenRow:
        """It on the screen."""
        uses = {}
        for label, quota in self.quotas_usd_micros.items():
            pct = FULL_PCT * self.spent_usd_micros[label] / quota
            style = "red" if pct >= FULL_PCT else "yellow" if pct >= TIGHT_PCT else "green"
            uses[label] = pct, style
        return ScreenRow(self.app_id, self.label, uses, self.calls, self.spent_usd_micros.total())


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

    def note(self, at_ms: int, app_id: str, kind: str, text: str, *, tell: bool = True) -> None:
        """Count what happened, and tell of it unless it is one of many."""
        self.counts[kind] += 1
        if tell:
            self.events.append(Event(_local(at_ms), app_id, kind, text))

    def spend(self, app_id: str, day: str, label: str, sums: Sums) -> None:
        """What an app has spent on a label that day; a new day begins with nothing."""
        if day > self.today:
            self.today = day
            for app in self.apps.values():
                app.spent_usd_micros.clear()
        if day == self.today:
            self.apps[app_id].spent_usd_micros[label] = sums.cost_usd_micros

    def frame(self, now_ms: int) -> Frame:
        """The screen now."""
        rows = [app.row() for app in self.apps.values()]
        day_pct = FULL_PCT * (now_ms - self.day_starts_at_ms) / DAY_MS
        spent = sum(row.spent_usd_micros for row in rows)
        return Frame(COMPANY, _local(now_ms), day_pct, spent, rows, self.events)


def _local(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).astimezone(ZoneInfo(ZONE))
