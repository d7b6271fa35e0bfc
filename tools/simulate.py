"""Simulate histories and say which seed breaks a promise: ``make simulate``.

``--what`` says of what: of metering, or of authorizations.

Each seed decides everything: instances, clients, what the network loses, delays and repeats, who
dies, how wrong the clocks are, and when the aggregators run. What is checked is in
``tests/metering/test_simulation.py`` and ``tests/authorizations/test_simulation.py``. A seed that
fails, fails again: ``--first`` takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

CHUNK = 100


def simulation(what: str) -> Callable[[int], Awaitable[object]]:
    """What runs the history of a seed, imported in the process that runs it."""
    if what == "authorizations":
        from authorizations.test_simulation import simulate  # noqa: PLC0415

        return simulate
    from metering import test_simulation  # noqa: PLC0415
    from metering.variants import SOUND  # noqa: PLC0415

    return lambda seed: test_simulation.simulate(seed, SOUND)


def run_chunk(what: str, first: int) -> tuple[int, int | None, str]:
    """The histories of a hundred seeds: how many, the first that failed, and why."""
    simulate = simulation(what)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def run() -> tuple[int, int | None, str]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for seed in range(first, first + CHUNK):
            try:
                await simulate(seed)
            except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what counts
                return seed - first, seed, f"{type(error).__name__}: {error}"[:500]
        return CHUNK, None, ""

    return asyncio.run(run())


def main() -> int:
    """Run the histories, in as many processes as there are cores."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--histories", type=int, default=1_000_000)
    arguments.add_argument("--first", type=int, default=1_000, help="the first seed")
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--what", choices=("metering", "authorizations"), default="metering")
    chosen = arguments.parse_args()
    firsts = range(chosen.first, chosen.first + chosen.histories, CHUNK)
    done, began = 0, time.monotonic()
    with multiprocessing.Pool(chosen.workers) as pool:
        for count, failed, why in pool.imap_unordered(partial(run_chunk, chosen.what), firsts):
            done += count
            if failed is not None:
                print(f"\nseed {failed} breaks a promise: {why}")
                which = f"--what {chosen.what} --first {failed}"
                print(f"again: make simulate ARGS='{which} --histories 1 --workers 1'")
                return 1
            rate = done / (time.monotonic() - began)
            left_secs = (chosen.histories - done) / rate
            print(f"\r{done:,} histories, {rate:,.0f} a second, {left_secs:,.0f} s left", end="")
            sys.stdout.flush()
    print(f"\n{done:,} histories from seed {chosen.first} on: no promise was broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
