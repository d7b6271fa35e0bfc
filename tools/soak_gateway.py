"""Two thousand calls through the gateway in a bad world: ``make soak-gateway``.

What happens, and what is compared, is in ``tests/gateway/soak.py``. The seed decides what happens
to which call; at which moment a kill finds the others is the machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from engine import start_dynoxide
from gateway.soak import Report, Soak
from pricekeeper.telemetry.logs import configure_logging

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDFORTESTSONLY", "AWS_SECRET_ACCESS_KEY": "secretForTestsOnly"}
"""What the engine takes; no account is behind it."""


@contextmanager
def opened_store(kind: str, folder: str) -> Iterator[str]:
    """The address of an empty store of that kind, until the end of the block."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/store.db"
        return
    os.environ.update(KEYS)
    with start_dynoxide() as engine:
        yield f"dynamodb://us-east-1?prefix=soak-&endpoint={engine.endpoint}"


def show(report: Report) -> None:
    """Print what the run came to."""
    happened = ", ".join(f"{count} {what}" for what, count in sorted(report.happened.items()))
    print(f"{report.calls} calls in {report.secs:.0f} s: {happened}")
    print(f"billed: {report.billed_calls} calls, {report.billed_usd_micros} micro-dollars")
    books = report.books
    above = books.spent + books.unsettled - report.billed_usd_micros
    print(
        f"ours: {books.spent} spent, {books.unsettled} unsettled, {books.held} held: "
        f"{above} micro-dollars above the bill, all of it marked"
    )
    print(f"{report.equal} calls equal to their bill, {report.above} above it and marked")
    for one in report.wrong:
        print(f"WRONG {one}")


def main() -> int:
    """Read the arguments and run; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--store", choices=("sqlite", "dynamodb"), default="sqlite")
    given = parser.parse_args()
    configure_logging("error")  # what is unsettled is reported below
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        opened_store(given.store, folder) as store,
    ):
        soak = Soak(Path(folder), store, given.calls, given.seed, given.kills, given.concurrency)
        report = asyncio.run(soak.run())
    show(report)
    return 1 if report.wrong or report.books.held else 0


if __name__ == "__main__":
    sys.exit(main())
