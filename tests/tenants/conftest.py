"""Every store, and organisations of each test's own."""

import uuid
from typing import Any

import pytest

from pricekeeper.errors import InvalidConfigError
from pricekeeper.settings import MEMORY, SqliteLocation, StoreLocation
from pricekeeper.storage import Store
from pricekeeper.tenants import OrgSettings, Tenants
from pricekeeper.tenants.parsing import parse_app_settings, parse_org_settings
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


def org(**changes: Any) -> OrgSettings:
    return parse_org_settings(org_body(**changes), LABELS)


def org_refused(**changes: Any) -> dict[str, str]:
    """What is said of each field when the organisation is refused."""
    with pytest.raises(InvalidConfigError) as refusal:
        org(**changes)
    return {error.field: error.message for error in refusal.value.errors}


def app_refused(of: OrgSettings, **changes: Any) -> set[str]:
    with pytest.raises(InvalidConfigError) as refusal:
        parse_app_settings(app_body(**changes), LABELS, of)
    return {error.field for error in refusal.value.errors}


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
