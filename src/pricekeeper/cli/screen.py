"""The screen of a company that spends: who uses which model, how much of its quotas, and the news.

``watch`` shows it of a real organisation and the demo of its own. Nothing in it is ever cut: what
is too wide for a terminal is told in lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pricekeeper.cli.drawing import pct_bar, usd
from pricekeeper.cli.listing import Listing, table
from pricekeeper.cli.terminal import harmless

PANEL_WIDTH: Final = 80
WIDE: Final = 100
EVENTS_SHOWN: Final = 8
_BAR_WIDTHS: Final = (5, 10)
"""In a terminal of less than `WIDE`, and in one of more."""
_FRAME: Final = 6
"""What the frame takes of a title's line."""
_MARKS: Final = {
    "flip": ("↓", "yellow"),
    "denied": ("✗", "red"),
    "granted": ("✓", "green"),
    "evicted": ("⇥", "magenta"),
    "duplicate": ("=", "cyan"),
    "midnight": ("☾", "blue"),
}
_HOME, _LINE_END, _REST_END = "\x1b[H", "\x1b[K\n", "\x1b[J"


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling."""

    at: datetime
    who: str
    kind: str
    text: str

    def line(self) -> Text:
        """It, on one line."""
        mark, style = _MARKS.get(self.kind, ("·", "dim"))
        who = harmless(f"{self.who:<14} ")
        return Text.assemble(
            (f"{self.at:%H:%M} ", "dim"), (f"{mark} ", style), (who, "bold"), harmless(self.text)
        )


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """One app, or an organisation whose apps share the quotas."""

    who: str
    label: str
    """The model in use now."""
    quotas: Mapping[str, tuple[float, str]]
    """By label: how much of it is spent, in percent, and the style of that."""
    calls: int
    spent_usd_micros: int
    limits: str = ""
    """The rate limit that has the least left."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The screen at one moment."""

    title: str
    now: datetime
    day_pct: float
    spent_usd_micros: int
    rows: Sequence[ScreenRow]
    events: Sequence[Event] = ()

    @property
    def heading(self) -> Text:
        """The whole day on one line."""
        calls = sum(row.calls for row in self.rows)
        spent = usd(self.spent_usd_micros)
        return Text.assemble(
            (f"{self.now:%H:%M %Z}", "bold"), f"  {calls:,} calls  ", (spent, "bold")
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = Text.assemble((harmless(self.title), "bold"), f"  {self.now:%A %d %B %Y}")
        if console.is_terminal and console.width >= max(PANEL_WIDTH, title.cell_len + _FRAME):
            inside = Table.grid(padding=(0, 3))
            inside.add_row(pct_bar(self.day_pct, "cyan"), self.heading)
            yield Panel(inside, title=title, title_align="left", box=box.ROUNDED, style="dim")
        else:
            yield title
            yield self.heading
        yield self._apps(_BAR_WIDTHS[console.width >= WIDE])
        yield from (event.line() for event in self.events[-EVENTS_SHOWN:])

    def _apps(self, bar_width: int) -> Listing:
        labels = list(dict.fromkeys(label for row in self.rows for label in row.quotas))
        limits = ["limits"] if any(row.limits for row in self.rows) else []
        quotas = [heading for label in labels for heading in (label, "")]
        rows = table(
            "app", "now", *quotas, "calls", "spent", *limits, numbers=[*labels, "calls", "spent"]
        )
        widths = (13, 8, *((len("100 %"), bar_width) * len(labels)), 5, 7)
        for column, width in zip(rows.columns, widths, strict=False):
            column.least_width = width  # so that nothing moves when a word or a number grows
        for row in self.rows:
            uses = (_use(row.quotas.get(label), bar_width) for label in labels)
            rows.add_row(
                row.who,
                Text(harmless(row.label), "bold"),
                *(cell for use in uses for cell in use),
                f"{row.calls:,}",
                usd(row.spent_usd_micros),
                *(row.limits for _ in limits),
            )
        return rows


def _use(use: tuple[float, str] | None, bar_width: int) -> tuple[RenderableType, RenderableType]:
    if use is None:
        return Text("-", "dim"), Text()
    pct, style = use
    return Text(f"{pct:.0f} %", style), pct_bar(pct, style, bar_width)


def make_room(console: Console) -> None:
    """Scroll away what is on the terminal, so that nothing is drawn over that is not ours."""
    console.line(console.height)


def draw_over(console: Console, frame: RenderableType) -> None:
    """Print the frame in a terminal, over the one before."""
    with console.capture() as drawn:
        console.print(frame, soft_wrap=True)
    console.file.write(_HOME + drawn.get().replace("\n", _LINE_END) + _REST_END)
    console.file.flush()
