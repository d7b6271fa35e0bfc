"""One form for each kind of number, in every command; docs/style.md has the rules."""

import re
from pathlib import Path

import pytest

from pricekeeper import cli
from pricekeeper.cli.drawing import as_of, minute, moment, percent, usd

AT = "2026-01-23T15:30:45+01:00"


def test_a_moment_is_utc_and_says_so() -> None:
    """Also one that was stated in another zone; a column has no seconds and a heading."""
    assert moment(AT) == "2026-01-23 14:30:45 UTC"
    assert minute(AT) == "2026-01-23 14:30"
    assert minute(None) == "never"


def test_counted_numbers_say_their_age() -> None:
    """Or that there are none yet."""
    assert as_of(AT) == "as of 2026-01-23 14:30:45 UTC"
    assert as_of(None) == "nothing was counted yet"


@pytest.mark.parametrize(
    ("pct", "shown"),
    [(0, "0.0 %"), (0.01, "0.1 %"), (35.1, "35.1 %"), (99.91, "100.0 %"), (110, "110.0 %")],
)
def test_a_used_percentage_never_looks_better_than_it_is(pct: float, shown: str) -> None:
    """It is rounded up to a decimal."""
    assert percent(pct) == shown


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(35, "$0.000035"), (9_999, "$0.009999"), (1_239_999, "$1.23"), (-5_400, "-$0.005400")],
)
def test_money_is_cut_to_cents_or_exact_below_one(micros: int, shown: str) -> None:
    """It is never rounded up."""
    assert usd(micros) == shown


def test_columns_of_moments_name_utc() -> None:
    """There are as many such headings as moments in the rows of each module."""
    for path in Path(cli.__path__[0]).glob("*.py"):
        text = path.read_text("utf-8")
        if path.name not in ("drawing.py", "tables.py"):
            cells = len(re.findall(r"\bminute\(", text))
            assert len(re.findall(r'\(UTC\)"', text)) == cells, path.name
