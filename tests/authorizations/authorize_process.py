"""A process that authorizes and captures as fast as it can, and prints every answer.

Run as ``python authorize_process.py STORE_URL ORG_ID``. It runs until it is killed. A line is
``granted ID``, ``captured ID COST``, ``denied`` or ``unanswered``.
"""

import asyncio
import os
import sys
import uuid
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))

from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget
from metering.conftest import a_policy
from minting import minted
from pricekeeper.clock import SystemClock
from pricekeeper.errors import AuthorizationDeniedError, StoreError
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import open_store
from pricekeeper.tenants import Policy, RateLimit, Window
from pricekeeper.values import AppId, OrgId

CALLERS = 12
CALLS_MAX = 200
"""How many calls fit into the budget of the organisation; an app may have three quarters."""
APPS = ("one", "two")
HOLD_SECS = 10
ATTEMPTS_MAX = 5


def policies(org_id: str) -> list[Policy]:
    """Two apps of one organisation, each with a budget of its own."""
    limit = CALLS_MAX * COST_USD_PICOS // 1_000_000
    wide = {"*": {"rpm": RateLimit(10_000, 100, 1_000), "tpm": RateLimit(9_000_000, 9_000, 1_000)}}
    return [
        a_policy(
            AppId(app),
            org_id=OrgId(org_id),
            budgets=(a_budget(limit * 3 // 4, name="app", window=Window.MONTH),),
            org_budgets=(
                a_budget(limit, name="org", window=Window.MONTH),
                a_budget(limit, name="week", window=Window.WEEK),
            ),
            rate_limits=wide,
            org_rate_limits=wide,
        )
        for app in APPS
    ]


class Caller:
    """One that calls on and on."""

    def __init__(self, instance: Instance, policy: Policy, random: Random) -> None:
        self.instance = instance
        self.policy = policy
        self.random = random

    async def run(self) -> None:
        while True:
            authorization_id = await self.authorize()
            if authorization_id is not None and self.random.random() > 0.1:  # else it is abandoned
                await self.capture(authorization_id)

    async def authorize(self) -> str | None:
        now_ms = SystemClock().now_ms()
        asked_as = self.random.choice((None, None, str(uuid.uuid4()), minted(now_ms)))
        for _ in range(ATTEMPTS_MAX if asked_as else 1):
            try:
                made = await self.instance.authorize(
                    self.policy, authorization_id=asked_as, hold_secs=HOLD_SECS
                )
            except AuthorizationDeniedError:
                tell("denied")
                return None
            except StoreError:
                tell("unanswered")
                continue
            assert made.authorization.grant.held_usd_picos == HELD_USD_PICOS
            tell(f"granted {made.authorization.shown_id}")
            return made.authorization.shown_id
        return None

    async def capture(self, authorization_id: str) -> None:
        for _ in range(ATTEMPTS_MAX):
            try:
                captured = await self.instance.capture(self.policy, authorization_id)
            except StoreError:
                tell("unanswered")
                continue
            cost = captured.recorded.receipt.cost_usd_picos
            tell(f"captured {authorization_id} {cost}")
            return


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def main(url: str, org_id: str) -> None:
    clock = SystemClock()
    store = await open_store(parse_store_location(url), clock=clock)
    instance = Instance(store, clock)
    random = Random(os.getpid())
    known = policies(org_id)
    expiring = asyncio.create_task(instance.authorizations.expiry.run_forever())
    callers = [Caller(instance, known[n % len(known)], random) for n in range(CALLERS)]
    await asyncio.gather(*(caller.run() for caller in callers), expiring)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
