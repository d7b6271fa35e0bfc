"""Chapters are filed once, by whoever comes first, whatever the items look like."""

import uuid
from collections.abc import AsyncIterator

import pytest

from ledger.conftest import ACCOUNT, ITEM, ORG, a_log, spend, used
from memory_store import MemoryStore
from pricekeeper.budgets import Balance
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, UnreadableItemError
from pricekeeper.ledger.items import head_key
from pricekeeper.ledger.log import CHAPTER_MS, FILE_AFTER_MS, OrgLog
from pricekeeper.settings import StoreLocation
from pricekeeper.storage import Item, Put, Store, Update, open_store
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from stores import location

__all__ = ["location"]


@pytest.fixture
def table_prefix() -> str:
    return f"ledger-{uuid.uuid4().hex[:8]}-"


@pytest.fixture
async def store(location: StoreLocation, clock: ManualClock) -> AsyncIterator[Store]:
    opened = await open_store(location, clock=clock)
    await opened.create_tables()
    yield opened
    await opened.close()


async def seal(log: OrgLog, clock: ManualClock) -> None:
    """Have what was written sealed and filed."""
    clock.advance_ms(CHAPTER_MS)
    await log.prepare()
    await log.close()


async def test_more_accounts_are_filed_than_an_update_has_room_for(
    store: Store, clock: ManualClock
) -> None:
    """An organisation may have a strict quota for each of two hundred labels."""
    log = a_log(store, clock)
    for _ in range(2):
        await log.prepare()
        await log.read_items([ITEM])
        draft = log.draft()
        for number in range(300):
            draft.add(ITEM, f"quota-label-{number}.D20260101", Balance(3, 2, 1))
        await log.append(draft)
        await seal(log, clock)
    assert len(log.book.chapters) == 1
    assert await used(a_log(store, clock), account_id="quota-label-299.D20260101") == 6


async def test_an_account_that_cant_be_read_keeps_no_other_from_being_filed(
    store: Store, clock: ManualClock
) -> None:
    log = a_log(store, clock)
    await spend(log, 3)
    await spend(log, 4, account_id="broken")
    await store.put(
        Put(RATE_BUCKETS, {"PK": ITEM.pk, "SK": ITEM.sk, "u:broken": "text", f"u:{ACCOUNT}": 5})
    )
    await seal(log, clock)
    assert len(log.book.chapters) == 1
    fresh = a_log(store, clock)
    assert await used(fresh) == 8
    with pytest.raises(UnreadableItemError):
        await used(fresh, account_id="broken")


async def test_a_chapter_that_two_file_is_added_once(store: Store, clock: ManualClock) -> None:
    """By the one that sealed it, and by another that had read it before."""
    first, second = a_log(store, clock, 1), a_log(store, clock, 2)
    await spend(first, 5)
    await spend(second, 7)
    clock.advance_ms(CHAPTER_MS)
    await first.prepare()
    await second.read()
    assert len(second.book.sealed()) == 1
    await first.close()
    clock.advance_ms(FILE_AFTER_MS)
    second.file_in_background()
    await second.close()
    assert not second.book.sealed()
    item = await store.get(RATE_BUCKETS, ITEM)
    assert item is not None
    assert item[f"u:{ACCOUNT}"] == 12
    assert await used(a_log(store, clock, 3)) == 12


class Losing(MemoryStore):
    """A store that loses the reply to the next update of an item, applied or not."""

    lose: str = ""
    late: Update | None = None

    async def update(self, operation: Update) -> Item:
        if self.lose not in operation.key.pk or not self.lose:
            return await super().update(operation)
        self.lose = ""
        self.late = operation
        raise OutcomeUnknownError("no reply")


@pytest.mark.parametrize("what", ["#BUDGETS", "#LOG"])
async def test_what_was_not_filed_is_filed_later_and_late_writes_change_nothing(
    clock: ManualClock, what: str
) -> None:
    store = Losing(clock)
    log = a_log(store, clock)
    await spend(log, 5)
    store.lose = what
    await seal(log, clock)
    assert len(log.book.sealed()) == 1
    assert await used(a_log(store, clock, 2)) == 5
    await spend(log, 1)
    clock.advance_ms(FILE_AFTER_MS)
    log.file_in_background()
    await log.close()
    assert not log.book.sealed()
    head = await store.get(USAGE_AGG_SHARDED, head_key(ORG))
    assert head is not None
    assert head["from"] == log.book.chapters[0].chapter.text
    assert store.late is not None
    with pytest.raises(Exception, match="the condition did not hold"):
        await store.update(store.late)
    assert await used(a_log(store, clock, 2)) == 6
