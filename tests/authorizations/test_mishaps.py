"""What goes wrong beside the log: others are not told, and nothing is lost or counted twice."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from authorizations.conftest import COST_USD_PICOS, HELD_USD_PICOS, Instance, a_budget
from faulty_store import Crashed
from memory_store import MemoryStore
from metering.conftest import a_policy
from minting import minted
from pricekeeper.authorizations import Authorized, LedgerCheck
from pricekeeper.authorizations.claims import Claim, place_of
from pricekeeper.authorizations.items import GRANT
from pricekeeper.budgets import Balance, Scope, accounts_of, item_partition
from pricekeeper.errors import OverloadedError, UnreadableItemError
from pricekeeper.ledger import book, log, worker
from pricekeeper.ledger.items import sheet_key
from pricekeeper.ledger.log import CHAPTER_MS, OrgLog
from pricekeeper.ledger.position import Position, authorization_id_of, begin_chapter
from pricekeeper.ledger.sheet import ACCOUNTS, NAMES, NEXT, NONCE, OUTCOMES
from pricekeeper.storage import Page, Put, Query, Store
from pricekeeper.storage.tables import RATE_BUCKETS, USAGE_AGG_SHARDED
from pricekeeper.tenants import Enforcement, Window
from pricekeeper.values import REASON_LENGTH_MAX, AppId
from selection.conftest import NOON_MS, SettableClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class World:
    """Instances on one store, and an app with a budget."""

    def __init__(self) -> None:
        self.clock = SettableClock(NOON_MS)
        self.store = MemoryStore(self.clock)
        self.policy = a_policy(budgets=(a_budget(),))
        self.instance = Instance(self.store, self.clock, seed=1)

    async def balance(self) -> Balance:
        """What the budget has, as another instance reads it."""
        (account,) = accounts_of(self.policy, self.clock.now_ms())
        ledger = Instance(self.store, self.clock, seed=9).ledger
        return (await ledger.read([account]))[account]


@pytest.fixture
def world() -> World:
    return World()


async def test_a_caller_that_leaves_when_too_many_wait_harms_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its grant goes back, and the others get theirs."""
    await world.instance.authorize(world.policy)
    monkeypatch.setattr(worker, "WAITING_MAX", 4)
    together = [asyncio.create_task(world.instance.authorize(world.policy)) for _ in range(3)]
    waiting: list[asyncio.Task[Authorized]] = []
    append = OrgLog.append

    async def fill_and_append(*args: Any) -> None:
        if not waiting:
            together[0].cancel()
            calls = (world.instance.authorize(world.policy) for _ in range(5))
            waiting.extend(map(asyncio.create_task, calls))
            for _ in range(20):
                await asyncio.sleep(0)
        await append(*args)

    monkeypatch.setattr(OrgLog, "append", fill_and_append)
    outcomes = await gather([*together])
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert all(isinstance(one, Authorized) for one in outcomes[1:]), outcomes
    later = await gather(waiting)
    assert sum(isinstance(one, OverloadedError) for one in later) == 1, later
    await world.instance.close()
    granted = 1 + sum(isinstance(one, Authorized) for one in (*outcomes, *later))
    assert await world.balance() == Balance(granted * HELD_USD_PICOS, granted * HELD_USD_PICOS)


async def gather(tasks: Sequence[asyncio.Task[Authorized]]) -> list[Authorized | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("is_minted", [True, False])
async def test_a_call_that_stood_still_is_not_granted_a_second_time(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_minted: bool
) -> None:
    """Not even if the sheet with its id was filed and forgotten meanwhile."""
    slow, quick = world.instance, Instance(world.store, world.clock, seed=2)
    name = minted(world.clock.now_ms()) if is_minted else str(uuid.uuid4())
    await slow.authorize(world.policy)
    claimed, go_on = asyncio.Event(), asyncio.Event()
    claim_all = slow.authorizations._settler.claims.claim_all

    async def claim_and_stand_still(*args: Any) -> None:
        await claim_all(*args)
        claimed.set()
        await go_on.wait()

    monkeypatch.setattr(slow.authorizations._settler.claims, "claim_all", claim_and_stand_still)
    first = asyncio.create_task(slow.authorize(world.policy, authorization_id=name))
    await claimed.wait()
    second = await quick.authorize(world.policy, authorization_id=name)
    await quick.capture(world.policy, name)
    world.clock.advance_ms(CHAPTER_MS)
    await quick.authorize(world.policy)
    await quick.ledger.close()
    assert quick.ledger.meter.chapters_filed == 1
    go_on.set()
    assert (await first).authorization.id == second.authorization.id
    await quick.close()
    await slow.close()
    assert await world.balance() == Balance(COST_USD_PICOS + 2 * HELD_USD_PICOS, 2 * HELD_USD_PICOS)


class SmallPages(MemoryStore):
    """A store whose pages have one item each, as those of DynamoDB have a megabyte."""

    read = 0
    """How many items queries have brought."""

    async def query(self, query: Query, *, consistent: bool = True) -> Page:
        page = await super().query(msgspec.structs.replace(query, limit=1), consistent=consistent)
        self.read += len(page.items)
        return page


@pytest.mark.parametrize("damaged", [False, True])
async def test_an_old_id_is_found_wherever_it_was_granted_behind_its_claim(
    world: World, monkeypatch: pytest.MonkeyPatch, *, damaged: bool
) -> None:
    """Also on another page, and behind a sheet that is damaged; nothing behind it is read."""
    store = world.store = SmallPages(world.clock)
    slow, quick = Instance(store, world.clock, seed=1), Instance(store, world.clock, seed=2)
    name = str(uuid.uuid4())
    await slow.authorize(world.policy)
    claim_all = slow.authorizations._settler.claims.claim_all
    between: list[Authorized] = []

    async def claim_and_come_late(*args: Any) -> None:
        await claim_all(*args)
        between.extend([await quick.authorize(world.policy) for _ in range(3)])

    monkeypatch.setattr(slow.authorizations._settler.claims, "claim_all", claim_and_come_late)
    granted = await slow.authorize(world.policy, authorization_id=name)
    for _ in range(10):
        await quick.authorize(world.policy)
    world.clock.advance_ms(CHAPTER_MS)
    await quick.authorize(world.policy)
    await quick.close()
    await slow.close()
    if damaged:
        key = sheet_key(world.policy.org_id, between[1].authorization.id)
        sheet = await store.get(USAGE_AGG_SHARDED, key)
        await store.put(Put(USAGE_AGG_SHARDED, {**(sheet or {}), NAMES: b"none"}))
    later = Instance(store, world.clock, seed=3)
    await later.ledger.read_book(world.policy.org_id)
    store.read = 0
    found = await later.authorizations.find(world.policy, name)
    assert found.id == granted.authorization.id
    assert store.read <= len(between) + 2  # and the end of the log
    again = await later.authorize(world.policy, authorization_id=name)
    assert again.authorization.id == granted.authorization.id


@pytest.mark.parametrize(
    ("name", "value"), [(ACCOUNTS, b"none"), (OUTCOMES, "text"), (NONCE, None), (NEXT, 7)]
)
async def test_nothing_is_decided_behind_a_damaged_sheet(
    world: World, name: str, value: bytes | str | int | None
) -> None:
    """Other organisations work, and so does a process that has read it before."""
    made = await world.instance.authorize(world.policy)
    key = sheet_key(world.policy.org_id, made.authorization.id)
    sheet = await world.store.get(USAGE_AGG_SHARDED, key)
    assert sheet is not None
    damaged = {one: held for one, held in {**sheet, name: value}.items() if held is not None}
    await world.store.put(Put(USAGE_AGG_SHARDED, damaged))
    later = Instance(world.store, world.clock, seed=3)
    for _ in range(2):
        with pytest.raises(UnreadableItemError):
            await later.authorize(world.policy)
    with pytest.raises(UnreadableItemError):
        await later.capture(world.policy, made.authorization.id)
    await later.authorize(a_policy(budgets=(a_budget(),)))
    await world.instance.authorize(world.policy)
    await world.instance.void(world.policy, made.authorization.id)
    restored = {one: held for one, held in sheet.items() if one not in (ACCOUNTS, OUTCOMES, NEXT)}
    await world.store.put(Put(USAGE_AGG_SHARDED, restored))
    (finding,) = await LedgerCheck(world.store, world.clock).check([world.policy], mend=True)
    assert finding.mended
    assert await world.balance() == Balance(HELD_USD_PICOS, HELD_USD_PICOS)
    await later.authorize(world.policy)
    assert await world.balance() == Balance(2 * HELD_USD_PICOS, 2 * HELD_USD_PICOS)


@pytest.mark.parametrize(
    ("name", "damage", "repair"), [("through", "zzz", "000000000"), ("u:", "text", 0)]
)
async def test_an_item_of_accounts_that_was_set_right_is_used_again(
    world: World, name: str, damage: str, repair: str | int
) -> None:
    """Also by a process that has seen the damage."""
    await world.instance.authorize(world.policy)
    world.clock.advance_ms(CHAPTER_MS)
    await world.instance.authorize(world.policy)
    await world.instance.close()
    (account,) = accounts_of(world.policy, world.clock.now_ms())
    item = await world.store.get(RATE_BUCKETS, account.key)
    assert item is not None
    (attribute,) = (one for one in item if one.startswith(name))
    later = Instance(world.store, world.clock, seed=3)
    await world.store.put(Put(RATE_BUCKETS, {**item, attribute: damage}))
    with pytest.raises(UnreadableItemError):
        await later.authorize(world.policy)
    await later.authorize(a_policy(AppId("other"), org_id=world.policy.org_id))
    await world.store.put(Put(RATE_BUCKETS, {**item, attribute: repair}))
    await LedgerCheck(world.store, world.clock).check([world.policy], mend=True)
    assert await world.balance() == Balance(2 * HELD_USD_PICOS, 2 * HELD_USD_PICOS)
    await later.authorize(world.policy)
    assert await world.balance() == Balance(3 * HELD_USD_PICOS, 3 * HELD_USD_PICOS)


async def test_a_claim_is_never_moved_back(world: World) -> None:
    """Where others have claimed further on, they may grant what is too far from an earlier one."""
    claims = world.instance.authorizations._settler.claims
    place = place_of(world.policy, minted(world.clock.now_ms()))
    chapter = begin_chapter(world.clock.now_ms(), salt=1)
    earlier, later = (
        authorization_id_of(Position(chapter, number).sort_key, 0) for number in (0x0FF, 0x100)
    )
    for wanted, text in ((earlier, None), (later, earlier), (earlier, later)):
        claim = Claim(place)
        claim.wanted, claim.text = wanted, text
        await claims.claim_all(world.policy.org_id, [claim])
    seen = Claim(place)
    seen.wanted = earlier
    await claims.claim_all(world.policy.org_id, [seen])
    assert seen.text == later


async def test_more_items_of_accounts_than_are_remembered_are_changed_and_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value of a tag has one: a budget for each user has many. One by one, and all at once."""
    monkeypatch.setattr(book, "ITEMS_MAX", 8)
    for module in (log, worker):
        monkeypatch.setattr(module, "KEYS_MAX", 4)
    budgets = (a_budget(name="user", per_tag="user"),)
    policy = a_policy(org_budgets=budgets, tag_keys=("user",), budgets=())
    ledger, partition = world.instance.ledger, item_partition(policy, Scope.ORG)

    async def balances() -> list[object]:
        found = await ledger.read_partition(policy.org_id, partition)
        return [one for accounts in found.values() for one in accounts.balances.values()]

    calls = [world.instance.authorize(policy, tags={"user": str(one)}) for one in range(20)]
    granted = [await one for one in calls[:10]] + await asyncio.gather(*calls[10:])
    assert await balances() == [Balance(HELD_USD_PICOS, HELD_USD_PICOS)] * 20
    await asyncio.gather(*(world.instance.capture(policy, one.authorization.id) for one in granted))
    assert await balances() == [Balance(COST_USD_PICOS)] * 20


async def test_a_sheet_that_a_query_has_passed_by_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query is no snapshot: it may find a later sheet and miss an earlier one."""
    writer, reader = world.instance, Instance(world.store, world.clock, seed=2)
    await writer.authorize(world.policy)
    await reader.authorize(world.policy)
    for _ in range(4):
        await writer.authorize(world.policy)
    query = world.store.query

    async def pass_some_by(*args: Any, **kwargs: Any) -> Page:
        page = await query(*args, **kwargs)
        return Page(page.items[2:], page.after)

    monkeypatch.setattr(world.store, "query", pass_some_by)
    found = await reader.ledger.read(accounts_of(world.policy, world.clock.now_ms()))
    assert list(found.values()) == [Balance(6 * HELD_USD_PICOS, 6 * HELD_USD_PICOS)]


async def test_a_late_sheet_is_swept_also_if_nobody_has_written_for_days(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the region in which its chapter began: that must not be days ago."""
    world.policy = a_policy(budgets=(a_budget(window=Window.MONTH),))
    first = await world.instance.authorize(world.policy)
    await world.instance.void(world.policy, first.authorization.id)
    put, late = world.store.put, list[Put]()

    async def die(operation: Put) -> None:
        if GRANT + "0" in operation.item:
            late.append(operation)
            raise Crashed
        await put(operation)

    monkeypatch.setattr(world.store, "put", die)
    for _ in range(2):  # the first time, a chapter is begun, and nothing comes into it
        world.clock.advance_ms(2 * DAY_MS)
        with pytest.raises(Crashed):
            await Instance(world.store, world.clock, seed=3).authorize(world.policy)
    survivor = Instance(world.store, world.clock, seed=2)
    await survivor.authorizations.expiry.sweep()
    await put(late[1])
    assert (await world.balance()).held == HELD_USD_PICOS
    for _ in range(3):
        world.clock.advance_ms(27 * HOUR_MS)
        await survivor.authorizations.expiry.sweep()
    assert (await world.balance()).held == 0


async def test_long_reasons_do_not_keep_a_chapter_from_being_filed(
    store: Store, clock: SettableClock
) -> None:
    """They are read where they were said: an item has no room for hundreds of them."""
    instance, policy = Instance(store, clock), a_policy(budgets=(a_budget(),))
    reason = "\N{SNOWMAN}" * REASON_LENGTH_MAX
    calls = [instance.authorize(policy, max_output_tokens=1) for _ in range(300)]
    ids = [one.authorization.id for one in await asyncio.gather(*calls)]
    await asyncio.gather(*(instance.authorizations.void(policy, one, reason) for one in ids))
    clock.advance_ms(CHAPTER_MS)
    await instance.authorize(policy)
    await instance.close()
    assert instance.ledger.meter.chapters_filed == 1
    found = await Instance(store, clock).authorizations.find(policy, ids[-1])
    assert found.settlement is not None
    assert found.settlement.reason == reason


@pytest.mark.parametrize("settled", [False, True])
async def test_a_call_that_fails_at_one_account_changes_no_other(
    world: World, *, settled: bool
) -> None:
    """What others write at that moment has nothing of it."""
    soft = a_budget(enforcement=Enforcement.SOFT)
    common: dict[str, Any] = {"org_budgets": (a_budget(name="org"),), "budgets": (soft,)}
    broken = a_policy(AppId("broken"), **common)
    sound = a_policy(AppId("sound"), org_id=broken.org_id, **common)
    held = await world.instance.authorize(broken)
    world.clock.advance_ms(CHAPTER_MS)
    await world.instance.authorize(sound)
    await world.instance.close()
    org, own = accounts_of(broken, world.clock.now_ms())
    item = await world.store.get(RATE_BUCKETS, own.key)
    await world.store.put(Put(RATE_BUCKETS, {**(item or {}), f"u:{own.id}": "text"}))
    instance = Instance(world.store, world.clock, seed=3)
    await instance.authorize(sound)
    instance.ledger._open.put((own.key, own.id), True)
    failing = (
        instance.void(broken, held.authorization.id) if settled else instance.authorize(broken)
    )
    outcomes = await asyncio.gather(failing, instance.authorize(sound), return_exceptions=True)
    assert isinstance(outcomes[0], UnreadableItemError)
    assert isinstance(outcomes[1], Authorized)
    assert (await instance.ledger.read([org]))[org].held == 4 * HELD_USD_PICOS
