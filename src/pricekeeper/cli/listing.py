"""Tables that lose nothing, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pricekeeper.cli.terminal import INDENT, PIPE_WIDTH, harmless


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
