"""Chapters are filed once, by the first process, into any items."""

import uuid
from collections.abc import AsyncIterator

import pytest

from ledger.conftest import ACCOUNT, ITEM, ORG, OTHER_ITEM, a_log, spend, used
from memory_store import MemoryStore
from pricekeeper.budgets import Balance
from pricekeeper.clock import ManualClock
from pricekeeper.errors import OutcomeUnknownError, UnreadableItemError
from pricekeeper.ledger.items import head_key, outcomes_key
from pricekeeper.ledger.log import CHAPTER_MS, FILE_AFTER_MS, OrgLog
from pricekeeper.ledger.position import (
    Position,
    authorization_id_of,
    outcome_name,
    outcomes_sort_key,
)
from pricekeeper.settings import StoreLocation
from pricekeeper.storage import Item, Put, Store, Update, Value, open_store
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
    """Seal and file the written sheets."""
    clock.advance_ms(CHAPTER_MS)
    await log.prepare()
    await log.close()


async def test_more_accounts_are_filed_than_an_update_has_room_for(
    store: Store, clock: ManualClock
) -> None:
    """An organisation may have a strict quota for each of two hundred labels."""
    log = a_log(store, clock)
    for _ in range(2):
        draft = await log.prepare([ITEM])
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


@pytest.mark.parametrize("through", [7, "zzz", b"x"])
@pytest.mark.parametrize("whole", [False, True])
async def test_an_item_that_names_no_chapter_keeps_no_other_from_being_filed(
    store: Store, clock: ManualClock, through: Value, *, whole: bool
) -> None:
    """None of its accounts can be read; those of others can."""
    log = a_log(store, clock)
    await spend(log, 3)
    await spend(log, 5, key=OTHER_ITEM)
    held: Item = {"PK": ITEM.pk, "SK": ITEM.sk, "through": through, f"u:{ACCOUNT}": 5}
    await store.put(Put(RATE_BUCKETS, {**held, **({f"u:{ACCOUNT}": "text"} if whole else {})}))
    await seal(log, clock)
    assert len(log.book.chapters) == 1
    fresh = a_log(store, clock)
    assert await used(fresh, key=OTHER_ITEM) == 5
    await fresh.read_items([ITEM, OTHER_ITEM])
    for account_id in (ACCOUNT, "another"):
        with pytest.raises(UnreadableItemError):
            await used(fresh, account_id=account_id)
    await spend(fresh, 1, key=OTHER_ITEM)
    assert await used(a_log(store, clock), key=OTHER_ITEM) == 6


@pytest.mark.parametrize("filed", [0, "zzz"])
async def test_outcomes_are_filed_over_a_chapter_that_is_damaged(
    store: Store, clock: ManualClock, filed: Value
) -> None:
    log = a_log(store, clock)
    await spend(log, 1)
    one = authorization_id_of(Position(log.book.next.chapter, 0).sort_key, 0)
    key = outcomes_key(ORG, outcomes_sort_key(one))
    draft = await log.prepare()
    draft.settle(one, "v1.")
    await log.append(draft)
    await store.put(Put(USAGE_AGG_SHARDED, {"PK": key.pk, "SK": key.sk, "f": filed}))
    await seal(log, clock)
    item = await store.get(USAGE_AGG_SHARDED, key)
    assert item is not None
    assert item[outcome_name(one)] == "v1."


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
