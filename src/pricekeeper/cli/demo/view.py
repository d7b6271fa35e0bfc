"""The demo's output: a screen in a terminal, lines elsewhere, and a summary."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from rich.console import Console, Group, RenderableType
from rich.text import Text

from pricekeeper.cli.demo.clock import FastClock
from pricekeeper.cli.demo.traffic import (
    COMPANY,
    DAY_MS,
    HOUR_MS,
    LABELS,
    SUPPORT,
    ZONE,
    DemoLedger,
    Mismatch,
    Sums,
)
from pricekeeper.cli.drawing import FULL_PCT, to_paste, usd
from pricekeeper.cli.tables import table
from pricekeeper.cli.watch import PANEL_WIDTH, Event, Frame, ScreenRow, draw_over, make_room

FRAME_SECS: Final = 0.1
PLAIN_EVERY_HOURS: Final = 3


EXPECTED: Final = ("flip", "denied", "granted", "evicted", "duplicate", "midnight")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the day."""

    board: Board
    ledger: DemoLedger
    differences: list[Mismatch]
    renewals: int

    @property
    def missing(self) -> list[str]:
        used = {label for app_id, _, label in self.ledger.sums if app_id == SUPPORT.app_id}
        unused = [f"{SUPPORT.app_id} on {label}" for label in SUPPORT.order if label not in used]
        return [kind for kind in EXPECTED if not self.board.counts[kind]] + unused

    @property
    def is_good(self) -> bool:
        return not self.differences and not self.missing

    def answer(self) -> dict[str, Any]:
        return {
            "calls": self.ledger.whole()["requests"],
            "sent": [
                {"app_id": app_id, "day": day, "model_label": label, **sums.answer()}
                for (app_id, day, label), sums in sorted(self.ledger.sums.items())
            ],
            "equal": not self.differences,
            "differences": [one._asdict() for one in self.differences],
            "seen": dict(self.board.counts),
            "not_seen": self.missing,
            "token_renewals": self.renewals,
        }


@asynccontextmanager
async def shown(console: Console | None, board: Board, clock: FastClock) -> AsyncIterator[None]:
    """Show the board during the block, if there is a console."""
    if console is None:
        yield
        return
    showing = asyncio.create_task(_follow(console, board, clock))
    try:
        yield
    finally:
        showing.cancel()
        await showing


async def _follow(console: Console, board: Board, clock: FastClock) -> None:
    on_screen = console.is_terminal and console.width >= PANEL_WIDTH
    events_shown = hours_shown = 0

    def show() -> None:
        nonlocal events_shown, hours_shown
        frame = board.frame(clock.now_ms())
        if on_screen:
            draw_over(console, frame)
            return
        for event in board.events[events_shown:]:
            console.print(event.line(), soft_wrap=True)
        events_shown = len(board.events)
        hours = (clock.now_ms() - board.day_starts_at_ms) // HOUR_MS // PLAIN_EVERY_HOURS
        if hours > hours_shown:
            hours_shown = hours
            console.print(frame.heading, soft_wrap=True)

    if on_screen:
        make_room(console)
    with suppress(asyncio.CancelledError):
        while True:
            show()
            await asyncio.sleep(FRAME_SECS)
    show()


def summary(result: Result) -> RenderableType:
    """Draw sent and counted usage, and the number of events."""
    ledger, differences, counts = result.ledger, result.differences, result.board.counts
    rows = table(
        "app", "day", "model", "calls", "tokens in", "out", "cost", "counted",
        numbers=["calls", "tokens in", "out", "cost"],
    )  # fmt: skip

    def add(account: tuple[str, str, str], sums: Sums, *, equal: bool) -> None:
        numbers = (f"{sums[name]:,}" for name in ("requests", "input_tokens", "output_tokens"))
        verdict = Text("✓ equal", "green") if equal else Text("differs", "bold red")
        rows.add_row(*account, *numbers, usd(sums.cost_usd_micros), verdict)

    wrong = {one[:3] for one in differences}
    for account in sorted(ledger.sums, key=lambda one: (one[1], one[0], LABELS.index(one[2]))):
        add(account, ledger.sums[account], equal=account not in wrong)
    rows.add_section()
    add(("total", "", ""), ledger.whole(), equal=not differences)
    seen = Text(
        f"{counts['flip']} flips, {counts['denied']} denials with a reason, "
        f"{counts['evicted']} session evicted, {counts['duplicate']} duplicates not counted, "
        f"{counts['midnight']} apps reset at midnight, tokens renewed {result.renewals} times"
    )
    bad = [
        f"{one.app_id} {one.day} {one.label} {one.number}: "
        f"sent {one.sent:,}, counted {one.counted:,}"
        for one in differences
    ] + [f"not seen: {what}" for what in result.missing]
    return Group(rows, seen, *(Text(line, "red") for line in bad))


def going_on(store: str | None, org_id: str) -> RenderableType:
    """Draw the next steps."""
    lines = {"pricekeeper demo --keep demo-data": "run the day again, and keep its data"}
    if store is not None:
        lines = {
            f"pricekeeper usage show {org_id} --store {store}": "show the spend",
            f"pricekeeper app list {org_id} --store {store}": "list the apps",
        }
    lines["pricekeeper serve --demo"] = "run the service, with a key and an app for curl"
    pairs = ((Text(f"  {text}", "dim"), to_paste(f"    {line}")) for line, text in lines.items())
    return Group(Text("\nNext:"), *(part for pair in pairs for part in pair))


TIGHT_PCT = 95


@dataclass(slots=True)
class AppState:
    """The state of one app."""

    app_id: str
    quotas_usd_micros: dict[str, int]
    label: str = ""
    calls: int = 0
    spent_usd_micros: Counter[str] = field(default_factory=Counter)
    """Today, by label."""

    def row(self) -> ScreenRow:
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
    """A few of each kind."""
    counts: Counter[str] = field(default_factory=Counter)
    """By kind, shown or not."""

    def note(self, at_ms: int, app_id: str, kind: str, text: str, *, tell: bool = True) -> None:
        self.counts[kind] += 1
        if tell:
            self.events.append(Event(_local(at_ms), app_id, kind, text))

    def spend(self, app_id: str, day: str, label: str, sums: Sums) -> None:
        """Set an app's spend on a label; a new day clears all."""
        if day > self.today:
            self.today = day
            for app in self.apps.values():
                app.spent_usd_micros.clear()
        if day == self.today:
            self.apps[app_id].spent_usd_micros[label] = sums.cost_usd_micros

    def frame(self, now_ms: int) -> Frame:
        rows = [app.row() for app in self.apps.values()]
        day_pct = FULL_PCT * (now_ms - self.day_starts_at_ms) / DAY_MS
        spent = sum(row.spent_usd_micros for row in rows)
        return Frame(COMPANY, _local(now_ms), day_pct, spent, rows, self.events)


def _local(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).astimezone(ZoneInfo(ZONE))
