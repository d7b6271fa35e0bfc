"""Simulate histories and say which seed breaks a promise: ``make simulate``.

``--what`` says of what: of metering, of authorizations, or of alerts; by default of the first two,
so many of each, since a history of alerts goes on for hours.

Each seed decides everything: instances, clients, what the network loses, delays and repeats, who
dies, how wrong the clocks are, and when the aggregators run. What is checked is in
``test_simulation.py`` of ``tests/metering``, ``tests/authorizations`` and ``tests/alerts``. A seed
that fails, fails again: ``--first`` takes it.

``--planted`` looks for the first seed that catches each planted bug of authorizations, and prints
the rows of the table in ``docs/proof.md``; names after it choose some of them.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

CHUNK = 100
BY_DEFAULT = ("authorizations", "metering")
KINDS = (*BY_DEFAULT, "alerts")
PLANTED_MAX = 3_000
"""How many seeds are tried for one planted bug."""


def simulation(what: str) -> Callable[[int], Coroutine[Any, Any, object]]:
    """What runs the history of a seed, imported in the process that runs it."""
    if what == "authorizations":
        from authorizations.test_simulation import simulate  # noqa: PLC0415

        return simulate
    if what == "alerts":
        from alerts.test_simulation import simulate as simulate_alerts  # noqa: PLC0415

        return simulate_alerts
    from metering import test_simulation  # noqa: PLC0415
    from metering.variants import SOUND  # noqa: PLC0415

    return lambda seed: test_simulation.simulate(seed, SOUND)


def run_chunk(what: str, first: int) -> tuple[int, int | None, str]:
    """The histories of a hundred seeds: how many, the first that failed, and why."""
    from quick_loop import run  # noqa: PLC0415

    simulate = simulation(what)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def run_all() -> tuple[int, int | None, str]:
        for seed in range(first, first + CHUNK):
            try:
                await simulate(seed)
            except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what counts
                return seed - first, seed, f"{type(error).__name__}: {error}"[:500]
        return CHUNK, None, ""

    return run(run_all())


def find_planted(names: list[str], histories: int) -> int:
    """Print for each planted bug the first seed that catches it; how many were not caught."""
    import pytest  # noqa: PLC0415

    from authorizations.variants import BROKEN  # noqa: PLC0415
    from pricekeeper.errors import InvalidValueError, PriceKeeperError  # noqa: PLC0415
    from quick_loop import run  # noqa: PLC0415

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    simulate, missed = simulation("authorizations"), 0
    for name in names or BROKEN:
        caught_by: int | None = None
        for seed in range(histories):
            with pytest.MonkeyPatch.context() as patch:
                BROKEN[name](patch)
                try:
                    run(simulate(seed))
                except InvalidValueError:  # a caller has stood still for a day: no promise
                    continue
                except (AssertionError, PriceKeeperError, LookupError):
                    caught_by = seed
                    break
        missed += caught_by is None
        print(f"| {name} | {caught_by} | {BROKEN[name].__doc__} |", flush=True)
    return missed


def run_histories(what: str, first: int, histories: int, jobs: int) -> int | None:
    """Run them in that many processes; returns the seed that breaks a promise, if there is one."""
    firsts = range(first, first + histories, CHUNK)
    done, began = 0, time.monotonic()
    with multiprocessing.Pool(jobs) as pool:
        for count, failed, why in pool.imap_unordered(partial(run_chunk, what), firsts):
            done += count
            if failed is not None:
                print(f"\n{what}: seed {failed} breaks a promise: {why}")
                which = f"--what {what} --first {failed} --histories 1 --jobs 1"
                print(f"again: make simulate ARGS='{which}'")
                return failed
            rate = done / (time.monotonic() - began)
            left_secs = (len(firsts) * CHUNK - done) / rate
            progress = f"{done:,} histories, {rate:,.0f} a second, {left_secs:,.0f} s left"
            print(f"\r{what}: {progress}", end="", flush=True)
    print(f"\n{what}: {done:,} histories from seed {first} on: no promise was broken")
    return None


def main() -> int:
    """Run the histories of whatever was chosen."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--histories", type=int, default=1_000_000)
    arguments.add_argument("--first", type=int, default=1_000, help="the first seed")
    arguments.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes; all cores by default"
    )
    arguments.add_argument("--what", choices=KINDS, action="append", help="may be repeated")
    arguments.add_argument("--planted", nargs="*", help="find what catches each planted bug")
    chosen = arguments.parse_args()
    if chosen.planted is not None:
        return find_planted(chosen.planted, min(chosen.histories, PLANTED_MAX))
    for what in chosen.what or BY_DEFAULT:
        if run_histories(what, chosen.first, chosen.histories, chosen.jobs) is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
