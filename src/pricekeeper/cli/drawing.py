"""What people see: money, bars and tables, drawn the same way by every command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

MICROS_PER_CENT: Final = 10_000
MICROS_PER_USD: Final = 1_000_000
BAR_WIDTH: Final = 24
FULL_PCT: Final = 100

STATUS_STYLES: Final[Mapping[str, str]] = {
    "NORMAL": "green",
    "TIGHT": "yellow",
    "EXCEEDED": "red",
}


def usd(micros: int) -> str:
    """Dollars and cents; all six decimals for what is less than a cent."""
    decimals = 6 if 0 < micros < MICROS_PER_CENT else 2
    scale = 10 ** (6 - decimals)
    whole, rest = divmod(micros // scale, 10**decimals)
    return f"${whole:,}.{rest:0{decimals}}"


def pct_bar(pct: float, style: str, width: int = BAR_WIDTH) -> ProgressBar:
    """A bar that is full from 100 on."""
    return ProgressBar(
        total=FULL_PCT,
        completed=min(FULL_PCT, pct),
        width=width,
        complete_style=style,
        finished_style=style,
    )


def table(*columns: str, numbers: Iterable[str] = (), wraps: Iterable[str] = ()) -> Table:
    """A calm table: a line under the heading, numbers to the right.

    Where the terminal is narrow, only what ``wraps`` gives way.
    """
    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    right, soft = set(numbers), set(wraps)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in soft,
            overflow="fold",
        )
    return made


def facts(pairs: Mapping[str, RenderableType]) -> Table:
    """Names and what is so, one a line."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        made.add_row(name, value)
    return made


def page(heading: RenderableType, *parts: RenderableType) -> Group:
    """A heading and what is under it, a little indented."""
    return Group(heading, *(Padding(part, (0, 0, 0, 2), expand=False) for part in parts))


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
        f"{label}:{name}={_rate(limit)}"
        for label, named in limits.items()
        for name, limit in named.items()
    )


def _rate(limit: Mapping[str, int]) -> str:
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
    """A command that is never broken over lines."""
    return Text(command, "bold", no_wrap=True, overflow="ignore")


def claim_hint(retrieval: Mapping[str, Any] | None) -> list[RenderableType]:
    """How to get at the secret of a client that has a new one waiting."""
    if retrieval is None:
        return []
    until = moment(retrieval["expires_at"])
    return [
        Text(f"its secret can be claimed once, until {until}:", "dim"),
        to_paste(f"pricekeeper credentials claim {retrieval['token']}"),
    ]
