"""Forced checks over a real socket, many at once: one sum for all, and one's own record in it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from http_fixtures import KEY, METRICS_TOKEN, ORG, Api, Tenant, usage
from pricekeeper.clock import SystemClock
from pricekeeper.settings import Settings, SqliteLocation
from pricekeeper.testing.serving import running_service
from scraping import scrape

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
    settings = Settings(
        store=SqliteLocation(str(tmp_path / "store.db")),
        data_dir=tmp_path / "data",
        provisioning_key=KEY,
        metrics_token=METRICS_TOKEN,
        aggregator_interval_secs=0,
        log_level="error",
        drain_secs=0,
    )
    with running_service(settings, StandingClock()) as url:
        yield Tenant(Api(url)).register()


def test_a_flood_of_forced_checks_sums_once(tenant: Tenant) -> None:
    """However many connections ask; a record in between is seen at once, with one more sum."""
    path, token = f"{tenant.app}/model-selection?force_check=true", tenant.app_token

    def check() -> str:
        reply = tenant.api.call("GET", path, token=token)
        assert reply.status == 200
        label: str = reply.json["recommended_model"]["label"]
        return label

    before = scrape(tenant.api)[QUERIES]
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(lambda _: check(), range(100))) == {"premium"}
    assert scrape(tenant.api)[QUERIES] - before <= QUERIES_OF_A_SUM

    over = usage(input_tokens=ORG["quotas"]["premium"], output_tokens=0)
    assert tenant.api.call("POST", f"{tenant.app}/usage", over, token=token).status == 202
    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(lambda _: check(), range(100))) == {"standard"}
    assert scrape(tenant.api)[QUERIES] - before <= 2 * QUERIES_OF_A_SUM
