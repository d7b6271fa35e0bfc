"""Processes that are killed between a decision and its delivery, and between that and its note."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from alerts.conftest import COST_USD_MICROS, Instance, Org, budget
from alerts.endpoint import Endpoint
from pricekeeper.alerts import DeliveryState
from pricekeeper.alerts.delivery import LEASE_MS
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from stores import ShiftedClock

PROCESS = Path(__file__).with_name("alert_process.py")


@pytest.fixture(params=["sqlite-file", "dynamodb-local"])
def url(request: pytest.FixtureRequest, tmp_path: Path, table_prefix: str) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path / 'store.db'}"
    endpoint: str = request.getfixturevalue("dynamodb_local")
    return f"dynamodb://us-east-1?prefix={table_prefix}&endpoint={endpoint}"


async def test_kill_9_between_decision_and_delivery(url: str, endpoint: Endpoint) -> None:
    """The first decides and dies, the second delivers and dies, the third finishes.

    The threshold is decided once, and what arrives twice arrives under one key.
    """
    clock = ShiftedClock()
    store = await open_store(parse_store_location(url), clock=clock)
    await store.create_tables()
    instance = Instance(store, clock)
    org = Org(instance, clock)
    await org.configure(budgets=[budget(COST_USD_MICROS, 100)])
    await org.add_channel(endpoint.url)

    await _run_until_told(url, org.id)
    await instance.aggregate()
    assert [one.state for one in await org.history()] == [DeliveryState.PENDING]
    assert endpoint.requests == []

    died = await asyncio.create_subprocess_exec(sys.executable, PROCESS, url, org.id, "deliver")
    assert await died.wait() == -signal.SIGKILL
    assert [one.state for one in await org.history()] == [DeliveryState.PENDING]
    assert len(endpoint.accepted) == 1
    await instance.deliver()  # the lease of the dead one still holds
    assert len(endpoint.accepted) == 1
    clock.shift_ms += LEASE_MS
    await instance.deliver()

    assert [one.state for one in await org.history()] == [DeliveryState.DELIVERED]
    assert len({(one.id, one.body) for one in endpoint.accepted}) == 1
    assert len(endpoint.accepted) == 2
    await instance.close()
    await store.close()


async def _run_until_told(url: str, org_id: str) -> None:
    """Let a process decide, and kill it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROCESS, url, org_id, "decide", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async for line in process.stdout:
        if line == b"decided\n":
            break
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
