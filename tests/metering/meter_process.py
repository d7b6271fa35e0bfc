"""A process that reports usage as fast as it can, and tells each acknowledgement on its output.

Run as ``python meter_process.py STORE_URL ORG_ID ZONE MIDNIGHT_MS RECORDS``. What it reports
follows from its arguments, so the test knows them, and a second process reports the same.
It aggregates at the same time, and is meant to be killed. Each line is the number of a record.
"""

import asyncio
import os
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))

from metering.audit import Reported
from metering.conftest import LABELS, a_policy
from metering.variants import sound_metering
from minting import either
from pricekeeper.clock import SystemClock
from pricekeeper.metering import Aggregator, Usage
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from pricekeeper.values import OrgId

TASKS = 16


def reported(org_id: str, zone: str, midnight_ms: int, number: int) -> Reported:
    """The record of that number, of the hour before or after that midnight."""
    random = Random(number)
    policy = a_policy(org_id=OrgId(org_id), timezone=zone)
    at_ms = midnight_ms + random.randrange(-3_600_000, 3_600_000)
    usage = Usage(
        request_id=either(at_ms, random),
        model_label=random.choice(LABELS),
        input_tokens=random.randrange(5_000),
        output_tokens=random.randrange(2_000),
        timestamp_ms=at_ms,
    )
    return Reported(policy, usage, at_ms)


async def main(url: str, org_id: str, zone: str, midnight_ms: int, records: int) -> None:
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    metering = sound_metering(store, clock)
    random = Random(os.getpid())

    async def work(task: int) -> None:
        """Report one's share in any order, some of it twice."""
        numbers = list(range(task, records, TASKS))
        numbers += random.sample(numbers, len(numbers) * 3 // 10)
        random.shuffle(numbers)
        for number in numbers:
            record = reported(org_id, zone, midnight_ms, number)
            await metering.record(record.policy, record.usage)
            os.write(1, f"{number}\n".encode())

    async def aggregate() -> None:
        while True:
            await Aggregator(store, clock).run_once()

    aggregating = asyncio.create_task(aggregate())
    await asyncio.gather(*(work(task) for task in range(TASKS)))
    aggregating.cancel()
    await asyncio.gather(aggregating, return_exceptions=True)
    await metering.close()
    await store.close()


if __name__ == "__main__":
    url, org_id, zone, midnight_ms, records = sys.argv[1:]
    asyncio.run(main(url, org_id, zone, int(midnight_ms), int(records)))
