"""A process that changes an organisation as fast as it can, and prints each change.

Run as ``python changing_process.py STORE_URL ORG_ID NAME CHANGES TARGET...``. It is meant to be
killed. Each line is an acknowledged change: the number of a patch, or a voided target. The targets
are usage records and authorizations that other such processes void, too.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))

from audit_trail.voids import SHOP, Voiding
from pricekeeper.authority import DEPLOYMENT, Attribution
from pricekeeper.clock import SystemClock
from pricekeeper.errors import ContendedError
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from pricekeeper.telemetry.logs import configure_logging
from pricekeeper.tenants import Client, Tenants
from pricekeeper.values import AppId, OrgId
from tenants.conftest import LABELS

TASKS = 4


async def main(url: str, org_id: str, name: str, changes: int, *targets: str) -> None:
    configure_logging("error")
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    policy = await Tenants(store, clock, LABELS).read_policy(Client(OrgId(org_id), SHOP))
    voiding = Voiding(store, clock, policy)
    tenants, random = voiding.tenants, Random(os.getpid())

    async def until_done(change: Callable[[], Awaitable[object]]) -> None:
        while True:
            with contextlib.suppress(ContendedError):  # others were faster, nothing was done
                await change()
                return

    async def void(target: str) -> None:
        await until_done(lambda: voiding.void(target, _by(name, "void")))
        _tell(target)

    async def work(task: int) -> None:
        """Change an app of one's own, and void what is one's own and what is shared."""
        app_id = AppId(f"{name}-{task}")
        org, first = OrgId(org_id), _by(name, "first")
        await until_done(lambda: tenants.put_app(org, app_id, {"app_name": "new"}, first))
        for number in range(task, changes, TASKS):
            body, by = {"app_name": str(number)}, _by(name, str(number))
            patch = partial(tenants.patch, Client(org, app_id), body, by)
            await until_done(patch)
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
    return Attribution(name, "local", request_id, authority=DEPLOYMENT)


def _tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:]))
