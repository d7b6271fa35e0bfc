"""What people see: money, bars and tables, drawn the same way by every command.

Lines are not broken here: the terminal does that, and what is copied out of it is whole.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from pricekeeper import showing
from pricekeeper.cli.terminal import INDENT, harmless

usd: Final = showing.usd
usd_exact: Final = showing.usd_exact
BAR_WIDTH: Final = 24
FULL_PCT: Final = 100
PROGRAM: Final = "pricekeeper"

WINDOWS: Final = {"HOUR": "an hour", "DAY": "a day", "WEEK": "a week", "MONTH": "a month"}

STATUS_STYLES: Final[Mapping[str, str]] = {"NORMAL": "green", "TIGHT": "yellow", "EXCEEDED": "red"}


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
