"""Simulate histories and say which seed breaks a promise: ``make simulate``.

``--what`` says of what: of metering, of authorizations, or of alerts; by default of the first two
in turns, so many of each, since a history of alerts lasts for hours.

Each seed decides everything: instances, clients, what the network loses, delays and repeats, who
dies, how wrong the clocks are, and when the aggregators run. What is checked is in
``test_simulation.py`` of ``tests/metering``, ``tests/authorizations`` and ``tests/alerts``. The
first seed that fails ends it, and fails again: ``--first`` takes it. An interrupt prints
the next seed.

``--planted`` looks for the first seed that catches each planted bug, and prints the rows of the
tables in ``docs/proof.md``; names after it choose some of them.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

CHUNK_MAX: Final = 25
"""How many histories a process plays before it tells of them: a second or two."""
BY_DEFAULT: Final = ("authorizations", "metering")
KINDS: Final = (*BY_DEFAULT, "alerts")
FIRST: Final = 500
"""Those before it are played by every run of the tests."""
PLANTED_MAX: Final = 3_000
"""How many seeds are tried for one planted bug."""


class Chunk(NamedTuple):
    """Some histories that one process plays."""

    what: str
    first: int
    size: int


class Played(NamedTuple):
    """How many of them there were, and which seed has failed, if one has, and why."""

    chunk: Chunk
    done: int
    failed: int | None = None
    why: str = ""


def player(what: str) -> Callable[[int], object]:
    """What plays the history of a seed, imported in the process that plays it."""
    from quick_loop import run  # noqa: PLC0415

    if what == "authorizations":
        from authorizations.test_simulation import simulate  # noqa: PLC0415

        return lambda seed: run(simulate(seed))
    if what == "alerts":
        from alerts.test_simulation import simulate as simulate_alerts  # noqa: PLC0415

        return lambda seed: run(simulate_alerts(seed))
    from metering.test_simulation import simulate as simulate_metering  # noqa: PLC0415
    from metering.variants import SOUND  # noqa: PLC0415

    return lambda seed: run(simulate_metering(seed, SOUND))


def play_chunk(chunk: Chunk) -> Played:
    """Play the histories one by one, until one fails."""
    play = player(chunk.what)
    for seed in range(chunk.first, chunk.first + chunk.size):
        try:
            play(seed)
        except BaseException as error:  # noqa: BLE001 - for any error, the seed is what counts
            why = f"{type(error).__name__}: {error}"[:500]
            return Played(chunk, seed - chunk.first, seed, why)
    return Played(chunk, chunk.size)


def begin_worker() -> None:
    """Log nothing, and leave an interrupt to the parent of all workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def chunks_of(kinds: Sequence[str], first: int, histories: int, jobs: int) -> list[Chunk]:
    """So many histories of each kind, in turns."""
    size = max(1, min(CHUNK_MAX, -(-histories // jobs)))
    last = first + histories
    return [
        Chunk(what, seed, min(size, last - seed))
        for seed in range(first, last, size)
        for what in kinds
    ]


def play_all(kinds: Sequence[str], first: int, histories: int, jobs: int) -> int:
    """Play them in that many processes; 1 if a seed breaks a promise, which ends it."""
    chunks = chunks_of(kinds, first, histories, jobs)
    left = dict.fromkeys(chunks)
    done, began = 0, time.monotonic()
    with multiprocessing.Pool(jobs, begin_worker) as pool:
        try:
            for played in pool.imap_unordered(play_chunk, chunks):
                if played.failed is not None:
                    _tell_failure(played)
                    return 1
                done += played.done
                del left[played.chunk]
                _tell_progress(done, len(kinds) * histories, time.monotonic() - began)
        except KeyboardInterrupt:
            following = min(chunk.first for chunk in left)
            which = " ".join(f"--what {what}" for what in kinds)
            arguments = f"{which} --first {following} --histories {first + histories - following}"
            print(f"\ninterrupted; to continue: make simulate ARGS='{arguments}'")
            return 130
    print(f"\n{done:,} histories from seed {first} on: no promise was broken")
    return 0


def _tell_failure(played: Played) -> None:
    what = played.chunk.what
    print(f"\n{what}: seed {played.failed} breaks a promise: {played.why}")
    again = f"--what {what} --first {played.failed} --histories 1"
    print(f"again: make simulate ARGS='{again}'")


def _tell_progress(done: int, wanted: int, secs: float) -> None:
    rate = done / secs
    left_mins, left_secs = divmod(round((wanted - done) / rate), 60)
    left_hours, left_mins = divmod(left_mins, 60)
    left = f"{left_hours}:{left_mins:02}:{left_secs:02} left"
    told = f"{done:,} of {wanted:,} histories, {rate:,.1f} a second, {left}"
    print(f"\r{told} ", end="", flush=True)


def planted_in(what: str) -> dict[str, str]:
    """The names of the planted bugs, and what is wrong with each if it says so itself."""
    if what == "authorizations":
        from authorizations.variants import BROKEN  # noqa: PLC0415

        return {name: str(plant.__doc__) for name, plant in BROKEN.items()}
    if what == "alerts":
        from alerts.variants import BROKEN as BROKEN_ALERTS  # noqa: PLC0415

        return {name: str(plant.__doc__) for name, plant in BROKEN_ALERTS.items()}
    from metering.variants import BROKEN as BROKEN_METERING  # noqa: PLC0415

    return dict.fromkeys(BROKEN_METERING, "")


def find_seed(what: str, histories: int, name: str) -> int | None:
    """The first seed that catches a planted bug, if one of so many does."""
    return next((seed for seed in range(histories) if catches(what, name, seed)), None)


def catches(what: str, name: str, seed: int) -> bool:
    """Whether the history of that seed finds the planted bug."""
    import pytest  # noqa: PLC0415

    from authorizations import variants as of_authorizations  # noqa: PLC0415
    from metering import variants as of_metering  # noqa: PLC0415
    from metering.test_simulation import simulate as simulate_metering  # noqa: PLC0415
    from pricekeeper.errors import InvalidValueError, PriceKeeperError  # noqa: PLC0415
    from quick_loop import run  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        play = player(what)
        if what == "authorizations":
            of_authorizations.BROKEN[name](patch)
        elif what == "alerts":
            from alerts import variants as of_alerts  # noqa: PLC0415

            of_alerts.BROKEN[name](patch)
        else:
            variant = of_metering.BROKEN[name][0](patch)
            play = lambda seed: run(simulate_metering(seed, variant))  # noqa: E731
        try:
            play(seed)
        except InvalidValueError:  # a caller has stood still for a day: no promise
            return False
        except (AssertionError, PriceKeeperError, LookupError):
            return True
    return False


def find_planted(kinds: Sequence[str], names: Sequence[str], histories: int, jobs: int) -> int:
    """Print for each planted bug the first seed that catches it; how many were not caught."""
    missed = 0
    with multiprocessing.Pool(jobs, begin_worker) as pool:
        for what in kinds:
            planted = planted_in(what)
            chosen = [name for name in planted if not names or name in names]
            seeds = pool.imap(partial(find_seed, what, histories), chosen)
            for name, seed in zip(chosen, seeds, strict=True):
                missed += seed is None
                print(f"| {name} | {seed} | {planted[name]} |", flush=True)
    return missed


def main() -> int:
    """Play the histories of the chosen parts."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--histories", type=int, default=500_000, help="so many of each kind")
    arguments.add_argument("--first", type=int, default=FIRST, help="the first seed")
    arguments.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes; all cores by default"
    )
    arguments.add_argument("--what", choices=KINDS, action="append", help="may be repeated")
    arguments.add_argument("--planted", nargs="*", help="find what catches each planted bug")
    chosen = arguments.parse_args()
    if chosen.planted is not None:
        tried = min(chosen.histories, PLANTED_MAX)
        return find_planted(chosen.what or KINDS, chosen.planted, tried, chosen.jobs)
    return play_all(chosen.what or BY_DEFAULT, chosen.first, chosen.histories, chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
