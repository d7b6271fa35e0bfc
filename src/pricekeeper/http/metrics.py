"""What an operator watches, as Prometheus metrics.

Features count in plain integers, which costs next to nothing; here those counts are carried
over into Prometheus' own, every few seconds and at each scrape. With several workers the
metrics live in files that all of them share (prometheus-client's multiprocess mode), so that a
scrape answered by one worker speaks for all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client import Counter as Total

from pricekeeper.telemetry import StoreMeter

MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LIMIT_NAMES_MAX: Final = 200
"""Limits are named by tenants; beyond this many names, the rest counts as one."""


class Metrics:
    """Everything that /metrics shows. One per process."""

    def __init__(self, store: StoreMeter) -> None:
        self.registry = CollectorRegistry()
        self._store = store
        self._seen: dict[str, Counter[str]] = {}
        self._requests = Histogram(
            "pricekeeper_request_seconds",
            "How long requests took, by route and status.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._children: dict[tuple[str, str, int], Any] = {}
        self._limits = self._total(
            "pricekeeper_limit_decisions", "Acquires by limit and outcome.", ["limit", "outcome"]
        )
        self._limit_names: set[str] = set()
        self.aggregator_lag = self._gauge(
            "pricekeeper_aggregator_lag_seconds",
            "Age of the oldest usage that is not in a daily total yet.",
        )
        self.quota = self._gauge(
            "pricekeeper_quota_used_ratio",
            "How much of a day's quota is spent, by scope and label.",
            ["scope", "label"],
        )
        self._totals: dict[str, Total] = {}
        self.refresh: Callable[[], None] = self.carry_store
        """Brings the counts up to date before a scrape."""

    def request(self, method: str, route: str, status: int, elapsed_us: int) -> None:
        """Note one request that was answered."""
        place = (method, route, status)
        child = self._children.get(place)
        if child is None:
            # Bounded: routes are ours, and a method that we do not know counts as one.
            known = method if method in _METHODS else "OTHER"
            child = self._requests.labels(known, route, str(status))
            if known == method:
                self._children[place] = child
        child.observe(elapsed_us / 1e6)

    def limit_decision(self, limit: str, outcome: str) -> None:
        """Note what one limit decided."""
        if limit not in self._limit_names:
            if len(self._limit_names) >= _LIMIT_NAMES_MAX:
                limit = "other"
            self._limit_names.add(limit)
        self._limits.labels(limit, outcome).inc()

    def carry(self, name: str, help_: str, label: str, counts: Mapping[str, int]) -> None:
        """Add what a feature has counted since the last time to the counter of that name."""
        total = self._totals.get(name)
        if total is None:
            total = self._totals[name] = self._total(name, help_, [label])
        seen = self._seen.setdefault(name, Counter())
        for key, count in counts.items():
            if count > seen[key]:
                total.labels(key).inc(count - seen[key])
                seen[key] = count

    def carry_store(self) -> None:
        """Carry over what the store has counted."""
        meter = self._store
        for name, help_, label, counts in (
            ("pricekeeper_store_calls", "Calls of the storage port.", "call", meter.calls),
            ("pricekeeper_store_attempts", "Requests to DynamoDB.", "action", meter.attempts),
            ("pricekeeper_store_faults", "Failed attempts by kind.", "kind", meter.faults),
            ("pricekeeper_store_read_half_units", "Read capacity.", "table", meter.read_half_units),
            (
                "pricekeeper_store_write_half_units",
                "Write capacity.",
                "table",
                meter.write_half_units,
            ),
            (
                "pricekeeper_store_work",
                "Durable commits, what they carried, and what was swept.",
                "kind",
                {
                    "commits": meter.commits,
                    "operations": meter.committed_operations,
                    "swept": meter.swept,
                },
            ),
        ):
            self.carry(name, help_, label, counts)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        self.refresh()
        if MULTIPROCESS in os.environ:
            shared = CollectorRegistry()
            multiprocess.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
            return generate_latest(shared)
        return generate_latest(self.registry)

    def _gauge(self, name: str, help_: str, labels: list[str] | None = None) -> Gauge:
        return Gauge(
            name, help_, labels or [], registry=self.registry, multiprocess_mode="mostrecent"
        )

    def _total(self, name: str, help_: str, labels: list[str]) -> Total:
        return Total(name, help_, labels, registry=self.registry)


_METHODS: Final = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})
