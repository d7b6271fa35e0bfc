"""What the version before the log has left in a store is read as it is, and can be settled.

`before_the_log.json` has the items that it wrote: accounts that change in place, and sheets with
the state of each authorization beside its grant. Two records are counted, one call is unsettled,
and two are open, one of them under an id of its caller's.
"""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from authorizations.conftest import (
    COST_USD_PICOS,
    HELD_USD_PICOS,
    USD,
    Instance,
    a_budget,
    a_strict_policy,
)
from metering.conftest import LABELS
from pricekeeper.authorizations import LedgerCheck, State
from pricekeeper.budgets import Balance
from pricekeeper.clock import ManualClock
from pricekeeper.errors import ConflictError
from pricekeeper.storage import Put, Store
from pricekeeper.storage.tables import ALL_TABLES
from pricekeeper.tenants import RateLimit, Window
from pricekeeper.values import OrgId

LEFT = msgspec.json.decode((Path(__file__).parent / "before_the_log.json").read_bytes())
IDS: dict[str, str] = LEFT["ids"]
LIMITS = {"*": {"rpm": RateLimit(60, 60, 60_000)}}
SETTINGS: dict[str, Any] = {
    "org_id": OrgId("11111111-2222-4333-8444-555555555555"),
    "quotas": dict.fromkeys(LABELS, 10 * USD),
    "org_budgets": (a_budget(100 * USD, name="monthly", window=Window.MONTH),),
    "rate_limits": LIMITS,
    "org_rate_limits": LIMITS,
}
POLICY = a_strict_policy(**SETTINGS)
ORG = a_strict_policy(app_id=None, **SETTINGS)
LEFT_BALANCE = Balance(2 * COST_USD_PICOS + 3 * HELD_USD_PICOS, 2 * HELD_USD_PICOS, HELD_USD_PICOS)


def value_of(stored: Any) -> Any:
    return base64.b64decode(stored["bytes"]) if isinstance(stored, dict) else stored


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(LEFT["now_ms"])


@pytest.fixture
async def instance(store: Store, clock: ManualClock) -> Instance:
    tables = {table.name: table for table in ALL_TABLES}
    for name, item in LEFT["items"]:
        found = {attribute: value_of(value) for attribute, value in item.items()}
        await store.put(Put(tables[name], found))
    return Instance(store, clock)


async def check(store: Store, clock: ManualClock) -> set[Balance]:
    """What the accounts have that were used; each is what its records and holds add up to."""
    findings = await LedgerCheck(store, clock).check([ORG, POLICY])
    assert all(one.agrees for one in findings)
    used = [one.enforced for one in findings if one.enforced != Balance()]
    assert len(used) == 2, "the quota of premium, and the organisation's budget"
    return {*used}


async def test_everything_is_found_as_it_was_left(
    instance: Instance, store: Store, clock: ManualClock
) -> None:
    found = {
        name: (await instance.authorizations.find(POLICY, one)).state for name, one in IDS.items()
    }
    assert found == {
        "captured": State.CAPTURED,
        "voided": State.VOIDED,
        "unsettled": State.UNSETTLED,
        "open": State.OPEN,
        "named": State.OPEN,
    }
    assert await check(store, clock) == {LEFT_BALANCE}
    await instance.close()


async def test_everything_that_was_left_can_be_settled(
    instance: Instance, store: Store, clock: ManualClock
) -> None:
    """Once, also by a repetition of what the version before has answered."""
    again = await instance.capture(POLICY, IDS["captured"])
    assert again.is_duplicate
    with pytest.raises(ConflictError):
        await instance.capture(POLICY, IDS["voided"])
    for name in ("open", "unsettled"):
        assert not (await instance.capture(POLICY, IDS[name])).is_duplicate
        assert (await instance.capture(POLICY, IDS[name])).is_duplicate
    await instance.void(POLICY, IDS["named"])
    assert await check(store, clock) == {Balance(4 * COST_USD_PICOS)}
    await instance.close()


async def test_what_was_left_open_is_charged_at_its_hold_by_the_sweep(
    instance: Instance, store: Store, clock: ManualClock
) -> None:
    """No process remembers it: the one that granted it is gone."""
    clock.advance_ms(2 * 3_600_000)
    await instance.authorizations.expiry.sweep()
    clock.advance_ms(600_000)
    held = 3 * HELD_USD_PICOS
    assert await check(store, clock) == {Balance(2 * COST_USD_PICOS + held, 0, held)}
    await instance.close()
