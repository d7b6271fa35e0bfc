"""``pricekeeper export``: days in files, told in a line, with an exit code to rely on."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from cli.conftest import ORG, Cli
from cli.terminals import in_a_terminal
from export.conftest import ORGS, Company, rows, tree
from metering.conftest import DAY_MS
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.metering import Aggregator
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import open_store
from pricekeeper.storage.kept_rows import EXPORT_STATE

RECORDS = 30


def day_of(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d")


@pytest.fixture
def days(cli: Cli) -> list[str]:
    """A store with usage of a week ago; its days, as people write them."""

    async def fill() -> list[str]:
        past = ManualClock(SystemClock().now_ms() - 7 * DAY_MS)
        store = await open_store(SqliteLocation(str(cli.folder / "demo.db")), clock=past)
        await store.create_tables()
        company = Company(store, past)
        await company.report(RECORDS)
        await company.aggregate()
        past.advance_ms(7 * DAY_MS)
        await Aggregator(store, past).run_once()
        await store.close()
        found = sorted({day for _, day, _ in company.reported})
        return [f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in found]

    return asyncio.run(fill())


def compact(day: str) -> str:
    return day.replace("-", "")


def test_a_range_of_days_is_exported(cli: Cli, days: list[str]) -> None:
    """One line for each day, and where they are; the answer as JSON has the sums."""
    words = ("export", "--from", days[0], "--to", days[-1], "--into", "out")
    done = cli(*words)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == days
    assert lines[-1].strip() == "in out"
    answer = cli.ok(*words)
    assert [one["day"] for one in answer["days"]] == days
    assert sum(one["records"] for one in answer["days"]) == RECORDS
    assert all(one["is_final"] and one["totals_equal_records"] for one in answer["days"])
    files = tree(cli.folder / "out")
    assert sum(one["bytes"] for one in answer["days"]) == sum(
        len(content) for path, content in files.items() if path.endswith(".gz")
    )
    found = [row for path in files if "records" in path for row in rows(files[path])]
    assert len({row["request_id"] for row in found}) == RECORDS


def test_one_organisation_is_exported_alone(cli: Cli, days: list[str]) -> None:
    """By its id; one that has nothing has an empty manifest."""
    answer = cli.ok("export", "--day", days[0], "--org", str(ORGS[0]), "--into", "out")
    assert answer["days"][0]["organisations"] <= 1
    assert all(str(ORGS[0]) in path for path in tree(cli.folder / "out"))
    assert (
        cli.ok("export", "--day", days[0], "--org", ORG, "--into", "x")["days"][0]["records"] == 0
    )


def test_totals_that_differ_are_exit_1(cli: Cli, days: list[str]) -> None:
    """In words, in the answer and in the manifest."""
    connection = apsw.Connection(str(cli.folder / "demo.db"))
    connection.execute("DELETE FROM \"DailyTotal\" WHERE sk LIKE 'DAY#%'")
    connection.close()
    done = cli("export", "--day", days[0], "--into", "out")
    assert done.code == 1
    assert "differ from their records: pricekeeper ledger rebuild" in done.out
    answer = cli("export", "--day", days[0], "--into", "out", "--json")
    assert (answer.code, answer.json["days"][0]["totals_equal_records"]) == (1, False)
    assert answer.json["days"][0]["differing_accounts"] > 0


def test_today_may_still_change(cli: Cli, days: list[str]) -> None:
    """Which is said."""
    today = day_of(SystemClock().now_ms())
    assert "the day may still change" in cli("export", "--day", today, "--into", "out").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "give --day, or --from and --to"),
        (("--from", "2026-01-01"), "give --day, or --from and --to"),
        (("--day", "2026-01-01", "--to", "2026-01-02"), "give --day, or --from and --to"),
        (
            ("--from", "2026-01-02", "--to", "2026-01-01"),
            "--from is after --to; give the earlier day first",
        ),
        (("--from", "2006-01-01", "--to", "2026-01-01"), "3650 days"),
        (("--day", "2026-01-01", "--into", "gs://x/y"), "names no bucket"),
        (("--day", "2026-01-01", "--format", "csv"), "csv"),
        (("--day", "2026-01-01", "--org", "x", "--into", "out"), "org_id"),
    ],
)
def test_what_can_not_be_meant_is_exit_2(
    cli: Cli, days: list[str], words: tuple[str, ...], told: str
) -> None:
    """Before anything is written."""
    done = cli("export", *words)
    assert done.code == 2
    assert told in done.err
    assert not (cli.folder / "out").exists()


def test_where_to_may_be_in_the_environment(cli: Cli, days: list[str]) -> None:
    """Else it is unknown."""
    assert "--into" in cli("export", "--day", days[0]).err
    cli.monkeypatch.setenv("PRICEKEEPER_EXPORT_TO", "elsewhere")
    assert cli.ok("export", "--day", days[0])["into"] == "elsewhere"
    assert (cli.folder / "elsewhere" / f"day={compact(days[0])}" / "manifest.json").exists()


def test_a_store_that_is_missing_is_not_made(cli: Cli) -> None:
    """Nothing is exported from nothing."""
    assert cli("export", "--day", "2026-01-01", "--into", "out").code == 1
    assert not (cli.folder / "demo.db").exists()


def state(cli: Cli) -> Any:
    """What the store knows of exports."""
    return cli.on_store(lambda store: store.get(*EXPORT_STATE))


def test_days_that_are_exported_by_hand_count_if_none_is_left_out(
    cli: Cli, days: list[str]
) -> None:
    """Where the daily job would write them; elsewhere, or of one organisation, they do not."""
    first_ms = SystemClock().now_ms() - 14 * DAY_MS
    words = ("export", "--from", day_of(first_ms), "--to", days[0])
    cli.ok(*words, "--into", "elsewhere")
    cli.monkeypatch.setenv("PRICEKEEPER_EXPORT_TO", "out")
    cli.ok(*words, "--org", str(ORGS[0]))
    cli.ok("export", "--day", days[-1])
    assert state(cli) is None
    cli.ok(*words)
    assert state(cli)["day"] == compact(days[0])
    cli.ok("export", "--day", days[-1])
    assert state(cli)["day"] == compact(days[-1] if len(days) == 2 else days[0])


def test_progress_is_shown_in_a_terminal(cli: Cli, days: list[str]) -> None:
    """Which organisation of how many; and then the same lines as in a pipe."""
    words = ("export", "--from", days[0], "--to", days[-1], "--into", "out")
    with in_a_terminal(*words, columns=100, environment=cli.environment) as terminal:
        assert terminal.end() == 0
    assert re.search(r"organisation \d of 3, \d+ record", terminal.printed)
    assert cli(*words).out.splitlines()[0] in terminal.printed


def test_a_command_that_is_killed_goes_on_later(cli: Cli, days: list[str]) -> None:
    """Ctrl-c in the middle, and the same command again: the same files as without."""
    cli.ok("export", "--day", days[0], "--into", "whole")
    program = (
        "import os, signal; from pricekeeper.export.folder import FolderDestination as F\n"
        "put = F.put_file\n"
        "async def once(self, path, written):\n"
        "    await put(self, path, written)\n"
        f"    os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "F.put_file = once\n"
        "from pricekeeper.cli import main; main()\n"
    )
    words = ("export", "--day", days[0], "--into", "stopped")
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program, *words], timeout=60, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    stopped = tree(cli.folder / "stopped")
    assert not any(path.endswith("manifest.json") for path in stopped)
    cli.ok(*words)
    assert tree(cli.folder / "stopped") == tree(cli.folder / "whole")
    assert json.loads(tree(cli.folder / "whole")[f"day={compact(days[0])}/manifest.json"])


def test_parquet_says_what_it_needs(cli: Cli, days: list[str]) -> None:
    """Where pyarrow is not installed."""
    cli.monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = cli("export", "--day", days[0], "--into", "out", "--format", "parquet")
    assert done.code == 1
    assert "EXPORT_FAILED Parquet needs pyarrow: pip install" in done.err
    assert not list((cli.folder / "out").glob("day=*"))


def test_the_files_are_where_the_guide_says(cli: Cli, days: list[str]) -> None:
    """By day and organisation."""
    cli.ok("export", "--day", days[0], "--into", "out")
    guide = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    for name in ("records.jsonl.gz", "totals.jsonl.gz", "manifest.json"):
        assert name in guide
        assert any(path.endswith(name) for path in tree(cli.folder / "out"))
