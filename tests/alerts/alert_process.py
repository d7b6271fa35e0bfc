"""A process that decides alerts or delivers them, and is killed in the middle of it.

Run as ``python alert_process.py STORE_URL ORG_ID WHAT``:

- ``decide`` spends what crosses the thresholds, aggregates, and tells when it has decided
- ``deliver`` delivers, and kills itself with the first answer of an endpoint in its hands
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from alerts.conftest import APP, Instance, Org
from pricekeeper.clock import SystemClock
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from pricekeeper.values import OrgId


async def main(url: str, org_id: str, what: str) -> None:
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    instance = Instance(store, clock)
    if what == "decide":
        org = Org(instance, clock)
        org.id = OrgId(org_id)
        await org.spend(3, app_id=APP)
        await instance.aggregate()
        os.write(1, b"decided\n")
        await asyncio.sleep(60)
    http: Any = instance.alerts._http
    post = http.post

    async def post_and_die(*args: Any) -> None:
        await post(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    http.post = post_and_die
    await instance.deliver()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
