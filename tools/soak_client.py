"""A thousand calls in a bad world, and our ledger beside the bill: ``make soak-client``.

What happens, and what is compared, is in ``tests/client/soak.py``. The seed decides what happens to
which call; at which moment a kill finds the other processes is the machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client.soak import Report, Soak


def show(report: Report) -> None:
    """Print what the run came to."""
    happened = ", ".join(f"{count} {what}" for what, count in sorted(report.happened.items()))
    print(f"{report.calls} calls in {report.secs:.0f} s: {happened}")
    print(f"billed: {report.billed_attempts} attempts, {report.billed_usd_micros} micro-dollars")
    print(
        f"ours: {report.money.spent} spent, {report.money.unsettled} unsettled, "
        f"{report.money.held} held"
    )
    print(f"{report.equal} calls equal to their bill, {report.above} above it and marked")
    for one in report.wrong:
        print(f"WRONG {one}")


def main() -> int:
    """Read the arguments and run; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--processes", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        soak = Soak(Path(folder), given.calls, given.seed, given.processes)
        report = asyncio.run(soak.run())
    show(report)
    return 1 if report.wrong or report.money.held else 0


if __name__ == "__main__":
    sys.exit(main())
