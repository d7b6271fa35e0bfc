"""``pricekeeper prices``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pricekeeper.cli import exits
from pricekeeper.cli.command import Output, store_command
from pricekeeper.cli.drawing import Section
from pricekeeper.cli.opening import open_local_services
from pricekeeper.cli.options import option
from pricekeeper.cli.tables import Listing, table
from pricekeeper.clock import SystemClock
from pricekeeper.days import date_of, org_day
from pricekeeper.errors import SettingsError
from pricekeeper.settings import PRICE_SOURCE, Settings, parse_price_location
from pricekeeper.showing import usd_exact
from pricekeeper.values import parse_model_label

if TYPE_CHECKING:  # they bring every feature with them
    from pricekeeper.pricing import CheckReport, PriceSource, RefreshReport
    from pricekeeper.pricing.reports import PriceChange

prices = typer.Typer(no_args_is_help=True, help="Prices of models. Works on the store.")

SourceOption = Annotated[
    str | None, option("--source", f"genai-prices, or aws:REGION[:FILE]; else ${PRICE_SOURCE}.")
]


@store_command(prices, "show")
async def show_prices(
    settings: Settings,
    *,
    day: Annotated[
        datetime | None, option("--day", "Else today, in UTC.", formats=["%Y-%m-%d"])
    ] = None,
) -> Output:
    """Show the prices in force, in dollars per million tokens, and their sources.

    [dim]pricekeeper prices show --day 2026-01-23[/dim]
    """
    from pricekeeper.pricing.prices import COMPONENTS  # noqa: PLC0415

    answer: list[dict[str, Any]] = []
    names = ["in", "out", "cache read", "write 5m", "write 1h"]
    rows = table("model", "model id", *names, "source", numbers=names, wraps=["model id"])
    async with open_local_services(settings) as services:
        today = date_of(org_day("UTC", services.clock.now_ms()))
        shown = today if day is None else day.date()
        for model in services.prices.catalogue:
            found = await services.prices.find_prices(model, shown)
            rates = [found.table.default.of(component) for component in COMPONENTS]
            known = zip(COMPONENTS, rates, strict=True)
            answer.append(
                {
                    "label": model.label,
                    "bedrock_model_id": model.bedrock_model_id,
                    **{one.price_field: price for one, price in known if price is not None},
                    "version": found.version,
                    "source": found.source,
                }
            )
            rows.add_row(model.label, model.bedrock_model_id, *map(_price, rates), found.source)
    heading = Text.assemble(("prices ", "bold"), f"{shown}  per million tokens")
    return Output({"day": shown.isoformat(), "models": answer}, Section(heading, rows))


@store_command(prices, "refresh")
async def refresh_prices(
    settings: Settings,
    *,
    source: SourceOption = None,
    accept: Annotated[
        list[str] | None, option("--accept LABEL", "Accept a suspicious price; repeatable.")
    ] = None,
) -> Output:
    """Store the source's prices for yesterday, today and tomorrow. Exit 1 if one is suspicious.

    [dim]pricekeeper prices refresh --source genai-prices[/dim]

    [dim]pricekeeper prices refresh --source aws:us-east-1 --accept premium[/dim]
    """
    labels = [parse_model_label(label, "--accept") for label in accept or ()]
    async with open_local_services(settings) as services:
        for label in labels:
            services.prices.catalogue.model(label)  # raises if it is misspelt
        report = await services.prices.refresh(_source(settings, source), accept_suspicious=labels)
    code = exits.FAILED if report.refused else exits.OK
    return Output(report, _refreshed(report), code)


@store_command(prices, "check")
async def check_prices(settings: Settings, *, source: SourceOption = None) -> Output:
    """Compare the deployment file with a source. Exit 1 if they differ. Nothing is written.

    Models that the source may price for another region are listed and not compared.

    [dim]pricekeeper prices check --source genai-prices[/dim]
    """
    from pricekeeper.pricing import load_catalogue  # noqa: PLC0415
    from pricekeeper.pricing.refresh import check  # noqa: PLC0415

    catalogue = load_catalogue(settings.config_path)
    report = await check(SystemClock(), catalogue, _source(settings, source))
    code = exits.FAILED if report.differing else exits.OK
    return Output(report, _checked(report), code)


def _source(settings: Settings, named: str | None) -> PriceSource:
    from pricekeeper.bootstrap import price_source  # noqa: PLC0415

    wanted = parse_price_location(named) if named else settings.price_source
    if wanted is None:
        raise SettingsError(PRICE_SOURCE, "is not set; add --source genai-prices, for example")
    return price_source(wanted)


def _refreshed(report: RefreshReport) -> RenderableType:
    parts: list[RenderableType] = []
    changed = {update.label: update for update in report.updated}
    if changed:
        rows = _changes_table("before", "now")
        for update in changed.values():
            _add_changes(rows, update.label, update.changes, "unchanged")
        parts.append(rows)
    if report.unchanged:
        parts.append(Text(f"up to date: {', '.join(report.unchanged)}"))
    if report.refused:
        rows = _changes_table("in force", "suspicious")
        for refusal in report.refused:
            _add_changes(rows, refusal.label, refusal.suspicious, "")
        labels = " ".join(f"--accept {refusal.label}" for refusal in report.refused)
        parts += [rows, Text(f"to accept them: pricekeeper prices refresh {labels}", "yellow")]
    heading = Text.assemble(("prices ", "bold"), f"from {report.source}")
    return Section(heading, *parts, *_passed_over(report))


def _checked(report: CheckReport) -> RenderableType:
    parts: list[RenderableType] = []
    if report.agreeing:
        parts.append(Text(f"equal to the source: {', '.join(report.agreeing)}", "green"))
    if report.differing:
        rows = _changes_table("file", "source")
        for difference in report.differing:
            _add_changes(rows, difference.label, difference.changes, "")
        parts.append(rows)
    heading = Text.assemble(("prices ", "bold"), f"against {report.source}")
    return Section(heading, *parts, *_passed_over(report))


def _changes_table(old: str, new: str) -> Listing:
    return table("model", "price", old, new, numbers=[old, new], wraps=["price"])


def _add_changes(rows: Listing, label: str, changes: Sequence[PriceChange], without: str) -> None:
    if not changes:
        rows.add_row(label, without, "", "")
    for change in changes:
        rows.add_row(label, change.price, _price(change.old), _price(change.new))


def _price(micros: int | None) -> str:
    return "-" if micros is None else usd_exact(micros)


def _passed_over(report: RefreshReport | CheckReport) -> Iterator[Text]:
    for unmatched in report.unmatched:
        yield Text(f"{unmatched.label}: {unmatched.reason}", "yellow")
    for one in report.left_alone:
        differing = ", ".join(
            f"{change.price} {_price(change.old)} (source: {_price(change.new)})"
            for change in one.differing
        )
        more = f"; the file differs in {differing}" if differing else ""
        yield Text(f"{one.label}: left alone: {one.reason}{more}", "dim")
