"""A start on DynamoDB: it waits for its store, says so, and asks no more than it has to."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fault_proxy import FaultProxy
from free_port import free_port
from http_fixtures import ENVIRONMENT
from pricekeeper.clock import SystemClock
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage import open_store
from pricekeeper.storage.tables import ALL_TABLES


@asynccontextmanager
async def serving(folder: Path, prefix: str, endpoint: str) -> AsyncIterator[asyncio.StreamReader]:
    """What ``pricekeeper serve`` prints, while it runs."""
    store = f"dynamodb://us-east-1?prefix={prefix}&endpoint={endpoint}"
    settings = {**ENVIRONMENT, "PRICEKEEPER_DATA_DIR": str(folder), "PRICEKEEPER_DRAIN_SECS": "0"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pricekeeper", "serve"),
        *("--port", str(free_port()), "--store", store),
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


async def line_with(text: str, printed: asyncio.StreamReader) -> str:
    """The next line that has this text in it."""
    while line := await printed.readline():
        if text in line.decode():
            return line.decode()
    raise AssertionError(f"it ended without {text!r}")


async def test_a_service_waits_for_its_store_and_says_for_what(
    dynoxide: str, tmp_path: Path
) -> None:
    """The store comes up after the service was started, and then the service serves."""
    prefix = f"start-{uuid.uuid4().hex[:8]}-"
    async with FaultProxy(dynoxide) as proxy:
        await proxy.down()
        async with serving(tmp_path, prefix, proxy.endpoint) as printed:
            waiting = await line_with("waiting_for_store", printed)
            assert f"DescribeTable of {prefix}Config" in waiting
            await proxy.up()
            await line_with("serving on", printed)


async def test_a_start_asks_once_for_each_table(dynoxide: str, tmp_path: Path) -> None:
    """Once by the process that checks before it serves, and once as it begins to serve."""
    prefix = f"start-{uuid.uuid4().hex[:8]}-"
    store = await open_store(DynamoDbLocation("us-east-1", prefix, dynoxide), clock=SystemClock())
    await store.create_tables()
    await store.close()
    async with FaultProxy(dynoxide) as proxy, serving(tmp_path, prefix, proxy.endpoint) as printed:
        await line_with("serving on", printed)
        await proxy.came_by("DescribeTable", 2 * len(ALL_TABLES))

        assert proxy.attempts("DescribeTable") == 2 * len(ALL_TABLES)
        for action in ("DescribeTimeToLive", "ListTables", "CreateTable"):
            assert proxy.attempts(action) == 0
