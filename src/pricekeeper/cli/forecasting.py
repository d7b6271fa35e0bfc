"""``forecast``: where budgets will end, and when they will be spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer
from rich.text import Text

from pricekeeper.cli.backends import Backend
from pricekeeper.cli.clients import OptionalApp, OrgArgument, client_of
from pricekeeper.cli.command import Output, either_command
from pricekeeper.cli.drawing import STATUS_STYLES, Section, minute, usd
from pricekeeper.cli.listing import table

top = typer.Typer()

UNKNOWN: Final = "?"
_METHODS: Final = {
    "PROFILE": "weekdays and hours",
    "STRAIGHT_LINE": "straight line",
    "NONE": "too early to say",
}


@either_command(top, "forecast")
async def show_forecast(backend: Backend, org: OrgArgument, app: OptionalApp = None) -> Output:
    """Show where every budget of an organisation or app will end, and when it will be spent.

    Four times of five a window ends between the two bounds. They are made from what was spent on
    earlier weekdays and hours; with less than two days of those there is a straight line alone.

    [dim]pricekeeper forecast $ORG chat[/dim]
    """
    answer = await backend.reader(client_of(org, app)).forecast()
    rows = table(
        "what", "of", "a", "spent", "expected", "between", "limit", "spent at (UTC)", "from",
        numbers=["spent", "expected", "between", "limit"], wraps=["what", "from"],
    )  # fmt: skip
    for one in answer["forecasts"]:
        expected = one["expected_usd_micros"]
        rows.add_row(
            _name(one),
            "org" if one["scope"] == "ORG" else "app",
            one["window"].lower(),
            usd(one["spent_usd_micros"]),
            Text(UNKNOWN if expected is None else usd(expected), _style(one), justify="right"),
            _between(one),
            usd(one["limit_usd_micros"]) if "limit_usd_micros" in one else "",
            minute(one["spent_at"]) if "spent_at" in one else "",
            _METHODS[one["method"]],
        )
    return Output(answer, Section(Text(app or org, "bold"), rows))


def _name(one: Mapping[str, Any]) -> str:
    tags = "".join(f" {name}:{value}" for name, value in one.get("tag", {}).items())
    return f"{one.get('name', 'everything')}{tags}"


def _between(one: Mapping[str, Any]) -> str:
    low, high = one["low_usd_micros"], one["high_usd_micros"]
    return "" if low is None or high is None else f"{usd(low)} .. {usd(high)}"


def _style(one: Mapping[str, Any]) -> str:
    """Red where the limit will be spent, yellow where it may be."""
    if "spent_at" in one:
        return STATUS_STYLES["EXCEEDED"]
    return STATUS_STYLES["TIGHT" if "spent_at_earliest" in one else "NORMAL"]
