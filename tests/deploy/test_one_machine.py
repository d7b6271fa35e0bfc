"""One machine: the backup is one, and the unit starts what exists."""

import asyncio
import shlex
import stat
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.conftest import DEPLOY
from pricekeeper.clock import SystemClock
from pricekeeper.settings import (
    DATA_DIR,
    STORE,
    SqliteLocation,
    parse_store_location,
    read_settings,
)
from pricekeeper.storage import Add, Key, Put, Store, Update, open_store
from pricekeeper.storage.tables import CONFIG

COUNTER = Key("counter", "1")
WRITES_BEFORE = 200


def unit() -> dict[str, dict[str, list[str]]]:
    """The unit's sections; an option that is there twice has two values."""
    sections: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] = {}
    for line in (DEPLOY / "pricekeeper.service").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            current.setdefault(name, []).append(value)
    return sections


def back_up(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # our own program
        [sys.executable, str(DEPLOY / "backup.py"), str(source), str(target)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "pricekeeper.db"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder / "pricekeeper.db"


@pytest.fixture
async def store(source: Path) -> AsyncIterator[Store]:
    store = await open_store(SqliteLocation(str(source)), clock=SystemClock())
    await store.create_tables()
    yield store
    await store.close()


async def read_counter(path: Path) -> int:
    """What the counter says in a store of its own, opened like any other."""
    store = await open_store(SqliteLocation(str(path)), clock=SystemClock())
    item = await store.get(CONFIG, COUNTER)
    await store.close()
    assert item is not None
    value: int = item["n"]
    return value


async def test_a_backup_under_load_holds_what_was_acknowledged_before_it(
    store: Store, source: Path, target: Path
) -> None:
    """Writers continue meanwhile; the copy is from one moment, after the start of the backup."""
    bump = Update(CONFIG, COUNTER, (Add("n", 1),))
    for _ in range(WRITES_BEFORE):
        await store.update(bump)
    taking = asyncio.create_task(asyncio.to_thread(back_up, source, target))
    written = WRITES_BEFORE
    while not taking.done():
        await store.update(bump)
        written += 1

    done = await taking

    assert done.returncode == 0, done.stderr
    assert written > WRITES_BEFORE
    assert WRITES_BEFORE <= await read_counter(target) <= written


async def test_copying_the_file_alone_would_lose_commits(
    store: Store, source: Path, target: Path
) -> None:
    """Why there is a program for it: the last commits are in the log beside the file."""
    await store.put(Put(CONFIG, {"PK": COUNTER.pk, "SK": COUNTER.sk, "n": 1}))
    copied_by_hand = await asyncio.to_thread(source.read_bytes)

    assert back_up(source, target).returncode == 0

    assert await read_counter(target) == 1
    assert COUNTER.pk.encode() not in copied_by_hand


@pytest.mark.usefixtures("store")
def test_only_the_owner_can_read_a_backup(source: Path, target: Path) -> None:
    """It holds everybody's spend; and it is one file, with nothing left beside it."""
    assert back_up(source, target).returncode == 0

    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("wrong", ["missing", "no database"])
def test_a_backup_that_fails_says_so_and_leaves_the_last_one(
    source: Path, target: Path, wrong: str
) -> None:
    """No empty file in its place, and none made where the store should be."""
    target.write_text("the last one")
    if wrong == "no database":
        source.write_text(uuid.uuid4().hex * 100)

    done = back_up(source, target)

    assert done.returncode == 1
    assert done.stderr.startswith(f"no backup of {source}: ")
    assert target.read_text() == "the last one"
    assert source.exists() is (wrong == "no database")
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.usefixtures("store")
def test_a_copy_that_can_not_take_its_place_is_removed(source: Path, target: Path) -> None:
    """It would fill the disk, one day."""
    target.mkdir()

    assert back_up(source, target).returncode == 1

    assert list(target.parent.iterdir()) == [target]


def test_the_unit_keeps_everything_in_its_own_folder() -> None:
    """Store and keys are where systemd lets the service write, and no other user read."""
    service = unit()["Service"]
    given = dict(line.split("=", 1) for line in service["Environment"])
    folder = f"/var/lib/{service['StateDirectory'][0]}"

    settings = read_settings(given)

    assert settings.store == SqliteLocation(f"{folder}/pricekeeper.db")
    assert parse_store_location(given[STORE]) == settings.store
    assert str(settings.data_dir) == given[DATA_DIR] == folder
    assert service["StateDirectoryMode"] == ["0700"]


def test_the_unit_starts_the_service_for_a_proxy_on_this_machine() -> None:
    """It is restarted when it dies, and given time to commit what it has accepted."""
    service = unit()["Service"]
    command = shlex.split(service["ExecStart"][0])

    assert [Path(command[0]).name, *command[1:4]] == ["pricekeeper", "serve", "--host", "127.0.0.1"]
    assert service["User"] != ["root"]
    assert service["Restart"] == ["always"]
    assert int(service["TimeoutStopSec"][0]) >= 30
