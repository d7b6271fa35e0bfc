"""Forced checks over a real socket, many at once: one sum for all, and one's own record in it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from http_fixtures import FORCED, ORG, Tenant
from pricekeeper.clock import SystemClock
from scraping import scrape
from served import served

QUERIES = 'pricekeeper_store_calls_total{call="query"}'
QUERIES_OF_A_SUM = 4
"""For the ticks, each of two that may be open, and their records."""


class StandingClock(SystemClock):
    """Real time, except for caches, for which no time passes."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        return 0


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Tenant]:
    with served(tmp_path, clock=StandingClock()) as api:
        yield Tenant(api).register()


def test_a_flood_of_forced_checks_sums_once(tenant: Tenant) -> None:
    """However many connections ask; a record in between is seen at once, with one more sum."""

    def check() -> str:
        reply = tenant.select(FORCED)
        assert reply.status == 200
        label: str = reply.json["recommended_model"]["label"]
        return label

    before = scrape(tenant.api)[QUERIES]
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(lambda _: check(), range(100))) == {"premium"}
    assert scrape(tenant.api)[QUERIES] - before <= QUERIES_OF_A_SUM

    assert tenant.record(input_tokens=ORG["quotas"]["premium"], output_tokens=0).status == 202
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(lambda _: check(), range(100))) == {"standard"}
    assert scrape(tenant.api)[QUERIES] - before <= 2 * QUERIES_OF_A_SUM
