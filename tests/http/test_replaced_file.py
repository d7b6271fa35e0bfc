"""A database file that is removed or replaced under the service: noticed before any promise."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from http_fixtures import ENVIRONMENT, Api, Reply, Tenant, usage
from scraping import scrape, until
from serving import Server, running_server
from slowness import slow

NAME = "store.db"


def backup(folder: Path) -> Path:
    """A whole copy of the database, as an operator makes one while the service runs."""
    made = folder / "backup.db"
    source = apsw.Connection(str(folder / NAME))
    source.execute("VACUUM INTO ?", (str(made),))
    source.close()
    return made


def remove(folder: Path) -> None:
    (folder / NAME).unlink()


def move_over(folder: Path) -> None:
    backup(folder).rename(folder / NAME)


def copy_after_removal(folder: Path) -> None:
    copy = backup(folder)
    (folder / NAME).unlink()
    shutil.copyfile(copy, folder / NAME)


def copy_over(folder: Path) -> None:
    """As ``cp`` does it: the same file, with other bytes in it."""
    shutil.copyfile(backup(folder), folder / NAME)


def remove_log(folder: Path) -> None:
    (folder / f"{NAME}-wal").unlink()


def move_away(folder: Path) -> None:
    (folder / NAME).rename(folder / "elsewhere.db")


SLOW = slow(move_over, copy_after_removal, copy_over, remove_log, move_away)


def report(tenant: Tenant, record: dict[str, object]) -> Reply:
    return tenant.api.call("POST", f"{tenant.app}/usage", record, token=tenant.app_token)


def lines_about(server: Server, event: str) -> list[dict[str, object]]:
    found = (line for line in server.output().splitlines() if f'"{event}"' in line)
    return [json.loads(line) for line in found]


@pytest.mark.parametrize("replace", [remove, *SLOW])
def test_nothing_is_acknowledged_into_a_file_that_is_not_there(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    """Usage and reads are refused from the first request on, and the log says it once."""
    environment = {**ENVIRONMENT, "PRICEKEEPER_LOG_LEVEL": "info"}
    with running_server(tmp_path, environment=environment) as server:
        api = Api(server.url)
        tenant = Tenant(api).register()
        assert report(tenant, usage()).status == 202
        replace(tmp_path)
        refused = [report(tenant, usage()) for _ in range(3)]
        assert [one.status for one in refused] == [503] * 3
        assert {one.headers["retry-after"] for one in refused} == {"1"}
        until(lambda: report(tenant, usage()).code == "STORE_REPLACED")
        until(lambda: api.call("GET", "/readyz").status == 503)  # it is remembered for a second
        assert "restart" in api.call("GET", "/readyz").json["reason"]
        assert api.provision("GET", "/api/v1/orgs").code == "STORE_REPLACED"
        told = lines_about(server, "store_unusable")
        assert len(told) == 1
        assert "restart" in str(told[0]["reason"])
        samples = scrape(api)
        assert samples['pricekeeper_problems_total{code="STORE_REPLACED"}'] >= 2
        assert samples['pricekeeper_store_faults_total{kind="replaced"}'] == 1


@pytest.mark.parametrize("replace", [move_over, SLOW[1]])
def test_a_restart_goes_on_with_the_file_that_was_put_there(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    """What the backup has counts, and no part of the old file's log gets into it."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        known, later = usage(), usage()
        assert report(tenant, known).status == 202
        copy = tmp_path / "kept.db"
        shutil.copyfile(backup(tmp_path), copy)
        (tmp_path / "backup.db").unlink()
        assert report(tenant, later).status == 202
        replace(tmp_path)
        shutil.copyfile(copy, tmp_path / NAME)
        assert report(tenant, usage()).status == 503
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant.api = Api(server.url)
        assert report(tenant, known).json["status"] == "duplicate"
        assert report(tenant, later).json["status"] == "accepted"
        assert check_of(tmp_path) == "ok"


@pytest.mark.slow
def test_after_a_removal_a_restart_begins_anew(tmp_path: Path) -> None:
    """The tokens of the old file open nothing, and new organisations can be made."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        old = Tenant(Api(server.url)).register()
        remove(tmp_path)
        assert report(old, usage()).status == 503
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        old.api = Api(server.url)
        assert report(old, usage()).status == 401
        new = Tenant(Api(server.url)).register()
        assert report(new, usage()).status == 202


def test_what_a_removed_log_held_is_saved_by_a_proper_stop(tmp_path: Path) -> None:
    """Everything that was acknowledged before is there after the restart."""
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant = Tenant(Api(server.url)).register()
        known = usage()
        assert report(tenant, known).status == 202
        remove_log(tmp_path)
        refused = usage()
        assert report(tenant, refused).status == 503
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant.api = Api(server.url)
        assert report(tenant, known).json["status"] == "duplicate"
        assert report(tenant, refused).status == 202
        assert check_of(tmp_path) == "ok"


@pytest.mark.slow
def test_what_others_do_to_the_file_properly_is_no_replacement(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, environment=ENVIRONMENT) as server,
        running_server(tmp_path, environment=ENVIRONMENT) as second,
    ):
        tenant = Tenant(Api(server.url)).register()
        path = str(tmp_path / NAME)
        for number in range(4):
            tenant.api = Api(server.url if number % 2 else second.url)
            assert report(tenant, usage()).status == 202
            other = apsw.Connection(path)
            other.pragma("schema_version")  # it knows of the log from then on
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            assert report(tenant, usage()).status == 202
            other.execute("CREATE TABLE IF NOT EXISTS theirs (x)")
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            other.close()
            backup(tmp_path).unlink()
            os.chmod(path, 0o600)  # noqa: PTH101
            assert report(tenant, usage()).status == 202


def check_of(folder: Path) -> str:
    connection = apsw.Connection(str(folder / NAME))
    try:
        return str(connection.execute("PRAGMA quick_check").get)
    finally:
        connection.close()
