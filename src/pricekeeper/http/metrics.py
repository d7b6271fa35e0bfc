"""Prometheus metrics for operators, explained in docs/operations.md.

Features count in plain integers. Every few seconds and at each scrape, these are carried over into
Prometheus metrics. Several workers share them in files, so one worker answers a scrape for all.
`CountHistogram` adds many observations at once, in the same files.
"""

from __future__ import annotations

import os
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import inf, nan
from pathlib import Path
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)
from prometheus_client import Counter as Total
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from prometheus_client.values import ValueClass

from pricekeeper.telemetry import (
    BOUNDS,
    BOUNDS_US,
    Durations,
    Family,
    Kind,
    Sizes,
    StoreMeter,
    counted,
    families_of,
    read_samples,
)

MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
READINGS_MAX: Final = 5
"""Of files that are half written."""
_HALF_WRITTEN: Final = (ValueError, RuntimeError, struct.error)
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

_US: Final = 1_000_000
_METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})
_LIMIT_NAMES_MAX: Final = 200
"""Tenants name limits. Names beyond this many count as one."""
_REST: Final = "other"

WHOSE: Final = ("org", "app", "org_id", "app_id")
"""Names may repeat; ids are unique."""


def _family(name: str, about: str, *labels: str, kind: Kind = Kind.COUNTER) -> Family:
    return Family(f"pricekeeper_{name}", about, labels, kind)


_gauge: Final = partial(_family, kind=Kind.GAUGE)
_REQUESTS: Final = _family(
    "request_seconds",
    "How long requests took, by route and status.",
    *("method", "route", "status"),
    kind=Kind.DURATIONS,
)
_PROBLEMS: Final = _family("problems", "Refused and failed requests, by error.", "code")
_LIMIT_DECISIONS: Final = _family(
    "limit_decisions", "Acquires by limit and outcome.", "limit", "outcome"
)
API_LIMIT_DECISIONS: Final = _family(
    "api_limit_decisions", "Requests by the API's own rate limit and outcome.", "limit", "outcome"
)
CRASHES: Final = _family("job_crashes", "Background jobs that crashed.", "job")
LEAPS: Final = _family("clock_leaps", "How often the wall clock was doubted.")
LAG: Final = _gauge(
    "aggregator_lag_seconds",
    "Seconds since the last complete aggregation began; daily totals have all older usage.",
)
QUOTA: Final = _gauge(
    "quota_used_ratio",
    "Spend against the day's quota, by owner and label, as of the last record or selection.",
    *(*WHOSE, "label"),
)
SPEND: Final = _gauge(
    "spend_usd_total",
    "Dollars spent since the start of the organisation's month, by organisation, app and label.",
    *("org", "app", "label"),
)
HELD: Final = _gauge(
    "held_usd", "Dollars held for calls under way, by owner and model label.", *WHOSE, "label"
)
UNSETTLED: Final = _gauge(
    "unsettled_usd",
    "Dollars charged for calls that were never settled, by owner and model label.",
    *(*WHOSE, "label"),
)
BUDGET_USED: Final = _gauge(
    "budget_used_ratio",
    "Spent, held and unsettled dollars of a budget in its current window, against its limit.",
    *(*WHOSE, "budget", "window"),
)
BUDGET_LIMIT: Final = _gauge(
    "budget_limit_usd",
    "The limit of a budget or strict quota that was used in its current window.",
    *(*WHOSE, "budget", "window"),
)
DENIALS: Final = _family(
    "denials",
    "Denied calls, by organisation, app, requested model and kind.",
    *("org", "app", "label", "kind"),
)
SECRETS: Final = _gauge(
    "client_secret_created_timestamp_seconds",
    "When the current secret of a client was claimed, by organisation and app.",
    *WHOSE,
)
IN_DOUBT: Final = _gauge(
    "clock_in_doubt",
    "1 while the wall clock is doubted and nothing is issued or removed; else 0.",
)
LEAP: Final = _gauge(
    "clock_leap_seconds", "How far the wall clock is ahead of the service's clock; 0 without doubt."
)
OUTBOX_AGE: Final = _gauge(
    "alert_outbox_age_seconds", "Age of the oldest alert that is not delivered yet."
)
OUTBOX_CHANNELS: Final = _gauge("alert_outbox_channels", "Channels with undelivered alerts.")
_GAUGES: Final = (
    *(LAG, QUOTA, HELD, UNSETTLED, BUDGET_USED, BUDGET_LIMIT, SECRETS, IN_DOUBT, LEAP),
    *(OUTBOX_AGE, OUTBOX_CHANNELS),
)
_AS_GAUGE: Final = b"\n# TYPE %s gauge\n" % SPEND.name.encode()
_AS_COUNTER: Final = b"\n# TYPE %s counter\n" % SPEND.name.encode()


def exposition_of(registry: CollectorRegistry) -> bytes:
    """The text that Prometheus scrapes.

    prometheus-client sets only gauges, so spend is turned into a counter here. No label value can
    imitate the type line, because line ends are escaped.
    """
    return generate_latest(registry).replace(_AS_GAUGE, _AS_COUNTER, 1)


def exposition_of_workers(folder: Path) -> bytes:
    """The sum of what the workers wrote to a folder. They may write while it is read."""
    for _ in range(READINGS_MAX - 1):
        try:
            return _read_workers(folder)
        except _HALF_WRITTEN:
            continue
    return _read_workers(folder)


def _read_workers(folder: Path) -> bytes:
    registry = CollectorRegistry()
    _WorkersFiles(registry, str(folder))  # type: ignore[no-untyped-call]
    return exposition_of(registry)


class _WorkersFiles(multiprocess.MultiProcessCollector):
    """The workers' files without empty ones: a worker creates a file, and then extends it."""

    def collect(self) -> Iterable[Metric]:
        found = [str(one) for one in Path(self._path).glob("*.db") if one.stat().st_size]
        merged: Iterable[Metric] = self.merge(found)  # type: ignore[no-untyped-call]
        return merged


@dataclass(slots=True)
class HttpMeter:
    """Counts of the HTTP layer itself."""

    requests: dict[tuple[str, str, int], Durations] = counted(_REQUESTS, factory=dict)
    problems: Counter[str] = counted(_PROBLEMS, factory=Counter)
    limit_decisions: Counter[tuple[str, str]] = counted(_LIMIT_DECISIONS, factory=Counter)
    limit_names: set[str] = field(default_factory=set)


class Metrics:
    """All metrics of this process."""

    def __init__(self, store: StoreMeter) -> None:
        # The creation times would double the lines.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._made: dict[Family, Any] = {}
        self._watched: list[tuple[Any, tuple[str, ...]]] = []
        self._carried: dict[tuple[str, ...], float] = {}
        self._shown: dict[Family, dict[tuple[str, ...], float]] = {}
        self._meter = HttpMeter()
        self.watch(self._meter)
        self.watch(store)
        for family in _GAUGES:
            self._instrument(family)
        self.spend: Gauge = self._instrument(SPEND)
        self.refresh: Callable[[], None] = self.carry_meters
        """Updates the counts before a scrape."""

    def note_request(self, method: str, route: str, status: int, elapsed_us: int) -> None:
        requests = self._meter.requests
        durations = requests.get((method, route, status))
        if durations is None:
            # Bounded: routes are ours, and unknown methods count as one.
            known = method if method in _METHODS else _REST
            durations = requests.setdefault((known, route, status), Durations())
        durations.note(elapsed_us)

    def note_problem(self, code: str) -> None:
        """Note a refused or failed request by its error code."""
        self._meter.problems[code] += 1

    def note_limit_decision(self, limit: str, outcome: str) -> None:
        names = self._meter.limit_names
        if limit not in names:
            if len(names) >= _LIMIT_NAMES_MAX:
                limit = _REST
            names.add(limit)
        self._meter.limit_decisions[limit, outcome] += 1

    def watch(self, meter: Any, *labels: str) -> None:
        """Show the meter's counts. The labels distinguish meters of its kind."""
        self._watched.append((meter, labels))
        for family in families_of(meter):
            self._instrument(family)

    @property
    def families(self) -> Collection[Family]:
        return self._made.keys()

    def carry_meters(self) -> None:
        """Carry over the counts of every meter; those of the same name are added."""
        counts: defaultdict[Family, dict[tuple[str, ...], float]] = defaultdict(dict)
        for meter, first in self._watched:
            for family, labels, value in read_samples(meter, *first):
                if isinstance(value, Sizes):
                    self._carry_histogram(family, labels, value)
                else:
                    counts[family][labels] = counts[family].get(labels, 0) + value
        for family, by_labels in counts.items():
            self.carry(family, by_labels)

    def carry(self, family: Family, counts: Mapping[Any, float]) -> None:
        """Add the growth of counts since the last time. A level is set."""
        total = self._instrument(family)
        for key, count in counts.items():
            labels = key if isinstance(key, tuple) else (key,)
            line = total.labels(*labels) if labels else total
            if family.kind is Kind.LEVEL:
                line.set(count)
            else:
                line.inc(self._take_growth((family.name, *labels), count))

    def show(self, family: Family, value: float, *labels: str) -> None:
        gauge = self._instrument(family)
        (gauge.labels(*labels) if labels else gauge).set(value)

    def show_changes(self, family: Family, values: Mapping[tuple[str, ...], float]) -> None:
        """Set changed values; of several workers, the latest change wins.

        Lines that are gone become NaN, which no alarm fires for.
        """
        shown = self._shown.setdefault(family, {})
        for labels in shown.keys() - values.keys():
            del shown[labels]
            self.show(family, nan, *labels)
        for labels, value in values.items():
            if shown.get(labels) != value:
                shown[labels] = value
                self.show(family, value, *labels)

    def render_exposition(self) -> bytes:
        self.refresh()
        if MULTIPROCESS in os.environ:
            return exposition_of_workers(Path(os.environ[MULTIPROCESS]))
        return exposition_of(self.registry)

    def _carry_histogram(self, family: Family, labels: tuple[str, ...], noted: Sizes) -> None:
        line = (family.name, *labels)
        total = noted.total / _US if family.kind is Kind.DURATIONS else noted.total
        more = [
            int(self._take_growth((*line, str(bucket)), count))
            for bucket, count in enumerate(noted.counts)
        ]
        self._instrument(family).add(labels, more, self._take_growth(line, total))

    def _take_growth(self, line: tuple[str, ...], count: float) -> float:
        before = self._carried.get(line, 0)
        self._carried[line] = count
        return max(0, count - before)

    def _instrument(self, family: Family) -> Any:
        made = self._made.get(family)
        if made is None:
            about, registry = family[:3], self.registry
            match family.kind:
                case Kind.COUNTER:
                    made = Total(*about, registry=registry)
                case Kind.GAUGE:
                    made = Gauge(*about, registry=registry, multiprocess_mode="mostrecent")
                case Kind.LEVEL:
                    made = Gauge(*about, registry=registry, multiprocess_mode="livesum")
                case Kind.SIZES:
                    made = CountHistogram(*about, bounds=BOUNDS, registry=registry)
                case Kind.DURATIONS:
                    bounds = [bound / _US for bound in BOUNDS_US]
                    made = CountHistogram(*about, bounds=bounds, registry=registry)
            self._made[family] = made
        return made


_TYPE: Final = "histogram"


class CountHistogram(Collector):
    """A histogram by upper bound and labels. An infinite last bound is added."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._bounds = [
            floatToGoString(bound)  # type: ignore[no-untyped-call]
            for bound in (*bounds, inf)
        ]
        self._values: dict[tuple[str, ...], list[Any]] = {}
        """By label values: the count of each bucket, then the sum."""
        if not labels:
            self._values_of(())
        registry.register(self)

    def add(self, labels: tuple[str, ...], counts: Sequence[int], total: float) -> None:
        """Add observations to each bucket, and their total to the sum."""
        for value, more in zip(self._values_of(labels), (*counts, total), strict=True):
            value.inc(more)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, values in self._values.items():
            *counts, total = [value.get() for value in values]
            buckets = list(zip(self._bounds, accumulate(counts), strict=True))
            family.add_metric(labels, buckets, total)
        yield family

    def _values_of(self, labels: tuple[str, ...]) -> list[Any]:
        values = self._values.get(labels)
        if values is None:
            names = (*self._labels, "le")
            values = [self._value("_bucket", names, (*labels, bound)) for bound in self._bounds]
            values.append(self._value("_sum", self._labels, labels))
            self._values[labels] = values
        return values

    def _value(self, suffix: str, names: tuple[str, ...], labels: tuple[str, ...]) -> Any:
        name = self._name
        return ValueClass(_TYPE, name, name + suffix, names, labels, self._documentation)
