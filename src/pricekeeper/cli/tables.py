"""Tables that fit their terminal, and are the same in every command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pricekeeper.cli.drawing import minute, usd
from pricekeeper.cli.terminal import INDENT, PIPE_WIDTH, harmless


@dataclass(slots=True)
class Column:
    """One column of a `Listing`."""

    heading: str
    cell: str | Callable[[Any], RenderableType] = ""
    """A field of the entry, or what draws it."""
    is_number: bool = False
    wraps: bool = False
    """Whether its text may wrap between words."""
    least_width: int = 0

    def draw(self, entry: Any) -> RenderableType:
        found = entry[self.cell] if isinstance(self.cell, str) else self.cell(entry)
        return f"{found:,}" if isinstance(found, int) else found


@dataclass(slots=True)
class Listing:
    """A table that fits its terminal without losing text.

    Narrow terminals shrink wrapping columns, then drop bars, then give each cell a line.
    """

    columns: Sequence[Column]
    _rows: list[list[RenderableType] | None] = field(default_factory=list)

    def add_row(self, *cells: RenderableType) -> None:
        """A string is never read as markup."""
        self._rows.append([Text(harmless(one)) if isinstance(one, str) else one for one in cells])

    def add_section(self) -> None:
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for listing in (self, self.without_bars()):
            widths = listing.fit(console, options)
            if widths is not None:
                yield listing.as_table(widths)
                return
        yield from self.without_bars().stack()

    def without_bars(self) -> Listing:
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
        """The column widths; ``None`` if they do not fit."""
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
        """Draw each cell on its own line; one without a heading joins the line before."""
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
    """Make an empty `Listing`."""
    right, soft = set(numbers), set(wraps)
    return Listing(
        [Column(harmless(one), is_number=one in right, wraps=one in soft) for one in columns]
    )


def listing(entries: Iterable[Any], *columns: Column) -> Listing:
    """Make a `Listing` with a row for each entry."""
    made = Listing(columns)
    for entry in entries:
        made.add_row(*(column.draw(entry) for column in columns))
    return made


def number(heading: str, cell: str | Callable[[Any], RenderableType]) -> Column:
    """A column on the right."""
    return Column(heading, cell, is_number=True)


def dollars(heading: str, field: str) -> Column:
    """A column of micro-dollars."""
    return number(heading, lambda entry: usd(entry[field]))


def minutes(heading: str, field: str) -> Column:
    """A column of times, whose heading says UTC; ``never`` where there is none."""
    return Column(f"{heading} (UTC)", lambda entry: minute(entry.get(field)))
