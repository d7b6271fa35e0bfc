"""How good forecasts are: ``make backtest`` prints coverage and error beside the straight line.

Past windows are forecast with the data known at several moments of each. The series are
made up from seeds, six kinds of companies, and recorded ones that come and go like spend. The
bounds should hold in four cases of five, and the error be below that of a straight line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from forecast.backtesting import Score, backtest
from forecast.series import KINDS, RECORDED, made_up, recorded
from pricekeeper.tenants import Window

WINDOWS = (Window.DAY, Window.WEEK, Window.MONTH)
COVERED = 0.75, 0.85


def main() -> int:
    """Print a line for each series and window; 1 if the bounds or the error are not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="how many of each kind (default 4)")
    seeds = parser.parse_args().seeds
    print(f"{'series':<14} {'window':<6} {'forecasts':>9} {'covered':>8} {'error':>8} {'line':>8}")
    every = Score()
    for kind in KINDS:
        for window in WINDOWS:
            scores = [backtest(made_up(kind, seed), window) for seed in range(seeds)]
            every += _show(kind, window, sum(scores, Score()))
    for name in RECORDED:
        for window in (Window.DAY, Window.WEEK):  # too short for months
            every += _show(name, window, backtest(recorded(name), window))
    print()
    _show("all", None, every)
    low, high = COVERED
    if low <= every.coverage <= high and every.error < every.line_error:
        print(f"\nthe bounds hold in {every.coverage:.1%} of {every.forecasts:,} cases (aim 80 %)")
        return 0
    print(f"\nnot as promised: bounds hold in {low:.0%} to {high:.0%}, and the line is farther off")
    return 1


def _show(name: str, window: Window | None, score: Score) -> Score:
    print(
        f"{name:<14} {'' if window is None else window.value.lower():<6} {score.forecasts:>9,}"
        f" {score.coverage:>8.1%} {score.error:>8.1%} {score.line_error:>8.1%}",
        flush=True,
    )
    return score


if __name__ == "__main__":
    sys.exit(main())
