"""``pricekeeper watch``: an organisation at work, on one screen that is kept up to date.

Each frame is one request for the organisation, and two for each app that has quotas of its own and
has spent something today. What changes from one frame to the next is told below.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from pricekeeper.cli import exits
from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import OrgArgument, client_of
from pricekeeper.cli.command import Json, Output, either_command, show
from pricekeeper.cli.drawing import FULL_PCT, STATUS_STYLES
from pricekeeper.cli.options import option
from pricekeeper.cli.screen import EVENTS_SHOWN, Event, Frame, ScreenRow, draw_over, make_room
from pricekeeper.cli.terminal import make_console
from pricekeeper.clock import Clock, SystemClock
from pricekeeper.errors import PriceKeeperError

if TYPE_CHECKING:
    from pricekeeper.cli.backends import AnyKeeper

top = typer.Typer()

_DAY: Final = timedelta(days=1)
_WHOLE: Final = "all apps"


@either_command(top, "watch")
async def watch(
    backend: Backend,
    org: OrgArgument,
    *,
    every_secs: Annotated[
        int, option("--every", "Seconds from one frame to the next.", min=1, max=3_600)
    ] = 2,
    once: Annotated[bool, option("--once", "Print one frame, and end.")] = False,
    as_json: Json = False,
) -> Output:
    """Watch an organisation at work: spend, quotas, models and limits, until ctrl-c.

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
    """The organisation now, and again and again.

    Once there is something to show, a service or a store that can't answer for a while is news.
    """
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


async def _read(keeper: AnyKeeper) -> dict[str, Any]:
    """The organisation's day; in ``apps`` those of its apps, each with its limits."""
    day, apps = await keeper.usage(waits_for_limit=True), {}
    for app_id in sorted(day.get("apps", ())):
        app = await exits.unless_missing(_read_app(keeper.of_app(app_id)))
        if app is not None:  # else it has spent, and was deleted
            apps[app_id] = app
    return {**day, "apps": apps}


async def _read_app(keeper: AnyKeeper) -> dict[str, Any]:
    day = await keeper.usage(waits_for_limit=True)
    return {**day, "limits": (await keeper.limits())["resources"]}


def changes(before: Mapping[str, Any], after: Mapping[str, Any], now: datetime) -> Iterator[Event]:
    """What happened from one answer to the next."""
    if before["date"] != after["date"]:
        yield Event(now, "midnight", "midnight", "the quotas start anew")
    earlier = dict(_clients(before))
    for who, day in _clients(after):
        old, new = earlier.get(who, day)["current_active_model"], day["current_active_model"]
        if old != new:
            yield Event(now, who, "flip", f"{old or 'none'} → {new or 'no model is left today'}")


def _clients(answer: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Whoever has quotas: the apps, or the organisation if they share its own."""
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
    """The organisation's time; UTC, if this machine does not know its zone."""
    try:
        zone: tzinfo = ZoneInfo(answer["timezone"])
    except (OSError, ValueError, ZoneInfoNotFoundError):
        zone = UTC
    return datetime.fromtimestamp(clock.now_ms() / 1000, zone)
