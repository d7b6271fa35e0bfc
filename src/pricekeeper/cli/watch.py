"""``pricekeeper watch``: an organisation's spend on a live screen, in its zone.

A frame costs one request, and two per app with quotas of its own and spend today.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Backend, client_of
from pricekeeper.cli.command import Json, Output, either_command, show
from pricekeeper.cli.drawing import FULL_PCT, STATUS_STYLES, pct_bar, plain, usd
from pricekeeper.cli.options import OrgArgument, option
from pricekeeper.cli.tables import Listing, table
from pricekeeper.cli.terminal import harmless, make_console
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import PriceKeeperError

if TYPE_CHECKING:
    from pricekeeper.client import Api


top = typer.Typer()

_DAY: Final = timedelta(days=1)
_WHOLE: Final = "all apps"


@either_command(top, "watch")
async def watch(
    backend: Backend,
    org: OrgArgument,
    *,
    every_secs: Annotated[int, option("--every", "Seconds between frames.", min=1, max=3_600)] = 2,
    once: Annotated[bool, option("--once", "Print one frame and exit.")] = False,
    as_json: Json = False,
) -> Output:
    """Watch the spend, quotas, models and limits of an organisation until ctrl-c.

    [dim]pricekeeper watch $ORG[/dim]

    [dim]pricekeeper watch $ORG --once --json[/dim]
    """
    console = make_console()
    on_screen = console.is_terminal and not once and not as_json
    if on_screen:
        make_room(console)
    shown = frames(backend, org, SystemClock(), every_secs * 1000)
    output = await anext(shown)
    while not once:
        if on_screen:
            draw_over(console, output.picture)
        else:
            show(output, as_json=as_json)
        output = await anext(shown)
    return output


async def frames(backend: Backend, org: str, clock: Clock, every_ms: int) -> AsyncIterator[Output]:
    """Yield the organisation's state forever; after the first frame, errors are events."""
    keeper, events = backend.reader(client_of(org, None)), list[Event]()
    answer = await _read(keeper)
    while True:
        now = _local(clock, answer)
        yield Output(answer, _frame(answer, now, events[-EVENTS_SHOWN:]))
        await clock.sleep_ms(every_ms)
        try:
            before, answer = answer, await _read(keeper)
        except PriceKeeperError as error:
            if exits.exit_code(error) != exits.UNAVAILABLE:
                raise
            events.append(Event(_local(clock, answer), error.code, "denied", str(error)))
        else:
            events += changes(before, answer, _local(clock, answer))
        del events[:-EVENTS_SHOWN]


async def _read(keeper: Api) -> dict[str, Any]:
    day, apps = plain(await keeper.usage(waits_for_limit=True)), {}
    for app_id in sorted(day.get("apps", ())):
        app = await exits.unless_missing(_read_app(keeper.of_app(app_id)))
        if app is not None:  # it may have been deleted after it spent
            apps[app_id] = app
    return {**day, "apps": apps}


async def _read_app(keeper: Api) -> dict[str, Any]:
    day = plain(await keeper.usage(waits_for_limit=True))
    return {**day, "limits": plain(await keeper.limits())["resources"]}


def changes(before: Mapping[str, Any], after: Mapping[str, Any], now: datetime) -> Iterator[Event]:
    """Yield the differences of two answers."""
    if before["date"] != after["date"]:
        yield Event(now, "midnight", "midnight", "quotas reset")
    earlier = dict(_clients(before))
    for who, day in _clients(after):
        old, new = earlier.get(who, day)["current_active_model"], day["current_active_model"]
        if old != new:
            yield Event(now, who, "flip", f"{old or 'none'} → {new or 'none left today'}")


def _clients(answer: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The apps, or the organisation if they share its quotas."""
    return list(answer["apps"].items()) if answer["quota_scope"] == "APP" else [(_WHOLE, answer)]


def _frame(answer: Mapping[str, Any], now: datetime, events: Sequence[Event]) -> Frame:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return Frame(
        title=answer["org_id"],
        now=now,
        day_pct=FULL_PCT * ((now - midnight) / _DAY),
        spent_usd_micros=answer["total_cost_usd_micros"],
        rows=[_row(who, day) for who, day in _clients(answer)],
        events=events,
    )


def _row(who: str, day: Mapping[str, Any]) -> ScreenRow:
    models = day["models"]
    left = [
        (limit["remaining"] / limit["capacity"], label, name, limit)
        for label, named in day.get("limits", {}).items()
        for name, limit in named.items()
    ]
    limits = ""
    if left:
        _, label, name, limit = min(left, key=lambda one: one[:3])
        limits = f"{label}:{name} {limit['remaining']:,} of {limit['capacity']:,}"
    return ScreenRow(
        who,
        day["current_active_model"] or "none",
        {
            label: (model["quota_pct"], STATUS_STYLES[model["quota_status"]])
            for label, model in models.items()
        },
        sum(model["requests"] for model in models.values()),
        day["total_cost_usd_micros"],
        limits,
    )


def _local(clock: Clock, answer: Mapping[str, Any]) -> datetime:
    """In the organisation's time; UTC if its zone is unknown."""
    try:
        zone: tzinfo = ZoneInfo(answer["timezone"])
    except (OSError, ValueError, ZoneInfoNotFoundError):
        zone = UTC
    return datetime.fromtimestamp(clock.now_ms() / 1000, zone)


PANEL_WIDTH: Final = 80
WIDE: Final = 100
EVENTS_SHOWN: Final = 8
_BAR_WIDTHS: Final = (5, 10)
"""Narrower than `WIDE`, and wider."""
_FRAME: Final = 6
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
    """A line of news."""

    at: datetime
    who: str
    kind: str
    text: str

    def line(self) -> Text:
        mark, style = _MARKS.get(self.kind, ("·", "dim"))
        who = harmless(f"{self.who:<14} ")
        return Text.assemble(
            (f"{self.at:%H:%M} ", "dim"), (f"{mark} ", style), (who, "bold"), harmless(self.text)
        )


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """An app, or an organisation with shared quotas."""

    who: str
    label: str
    quotas: Mapping[str, tuple[float, str]]
    """Percentage and style, by label."""
    calls: int
    spent_usd_micros: int
    limits: str = ""
    """The one with the least left."""


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
            column.least_width = width  # columns don't move when a number grows
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
    """Scroll earlier output away, so it is not overwritten."""
    console.line(console.height)


def draw_over(console: Console, frame: RenderableType) -> None:
    """Print the frame over the one before."""
    with console.capture() as drawn:
        console.print(frame, soft_wrap=True)
    console.file.write(_HOME + drawn.get().replace("\n", _LINE_END) + _REST_END)
    console.file.flush()
