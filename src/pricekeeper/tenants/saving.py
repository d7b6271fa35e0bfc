"""Writes the settings of clients: each change with its entry in the audit trail.

A client is created if it does not exist, and updated if unchanged since it was read. Otherwise the
caller reads it again.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pricekeeper.audit import AuditTrail
from pricekeeper.authority import Attribution, Reach
from pricekeeper.client_ids import Client
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.concurrency import Backoff
from pricekeeper.errors import NotPermittedError, OutcomeUnknownError, TransactionCancelledError
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
from pricekeeper.tenants import items
from pricekeeper.tenants.configuration import (
    AppSettings,
    Budget,
    Enforcement,
    OrgSettings,
    QuotaEnforcement,
)
from pricekeeper.tenants.ending import random_name
from pricekeeper.tenants.policy import Life
from pricekeeper.tenants.recounts import RECOUNT_AFTER_MS, Recount, is_wanted, recount_put
from pricekeeper.tenants.stored_settings import client_created, read_settings, settings_replaced

_SAME_SETTINGS: Final = ("timezone", "quota_scope")
"""A change of these begins other windows or accounts, in which nothing is spent yet."""


class BudgetRule:
    """Decides who may raise the budgets of an organisation.

    Its own administrators may lower its hard budgets and quotas, and add budgets. Only a key for
    all organisations may raise or remove them, unless the deployment allows it. The store does not
    record who set a budget, so the rule covers all. An app's budgets are the organisation's own.
    """

    def __init__(self, *, orgs_set_budgets: bool = False) -> None:
        self._reach = Reach.ORG if orgs_set_budgets else Reach.ALL

    def require_reach(self, by: Attribution, what: str) -> None:
        if by.reach < self._reach:
            raise NotPermittedError(
                f"{what} takes a key for all organisations; "
                "PRICEKEEPER_ORG_ADMINS_SET_BUDGETS=1 leaves it to keys of the organisation"
            )

    def require_kept(self, before: OrgSettings | None, after: OrgSettings, by: Attribution) -> None:
        """Raise `NotPermittedError` with everything that the change would raise or remove.

        ``before`` is ``None`` if the organisation is new or unreadable.
        """
        if before is None:
            self.require_reach(by, "setting the first budgets and quotas of an organisation")
        elif raised := list(_raised(before, after)):
            self.require_reach(by, f"raising or removing {', '.join(raised)}")


def _raised(before: OrgSettings, after: OrgSettings) -> Iterator[str]:
    yield from (name for name in _SAME_SETTINGS if getattr(before, name) != getattr(after, name))
    strict = QuotaEnforcement.STRICT
    if before.quota_enforcement is strict and after.quota_enforcement is not strict:
        yield "quota_enforcement"
    for label in sorted({*before.quotas, *after.quotas}):
        old, new = before.quotas.get(label), after.quotas.get(label)
        if old is None or new is None or new > old:
            yield f"quotas.{label}"
    now = {budget.name: budget for budget in after.budgets}
    for budget in before.budgets:
        if budget.enforcement is Enforcement.HARD and not _holds(now.get(budget.name), budget):
            yield f"budgets.{budget.name}"


def _holds(new: Budget | None, old: Budget) -> bool:
    return (
        new is not None
        and new.enforcement is Enforcement.HARD
        and new.limit_usd_micros <= old.limit_usd_micros
        and (new.window, new.per_tag) == (old.window, old.per_tag)
        and frozenset(new.labels) == frozenset(old.labels)
    )


_BACKOFF: Final = Backoff(5, 100)


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What is written in the transaction that creates a client."""

    attributes: Mapping[str, Value] = field(default_factory=dict)
    operations: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Creation:
    """A client to create, and the conditions of that."""

    client: Client
    settings: OrgSettings | AppSettings
    item: Item
    vacant: Condition
    beside: Write
    """Adds an organisation to the index; checks that an app's organisation exists."""
    org: OrgSettings | None = None


class SettingsWriter:
    """Writes clients to one store and removes them from the cache."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        trail: AuditTrail,
        forget: Callable[[Client], None],
        rule: BudgetRule,
    ) -> None:
        self._store = store
        self._clock = clock
        self._trail = trail
        self._forget = forget
        self._rule = rule

    async def create(
        self, creation: Creation, by: Attribution, enrolment: Enrolment | None
    ) -> bool:
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
            await self._trail.apply(by, client_created(client, settings), operations)
        except TransactionCancelledError:
            return False
        finally:
            self._forget(client)
        return True

    async def update(
        self, client: Client, settings: OrgSettings | AppSettings, item: Item, by: Attribution
    ) -> Item | None:
        """Write the settings; ``None`` if another caller was faster.

        Only the version that was read is replaced, so a late copy of this write changes nothing.
        """
        life, before = items.life_of(item), read_settings(client, item)
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
            change = settings_replaced(client, item, settings)
            recounts = self._recounts(client, before, settings)
            await self._trail.apply(by, change, (operation, *recounts))
        except TransactionCancelledError:
            return None
        finally:
            self._forget(client)
        if client.app_id is None and items.INCARNATION not in item:
            await self._add_to_index(client)
        return operation.apply(item)

    def _recounts(
        self,
        client: Client,
        before: OrgSettings | AppSettings | None,
        after: OrgSettings | AppSettings,
        org: OrgSettings | None = None,
    ) -> list[Put]:
        if not is_wanted(before, after, org):
            return []
        due_ms = self._clock.now_ms() + RECOUNT_AFTER_MS
        return [recount_put(Recount(client, due_ms))]

    async def _add_to_index(self, client: Client) -> None:
        """Add an imported organisation to the index.

        A failure is ignored: the index is read with the items, and the next update tries again.
        """
        org_exists = Check(CONFIG, items.config_key(client), ITEM_EXISTS)
        with contextlib.suppress(TransactionCancelledError, OutcomeUnknownError):
            await self._store.transact([org_exists, items.index_put(client)])

    async def pause(self, failures: int) -> None:
        if failures:
            await self._clock.sleep_ms(_BACKOFF.pause_ms(failures, secrets.randbelow))

    def new_life(self) -> Life:
        now_ms = self._clock.now_ms()
        return Life(
            incarnation=random_name(),
            version=1,
            created_at_epoch=now_ms // 1000,
            updated_at_epoch=now_ms // 1000,
            token_generation=random_name(),
            tokens_valid_from_epoch_ms=now_ms,
        )
