"""Series of hourly spend to try forecasts on: made up from a seed, and recorded elsewhere."""

from __future__ import annotations

import math
import random
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

SECS_PER_HOUR = 3_600
HOURS_PER_WEEK = 168
KINDS = ("office", "growing", "step", "bursty", "nightly", "sparse")
"""Working hours; the same growing by 8 % a week; nearly doubled half-way; with bursts of four
times as much; jobs at night alone; a handful of calls a day."""
RECORDED = {"electricity": ("Europe/London", "2000-06-04T23:00:00+00:00"),
            "water": ("Europe/Rome", "2022-03-20T10:00:00+00:00")}  # fmt: skip


class Series(NamedTuple):
    """The spend of each hour from the first one, and the zone."""

    name: str
    zone: str
    first_hour: int
    spend: list[int]


def made_up(kind: str, seed: int, weeks: int = 20) -> Series:
    """A company's spend: a level that drifts, better and worse days, calls that differ in size."""
    chance = random.Random(f"{kind}/{seed}")
    level, day, burst = 1.0, 1.0, 0
    spend = []
    for hour in range(weeks * HOURS_PER_WEEK):
        if hour % 24 == 0:
            day = math.exp(chance.gauss(0, 0.12))
        if hour % HOURS_PER_WEEK == 0:
            level *= math.exp(chance.gauss(0, 0.06)) * (1.08 if kind == "growing" else 1)
        if kind == "step" and hour == weeks * HOURS_PER_WEEK // 2:
            level *= 1.8
        if chance.random() < (0.01 if kind == "bursty" else 0.001):
            burst = chance.randint(2, 6)
        burst = max(0, burst - 1)
        times = 1 if not burst else 4 if kind == "bursty" else 2
        calls = _calls(chance, _usual_calls(kind, hour) * level * day * times)
        # The sum of so many calls, each of a size that may be twice or half the usual one.
        sizes = calls + chance.gauss(0, 0.8) * math.sqrt(calls)
        spend.append(max(0, round(sizes * 1_000)))
    monday = datetime.fromisoformat("2026-01-05T00:00:00+00:00")
    return Series(f"{kind} {seed}", "UTC", int(monday.timestamp()) // SECS_PER_HOUR, spend)


def recorded(name: str) -> Series:
    """A series that was measured somewhere, which is not money but comes and goes like it."""
    zone, since = RECORDED[name]
    text = (Path(__file__).parent / "recorded" / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    first_hour = int(datetime.fromisoformat(since).timestamp()) // SECS_PER_HOUR
    return Series(name, zone, first_hour, [int(word) for line in lines for word in line.split()])


def _usual_calls(kind: str, hour: int) -> float:
    of_day, weekday = hour % 24, hour // 24 % 7
    if kind == "nightly":
        return 50 if of_day in (1, 2, 3) else 5
    calls = 3 + 60 * math.exp(-(((of_day - 14) / 4) ** 2))
    calls *= 0.25 if weekday >= 5 else 1
    return calls * 0.02 if kind == "sparse" else calls


def _calls(chance: random.Random, mean: float) -> int:
    """How many come if so many do on average."""
    if mean > 30:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    left, count = math.exp(-mean), 0
    product = chance.random()
    while product > left:
        product *= chance.random()
        count += 1
    return count
