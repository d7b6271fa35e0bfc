"""A stopped export continues to the same result."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from export.conftest import ORGS, Company, names, tree
from pricekeeper.export.folder import FolderDestination
from pricekeeper.settings import DynamoDbLocation, SqliteLocation, StoreLocation
from pricekeeper.storage import Store
from stores import ShiftedClock

PROCESS = Path(__file__).with_name("export_process.py")
STEPS = 2 * (3 * len(ORGS) + 1 + len(ORGS))
"""Before and after each change: two files and a note of each, the manifest, no notes any more."""


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def location(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> StoreLocation:
    if request.param == "sqlite-file":
        return SqliteLocation(str(tmp_path / "store.db"))
    endpoint: str = request.getfixturevalue("dynoxide")
    return DynamoDbLocation("us-east-1", table_prefix, endpoint)


def url_of(location: StoreLocation) -> str:
    if isinstance(location, SqliteLocation):
        return f"sqlite:///{location.path}"
    return f"dynamodb://{location.region}?prefix={location.prefix}&endpoint={location.endpoint}"


def run(location: StoreLocation, folder: Path, day: str, now_ms: int, step: int) -> int:
    """Export in a process that is killed at that step; how it ended."""
    words = [url_of(location), str(folder), day, str(now_ms), str(step)]
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, str(PROCESS), *words], capture_output=True, timeout=120, check=False
    )
    assert done.stderr == b""
    return done.returncode


@pytest.mark.slow
async def test_kill_9_at_any_step_changes_nothing_of_the_result(
    location: StoreLocation,
    clock: ShiftedClock,
    company: Company,
    day: str,
    folder: Path,
) -> None:
    """Killed before and after changes and inside of files, then let finish; or killed repeatedly.

    Every third step is tried, on DynamoDB every eleventh: a process takes a second.
    """
    now_ms = clock.now_ms()
    await company.export(folder / "whole", day)
    whole = tree(folder / "whole")
    every = 3 if isinstance(location, SqliteLocation) else 11
    for step in (-1, -4, *range(0, STEPS, every)):
        stopped = folder / f"stopped-{step}"
        assert run(location, stopped, day, now_ms, step) == -signal.SIGKILL
        seen = tree(stopped)
        has_manifest = f"day={day}/manifest.json" in seen
        listed = {path for path in seen if path.endswith(".gz") and ".scratch" not in path}
        assert has_manifest is (step > 2 * 3 * len(ORGS))
        assert all(seen[path] == whole[path] for path in listed)  # whole, or not there
        assert run(location, stopped, day, now_ms, 1_000) == 0
        assert tree(stopped) == whole
        assert names(stopped) == {
            f"day={day}",
            "records",
            "totals",
        }  # nothing is left of the one that was killed
    again = folder / "again"
    for step in (2, 9, 9, 16):
        run(location, again, day, now_ms, step)
    assert run(location, again, day, now_ms, 1_000) == 0
    assert tree(again) == whole


class Stopped(Exception):  # noqa: N818
    pass


class StoppingDestination(FolderDestination):
    """Fails when the manifest is written."""

    async def put_bytes(self, path: str, content: bytes) -> None:
        if path.endswith("manifest.json"):
            raise Stopped
        await super().put_bytes(path, content)


async def stop_before_the_manifest(company: Company, folder: Path, day: str) -> None:
    destination = StoppingDestination(str(folder))
    with pytest.raises(Stopped):
        await company.exporter(destination).export_day(day)
    await destination.close()


async def test_files_that_are_as_noted_are_kept(company: Company, day: str, folder: Path) -> None:
    """They are not written again; one that is missing or damaged is."""
    await stop_before_the_manifest(company, folder, day)
    records = [folder / f"records/day={day}/org={org_id}/records.jsonl.gz" for org_id in ORGS]
    before = [path.stat().st_ino for path in records]
    whole = records[1].read_bytes()
    records[1].write_bytes(whole[:-1] + b"?")
    manifest = await company.export(folder, day)
    assert records[1].read_bytes() == whole
    assert manifest["totals_equal_records"] is True
    after = [path.stat().st_ino for path in records]
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1] != before[1]


def replace_notes(folder: Path, note: bytes) -> None:
    notes = list(folder.glob("stopped/*/*/.jsonl.part"))
    assert len(notes) == len(ORGS)
    for path in notes:
        path.write_bytes(note)


@pytest.mark.parametrize("note", [b"", b"{}", b"\xff", b'{"version":0,"entry":{}}'])
async def test_a_strange_note_is_as_good_as_none(
    company: Company, day: str, folder: Path, note: bytes
) -> None:
    await company.export(folder / "whole", day)
    await stop_before_the_manifest(company, folder / "stopped", day)
    replace_notes(folder, note)
    await company.export(folder / "stopped", day)
    assert tree(folder / "stopped") == tree(folder / "whole")


async def test_a_day_that_may_still_change_is_begun_again(
    store: Store, clock: ShiftedClock, folder: Path
) -> None:
    company = Company(store, clock)
    await company.report(20)
    day = company.reported[0][1]
    await stop_before_the_manifest(company, folder, day)
    await company.report(20)
    manifest = await company.export(folder, day)
    assert manifest["records"] == len(company.of(day))
