"""Several instances at full speed on one organisation, on an engine that knows conflicts.

DynamoDB refuses a transaction while another one is writing to one of its items; the engines on
one machine do not. So the wire here does what DynamoDB would: it knows which items the
transactions in flight are writing to, and answers the later one with `TransactionConflict`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from fault_proxy import Fault, FaultProxy, _made_up, _Reply
from metering.conftest import PREMIUM, MeteringMaker, a_policy, a_usage
from minting import minted
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Metering, Outcome, org_day
from pricekeeper.settings import DynamoDbLocation
from pricekeeper.storage.dynamodb.store import DynamoDbStore
from pricekeeper.telemetry import StoreMeter

INSTANCES = 8
TASKS = 20
RECORDS = 15
TRANSACTION_SECS = 0.010
"""As long as on DynamoDB: this is what makes transactions overlap."""
_TRANSACT = "TransactWriteItems"


class ConflictingProxy(FaultProxy):
    """A wire to an engine where two transactions can't write to one item at the same time."""

    def __init__(self, engine: str) -> None:
        super().__init__(engine)
        self._writing: set[str] = set()
        self.conflicts = 0

    async def _pass_on(self, headers: Mapping[str, str], body: bytes) -> _Reply:
        if not headers["x-amz-target"].endswith(_TRANSACT):
            return await super()._pass_on(headers, body)
        items = {_item(operation) for operation in json.loads(body)["TransactItems"]}
        if items & self._writing:
            self.conflicts += 1
            status, told = _made_up(Fault.CONFLICT, _TRANSACT, body)
            return _Reply(status, {}, json.dumps(told).encode())
        self._writing |= items
        try:
            await asyncio.sleep(TRANSACTION_SECS)
            return await super()._pass_on(headers, body)
        finally:
            self._writing -= items


def _item(operation: dict[str, Any]) -> str:
    ((_, what),) = operation.items()
    place = what.get("Key") or what["Item"]
    return json.dumps([what["TableName"], place["PK"], place.get("SK")])


@pytest.fixture
async def proxy(dynoxide: str) -> AsyncIterator[ConflictingProxy]:
    async with ConflictingProxy(dynoxide) as proxy:
        yield proxy


async def test_instances_do_not_conflict_each_other_to_death(
    proxy: ConflictingProxy, table_prefix: str, new_metering: MeteringMaker
) -> None:
    """One organisation, one label, ids of both kinds: no commit ever waits for another's items."""
    clock = SystemClock()
    policy = a_policy(agg_shard_count=8)
    stores, meters, instances = [], [], []
    for _ in range(INSTANCES):
        meters.append(StoreMeter())
        location = DynamoDbLocation("us-east-1", table_prefix, proxy.endpoint)
        stores.append(await DynamoDbStore.open(location, clock=clock, meter=meters[-1]))
        instances.append(new_metering(stores[-1], clock))
    await stores[0].create_tables()
    days: set[str] = set()
    waited_ms: list[int] = []

    async def work(metering: Metering) -> None:
        for number in range(RECORDS):
            began_ms = clock.monotonic_ms()
            request_id = minted(clock.now_ms()) if number % 2 else None
            recorded = await metering.record(policy, a_usage(request_id))
            waited_ms.append(clock.monotonic_ms() - began_ms)
            assert recorded.outcome is Outcome.ACCEPTED
            days.add(recorded.receipt.org_day)

    await asyncio.gather(*(work(metering) for metering in instances for _ in range(TASKS)))

    records = INSTANCES * TASKS * RECORDS
    counted = 0
    for day in days:
        totals = await instances[0].read_totals(policy.scope_key, [PREMIUM], day, live=True)
        counted += totals[PREMIUM].requests
    assert counted == records
    assert org_day("UTC", clock.now_ms()) in days
    assert max(waited_ms) < 5_000  # no writer starves
    assert proxy.conflicts == 0
    transactions = sum(meter.calls["transact"] for meter in meters)
    assert proxy.attempts(_TRANSACT) == transactions
    assert transactions < records / 4
    for metering, store in zip(instances, stores, strict=True):
        await metering.close()
        await store.close()
