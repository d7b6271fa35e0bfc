"""A process that changes an organisation as fast as it can, and tells each change on its output.

Run as ``python changing_process.py STORE_URL ORG_ID NAME CHANGES TARGET...``. It is meant to be
killed. Each line is a change that was acknowledged: the number of a patch, or what was voided. The
targets are usage records and authorizations that other such processes void, too.
"""

import asyncio
import os
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))

from audit_trail.voids import SHOP, Voiding
from pricekeeper.clock import SystemClock
from pricekeeper.errors import ContendedError
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.tenants import Client, Tenants
from pricekeeper.values import AppId, Attribution, OrgId
from tenants.conftest import LABELS

TASKS = 4


async def main(url: str, org_id: str, name: str, changes: int, *targets: str) -> None:
    configure_logging("error")
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    policy = await Tenants(store, clock, LABELS).read_policy(Client(OrgId(org_id), SHOP))
    voiding = Voiding(store, clock, policy)
    tenants, random = voiding.tenants, Random(os.getpid())

    async def void(target: str) -> None:
        while True:
            try:
                await voiding.void(target, _by(name, "void"))
            except ContendedError:  # others were always faster, and nothing was done
                continue
            _tell(target)
            return

    async def work(task: int) -> None:
        """Change an app of one's own, and void what is one's own and what is shared."""
        app_id = AppId(f"{name}-{task}")
        await tenants.put_app(OrgId(org_id), app_id, {"app_name": "new"}, _by(name, "first"))
        for number in range(task, changes, TASKS):
            patch = {"app_name": str(number)}
            await tenants.patch_app(OrgId(org_id), app_id, patch, _by(name, str(number)))
            _tell(str(number))
            if number % 2:
                await void(f"usage/{await voiding.record(random)}")
            else:
                await void(f"authorization/{await voiding.authorize()}")
            if number < len(targets):
                await void(targets[number])

    await asyncio.gather(*map(work, range(TASKS)))
    await voiding.close()
    await store.close()


def _by(name: str, request_id: str) -> Attribution:
    return Attribution(name, "local", request_id)


def _tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:]))
