"""The day as it is seen: a live picture in a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pricekeeper.cli.demo.board import AppState, Board, Event
from pricekeeper.cli.demo.clock import FastClock
from pricekeeper.cli.demo.ledger import Difference, Ledger
from pricekeeper.cli.demo.traffic import COMPANY, DAY_MS, LABELS, ZONE
from pricekeeper.cli.drawing import FULL_PCT, pct_bar, to_paste, usd
from pricekeeper.cli.listing import Listing, table

FRAME_SECS: Final = 0.1
EVENTS_SHOWN: Final = 8
PLAIN_EVERY_HOURS: Final = 3
TIGHT_PCT: Final = 95

PICTURE_WIDTH_MIN: Final = 80
"""What the live picture needs. Who has less gets lines."""
WIDE: Final = 100
_BAR_WIDTHS: Final = (5, 10)
"""In a picture of less than `WIDE`, and in one of more."""
_MARKS: Final = {
    "flip": ("↓", "yellow"),
    "denied": ("✗", "red"),
    "granted": ("✓", "green"),
    "evicted": ("⇥", "magenta"),
    "duplicate": ("=", "cyan"),
    "midnight": ("☾", "blue"),
}


class View:
    """Shows a board until it is told to stop."""

    def __init__(self, console: Console, board: Board, clock: FastClock) -> None:
        self._console = console
        self._board = board
        self._clock = clock
        self._told = 0
        self._hours_told = 0

    async def follow(self) -> None:
        """Keep showing, until cancelled."""
        if not self._console.is_terminal or self._console.width < PICTURE_WIDTH_MIN:
            await self._follow_plainly()
            return
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            with suppress(asyncio.CancelledError):
                while True:
                    live.update(self._picture(), refresh=True)
                    await asyncio.sleep(FRAME_SECS)
            live.update(self._picture(), refresh=True)

    async def _follow_plainly(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                self._tell_news()
                await asyncio.sleep(FRAME_SECS)
        self._tell_news()

    def _tell_news(self) -> None:
        """A line for each event, and one every few hours in between."""
        for event in self._board.events[self._told :]:
            self._console.print(_line(event), soft_wrap=True)
        self._told = len(self._board.events)
        passed_ms = self._clock.now_ms() - self._board.day_starts_at_ms
        hours = passed_ms * 24 // DAY_MS // PLAIN_EVERY_HOURS
        if hours > self._hours_told:
            self._hours_told = hours
            spent = sum(app.total_usd_micros for app in self._board.apps.values())
            now = _local(self._clock.now_ms())
            self._console.print(
                f"{now:%H:%M}  {self._board.calls:,} calls, {usd(spent)} spent today",
                soft_wrap=True,
            )

    def _picture(self) -> RenderableType:
        board, now_ms = self._board, self._clock.now_ms()
        passed_pct = FULL_PCT * (now_ms - board.day_starts_at_ms) / DAY_MS
        now = _local(now_ms)
        spent = sum(app.total_usd_micros for app in board.apps.values())
        top = Table.grid(padding=(0, 3))
        top.add_row(
            Text(f"{now:%H:%M}", "bold"),
            pct_bar(passed_pct, "cyan", 40),
            Text(f"{board.calls:,} calls"),
            Text(usd(spent), "bold"),
        )
        title = Text.assemble((COMPANY, "bold"), f"  {now:%A %d %B %Y}")
        events: list[RenderableType] = [_line(event) for event in board.events[-EVENTS_SHOWN:]]
        events += [Text()] * (EVENTS_SHOWN - len(events))
        return Group(
            Panel(top, title=title, title_align="left", box=box.ROUNDED, border_style="dim"),
            _apps(board.apps.values(), _BAR_WIDTHS[self._console.width >= WIDE]),
            *events,
        )


def summary(
    board: Board,
    ledger: Ledger,
    differences: Sequence[Difference],
    *,
    renewals: int,
    missing: Sequence[str],
) -> RenderableType:
    """What was sent and what was counted, by app, day and model; and what was seen."""
    rows = table(
        "app", "day", "model", "calls", "tokens in", "out", "cost", "counted",
        numbers=["calls", "tokens in", "out", "cost"],
    )  # fmt: skip
    wrong = {(one.app_id, one.day, one.label) for one in differences}
    for place, sums in sorted(ledger.sums.items(), key=_in_order):
        app_id, day, label = place
        equal = Text("differs", "bold red") if place in wrong else Text("✓ equal", "green")
        rows.add_row(
            app_id, day, label, f"{sums.requests:,}", f"{sums.input_tokens:,}",
            f"{sums.output_tokens:,}", usd(sums.cost_usd_micros), equal,
        )  # fmt: skip
    rows.add_section()
    whole = ledger.whole()
    verdict = Text("DIFFERS", "bold red") if differences else Text("✓ equal", "bold green")
    rows.add_row(
        "in all", "", "", f"{whole.requests:,}", f"{whole.input_tokens:,}",
        f"{whole.output_tokens:,}", usd(whole.cost_usd_micros), verdict,
    )  # fmt: skip
    counts = board.counts
    seen = Text(
        f"{counts['flip']} flips, {counts['denied']} denials with a reason, "
        f"{counts['evicted']} session evicted, {counts['duplicate']} duplicates not counted, "
        f"{counts['midnight']} apps reset at midnight, tokens renewed {renewals} times",
    )
    parts: list[RenderableType] = [rows, seen]
    parts += [
        Text(
            f"{one.app_id} {one.day} {one.label} {one.number}: "
            f"sent {one.sent:,}, counted {one.counted:,}",
            "red",
        )
        for one in differences
    ]
    parts += [Text(f"not seen: {what}", "red") for what in missing]
    return Group(*parts)


def going_on(store: str | None, org_id: str) -> RenderableType:
    """What to do next."""
    lines = {
        "pricekeeper serve --demo": "the service, with a key and an app to try with curl",
        "pricekeeper demo --keep demo-data": "the same day again, to look into afterwards",
    }
    if store is not None:
        lines = {
            f"pricekeeper usage show {org_id} --store {store}": "what was spent",
            f"pricekeeper app list {org_id} --store {store}": "who spent it",
            "pricekeeper serve --demo": lines["pricekeeper serve --demo"],
        }
    pairs = ((Text(f"  {told}", "dim"), to_paste(f"    {line}")) for line, told in lines.items())
    return Group(Text("\nGo on:"), *(part for pair in pairs for part in pair))


def _apps(apps: Iterable[AppState], bar_width: int) -> Listing:
    rows = table("app", "now", *LABELS, "calls", "spent", numbers=["calls", "spent"])
    widths = (13, 8, *(bar_width + len(" 100 %") for _ in LABELS), 5, 7)
    for column, width in zip(rows.columns, widths, strict=True):
        column.least_width = width  # so that nothing moves when a word or a number grows
    for app in apps:
        rows.add_row(
            app.app_id,
            Text(app.label, "bold"),
            *(_quota(app, label, bar_width) for label in LABELS),
            f"{app.calls:,}",
            usd(app.total_usd_micros),
        )
    return rows


def _quota(app: AppState, label: str, bar_width: int) -> RenderableType:
    quota = app.quotas_usd_micros.get(label)
    if quota is None:
        return Text("-", "dim")
    pct = FULL_PCT * app.spent_usd_micros.get(label, 0) / quota
    style = "red" if pct >= FULL_PCT else "yellow" if pct >= TIGHT_PCT else "green"
    cell = Table.grid(padding=(0, 1))
    cell.add_row(pct_bar(pct, style, bar_width), Text(f"{pct:3.0f} %", style))
    return cell


def _line(event: Event) -> Text:
    mark, style = _MARKS.get(event.kind, ("·", "dim"))
    return Text.assemble(
        (f"{_local(event.at_ms):%H:%M} ", "dim"),
        (f"{mark} ", style),
        (f"{event.app_id:<14} ", "bold"),
        event.told,
    )


def _in_order(entry: tuple[tuple[str, str, str], object]) -> tuple[str, str, int]:
    app_id, day, label = entry[0]
    return day, app_id, LABELS.index(label)


def _local(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).astimezone(ZoneInfo(ZONE))
