"""A process that writes as fast as it can and tells each acknowledgement on its standard output.

Run as ``python hammer.py FILE NAME TASKS ROUNDS``; ends after ROUNDS per task, or is killed.
Each line is ``task value``: that value of that task's counter was acknowledged as durable.
"""

import asyncio
import os
import sys

from pricekeeper.clock import SystemClock
from pricekeeper.settings import SqliteLocation
from pricekeeper.storage import Add, Key, Put, Update, open_store
from pricekeeper.storage.tables import CONFIG, REQUEST_DEDUP


async def main(path: str, name: str, tasks: int, rounds: int) -> None:
    store = await open_store(SqliteLocation(path), clock=SystemClock())
    await store.create_tables()

    async def work(task: int) -> None:
        counter = Update(CONFIG, Key(name, str(task)), (Add("n", 1),))
        shared = Update(CONFIG, Key("shared", "all"), (Add("n", 1),))
        for number in range(1, rounds + 1):
            receipt = Put(REQUEST_DEDUP, {"PK": f"{name}#{task}#{number}"})
            await store.transact([counter, shared, receipt])
            os.write(1, f"{task} {number}\n".encode())

    await asyncio.gather(*(work(task) for task in range(tasks)))
    await store.close()


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
