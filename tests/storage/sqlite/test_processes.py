"""Several processes on one file, and a process that is killed in the middle of its work."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from pricekeeper.clock import SystemClock
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import Add, Key, Update, open_store
from pricekeeper.storage.tables import CONFIG, REQUEST_DEDUP
from stores import stored

HAMMER = Path(__file__).with_name("hammer.py")


def start(path: str, name: str, tasks: int, rounds: int) -> "subprocess.Popen[str]":
    command = [sys.executable, str(HAMMER), path, name, str(tasks), str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603


async def test_nothing_acknowledged_is_missing_after_kill_9(path: str) -> None:
    """All writes that were acknowledged before the kill are there after it, and none in part."""
    with start(path, "victim", tasks=16, rounds=100_000) as victim:
        assert victim.stdout is not None
        told = [victim.stdout.readline() for _ in range(2_000)]
        os.kill(victim.pid, signal.SIGKILL)
        told += victim.stdout.readlines()
    acknowledged = dict.fromkeys(range(16), 0)
    for line in told:
        if line.endswith("\n"):
            task, number = map(int, line.split())
            acknowledged[task] = number

    store = await open_store(SqliteLocation(path), clock=SystemClock())
    counted = 0
    for task, number in acknowledged.items():
        item = await stored(store, CONFIG, Key("victim", str(task)))
        assert item["n"] in (number, number + 1)  # one more may have been committed, untold
        counted += item["n"]
        last = f"victim#{task}#{item['n']}"
        found = await store.batch_get(
            [(REQUEST_DEDUP, Key(last)), (REQUEST_DEDUP, Key(f"victim#{task}#{item['n'] + 1}"))]
        )
        assert [receipt is not None for receipt in found] == [True, False]
    shared = await stored(store, CONFIG, Key("shared", "all"))
    assert shared["n"] == counted
    await store.close()


async def test_two_processes_share_a_file(path: str) -> None:
    with start(path, "left", tasks=8, rounds=150) as left, start(path, "right", 8, 150) as right:
        for process in (left, right):
            assert len(process.communicate()[0].splitlines()) == 8 * 150
            assert process.returncode == 0
    store = await open_store(SqliteLocation(path), clock=SystemClock())
    shared = await stored(store, CONFIG, Key("shared", "all"))
    assert shared["n"] == 2 * 8 * 150
    await store.close()


async def test_what_another_connection_wrote_is_never_overlooked(path: str) -> None:
    """Two stores take turns on one counter: what one remembers, the other may have changed."""
    location = SqliteLocation(path)
    one = await open_store(location, clock=SystemClock())
    two = await open_store(location, clock=SystemClock())
    await one.create_tables()
    counter = Update(CONFIG, Key("turns", "n"), (Add("n", 1),))
    values = [(await store.update(counter))["n"] for _ in range(25) for store in (one, two)]
    assert values == list(range(1, 51))
    racing = await asyncio.gather(
        *(store.update(counter) for _ in range(50) for store in (one, two))
    )
    assert sorted(item["n"] for item in racing) == list(range(51, 151))
    await one.close()
    await two.close()
