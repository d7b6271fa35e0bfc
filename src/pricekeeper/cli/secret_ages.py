"""How old clients' secrets are, as ``doctor`` tells it, by a store or by a service."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pricekeeper.client import Admin
from pricekeeper.clock import Clock
from pricekeeper.storage import Store
from pricekeeper.tenants import Tenants

AGE_DAYS_MAX: Final = 90
CLIENTS_MAX: Final = 10_000
"""More clients than this are not looked at, and it is said so."""
ORGS_ASKED_MAX: Final = 100
"""Of a service, the apps of so many organisations: each is a request."""
NAMED_MAX: Final = 10
_DAY_SECS: Final = 86_400


class Ages:
    """The secrets that were looked at."""

    def __init__(self, now_epoch: int) -> None:
        self._now_epoch = now_epoch
        self.old: list[tuple[int, str]] = []
        """Days and client of those that are due."""
        self.seen = 0
        self.is_complete = True

    def note(self, client_id: str, created_at_epoch: int | None) -> None:
        """Note one client. Without a time nobody knows whether it has a secret."""
        self.seen += 1
        if created_at_epoch is None:
            return
        age_days = (self._now_epoch - created_at_epoch) // _DAY_SECS
        if age_days > AGE_DAYS_MAX:
            self.old.append((age_days, client_id))

    @property
    def summary(self) -> str:
        """The sentence about them: the oldest by name."""
        looked = f"{self.seen} clients" if self.is_complete else f"the first {self.seen} clients"
        oldest = sorted(self.old, reverse=True)
        named = [f"{client_id} ({days} days)" for days, client_id in oldest[:NAMED_MAX]]
        more = [f"{len(oldest) - NAMED_MAX} more"] if len(oldest) > NAMED_MAX else []
        names = f": {', '.join(named + more)}" if named else ""
        return f"{len(oldest) or 'none'} older than {AGE_DAYS_MAX} days, of {looked}{names}"


async def read_stored_secrets(store: Store, clock: Clock) -> Ages:
    """Look at every client in the store."""
    ages, tenants = Ages(clock.now_ms() // 1000), Tenants(store, clock, ())
    async for policy in tenants.read_all():
        if ages.seen == CLIENTS_MAX:
            ages.is_complete = False
            break
        ages.note(policy.client_id, policy.client_secret_created_at_epoch)
    return ages


async def read_served_secrets(admin: Admin, orgs: list[dict[str, Any]], clock: Clock) -> Ages:
    """Look at the clients that a service tells of: organisations, and the apps of some."""
    ages = Ages(clock.now_ms() // 1000)
    ages.is_complete = len(orgs) <= ORGS_ASKED_MAX
    for org in orgs:
        ages.note(org["client_id"], _created_at_epoch(org))
    for org in orgs[:ORGS_ASKED_MAX]:
        for app in await admin.list_apps(org["org_id"]):
            ages.note(app["client_id"], _created_at_epoch(app))
    return ages


def _created_at_epoch(answer: Mapping[str, Any]) -> int | None:
    """As the service told it, if it did: a client without a secret has none."""
    created_at = answer.get("client_secret_created_at")
    return None if created_at is None else int(datetime.fromisoformat(created_at).timestamp())
