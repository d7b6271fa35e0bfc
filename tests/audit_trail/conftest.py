"""Every store, and chains of each test's own."""

import pytest

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.audit import items as trail_items
from pricekeeper.audit.entry import TrailEntry, chain_of
from pricekeeper.audit.verification import TrailVerifier
from pricekeeper.storage import ITEM_ABSENT, Key, Put, Store, query_items
from pricekeeper.storage.tables import CONFIG
from pricekeeper.values import OrgId
from stores import ShiftedClock, clock, location, meter, store, table_prefix
from tenants.conftest import org_id, seeds

__all__ = ["clock", "location", "meter", "org_id", "seeds", "store", "table_prefix"]


@pytest.fixture
def trail(store: Store, clock: ShiftedClock) -> AuditTrail:
    return AuditTrail(store, clock)


def a_change(org_id: OrgId | None, target: str = "something", **sides: object) -> Change:
    return Change("thing.put", target, org_id, **sides)  # type: ignore[arg-type]


def thing_key(org_id: OrgId | None, name: str) -> Key:
    return Key(f"THINGS#{org_id}", name)


def thing_put(org_id: OrgId | None, name: str) -> Put:
    """What a change does in these tests: something begins to exist, once."""
    key = thing_key(org_id, name)
    return Put(CONFIG, {"PK": key.pk, "SK": key.sk}, ITEM_ABSENT)


async def entries_of(store: Store, org_id: OrgId | None) -> list[TrailEntry]:
    """Every entry of a chain, the oldest first."""
    query = trail_items.chain_query(chain_of(org_id), limit=100)
    return [trail_items.entry_from(item) async for item in query_items(store, query)]


async def findings(store: Store, clock: ShiftedClock, org_id: OrgId | None) -> list[str]:
    """What the verification says about a chain."""
    reports = await TrailVerifier(store, clock).verify(chain_of(org_id))
    return [f"{one.seq}: {one.problem}" for report in reports for one in report.findings]
