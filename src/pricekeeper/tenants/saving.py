"""Writes the settings of clients: each change with its entry in the audit trail.

A client is created if nobody else has done that, and updated if it is as it was read. If another
was faster, whoever calls this reads the client again.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import OutcomeUnknownError, TransactionCancelledError
from pricekeeper.storage import (
    ITEM_EXISTS,
    Check,
    Condition,
    Item,
    Put,
    Store,
    Update,
    Value,
    Write,
)
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import changes, items
from pricekeeper.tenants.cache import PolicyCache
from pricekeeper.tenants.configuration import AppSettings, OrgSettings
from pricekeeper.tenants.generations import random_name
from pricekeeper.tenants.policy import Life
from pricekeeper.tenants.raising import BudgetRule
from pricekeeper.tenants.recounts import RECOUNT_AFTER_MS, Recount, is_wanted, recount_put

_BACKOFF: Final = Backoff(5, 100)


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What comes into being together with a client, in the same transaction."""

    attributes: Mapping[str, Value] = field(default_factory=dict)
    """Beside the settings, on the client's own item."""
    operations: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Creation:
    """A client that is to begin, and what has to hold for it."""

    client: Client
    settings: OrgSettings | AppSettings
    item: Item
    vacant: Condition
    beside: Write
    """An organisation is put into the list of all; that of an app must be there."""
    org: OrgSettings | None = None
    """Of an app: the settings of its organisation."""


class SettingsWriter:
    """Writes clients into one store, and lets the cache forget them."""

    def __init__(
        self, store: Store, clock: Clock, trail: AuditTrail, cache: PolicyCache, rule: BudgetRule
    ) -> None:
        self._store = store
        self._clock = clock
        self._trail = trail
        self._cache = cache
        self._rule = rule

    async def create(
        self, creation: Creation, by: Attribution, enrolment: Enrolment | None
    ) -> bool:
        """Create the item; whether this call did it. If not, another was faster."""
        enrolment = enrolment or Enrolment()
        if enrolment.operations:
            require_trusted_time(self._clock)  # a retrieval token ends at a moment
        client, settings = creation.client, creation.settings
        if isinstance(settings, OrgSettings):
            self._rule.require_kept(None, settings, by)
        put = Put(CONFIG, {**creation.item, **enrolment.attributes}, creation.vacant)
        recounts = self._recounts(client, None, settings, creation.org)
        operations = [put, creation.beside, *recounts, *enrolment.operations]
        try:
            await self._trail.apply(by, changes.client_created(client, settings), operations)
        except TransactionCancelledError:
            return False
        finally:
            self._cache.forget(client)
        return True

    async def update(
        self, client: Client, settings: OrgSettings | AppSettings, item: Item, by: Attribution
    ) -> Item | None:
        """Write the settings; returns the new item, ``None`` if another was faster.

        Only the version that was read is replaced: a copy of this write that arrives late
        can't undo what was acknowledged after it.
        """
        life, before = items.life_of(item), changes.read_settings(client, item)
        if isinstance(settings, OrgSettings):
            known = before if isinstance(before, OrgSettings) else None
            self._rule.require_kept(known, settings, by)
        next_life = replace(
            life, version=life.version + 1, updated_at_epoch=self._clock.now_ms() // 1000
        )
        operation = Update(
            CONFIG,
            items.config_key(client),
            items.settings_actions(settings, next_life),
            items.same_settings(life),
        )
        try:
            change = changes.settings_replaced(client, item, settings)
            recounts = self._recounts(client, before, settings)
            await self._trail.apply(by, change, (operation, *recounts))
        except TransactionCancelledError:
            return None
        finally:
            self._cache.forget(client)
        return operation.apply(item)

    def _recounts(
        self,
        client: Client,
        before: OrgSettings | AppSettings | None,
        after: OrgSettings | AppSettings,
        org: OrgSettings | None = None,
    ) -> list[Put]:
        """Have the client's accounts recounted once everybody knows of a change, if need be."""
        if not is_wanted(before, after, org):
            return []
        due_ms = self._clock.now_ms() + RECOUNT_AFTER_MS
        return [recount_put(Recount(client, due_ms))]

    async def add_to_index(self, client: Client) -> None:
        """Put an organisation that was imported into the list of all organisations.

        If it is deleted meanwhile, or the reply is lost, nothing has to be done: the list is read
        together with the items, and the next update does this again.
        """
        org_exists = Check(CONFIG, items.config_key(client), ITEM_EXISTS)
        with contextlib.suppress(TransactionCancelledError, OutcomeUnknownError):
            await self._store.transact([org_exists, items.index_put(client)])

    async def pause(self, failures: int) -> None:
        """Let whoever changes the same client go on, before the client is read again."""
        if failures:
            await self._clock.sleep_ms(_BACKOFF.pause_ms(failures, secrets.randbelow))

    def new_life(self) -> Life:
        """The first moment of a client."""
        now_ms = self._clock.now_ms()
        return Life(
            incarnation=random_name(),
            version=1,
            created_at_epoch=now_ms // 1000,
            updated_at_epoch=now_ms // 1000,
            token_generation=random_name(),
            tokens_valid_from_epoch_ms=now_ms,
        )
