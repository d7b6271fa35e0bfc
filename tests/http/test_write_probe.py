"""Readiness names each trouble of a store.

Real files, real limits of the operating system, real sockets; the service's own clock.
"""

import os
import resource
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from hanging_proxy import hanging_proxy
from http_fixtures import ENVIRONMENT, METRICS_TOKEN, Api, Reply, Tenant
from pricekeeper.cli.demo import demo_settings
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.http.health import HANGS, MEMORY_MS
from pricekeeper.settings import parse_store_location
from pricekeeper.storage.sqlite.store import SqliteStore
from pricekeeper.testing.serving import running_service
from scraping import scrape, until
from serving import running_server


def ready(api: Api) -> Reply:
    return api.call("GET", "/readyz")


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    """The operating system lets no file grow, then lets it grow again."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        api = Api(server.url)
        tenant = Tenant(api).register()
        sizes = [file.stat().st_size for file in tmp_path.glob("store.db*")]
        pid, most = server.process.pid, resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (min(sizes) // 4_096 * 4_096, most))
        until(lambda: ready(api).status == 503)
        assert ready(api).json["reason"]
        refused = tenant.record()
        assert refused.status == 503
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        until(lambda: ready(api).status == 200)
        sent = tenant.record()
        assert sent.status == 202


@contextmanager
def with_its_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Api, SqliteStore]]:
    """A service in this process, and its store."""
    opened: list[SqliteStore] = []
    open_store = SqliteStore.open

    async def noted(*arguments: str, **more: object) -> SqliteStore:
        opened.append(await open_store(*arguments, **more))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(SqliteStore, "open", noted)
    settings = replace(demo_settings(folder), aggregator_interval_secs=0)
    with running_service(settings, SystemClock()) as url:
        yield Api(url), opened[0]


def test_a_file_that_is_read_only_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads continue. Root may write to any file, so SQLite itself is set to refuse."""
    with with_its_store(tmp_path, monkeypatch) as (api, store):
        assert ready(api).status == 200
        store._writer._connection.pragma("query_only", "on")
        until(lambda: ready(api).status == 503)
        assert "read-only" in ready(api).json["reason"]
        assert api.call("GET", "/healthz").status == 200
        store._writer._connection.pragma("query_only", "off")
        until(lambda: ready(api).status == 200)


def damage(path: Path) -> None:
    """Overwrite every page but the first, as a dying disk does, and keep the file's time."""
    before = path.stat()
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xa5" * (len(whole) - 4_096))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_that_gets_damaged_is_told_and_refused(tmp_path: Path) -> None:
    """Once SQLite has met the damage, no write can spread it."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        api = tenant.api
        other = apsw.Connection(str(tmp_path / "store.db"))
        other.pragma("schema_version")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        other.close()
        sent = tenant.record()
        assert sent.status == 202
        damage(tmp_path / "store.db")
        until(lambda: ready(api).status == 503)
        until(lambda: "damaged" in ready(api).json["reason"])
        refused = tenant.record()
        assert (refused.status, refused.code) == (503, "STORE_DAMAGED")
        assert server.output().count("store_unusable") == 1


@pytest.mark.slow
def test_a_service_does_not_start_on_a_damaged_file(tmp_path: Path) -> None:
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        api = tenant.api
        tenant.record()
        assert ready(api).status == 200
    damage(tmp_path / "store.db")
    with (
        pytest.raises(RuntimeError, match="malformed"),
        running_server(tmp_path, environment=ENVIRONMENT),
    ):
        pytest.fail("it started")


def test_a_store_that_hangs_does_not_hold_readiness(tmp_path: Path, dynoxide: str) -> None:
    """The answer comes while it hangs, without a second probe."""
    with hanging_proxy(dynoxide) as store:
        url = f"dynamodb://us-east-1?prefix=p-{uuid.uuid4().hex[:8]}-&endpoint={store.endpoint}"
        settings = replace(
            demo_settings(tmp_path), store=parse_store_location(url), aggregator_interval_secs=0
        )
        with running_service(settings, SystemClock()) as service:
            api = Api(service)
            assert ready(api).status == 200
            store.hang()
            until(lambda: ready(api).status == 503)
            assert ready(api).json["reason"] == HANGS
            store.go_on()
            until(lambda: ready(api).status == 200)


def test_a_probe_costs_one_write_unit_and_one_read_unit(tmp_path: Path, dynoxide: str) -> None:
    """At most once a second, and only while `/readyz` is asked; as docs/costs.md says."""
    clock = ManualClock()
    url = f"dynamodb://us-east-1?prefix=c-{uuid.uuid4().hex[:8]}-&endpoint={dynoxide}"
    settings = replace(
        demo_settings(tmp_path),
        store=parse_store_location(url),
        metrics_token=METRICS_TOKEN,
        aggregator_interval_secs=0,
    )
    names = [
        f'pricekeeper_store_capacity_units_total{{kind="{kind}",table="RevokedTokens"}}'
        for kind in ("write", "read")
    ]
    with running_service(settings, clock) as service:
        api = Api(service)
        before = scrape(api)
        for _ in range(5):
            assert ready(api).status == 200
            assert ready(api).status == 200
            clock.advance_ms(MEMORY_MS)
        after = scrape(api)
        assert [after[name] - before.get(name, 0) for name in names] == [5, 5]
