"""Freezes and unfreezes clients, and ends clients with everything issued to them.

Each change is one write with its audit entry. It replaces only the generation, incarnation or
freeze version that was read, so a late copy changes nothing newer.

A key can't delete a client that a key above it has frozen, because a recreated client is not
frozen: a deletion is written on condition that the freeze versions are the same. A freeze of an app
also increments its organisation's version, so one version covers all apps.

The items of a deleted organisation's apps no longer count and are removed page by page; deleting
the organisation again continues an interrupted removal.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution, Reach
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock
from pricekeeper.errors import (
    ConditionFailedError,
    ContendedError,
    NotFoundError,
    NotPermittedError,
    OutcomeUnknownError,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.storage import Action, Check, Delete, Item, Key, Store, Update, Write, query_items
from pricekeeper.storage.operations import TRANSACTION_OPERATIONS_MAX
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import items
from pricekeeper.tenants.items import ReadItem
from pricekeeper.tenants.policy import Freeze, FreezeScope, Generation, Life
from pricekeeper.tenants.stored_settings import client_deleted, client_frozen

ATTEMPTS_MAX: Final = 8
SWEEP_PAGES_MAX: Final = 100
"""For one call: at most ten thousand apps; the others wait for the next one."""
PAGE_MAX: Final = 100

MakeChange: TypeAlias = Callable[[Update | None], Awaitable[None]]
"""Makes a change, with an audit entry if it has an author. ``None`` only records it: another caller
has made the same change.
"""


def random_name() -> str:
    """Return a unique name for a life or a generation."""
    return secrets.token_hex(8)


async def update_alone(store: Store, operation: Update | None) -> None:
    """Make a change without an audit entry.

    After a lost reply, the item shows whether it was written; if that can't be read,
    `OutcomeUnknownError` is raised.
    """
    if operation is None:
        return
    try:
        await store.update(operation)
    except OutcomeUnknownError as lost:
        try:
            found = dict(lost.item or await store.get(CONFIG, operation.key) or {})
        except StoreError as error:
            raise lost from error
        if not found or operation.apply(found) != found:
            raise


async def start_generation(
    make: MakeChange, clock: Clock, read: ReadItem, client: Client, also: Sequence[Action]
) -> None:
    """Invalidate everything issued to the client; ``also`` is written with it."""
    for _ in range(ATTEMPTS_MAX):
        life = items.life_of(await read(client))
        # Another instance's clock may be ahead, or ours was set back.
        since_ms = max(clock.now_ms(), life.tokens_valid_from_epoch_ms)
        generation = Generation(random_name(), since_ms)
        actions = (*items.end_tokens_actions(generation), *also)
        operation = Update(CONFIG, items.config_key(client), actions, items.same_generation(life))
        try:
            await make(operation)
        except ConditionFailedError as failure:
            if failure.item is not None and _was_done(dict(failure.item), life, client, also):
                await make(None)
                return
        else:
            return
    raise ContendedError(f"{client.client_id}: others kept changing its credentials")


def _was_done(item: Item, read: Life, client: Client, also: Sequence[Action]) -> bool:
    """Whether another caller has done the same since: then all issued before is invalid."""
    life = items.life_of(item)
    if life.incarnation != read.incarnation or life.token_generation == read.token_generation:
        return False
    return Update(CONFIG, items.config_key(client), tuple(also)).apply(item) == item


async def end_org(
    store: Store, trail: AuditTrail, read: ReadItem, client: Client, item: Item, by: Attribution
) -> bool:
    """Delete this life of the organisation; ``False`` if another caller has done that."""
    life = items.life_of(item)
    await require_deletable(store, item, client, by)
    same = items.same_life(life) if by.reach is Reach.ALL else items.same_freeze(item)
    operations = [
        Delete(CONFIG, items.config_key(client), same),
        Delete(CONFIG, items.index_key(client)),
        Delete(CONFIG, items.alerts_key(client)),
    ]
    try:
        await trail.apply(by, client_deleted(client, item), operations)
    except TransactionCancelledError:
        await _require_gone(read, client, life)
        return False
    return True


async def end_app(
    trail: AuditTrail, read: ReadItem, client: Client, app: Item, org: Item, by: Attribution
) -> None:
    """Delete this life of the app; `NotFoundError` if another caller has done that."""
    key, life = items.config_key(client), items.life_of(app)
    operations: list[Write] = [Delete(CONFIG, key, items.same_life(life))]
    if by.reach is not Reach.ALL:
        for item in (app, org):
            require_authority(items.freeze_of(item), by.reach)
        operations = [
            Delete(CONFIG, key, items.same_freeze(app)),
            Check(CONFIG, items.config_key(client.org), items.same_freeze(org)),
        ]
    try:
        await trail.apply(by, client_deleted(client, app), operations)
    except TransactionCancelledError as failure:
        await _require_gone(read, client, life)
        raise NotFoundError(client.client_id) from failure


async def _require_gone(read: ReadItem, client: Client, life: Life) -> None:
    try:
        item = await read(client)
    except NotFoundError:
        return
    if items.life_of(item).incarnation == life.incarnation:
        raise ContendedError(f"{client.client_id}: its freeze has changed")


async def sweep_apps(store: Store, client: Client) -> int:
    """Remove the apps of deleted lives of the organisation; returns the number.

    The organisation is read after the apps: an incarnation not in force then never will be.
    """
    after, removed = "", 0
    for _ in range(SWEEP_PAGES_MAX):
        page = await store.query(items.apps_query(client, after, TRANSACTION_OPERATIONS_MAX))
        if not page.items:
            break
        org = await store.get(CONFIG, items.config_key(client))
        dead = [app for app in page.items if org is None or not items.is_app_of(app, org)]
        if dead and not await _remove(store, dead):
            continue
        removed += len(dead)
        if not page.after:
            break
        after = page.after
    return removed


async def _remove(store: Store, dead: Sequence[Item]) -> bool:
    """Remove the items; ``False`` if one has begun a new life meanwhile."""
    operations = [
        Delete(
            CONFIG,
            Key(item["PK"], item["SK"]),
            items.gone_or_left_over(item.get(items.ORG_INCARNATION, "")),
        )
        for item in dead
    ]
    try:
        await store.transact(operations)
    except TransactionCancelledError:
        return False
    return True


def next_freeze(
    current: Freeze | None, scope: FreezeScope, by: Attribution, now_epoch: int
) -> Freeze:
    """The freeze to write: it keeps the first time and takes the last reason."""
    require_authority(current, by.reach)
    return Freeze(
        scope=scope,
        reason=by.reason or "",
        frozen_at_epoch=now_epoch if current is None else current.frozen_at_epoch,
        reach=by.reach,
    )


def require_authority(current: Freeze | None, reach: Reach, what: str = "this") -> None:
    """Raise `NotPermittedError` if a key above this one froze it: else a thief could unfreeze."""
    if current is not None and reach < current.reach:
        raise NotPermittedError(
            f"{what} was frozen by an administrator above this key: ask them to lift it"
        )


async def freeze(
    trail: AuditTrail, read: ReadItem, client: Client, by: Attribution, now_epoch: int
) -> Freeze:
    """Freeze the client, or give its freeze another reason."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        wanted = next_freeze(items.freeze_of(item), _scope(client), by, now_epoch)
        if await _write(trail, client, item, wanted, by):
            return wanted
    raise _contended(client)


async def unfreeze(trail: AuditTrail, read: ReadItem, client: Client, by: Attribution) -> bool:
    """Lift the client's own freeze; returns whether there was one."""
    for _ in range(ATTEMPTS_MAX):
        item = await read(client)
        current = items.freeze_of(item)
        require_authority(current, by.reach)
        if await _write(trail, client, item, None, by):
            return current is not None
    raise _contended(client)


async def require_deletable(store: Store, org: Item, client: Client, by: Attribution) -> None:
    """Raise if a freeze of the organisation or an app forbids the key to delete it.

    Valid while the freeze version is the item's.
    """
    if by.reach is Reach.ALL:
        return
    require_authority(items.freeze_of(org), by.reach)
    async for app in query_items(store, items.apps_query(client, "", PAGE_MAX)):
        if items.is_app_of(app, org):
            app_id = items.app_of(client.org_id, app["SK"]).app_id
            require_authority(items.freeze_of(app), by.reach, f"the app {app_id}")


async def _write(
    trail: AuditTrail, client: Client, item: Item, wanted: Freeze | None, by: Attribution
) -> bool:
    """Write the freeze; ``False`` if it was changed meanwhile. An equal one is only audited."""
    key, same, current = items.config_key(client), items.same_freeze(item), items.freeze_of(item)
    operations: list[Write] = [Check(CONFIG, key, same)]
    if current != wanted:
        actions = items.freeze_actions(wanted, items.freeze_version(item) + 1)
        operations = [Update(CONFIG, key, actions, same)]
        if client.app_id is not None and wanted is not None and wanted.reach > Reach.ORG:
            operations.append(items.app_frozen(client, item))
    try:
        await trail.apply(by, client_frozen(client, current, wanted), operations)
    except TransactionCancelledError:
        return False
    return True


def _scope(client: Client) -> FreezeScope:
    return "ORG" if client.app_id is None else "APP"


def _contended(client: Client) -> ContendedError:
    return ContendedError(f"{client.client_id}: others kept changing its freeze")
