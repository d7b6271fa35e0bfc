"""A histogram to which many observations are added at once.

prometheus-client's own takes one at a time. This one keeps its numbers in the same values. In
multiprocess mode these are files that all workers share; else it shows them as a collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from prometheus_client.values import ValueClass

_TYPE: Final = "histogram"


class CountHistogram(Collector):
    """Counts by upper bound, for each combination of labels. A last bound without end is added."""

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
        """By the values of the labels: the count of each bucket, then the sum."""
        if not labels:
            self._values_of(())  # there from now on, at 0
        registry.register(self)

    def add(self, labels: tuple[str, ...], counts: Sequence[int], total: float) -> None:
        """Add so many observations to each bucket, and all of them together to the sum."""
        for value, more in zip(self._values_of(labels), (*counts, total), strict=True):
            value.inc(more)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What a scrape of this process alone shows."""
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
