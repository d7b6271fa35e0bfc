"""Every store, and organisations of each test's own."""

import uuid
from typing import Any

import pytest

from pricekeeper.settings import MEMORY, SqliteLocation, StoreLocation
from pricekeeper.storage import Store
from pricekeeper.tenants import Tenants
from pricekeeper.values import AppId, ModelLabel, OrgId
from stores import ShiftedClock, clock, location, meter, store, table_prefix

__all__ = ["clock", "location", "meter", "store", "table_prefix"]

LABELS = frozenset(map(ModelLabel, ("premium", "standard", "economy")))
APP = AppId("api")


def new_org_id() -> OrgId:
    return OrgId(str(uuid.uuid4()))


def org_body(**changes: Any) -> dict[str, Any]:
    """A valid body, with changes; a field that is changed to ``...`` is left out."""
    body: dict[str, Any] = {
        "org_name": "Sample",
        "timezone": "America/New_York",
        "quota_scope": "APP",
        "model_ordering": ["premium", "standard"],
        "quotas": {"premium": 10_000_000, "standard": 5_000_000},
        **changes,
    }
    return {name: value for name, value in body.items() if value is not ...}


def app_body(**changes: Any) -> dict[str, Any]:
    return {"app_name": "Production API", **changes}


@pytest.fixture
def org_id() -> OrgId:
    return new_org_id()


@pytest.fixture
def tenants(store: Store, clock: ShiftedClock) -> Tenants:
    return Tenants(store, clock, LABELS)


@pytest.fixture
def seeds(location: StoreLocation) -> range:
    """How many interleavings are tried: many where it is cheap, some on every store."""
    if location == SqliteLocation(MEMORY):
        return range(200)
    return range(20) if isinstance(location, SqliteLocation) else range(6)
