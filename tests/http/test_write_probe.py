"""Readiness names each trouble of a store.

Real files, real limits of the operating system, real sockets; the service's own clock.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from structlog.testing import capture_logs

from hanging_proxy import hanging_proxy
from http_fixtures import ENVIRONMENT, Api, Reply, Tenant, dynamodb_url
from pricekeeper.clock import ManualClock
from pricekeeper.http.health import HANGS, MEMORY_MS
from pricekeeper.storage.sqlite.store import SqliteStore
from scraping import scrape, until
from served import served
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
    with served(folder) as api:
        yield api, opened[0]


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
    """Once SQLite has met the damage, no write can spread it. No service starts on it either."""
    with capture_logs() as logged, served(tmp_path) as api:
        tenant = Tenant(api).register()
        other = apsw.Connection(str(tmp_path / "store.db"))
        other.pragma("schema_version")
        other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        other.close()
        assert tenant.record().status == 202
        damage(tmp_path / "store.db")
        until(lambda: ready(api).status == 503)
        until(lambda: "damaged" in ready(api).json["reason"])
        refused = tenant.record()
        assert (refused.status, refused.code) == (503, "STORE_DAMAGED")
    assert [line["event"] for line in logged].count("store_unusable") == 1
    damage(tmp_path / "store.db")
    with (
        pytest.raises(RuntimeError, match="malformed"),
        running_server(tmp_path, environment=ENVIRONMENT),
    ):
        pytest.fail("it started")


def test_a_store_that_hangs_does_not_hold_readiness(tmp_path: Path, dynoxide: str) -> None:
    """The answer comes while it hangs, without a second probe."""
    with (
        hanging_proxy(dynoxide) as store,
        served(tmp_path, store=dynamodb_url(store.endpoint)) as api,
    ):
        assert ready(api).status == 200
        store.hang()
        until(lambda: ready(api).status == 503)
        assert ready(api).json["reason"] == HANGS
        store.go_on()
        until(lambda: ready(api).status == 200)


def test_a_probe_costs_one_write_unit_and_one_read_unit(tmp_path: Path, dynoxide: str) -> None:
    """At most once a second, and only while `/readyz` is asked; as docs/costs.md says."""
    clock = ManualClock()
    names = [
        f'pricekeeper_store_capacity_units_total{{kind="{kind}",table="RevokedTokens"}}'
        for kind in ("write", "read")
    ]
    with served(tmp_path, clock=clock, store=dynamodb_url(dynoxide)) as api:
        before = scrape(api)
        for _ in range(5):
            assert [ready(api).status for _ in range(2)] == [200, 200]
            clock.advance_ms(MEMORY_MS)
        after = scrape(api)
        assert [after[name] - before.get(name, 0) for name in names] == [5, 5]
