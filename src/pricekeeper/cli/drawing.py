"""Money, moments, bars and facts, formatted the same way by every command."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from pricekeeper import showing
from pricekeeper.cli.terminal import INDENT, harmless

usd: Final = showing.usd
BAR_WIDTH: Final = 24
FULL_PCT: Final = 100
PROGRAM: Final = "pricekeeper"

STATUS_STYLES: Final[Mapping[str, str]] = {"NORMAL": "green", "TIGHT": "yellow", "EXCEEDED": "red"}


def plain(answer: Any) -> Any:
    """An answer as the printed JSON."""
    return msgspec.to_builtins(answer)


def pct_bar(pct: float, style: str, width: int = BAR_WIDTH) -> ProgressBar:
    """Draw a bar that is full from 100 % on."""
    return ProgressBar(
        total=FULL_PCT,
        completed=min(FULL_PCT, pct),
        width=width,
        complete_style=style,
        finished_style=style,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a name and a value, one a line."""

    pairs: Mapping[str, str | Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(map(len, self.pairs), default=0)
        for name, value in self.pairs.items():
            shown = Text(harmless(value)) if isinstance(value, str) else value
            yield Text.assemble((f"{name:<{width}}", "dim"), INDENT, shown)


class Section:
    """A heading with indented parts."""

    def __init__(self, heading: Text, *parts: RenderableType) -> None:
        self._heading = heading
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._heading
        inner = options.update(width=max(1, options.max_width - len(INDENT)))
        for part in self._parts:
            # Not Rich's Padding, which cuts long lines.
            for line in Segment.split_lines(console.render(part, inner)):
                yield from (Segment(INDENT), *line, Segment.line())


def done(what: str, after: str = "") -> Text:
    """Confirm an action, and name the next step."""
    line = Text.assemble(("✓ ", "green"), what)
    if after:
        line.append(f"\n  {after}", "dim")
    return line


def moment(text: str) -> str:
    """An RFC 3339 time in UTC: ``2026-01-23 15:30:45 UTC``."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def minute(text: str | None) -> str:
    """A time for a UTC column; ``never`` if there is none."""
    return "never" if text is None else moment(text)[:16]


def as_of(text: str | None) -> str:
    """The age of counted numbers, without calls in flight."""
    return f"as of {moment(text)}" if text else "nothing was counted yet"


def percent(pct: float) -> str:
    """A used percentage, rounded up."""
    return f"{math.ceil(round(pct * 10, 6)) / 10:.1f} %"


def used_pct(budget: Mapping[str, Any]) -> float:
    """Spent, held and unsettled, in percent."""
    limit = budget["limit_usd_micros"]
    used = limit - budget["remaining_usd_micros"]
    return FULL_PCT * used / limit if limit else float(FULL_PCT)


def tag_words(tags: Mapping[str, str]) -> str:
    """Tags as on the command line: ``team:red  feature:search``."""
    return "  ".join(f"{name}:{value}" for name, value in tags.items())


def more_after(answer: Mapping[str, Any]) -> list[Text]:
    """How to read the next page, if any."""
    return [Text(f"more: --after {answer['next']}", "dim")] if answer.get("next") else []


def frozen_since(frozen: Mapping[str, str] | None) -> Text:
    """A freeze's scope, start and reason."""
    if frozen is None:
        return Text()
    whole = "its organisation, " if frozen["scope"] == "ORG" else ""
    return Text.assemble((f"{whole}since {moment(frozen['at'])}: ", "red"), frozen["reason"])


def to_paste(command: str) -> Text:
    """A command to copy."""
    return Text(command, "bold")


def shown_once(variables: Mapping[str, str], *ends: tuple[str, str | None]) -> list[RenderableType]:
    """Secrets to paste, and the ends of those that have one."""
    until = (Text(f"{what} until {moment(end)}", "dim") for what, end in ends if end is not None)
    pasted = (to_paste(f"export {name}={value}") for name, value in variables.items())
    return [Text("shown only once:", "dim"), *pasted, *until]


def _program() -> str:
    """The program's name, or its path outside ``$PATH``."""
    called = sys.argv[0]
    if "/" not in called or Path(called).name != PROGRAM or shutil.which(PROGRAM) is not None:
        return PROGRAM
    return shlex.quote(called)


def claim_hint(retrieval: Mapping[str, Any] | None) -> list[RenderableType]:
    """How to claim a new secret, if there is one."""
    if retrieval is None:
        return []
    until = moment(retrieval["expires_at"])
    return [
        Text(f"to get its secret, once, until {until}:", "dim"),
        # Through a pipe, because other users can read command lines.
        to_paste(f"echo {retrieval['token']} | {_program()} credentials claim -"),
    ]
