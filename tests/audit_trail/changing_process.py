"""A process that changes an organisation as fast as it can, and tells each change on its output.

Run as ``python changing_process.py STORE_URL ORG_ID NAME CHANGES``. It is meant to be killed. Each
line is the number of a change that was acknowledged.
"""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pricekeeper.clock import SystemClock
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.tenants import Tenants
from pricekeeper.values import AppId, Attribution, OrgId
from tenants.conftest import LABELS

TASKS = 4


async def main(url: str, org_id: str, name: str, changes: int) -> None:
    configure_logging("error")
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    tenants = Tenants(store, clock, LABELS)

    async def work(task: int) -> None:
        """Change an app of one's own, so that only the chain is shared."""
        app_id = AppId(f"{name}-{task}")
        await tenants.put_app(OrgId(org_id), app_id, {"app_name": "0"}, _by(name, "first"))
        for number in range(task, changes, TASKS):
            patch = {"app_name": str(number)}
            await tenants.patch_app(OrgId(org_id), app_id, patch, _by(name, str(number)))
            os.write(1, f"{number}\n".encode())

    await asyncio.gather(*map(work, range(TASKS)))
    await store.close()


def _by(name: str, request_id: str) -> Attribution:
    return Attribution(name, "local", request_id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
