"""Freezes and unfreezes clients, and ends clients with everything issued to them.

Each change is one write with its audit entry. It replaces only the generation, incarnation or
freeze version that was read, so a late copy changes nothing newer.

A key can't delete a client that a key above it has frozen, because a recreated client is not
frozen: a deletion is written on condition that the freeze versions are the same. A freeze of an app
also increments its organisation's version, so one version covers all apps.

Deleting an organisation is one transaction: its apps' items name its incarnation, so they stop
counting at once. They are removed page by page; deleting the organisation again continues an
interrupted removal.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pricekeeper.audit import AuditTrail, Change
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
from pricekeeper.telemetry import Family, counted
from pricekeeper.tenants import items
from pricekeeper.tenants.policy import Freeze, Generation, Life
from pricekeeper.tenants.reading import PAGE_MAX, ClientReader
from pricekeeper.tenants.stored_settings import client_deleted, client_frozen
from pricekeeper.values import AppId, OrgId

REVOCATIONS: Final = Family(
    "pricekeeper_revocations", "Tokens, sessions and clients that ended early, by kind.", ("kind",)
)
ATTEMPTS_MAX: Final = 8
SWEEP_PAGES_MAX: Final = 100
"""For one call: at most ten thousand apps; the others wait for the next one."""


@dataclass(slots=True)
class TenantsMeter:
    """Counts what this instance has deleted."""

    clients_deleted: int = counted(REVOCATIONS, "client")


class ClientEnding(ClientReader):
    """Reads the clients of one store, freezes and ends them."""

    def __init__(self, store: Store, clock: Clock, trail: AuditTrail) -> None:
        super().__init__(store, clock)
        self._clock = clock
        self._trail = trail
        self.meter = TenantsMeter()

    async def end_tokens_issued_before_now(
        self,
        client: Client,
        *,
        also: Sequence[Action] = (),
        audited: tuple[Attribution, Change] | None = None,
    ) -> None:
        """Invalidate everything that was issued to the client: one read, one write.

        ``also`` changes the client's item in the same write. May be repeated after an
        `OutcomeUnknownError`: a late first write changes nothing.
        """
        for _ in range(ATTEMPTS_MAX):
            life = (await self.read_record(client)).life
            # Another instance's clock may be ahead, or ours was set back.
            since_ms = max(self._clock.now_ms(), life.tokens_valid_from_epoch_ms)
            actions = (*items.end_tokens_actions(Generation(random_name(), since_ms)), *also)
            key, same = items.config_key(client), items.same_generation(life)
            try:
                await self._write(Update(CONFIG, key, actions, same), audited)
            except ConditionFailedError as failure:
                if failure.item is None or not _was_done(dict(failure.item), life, client, also):
                    continue
                await self._write(None, audited)
            finally:
                self.forget(client)
            return
        raise ContendedError(f"{client.client_id}: others kept changing its credentials")

    async def _write(
        self, operation: Update | None, audited: tuple[Attribution, Change] | None
    ) -> None:
        """Make a change, with an audit entry if it has an author.

        ``None`` only records it: another caller has made the same change.
        """
        if audited is not None:
            await self._trail.write(*audited, operation)
        elif operation is not None:
            await self._write_alone(operation)

    async def _write_alone(self, operation: Update) -> None:
        """Make a change; after a lost reply, the item shows whether it was written."""
        try:
            await self._store.update(operation)
        except OutcomeUnknownError as lost:
            try:
                found = dict(lost.item or await self._store.get(CONFIG, operation.key) or {})
            except StoreError as error:
                raise lost from error
            if not found or operation.apply(found) != found:
                raise

    async def delete_org(self, org_id: OrgId, by: Attribution) -> None:
        """Delete the organisation with all of its apps.

        Raises `NotPermittedError` if a key above the caller's has frozen any of them.
        """
        client = Client(org_id)
        org = await self._store.get(CONFIG, items.config_key(client))
        ended = False
        if org is not None:
            await self._require_deletable(client, org, by)
            is_free = by.reach is Reach.ALL
            same = items.same_life(items.life_of(org)) if is_free else items.same_freeze(org)
            keys = (items.index_key(client), items.alerts_key(client))
            operations = [Delete(CONFIG, items.config_key(client), same)]
            operations += [Delete(CONFIG, key) for key in keys]
            ended = await self._end(client, org, operations, by)
        removed = await self._sweep_apps(client)
        self.meter.clients_deleted += removed
        if not ended:
            raise NotFoundError(client.client_id)

    async def delete_app(self, org_id: OrgId, app_id: AppId, by: Attribution) -> None:
        """Delete the app.

        Raises `NotPermittedError` if a key above the caller's has frozen it or its organisation:
        else it could be created again, unfrozen.
        """
        client = Client(org_id, app_id)
        record = await self.read_record(client)
        key = items.config_key(client)
        operations: list[Write] = [Delete(CONFIG, key, items.same_life(record.life))]
        if by.reach is not Reach.ALL:
            for item in (record.item, record.org_item):
                _require_authority(items.freeze_of(item), by)
            org_key, same_org = items.config_key(client.org), items.same_freeze(record.org_item)
            operations = [
                Delete(CONFIG, key, items.same_freeze(record.item)),
                Check(CONFIG, org_key, same_org),
            ]
        if not await self._end(client, record.item, operations, by):
            raise NotFoundError(client.client_id)

    async def _end(
        self, client: Client, item: Item, operations: Sequence[Write], by: Attribution
    ) -> bool:
        """Delete this life of the client; ``False`` if another caller has done that."""
        try:
            await self._trail.apply(by, client_deleted(client, item), operations)
        except TransactionCancelledError as failure:
            try:
                found = await self.read_record(client)
            except NotFoundError:
                return False
            if found.life.incarnation == items.life_of(item).incarnation:
                raise ContendedError(f"{client.client_id}: its freeze has changed") from failure
            return False
        finally:
            self.forget(client)
        self.meter.clients_deleted += 1
        return True

    async def _require_deletable(self, client: Client, org: Item, by: Attribution) -> None:
        """Raise if a freeze of the organisation or an app forbids the key to delete it.

        Valid while the freeze version is the item's.
        """
        if by.reach is Reach.ALL:
            return
        _require_authority(items.freeze_of(org), by)
        async for app in query_items(self._store, items.apps_query(client, "", PAGE_MAX)):
            if items.is_app_of(app, org):
                app_id = items.app_of(client.org_id, app["SK"]).app_id
                _require_authority(items.freeze_of(app), by, f"the app {app_id}")

    async def _sweep_apps(self, client: Client) -> int:
        """Remove the apps of deleted lives of the organisation; returns the number.

        The organisation is read after the apps: an incarnation not in force then never will be.
        """
        after, removed = "", 0
        for _ in range(SWEEP_PAGES_MAX):
            query = items.apps_query(client, after, TRANSACTION_OPERATIONS_MAX)
            page = await self._store.query(query)
            if not page.items:
                break
            org = await self._store.get(CONFIG, items.config_key(client))
            dead = [app for app in page.items if org is None or not items.is_app_of(app, org)]
            if dead and not await self._remove(dead):
                continue
            removed += len(dead)
            if not page.after:
                break
            after = page.after
        return removed

    async def _remove(self, dead: Sequence[Item]) -> bool:
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
            await self._store.transact(operations)
        except TransactionCancelledError:
            return False
        return True

    async def freeze(self, client: Client, by: Attribution) -> Freeze:
        """Deny models and tokens to the client; with an organisation, to all of its apps.

        A second freeze replaces the reason and keeps the time. Raises `NotPermittedError` if a key
        above the caller's has frozen it.
        """
        wanted = Freeze(
            "ORG" if client.app_id is None else "APP",
            reason=by.reason or "",
            frozen_at_epoch=self._clock.now_ms() // 1000,
            reach=by.reach,
        )
        return _since(await self._set_freeze(client, wanted, by), wanted)

    async def unfreeze(self, client: Client, by: Attribution) -> bool:
        """Lift the client's own freeze, not its organisation's; returns whether there was one."""
        return await self._set_freeze(client, None, by) is not None

    async def _set_freeze(
        self, client: Client, wanted: Freeze | None, by: Attribution
    ) -> Freeze | None:
        """Freeze the client, or lift its freeze; returns the freeze before."""
        for _ in range(ATTEMPTS_MAX):
            item = (await self.read_record(client)).item
            before = items.freeze_of(item)
            _require_authority(before, by)
            after = None if wanted is None else _since(before, wanted)
            if await self._write_freeze(client, item, after, by):
                return before
        raise ContendedError(f"{client.client_id}: others kept changing its freeze")

    async def _write_freeze(
        self, client: Client, item: Item, wanted: Freeze | None, by: Attribution
    ) -> bool:
        """Write the freeze; ``False`` if it was changed meanwhile. An equal one is only audited."""
        key, same = items.config_key(client), items.same_freeze(item)
        operations: list[Write] = [Check(CONFIG, key, same)]
        current = items.freeze_of(item)
        if current != wanted:
            actions = items.freeze_actions(wanted, items.freeze_version(item) + 1)
            operations = [Update(CONFIG, key, actions, same)]
            if client.app_id is not None and wanted is not None and wanted.reach > Reach.ORG:
                operations.append(items.app_frozen(client, item))
        try:
            await self._trail.apply(by, client_frozen(client, current, wanted), operations)
        except TransactionCancelledError:
            return False
        finally:
            self.forget(client)
        return True


def random_name() -> str:
    """Return a unique name for a life or a generation."""
    return secrets.token_hex(8)


def _was_done(item: Item, read: Life, client: Client, also: Sequence[Action]) -> bool:
    """Whether another caller has done the same since: then all issued before is invalid."""
    life = items.life_of(item)
    if life.incarnation != read.incarnation or life.token_generation == read.token_generation:
        return False
    return Update(CONFIG, items.config_key(client), tuple(also)).apply(item) == item


def _since(before: Freeze | None, wanted: Freeze) -> Freeze:
    """The freeze to write: it keeps the first time."""
    return wanted if before is None else replace(wanted, frozen_at_epoch=before.frozen_at_epoch)


def _require_authority(current: Freeze | None, by: Attribution, what: str = "this") -> None:
    """Raise `NotPermittedError` if a key above this one froze it: else a thief could unfreeze."""
    if current is not None and by.reach < current.reach:
        raise NotPermittedError(
            f"{what} was frozen by an administrator above this key: ask them to lift it"
        )
