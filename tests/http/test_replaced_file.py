"""A database file that is removed or replaced under the service: noticed before any promise."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from structlog.testing import capture_logs

from http_fixtures import Tenant, usage
from scraping import scrape, until
from served import served

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


QUICKLY = [remove, move_over, copy_after_removal, remove_log, move_away]


@pytest.mark.parametrize("replace", [*QUICKLY, pytest.param(copy_over, marks=pytest.mark.slow)])
def test_nothing_is_acknowledged_into_a_file_that_is_not_there(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    """Usage and reads are refused from the first request on, and the log says it once."""
    with capture_logs() as logged, served(tmp_path) as api:
        tenant = Tenant(api).register()
        assert tenant.record().status == 202
        replace(tmp_path)
        refused = [tenant.record() for _ in range(3)]
        assert [one.status for one in refused] == [503] * 3
        assert {one.headers["retry-after"] for one in refused} == {"1"}
        until(lambda: tenant.record().code == "STORE_REPLACED")
        until(lambda: api.call("GET", "/readyz").status == 503)  # it is remembered for a second
        assert "restart" in api.call("GET", "/readyz").json["reason"]
        assert api.provision("GET", "/api/v1/orgs").code == "STORE_REPLACED"
        samples = scrape(api)
        assert samples['pricekeeper_problems_total{code="STORE_REPLACED"}'] >= 2
        assert samples['pricekeeper_store_faults_total{kind="replaced"}'] == 1
    (line,) = [line for line in logged if line["event"] == "store_unusable"]
    assert "restart" in line["reason"]


@pytest.mark.parametrize("replace", [move_over, copy_after_removal])
def test_a_restart_goes_on_with_the_file_that_was_put_there(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    """What the backup has counts, and no part of the old file's log gets into it."""
    with served(tmp_path) as api:
        tenant = Tenant(api).register()
        known, later = usage(), usage()
        assert tenant.record(known).status == 202
        copy = backup(tmp_path).rename(tmp_path / "kept.db")
        assert tenant.record(later).status == 202
        replace(tmp_path)
        shutil.copyfile(copy, tmp_path / NAME)
        assert tenant.record().status == 503
    with served(tmp_path) as tenant.api:
        assert tenant.record(known).json["status"] == "duplicate"
        assert tenant.record(later).json["status"] == "accepted"
        assert check_of(tmp_path) == "ok"


def test_after_a_removal_a_restart_begins_anew(tmp_path: Path) -> None:
    """The tokens of the old file open nothing, and new organisations can be made."""
    with served(tmp_path) as api:
        old = Tenant(api).register()
        remove(tmp_path)
        assert old.record().status == 503
    with served(tmp_path) as old.api:
        assert old.record().status == 401
        assert Tenant(old.api).register().record().status == 202


def test_what_a_removed_log_held_is_saved_by_a_proper_stop(tmp_path: Path) -> None:
    """Everything that was acknowledged before is there after the restart."""
    known, refused = usage(), usage()
    with served(tmp_path) as api:
        tenant = Tenant(api).register()
        assert tenant.record(known).status == 202
        remove_log(tmp_path)
        assert tenant.record(refused).status == 503
    with served(tmp_path) as tenant.api:
        assert tenant.record(known).json["status"] == "duplicate"
        assert tenant.record(refused).status == 202
        assert check_of(tmp_path) == "ok"


def test_what_others_do_to_the_file_properly_is_no_replacement(tmp_path: Path) -> None:
    with served(tmp_path) as first, served(tmp_path) as second:
        tenant = Tenant(first).register()
        path = str(tmp_path / NAME)
        for number in range(4):
            tenant.api = first if number % 2 else second
            assert tenant.record().status == 202
            other = apsw.Connection(path)
            other.pragma("schema_version")  # it knows of the log from then on
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            assert tenant.record().status == 202
            other.execute("CREATE TABLE IF NOT EXISTS theirs (x)")
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            other.close()
            backup(tmp_path).unlink()
            os.chmod(path, 0o600)  # noqa: PTH101
            assert tenant.record().status == 202


def check_of(folder: Path) -> str:
    connection = apsw.Connection(str(folder / NAME))
    try:
        return str(connection.execute("PRAGMA quick_check").get)
    finally:
        connection.close()
