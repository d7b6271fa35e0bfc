"""What people see: money, bars and tables, drawn the same way by every command.

Lines are not broken here: the terminal does that, and what is copied out of it is whole.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pricekeeper import showing
from pricekeeper.cli.terminal import INDENT, PIPE_WIDTH, harmless

usd: Final = showing.usd
usd_exact: Final = showing.usd_exact
BAR_WIDTH: Final = 24
FULL_PCT: Final = 100
PROGRAM: Final = "pricekeeper"

WINDOWS: Final = {"HOUR": "an hour", "DAY": "a day", "WEEK": "a week", "MONTH": "a month"}

STATUS_STYLES: Final[Mapping[str, str]] = {"NORMAL": "green", "TIGHT": "yellow", "EXCEEDED": "red"}


def plain(answer: Any) -> Any:
    """An answer as the JSON that commands draw and print."""
    import msgspec  # noqa: PLC0415  # --help needs none

    return msgspec.to_builtins(answer)


def pct_bar(pct: float, style: str, width: int = BAR_WIDTH) -> ProgressBar:
    """A bar that is full from 100 on."""
    return ProgressBar(
        total=FULL_PCT,
        completed=min(FULL_PCT, pct),
        width=width,
        complete_style=style,
        finished_style=style,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what is so, one a line."""

    pairs: Mapping[str, str | Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(map(len, self.pairs), default=0)
        for name, value in self.pairs.items():
            shown = Text(harmless(value)) if isinstance(value, str) else value
            yield Text.assemble((f"{name:<{width}}", "dim"), INDENT, shown)


class Section:
    """A heading and what is under it, a little indented."""

    def __init__(self, heading: Text, *parts: RenderableType) -> None:
        self._heading = heading
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._heading
        inner = options.update(width=max(1, options.max_width - len(INDENT)))
        for part in self._parts:
            # Not Rich's Padding: it cuts off whatever is too long for its width.
            for line in Segment.split_lines(console.render(part, inner)):
                yield from (Segment(INDENT), *line, Segment.line())


def done(what: str, after: str = "") -> Text:
    """One line about something that was done, and what to do next."""
    line = Text.assemble(("✓ ", "green"), what)
    if after:
        line.append(f"\n  {after}", "dim")
    return line


def moment(text: str | None) -> str:
    """An RFC 3339 time, for reading."""
    if not text:
        return "never"
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S UTC")


def minute(text: str) -> str:
    """An RFC 3339 time in a table."""
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


def frozen_since(frozen: Mapping[str, str]) -> Text:
    """Since when, whether with the whole organisation, and why; the reason is never markup."""
    whole = "its organisation, " if frozen["scope"] == "ORG" else ""
    return Text.assemble((f"{whole}since {minute(frozen['at'])}: ", "red"), frozen["reason"])


def rate_limits(limits: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Token buckets as the command line writes them."""
    return "  ".join(
        f"{label}:{name}={rate(limit)}"
        for label, named in limits.items()
        for name, limit in named.items()
    )


def budgets(listed: Sequence[Mapping[str, Any]]) -> str:
    """What may be spent in which window, and what else each of them says."""
    return "; ".join(f"{one['name']} {budget_terms(one, usd)}" for one in listed)


def budget_terms(budget: Mapping[str, Any], money: Callable[[int], str]) -> str:
    """What a budget says, but for its name."""
    window = WINDOWS.get(budget["window"], budget["window"])
    parts = [f"{money(budget['limit_usd_micros'])} {window}"]
    if budget["labels"]:
        parts.append(f"of {' + '.join(budget['labels'])}")
    if budget["per_tag"] is not None:
        parts.append(f"per {budget['per_tag']}")
    if budget["enforcement"] == "SOFT":
        parts.append("soft")
    if budget["alert_at_pct"]:
        parts.append(f"alerts at {' '.join(f'{pct}%' for pct in budget['alert_at_pct'])}")
    return ", ".join(parts)


def rate(limit: Mapping[str, int]) -> str:
    """A token bucket as the command line writes it."""
    period = f"{limit['refill_amount']}/{duration(limit['refill_period_ms'])}"
    if limit["capacity"] == limit["refill_amount"]:
        return period
    return f"{period}/{limit['capacity']}"


def duration(milliseconds: int) -> str:
    """In the largest unit that it is a whole number of."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def to_paste(command: str) -> Text:
    """A command to copy."""
    return Text(command, "bold")


def _program() -> str:
    """How this program was called, if a shell would not find it by its name."""
    called = sys.argv[0]
    if "/" not in called or Path(called).name != PROGRAM or shutil.which(PROGRAM) is not None:
        return PROGRAM
    return shlex.quote(called)


def claim_hint(retrieval: Mapping[str, Any] | None) -> list[RenderableType]:
    """How to get at the secret of a client that has a new one waiting."""
    if retrieval is None:
        return []
    until = moment(retrieval["expires_at"])
    return [
        Text(f"its secret can be claimed once, until {until}:", "dim"),
        # Through a pipe: command lines can be read by others, what a shell echoes can't.
        to_paste(f"echo {retrieval['token']} | {_program()} credentials claim -"),
    ]


@dataclass(slots=True)
class Column:
    """One column of a `Listing`."""

    heading: str
    is_number: bool
    wraps: bool
    """Whether its text may go over several lines, between words."""
    least_width: int = 0


@dataclass(slots=True)
class Listing:
    """A calm table: a line under the headings, numbers to the right.

    Where the terminal is narrow, the columns that wrap give way, down to their longest word. If
    that is not enough, bars are left out, which only repeat a number; and if that is not enough
    either, each cell gets a line of its own beside its heading.
    """

    columns: Sequence[Column]
    _rows: list[list[RenderableType] | None] = field(default_factory=list)

    def add_row(self, *cells: RenderableType) -> None:
        """Add a row. A string is text as it is, never markup."""
        self._rows.append([Text(harmless(one)) if isinstance(one, str) else one for one in cells])

    def add_section(self) -> None:
        """Draw a line between the rows before and after."""
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for listing in (self, self.without_bars()):
            widths = listing.fit(console, options)
            if widths is not None:
                yield listing.as_table(widths)
                return
        yield from self.without_bars().stack()

    def without_bars(self) -> Listing:
        """The same, of the columns that have text in them."""
        rows = [row for row in self._rows if row is not None]
        kept = [
            number
            for number in range(len(self.columns))
            if all(isinstance(row[number], Text) for row in rows)
        ]
        return Listing(
            [self.columns[number] for number in kept],
            [None if row is None else [row[number] for number in kept] for row in self._rows],
        )

    def fit(self, console: Console, options: ConsoleOptions) -> list[int] | None:
        """How wide each column is; ``None`` if they do not fit, though all give way."""
        whole = options.update(width=PIPE_WIDTH, no_wrap=False)
        ranges = [self._range(console, whole, number) for number in range(len(self.columns))]
        widths = [
            one.minimum if column.wraps else one.maximum
            for column, one in zip(self.columns, ranges, strict=True)
        ]
        needed = Measurement.get(console, whole, self.as_table(widths)).maximum
        spare = options.max_width - needed
        if spare < 0:
            return None
        for number, one in enumerate(ranges):
            more = min(spare, one.maximum - widths[number])
            widths[number] += more
            spare -= more
        return widths

    def _range(self, console: Console, options: ConsoleOptions, number: int) -> Measurement:
        column = self.columns[number]
        cells = [Text(column.heading), *(row[number] for row in self._rows if row is not None)]
        found = [Measurement.get(console, options, cell) for cell in cells]
        least = max(column.least_width, *(one.minimum for one in found))
        return Measurement(least, max(least, *(one.maximum for one in found)))

    def as_table(self, widths: Sequence[int]) -> Table:
        """Rich's table, each column as wide as it is told to be."""
        made = Table(
            box=box.SIMPLE_HEAD,
            header_style="bold",
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for column, width in zip(self.columns, widths, strict=True):
            made.add_column(
                Text(column.heading),
                justify="right" if column.is_number else "left",
                width=width,
                overflow="fold",
            )
        for row in self._rows:
            if row is None:
                made.add_section()
            else:
                made.add_row(*row)
        return made

    def stack(self) -> Iterator[Text]:
        """Each row as lines of a heading and a cell, and an empty line between the rows.

        A cell without a heading joins the line before it.
        """
        width = max(len(column.heading) for column in self.columns)
        for number, row in enumerate(row for row in self._rows if row is not None):
            if number:
                yield Text()
            line: Text | None = None
            for column, cell in zip(self.columns, row, strict=True):
                shown = cell if isinstance(cell, Text) else Text()
                if line is None or column.heading:
                    if line is not None:
                        yield line
                    line = Text.assemble((f"{column.heading:<{width}}", "dim"), INDENT, shown)
                else:
                    line = Text.assemble(line, INDENT, shown)
            if line is not None:
                yield line


def table(*columns: str, numbers: Iterable[str] = (), wraps: Iterable[str] = ()) -> Listing:
    """An empty `Listing` with these columns."""
    right, soft = set(numbers), set(wraps)
    return Listing([Column(harmless(one), one in right, one in soft) for one in columns])
