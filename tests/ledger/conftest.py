"""What the tests of the ledger share: logs of one organisation, accounts, and drafts."""

from random import Random

import pytest

from memory_store import MemoryStore
from pricekeeper.budgets import Balance
from pricekeeper.clock import ManualClock
from pricekeeper.ledger.log import SHEETS_MAX, OrgLog
from pricekeeper.ledger.meter import LedgerMeter
from pricekeeper.storage import Key, Store

ORG = "2f0f1a5e-8a9b-4d1c-9a57-0f8b6f1d2c3e"
ITEM = Key(f"org-{ORG}@life-1#BUDGETS", "ALL")
OTHER_ITEM = Key(f"org-{ORG}-app-api@life-1#BUDGETS", "TAG#team#a")
ACCOUNT = "daily.D20260101"


def a_log(store: Store, clock: ManualClock, seed: int = 1, sheets_max: int = SHEETS_MAX) -> OrgLog:
    return OrgLog(
        store,
        clock,
        Random(seed),
        LedgerMeter(),
        ORG,
        retention_days=90,
        sheets_max=sheets_max,
        note_others=lambda _: None,
    )


async def spend(log: OrgLog, used: int, key: Key = ITEM, account_id: str = ACCOUNT) -> None:
    """Add to an account on a sheet of its own."""
    draft = await log.prepare([key])
    draft.add(key, account_id, Balance(used))
    await log.append(draft)


async def used(log: OrgLog, key: Key = ITEM, account_id: str = ACCOUNT) -> int | None:
    """What an account has used, as far as the store says."""
    await log.read()
    balance = (await log.find_items([key]))[key].balance(account_id)
    return None if balance is None else balance.used


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)
