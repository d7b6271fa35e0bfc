"""What an operator watches, as Prometheus metrics.

Features count in plain integers, which costs next to nothing; those counts are carried over into
Prometheus' own every few seconds and at each scrape. With several workers the metrics live in
files that all of them share (prometheus-client's multiprocess mode), so that a scrape answered
by one worker speaks for all. What each metric means to an operator is in docs/operations.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)
from prometheus_client import Counter as Total

from pricekeeper.http.histogram import CountHistogram
from pricekeeper.storage.tables import ALL_TABLES
from pricekeeper.telemetry import (
    BOUNDS,
    BOUNDS_US,
    STRANGE_ITEMS,
    Durations,
    Sizes,
    StoreMeter,
)

MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

_US: Final = 1_000_000
_METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})
_LIMIT_NAMES_MAX: Final = 200
"""Limits are named by tenants; beyond this many names, the rest counts as one."""
_REST: Final = "other"
_NO_FAULTS: Final = dict.fromkeys(
    ("throttled", "conflict", "ambiguous", "unreachable", "sweep", "replaced", "damaged"), 0
)
"""Shown from the beginning, so that the first one is seen as a change."""
_NO_STRANGE_ITEMS: Final = {table.name: 0 for table in ALL_TABLES}


class Family(NamedTuple):
    """One metric, with a line for each combination of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


REQUESTS: Final = Family(
    "pricekeeper_request_seconds",
    "How long requests took, by route and status.",
    ("method", "route", "status"),
)
TOTALS: Final = (
    Family("pricekeeper_problems", "Requests that were refused or failed, by error.", ("code",)),
    Family("pricekeeper_usage_records", "Usage records by what became of them.", ("outcome",)),
    Family(
        "pricekeeper_price_estimated_records",
        "Usage records whose price is not known, counted at the model's highest.",
        ("label",),
    ),
    Family(
        "pricekeeper_tag_values_over",
        "Tags of an organisation's day with more values than are told apart.",
    ),
    Family("pricekeeper_selections", "Model selections by reason.", ("reason",)),
    Family("pricekeeper_sticky_flips", "Fallbacks to another model by outcome.", ("outcome",)),
    Family("pricekeeper_limit_decisions", "Acquires by limit and outcome.", ("limit", "outcome")),
    Family(
        "pricekeeper_api_limit_decisions",
        "Requests by the API's own limit and outcome.",
        ("limit", "outcome"),
    ),
    Family("pricekeeper_limiter_work", "What limiters did beyond that.", ("limiter", "kind")),
    Family("pricekeeper_tokens", "Tokens issued, refreshed and refused.", ("event",)),
    Family("pricekeeper_token_checks", "Access tokens checked, by answer.", ("answer",)),
    Family("pricekeeper_revocations", "What ended before its time, by kind.", ("kind",)),
    Family("pricekeeper_retrieval_tokens", "One-time tokens issued, claimed, refused.", ("event",)),
    Family("pricekeeper_store_calls", "Calls of the storage port.", ("call",)),
    Family("pricekeeper_store_attempts", "Requests to DynamoDB by action.", ("action",)),
    Family("pricekeeper_store_faults", "Failed attempts by kind.", ("kind",)),
    Family(
        "pricekeeper_store_capacity_units",
        "DynamoDB capacity consumed, by table.",
        ("table", "kind"),
    ),
    Family("pricekeeper_strange_items", "Readings of stored items that make no sense.", ("table",)),
    Family("pricekeeper_store_swept", "Expired rows removed from SQLite."),
    Family("pricekeeper_job_crashes", "Background jobs that crashed.", ("job",)),
    Family("pricekeeper_clock_leaps", "How often wall time came into doubt."),
)
SIZES: Final = (
    Family("pricekeeper_store_commit_operations", "Operations in one SQLite commit."),
    Family("pricekeeper_usage_commit_records", "Usage records in one commit."),
)
LAG: Final = Family(
    "pricekeeper_aggregator_lag_seconds",
    "Since the last complete aggregation began: no older usage is missing in a daily total.",
)
QUOTA: Final = Family(
    "pricekeeper_quota_used_ratio",
    "Spend against the day's quota, by scope and label, as of the last record or selection.",
    ("scope", "label"),
)
SPEND: Final = Family(
    "pricekeeper_spend_usd_total",
    "Dollars since the first of the organisation's month, by organisation, app and model label.",
    ("org", "app", "label"),
)
SECRETS: Final = Family(
    "pricekeeper_client_secret_created_timestamp_seconds",
    "When the present secret of a client was claimed, by organisation and app.",
    ("org", "app"),
)
IN_DOUBT: Final = Family(
    "pricekeeper_clock_in_doubt",
    "1 while wall time is in doubt, and nothing is issued or removed; else 0.",
)
LEAP: Final = Family(
    "pricekeeper_clock_leap_seconds",
    "How far wall time is ahead of the time that the service goes by; 0 without doubt.",
)

Counts: TypeAlias = Mapping[str, float] | Mapping[tuple[str, str], float]


_AS_GAUGE: Final = b"\n# TYPE %s gauge\n" % SPEND.name.encode()
_AS_COUNTER: Final = b"\n# TYPE %s counter\n" % SPEND.name.encode()


def exposition_of(registry: CollectorRegistry) -> bytes:
    """The text that Prometheus scrapes.

    Spend is set and not counted, which prometheus-client has for gauges alone; but to Prometheus
    it is a counter. No label value can look like that line: a new line in one is escaped.
    """
    return generate_latest(registry).replace(_AS_GAUGE, _AS_COUNTER, 1)


class Metrics:
    """Everything that /metrics shows. One per process."""

    def __init__(self, store: StoreMeter) -> None:
        # They double the lines, and nobody asks when a counter began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._store = store
        self._requests = CountHistogram(
            *REQUESTS, bounds=[bound / _US for bound in BOUNDS_US], registry=self.registry
        )
        self._durations: dict[tuple[str, str, int], Durations] = {}
        self._totals = {family.name: Total(*family, registry=self.registry) for family in TOTALS}
        self._sizes = {
            family.name: CountHistogram(*family, bounds=BOUNDS, registry=self.registry)
            for family in SIZES
        }
        self._carried: dict[tuple[str, ...], float] = {}
        self.aggregator_lag = self._gauge(LAG)
        self.quota = self._gauge(QUOTA)
        self.secrets = self._gauge(SECRETS)
        self.clock_in_doubt = self._gauge(IN_DOUBT)
        self.clock_leap = self._gauge(LEAP)
        self.spend = self._gauge(SPEND)
        self._problems: Counter[str] = Counter()
        self._limit_decisions: Counter[tuple[str, str]] = Counter()
        self._limit_names: set[str] = set()
        self.refresh: Callable[[], None] = self.carry_own
        """Brings the counts up to date before a scrape."""

    def request(self, method: str, route: str, status: int, elapsed_us: int) -> None:
        """Note one request that was answered."""
        place = (method, route, status)
        durations = self._durations.get(place)
        if durations is None:
            # Bounded: routes are ours, and a method that we do not know counts as one.
            known = method if method in _METHODS else _REST
            durations = self._durations.setdefault((known, route, status), Durations())
        durations.note(elapsed_us)

    def problem(self, code: str) -> None:
        """Note a request that was refused or failed; the codes are those of our own errors."""
        self._problems[code] += 1

    def limit_decision(self, limit: str, outcome: str) -> None:
        """Note what one limit of a tenant's decided."""
        if limit not in self._limit_names:
            if len(self._limit_names) >= _LIMIT_NAMES_MAX:
                limit = _REST
            self._limit_names.add(limit)
        self._limit_decisions[limit, outcome] += 1

    def carry(self, name: str, counts: Counts) -> None:
        """Add what was counted since the last time to the total of that name, by its labels."""
        total = self._totals[name]
        for key, count in counts.items():
            labels = key if isinstance(key, tuple) else (key,) if key else ()
            place = total.labels(*labels) if labels else total  # there from now on, be it at 0
            place.inc(self._more((name, *labels), count))

    def carry_sizes(self, name: str, sizes: Sizes) -> None:
        """Add the sizes that were noted since the last time to the histogram of that name."""
        self._carry_histogram(self._sizes[name], name, (), sizes.counts, sizes.total)

    def carry_own(self) -> None:
        """Carry over what the store and the HTTP layer itself have counted."""
        meter = self._store
        for (method, route, status), durations in self._durations.items():
            labels = (method, route, str(status))
            counts, total = durations.counts, durations.total / _US
            self._carry_histogram(self._requests, REQUESTS.name, labels, counts, total)
        self.carry("pricekeeper_problems", self._problems)
        self.carry("pricekeeper_limit_decisions", self._limit_decisions)
        self.carry("pricekeeper_store_calls", meter.calls)
        self.carry("pricekeeper_store_attempts", meter.attempts)
        self.carry("pricekeeper_store_faults", {**_NO_FAULTS, **meter.faults})
        for kind, used in (("read", meter.read_half_units), ("write", meter.write_half_units)):
            units = {(table, kind): half_units / 2 for table, half_units in used.items()}
            self.carry("pricekeeper_store_capacity_units", units)
        self.carry("pricekeeper_strange_items", {**_NO_STRANGE_ITEMS, **STRANGE_ITEMS.counts})
        self.carry("pricekeeper_store_swept", {"": meter.swept})
        self.carry_sizes("pricekeeper_store_commit_operations", meter.commit_sizes)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        self.refresh()
        if MULTIPROCESS in os.environ:
            shared = CollectorRegistry()
            multiprocess.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
            return exposition_of(shared)
        return exposition_of(self.registry)

    def _carry_histogram(
        self,
        histogram: CountHistogram,
        name: str,
        labels: tuple[str, ...],
        counts: Sequence[int],
        total: float,
    ) -> None:
        place = (name, *labels)
        more = [
            int(self._more((*place, str(bucket)), count)) for bucket, count in enumerate(counts)
        ]
        histogram.add(labels, more, self._more(place, total))

    def _more(self, place: tuple[str, ...], count: float) -> float:
        """How much a count has grown since it was carried over last."""
        before = self._carried.get(place, 0)
        self._carried[place] = count
        return max(0, count - before)

    def _gauge(self, family: Family) -> Gauge:
        return Gauge(*family, registry=self.registry, multiprocess_mode="mostrecent")
