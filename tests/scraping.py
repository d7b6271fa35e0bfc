"""What a server's /metrics says, and whether it moves when it should."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from http_fixtures import METRICS_TOKEN, Api
from pricekeeper.pricing import load_catalogue
from pricekeeper.pricing.refresh import DAYS_AHEAD
from serving import select_a_moment

PATIENCE_SECS = 20

Samples = dict[str, float]


def read_samples(text: str) -> Samples:
    """Every sample under the name it has in PromQL, with its labels in order."""
    return {
        sample_name(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample_name(name: str, labels: Mapping[str, str]) -> str:
    told = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{told}}}" if told else name


def scrape(api: Api) -> Samples:
    reply = api.call("GET", "/metrics", token=METRICS_TOKEN)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return read_samples(reply.data.decode())


def until(condition: Callable[[], bool], told: Callable[[], object] = str) -> None:
    """Ask again and again, for a while: a server may answer before it has counted."""
    deadline = time.monotonic() + PATIENCE_SECS
    while not condition():
        assert time.monotonic() < deadline, told()
        select_a_moment()


def until_prices_are_published(api: Api) -> None:
    """Until the service has written the prices of its file, which it does once after a start."""
    puts = 'pricekeeper_store_calls_total{call="put"}'
    items = len(load_catalogue(None).labels) * (DAYS_AHEAD + 1)
    until(lambda: scrape(api).get(puts, 0) >= items)


@contextmanager
def moves(api: Api, expected: Mapping[str, float]) -> Iterator[None]:
    """Check that the block moves each of these samples by that much, no more and no less."""
    before = scrape(api)
    yield
    moved: Samples = {}

    def as_expected() -> bool:
        after = scrape(api)
        moved.update({name: after.get(name, 0) - before.get(name, 0) for name in expected})
        return moved == expected

    until(as_expected, lambda: f"moved {moved}, not {dict(expected)}")
