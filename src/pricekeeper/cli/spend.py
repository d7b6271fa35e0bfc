"""``spend``, ``usage list``, ``usage void`` and ``forecast``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli.backends import Backend, client_of
from pricekeeper.cli.command import Output, backend_command, either_command
from pricekeeper.cli.drawing import (
    FULL_PCT,
    STATUS_STYLES,
    Section,
    as_of,
    done,
    minute,
    moment,
    more_after,
    pct_bar,
    plain,
    tag_words,
    usd,
)
from pricekeeper.cli.operation_command import Reply, operation_command
from pricekeeper.cli.options import OptionalApp, OrgArgument, option
from pricekeeper.cli.tables import Column, dollars, listing, number, table
from pricekeeper.cli.terminal import harmless
from pricekeeper.cli.usage import usage
from pricekeeper.wire import operations as ops

top = typer.Typer()

PAGES_MAX: Final = 100
"""Empty pages that are skipped."""
_END_HELP: Final = "2026-01-23, or a full hour such as 2026-01-23T15:00:00Z"


@backend_command(top, "spend")
async def show_spend(
    backend: Backend,
    *,
    first: Annotated[str, option("--from WHEN", f"The first day: {_END_HELP}.")],
    last: Annotated[
        str | None, option("--to WHEN", "The last day, or an hour. Default: the first.")
    ] = None,
    group_by: Annotated[
        str, option("--group-by NAMES", "Any of org,app,label,day,hour and one tag:KEY.")
    ] = "org",
    csv: Annotated[bool, option("--csv", "Print the rows as CSV.")] = False,
) -> Output:
    """Show spend by organisation, app, model, day, hour or the value of a tag.

    [dim]pricekeeper spend --from 2026-01-01 --to 2026-01-31 --group-by org,label[/dim]

    [dim]pricekeeper spend --from 2026-01-23 --group-by app,tag:team --csv > spend.csv[/dim]
    """
    answer = plain(await backend.admin.spend(first, last or first, group_by))
    names = group_by.split(",") if group_by else []
    if csv:
        return Output(answer, _csv(answer, names))
    return Output(answer, _spend(answer, names, f"{first} to {last or first}"))


@either_command(usage, "list")
async def list_usage(
    backend: Backend,
    org: OrgArgument,
    app: OptionalApp = None,
    *,
    first: Annotated[str | None, option("--from WHEN", f"The first day: {_END_HELP}.")] = None,
    last: Annotated[str | None, option("--to WHEN", "The last day; or an hour.")] = None,
    label: Annotated[str | None, option("--label", "With this model label.")] = None,
    tag: Annotated[
        str | None, option("--tag KEY:VALUE", "With this tag; 'KEY:' matches records without it.")
    ] = None,
    after: Annotated[str | None, option("--after NEXT", "The page after this one.")] = None,
) -> Output:
    """List usage records, newest first, up to a hundred.

    [dim]pricekeeper usage list $ORG[/dim]

    [dim]pricekeeper usage list $ORG chat --from 2026-01-23 --tag team:red --json[/dim]
    """
    keeper = backend.reader(client_of(org, app))
    for _ in range(PAGES_MAX):
        answer = plain(
            await keeper.usage_records(first=first, last=last, label=label, tag=tag, after=after)
        )
        after = answer.get("next")
        if answer["records"] or after is None:
            break
    return Output(answer, _records(answer))


@operation_command(usage, "void", ops.VOID_USAGE)
def void_usage(reply: Reply) -> RenderableType:
    """Remove a usage record from totals and budgets by a correction. Both stay visible.

    It works until the day of the record is final. Repeating it changes nothing.

    [dim]pricekeeper usage void $ORG 01928f7c-12ab-7c3d-8e4f-0123456789ab --reason "a test"[/dim]
    """
    after = f"correction: {reply['correction_id']}"
    return done(f"{reply['request_id']} is voided", after)


def _spend(answer: Mapping[str, Any], names: list[str], span: str) -> RenderableType:
    whole = answer["total"]
    numbers = ["spent", "calls", "errors", "tokens in", "out"]
    rows = table(*names, "spent", "", *numbers[1:], numbers=numbers)
    most = max(1, *(row["cost_usd_micros"] for row in answer["rows"]), 1)
    for row in answer["rows"]:
        rows.add_row(
            *(row[name] or "-" for name in names),
            usd(row["cost_usd_micros"]),
            pct_bar(FULL_PCT * row["cost_usd_micros"] / most, "cyan"),
            *_counts(row),
        )
    if names:
        rows.add_section()
        ends = ["in all", *[""] * (len(names) - 1)]
        rows.add_row(*ends, usd(whole["cost_usd_micros"]), "", *_counts(whole))
    age = Text(as_of(answer["as_of"]), "dim")
    return Section(Text.assemble(("spend", "bold"), f"  {span}"), rows, age)


def _counts(row: Mapping[str, Any]) -> list[str]:
    names = ("requests", "errors", "input_tokens", "output_tokens")
    return [f"{row[name]:,}" for name in names]


def _csv(answer: Mapping[str, Any], names: list[str]) -> Text:
    from pricekeeper.usecases.csv_text import csv_text  # noqa: PLC0415  # --help needs none

    shown = [
        {name: harmless(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in answer["rows"]
    ]
    text = csv_text([*names, *answer["total"]], shown)
    return Text(text.replace("\r\n", "\n").removesuffix("\n"))


def _state(record: Mapping[str, Any]) -> Text:
    voiding = "voided" if "voided_at" in record else "correction" if "voids" in record else ""
    failed = "" if record["status"] == "OK" else record["status"]
    return Text(" ").join(Text(*one) for one in ((failed, "red"), (voiding, "yellow")) if one[0])


def _records(answer: Mapping[str, Any]) -> RenderableType:
    rows = listing(
        answer["records"],
        Column("recorded", lambda one: moment(one["recorded_at"])),
        Column("app", lambda one: one["app_id"] or "-"),
        Column("model", "model_label"),
        dollars("spent", "cost_usd_micros"),
        number("tokens in", "input_tokens"),
        number("out", "output_tokens"),
        Column("", _state),
        Column("tags", lambda one: tag_words(one["tags"]), wraps=True),
        Column("request", "request_id"),
    )
    shown = rows if answer["records"] else Text("no records")
    return Section(Text("usage records", "bold"), shown, *more_after(answer))


UNKNOWN: Final = "?"
_METHODS: Final = {
    "PROFILE": "weekdays and hours",
    "STRAIGHT_LINE": "straight line",
    "NONE": "too early to say",
}


@operation_command(top, "forecast", ops.GET_FORECAST)
def show_forecast(reply: Reply) -> RenderableType:
    """Forecast the end of each budget's window, and when a budget will be exhausted.

    Four windows of five end between the two bounds. They come from the spend of earlier weekdays
    and hours; with less than two days of data the forecast is a straight line.

    [dim]pricekeeper forecast $ORG chat[/dim]
    """
    rows = listing(
        reply["forecasts"],
        Column("what", _forecast_name, wraps=True),
        Column("of", lambda one: one["scope"].lower()),
        Column("a", lambda one: one["window"].lower()),
        dollars("spent", "spent_usd_micros"),
        number("expected", _expected),
        number("between", _between),
        number(
            "limit", lambda one: usd(one["limit_usd_micros"]) if "limit_usd_micros" in one else ""
        ),
        Column("exhausted (UTC)", lambda one: minute(one["spent_at"]) if "spent_at" in one else ""),
        Column("method", lambda one: _METHODS[one["method"]], wraps=True),
    )
    return Section(Text(reply.name, "bold"), rows)


def _expected(one: Mapping[str, Any]) -> Text:
    expected = one["expected_usd_micros"]
    return Text(UNKNOWN if expected is None else usd(expected), _style(one), justify="right")


def _forecast_name(one: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (one.get("name", "everything"), tag_words(one.get("tag", {})))))


def _between(one: Mapping[str, Any]) -> str:
    low, high = one["low_usd_micros"], one["high_usd_micros"]
    return "" if low is None or high is None else f"{usd(low)} .. {usd(high)}"


def _style(one: Mapping[str, Any]) -> str:
    """Red if the limit will be reached, yellow if perhaps."""
    if "spent_at" in one:
        return STATUS_STYLES["EXCEEDED"]
    return STATUS_STYLES["TIGHT" if "spent_at_earliest" in one else "NORMAL"]
