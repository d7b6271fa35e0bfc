"""Processes that change one organisation at the same time, some of which are killed."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from random import Random

import pytest

from audit_trail.conftest import entries_of, findings
from audit_trail.voids import Voiding, check_totals, check_voids, put_shop
from pricekeeper.audit.entry import TrailEntry
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import Key, Store, open_store
from pricekeeper.storage.tables import CONFIG
from pricekeeper.values import OrgId
from stores import ShiftedClock

PROCESS = Path(__file__).with_name("changing_process.py")
CHANGES = 12
KILLED_AFTER = 10
TASKS = 4


@pytest.fixture
def table_prefix() -> str:
    """Tables of each test's own: an aggregator looks at everything that is there."""
    return f"processes-{uuid.uuid4().hex[:8]}-"


@pytest.fixture(params=["sqlite-file", "dynamodb-local"])
def url(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path / 'store.db'}"
    endpoint: str = request.getfixturevalue("dynamodb_local")
    return f"dynamodb://us-east-1?prefix={table_prefix}&endpoint={endpoint}"


def start(url: str, org_id: OrgId, name: str, targets: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROCESS), url, org_id, name, str(CHANGES), *targets]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603


def told_until_killed(process: subprocess.Popen[str]) -> set[str]:
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(KILLED_AFTER)]
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    return {line.strip() for line in lines if line.endswith("\n")}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_change_has_its_entry_and_every_entry_its_change(
    url: str, org_id: OrgId
) -> None:
    """Two processes at once; a third that is killed in the middle, and a fourth."""
    clock = ShiftedClock()
    store = await open_store(parse_store_location(url), clock=clock)
    await store.create_tables()
    began_ms = clock.now_ms()
    policy = await put_shop(store, clock, org_id)
    seller = Voiding(store, clock, policy)
    targets = [f"usage/{await seller.record(Random(one))}" for one in range(3)]
    targets += [f"authorization/{await seller.authorize()}" for _ in range(3)]
    await seller.close()
    await store.close()

    steady = [start(url, org_id, name, targets) for name in ("one", "two")]
    told: dict[str, set[str]] = {}
    for name in ("three", "four"):
        with start(url, org_id, name, targets) as killed:
            told[name] = told_until_killed(killed)
    for name, process in zip(("one", "two"), steady, strict=True):
        lines, _ = process.communicate()
        assert process.returncode == 0
        told[name] = set(lines.split())
        assert len(told[name]) == 2 * CHANGES + len(targets)

    store = await open_store(parse_store_location(url), clock=clock)
    entries = await entries_of(store, org_id)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert await findings(store, clock, org_id) == []
    voided, sums = await check_voids(store, clock, policy, (began_ms, clock.now_ms()))
    for name, changes in told.items():
        mine = [entry for entry in entries if entry.actor == name]
        assert changes <= {entry.request_id for entry in mine} | voided, name
        for task in range(TASKS):
            await check_app(store, org_id, f"{name}-{task}", mine)
    await check_totals(store, clock, [sums])
    await store.close()


async def check_app(store: Store, org_id: OrgId, app_id: str, entries: list[TrailEntry]) -> None:
    """Hold one app against its entries: each counts one version up, and says what came after."""
    target = f"org-{org_id}-app-{app_id}"
    mine = [entry for entry in entries if entry.target == target]
    item = await store.get(CONFIG, Key(f"ORG#{org_id}", f"APP#{app_id}"))
    assert (item is None) == (mine == [])
    if item is not None:
        assert item["version"] == len(mine)
        assert mine[-1].after == {"app_name": item["app_name"]}
