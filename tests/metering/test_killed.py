"""Processes that are killed in the middle of counting: acknowledged is counted, once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metering.audit import Audit
from metering.conftest import MeteringMaker, new_org_id
from metering.meter_process import reported
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Aggregator, Outcome, Recorded, day_start_ms, org_day
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store

PROCESS = Path(__file__).with_name("meter_process.py")
RECORDS = 1_000


@pytest.fixture(params=["sqlite-file", "dynamodb-local"])
def url(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path / 'store.db'}"
    endpoint: str = request.getfixturevalue("dynamodb_local")
    return f"dynamodb://us-east-1?prefix={table_prefix}&endpoint={endpoint}"


async def test_kill_9_loses_nothing_and_counts_nothing_twice(
    url: str, new_metering: MeteringMaker
) -> None:
    """Two processes are killed; a third finishes. All three report the same records."""
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    await store.create_tables()
    await Aggregator(store, clock).run_once()
    zone, midnight_ms = _recent_midnight(clock.now_ms())
    org_id = new_org_id()
    audit = Audit()
    metering = new_metering(store, clock)
    for lines_max in (RECORDS // 4, RECORDS // 2, None):
        told = _told([url, org_id, zone, str(midnight_ms), str(RECORDS)], lines_max)
        for number in told:
            audit.report(reported(org_id, zone, midnight_ms, number))
        # Every acknowledged record is counted.
        records = list(audit.reported.values())
        for first in range(0, len(records), 100):
            part = records[first : first + 100]
            usages = [record.usage for record in part]
            answers = await metering.record_many(part[0].policy, usages)
            for record, answer in zip(part, answers, strict=True):
                assert isinstance(answer, Recorded)
                assert answer.outcome is Outcome.DUPLICATE
                audit.answer(record, answer)
    assert len(audit.reported) == RECORDS
    await Aggregator(store, clock).run_once()
    await audit.check(store)
    assert len({account.day for account in audit.expected()}) == 2
    await metering.close()
    await store.close()


def _recent_midnight(now_ms: int) -> tuple[str, int]:
    """A zone where it was midnight six hours ago, or nearly seven, and that midnight."""
    hours = (6 - now_ms // 3_600_000) % 24
    east = hours if hours <= 12 else hours - 24
    zone = f"Etc/GMT{-east:+}" if east else "UTC"
    return zone, day_start_ms(zone, org_day(zone, now_ms))


def _told(arguments: list[str], lines_max: int | None) -> set[int]:
    """Start a process, kill it after so many acknowledgements, and return these."""
    command = [sys.executable, str(PROCESS), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        if lines_max is None:
            told = process.stdout.readlines()
            assert process.wait() == 0
        else:
            told = [process.stdout.readline() for _ in range(lines_max)]
            os.kill(process.pid, signal.SIGKILL)
            told += process.stdout.readlines()
    return {int(line) for line in told if line.endswith("\n")}
