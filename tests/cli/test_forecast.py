"""``forecast``: where budgets will end, on the store and at a service."""

import pytest

from cli.conftest import ORG, ORG_FLAGS, Cli
from pricekeeper.cli.spend import _between, _style


def test_every_budget_and_all_of_the_day_and_month(anywhere: Cli) -> None:
    """Without spend, figures and picture say what is unknown."""
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=MONTH:200")
    anywhere.ok("app", "put", ORG, "chat", "--name", "Chat", "--budget", "hour=HOUR:1")
    answer = anywhere.ok("forecast", ORG, "chat")
    kinds = [(one.get("name", one["kind"]), one["window"]) for one in answer["forecasts"]]
    assert kinds == [("monthly", "MONTH"), ("hour", "HOUR"), ("TOTAL", "DAY"), ("TOTAL", "MONTH")]
    assert {one["low_usd_micros"] for one in answer["forecasts"]} == {None}
    drawn = " ".join(anywhere("forecast", ORG).out.split())
    assert "monthly org month $0.00" in drawn
    assert "everything" in drawn


@pytest.mark.parametrize(
    ("more", "style"),
    [({}, "green"), ({"spent_at_earliest": "x"}, "yellow"), ({"spent_at": "x"}, "red")],
)
def test_what_will_be_spent_is_red_and_what_may_be_yellow(more: dict[str, str], style: str) -> None:
    """Colour repeats what the columns say."""
    assert _style({"low_usd_micros": 1, **more}) == style


def test_bounds_are_shown_where_they_are_known() -> None:
    """Not as zero where they are not."""
    assert _between({"low_usd_micros": None, "high_usd_micros": None}) == ""
    known = _between({"low_usd_micros": 1_500_000, "high_usd_micros": 2_000_000})
    assert known == "$1.50 .. $2.00"
