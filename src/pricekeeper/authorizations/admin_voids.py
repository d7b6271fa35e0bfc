"""An administrator's void: what a client was granted goes back, with its entry in the audit trail.

It is the void that the client itself could ask for, and later than that: for as long as the
authorization is kept. It is sent by itself, in the transaction of its entry, and not together with
what others of the organisation are granted.
"""

from __future__ import annotations

import contextlib
from typing import Final

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.commands import Settle
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.items import StateChange, sheet_key, sheet_update
from pricekeeper.authorizations.refunds import tokens_beyond
from pricekeeper.authorizations.settling import Changed, Void, settle
from pricekeeper.authorizations.sheet import find_on
from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import USED, account_update
from pricekeeper.errors import (
    ContendedError,
    NotFoundError,
    ReasonCode,
    StoreError,
    TransactionCancelledError,
)
from pricekeeper.limiter.writes import adjust
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.storage import Key, Update
from pricekeeper.values import Attribution, OrgId

ATTEMPTS_MAX: Final = 8
_ACTION: Final = "authorization.void"


class AdminVoids:
    """Voids authorizations of any client."""

    def __init__(self, desk: Desk, trail: AuditTrail) -> None:
        self._desk = desk
        self._trail = trail

    async def void(
        self, org_id: str, seen: Authorization, by: Attribution, nonce: bytes
    ) -> Authorization:
        """Give everything back; voiding it again changes nothing.

        Raises `ConflictError` if it was captured: then there is a usage record to void.
        """
        action = Void(by.reason or "", by_admin=True)
        gone = set[tuple[Key, str]]()
        for _ in range(ATTEMPTS_MAX):
            changed = settle(action, seen, self._desk.clock.now_ms(), nonce)
            if changed is None:
                await self._trail.apply(by, _repetition(org_id, seen), ())
                return seen
            keys, updates = self._account_updates(changed, gone)
            state = StateChange(seen, changed.after)
            sheet = sheet_update(sheet_key(org_id, seen.id), (), (state,), 0)
            operations = (sheet, *updates)
            try:
                await self._trail.apply(by, _change(org_id, seen), operations)
            except TransactionCancelledError as cancelled:
                own, *others = cancelled.reasons
                if own.code is ReasonCode.CONDITION_FAILED:
                    found = find_on(own.item, seen.id)
                    if found is None:
                        raise NotFoundError("authorization") from cancelled
                    seen = found
                gone.update(
                    (key, account.id)
                    for key, reason in zip(keys, others, strict=True)
                    if reason.code is ReasonCode.CONDITION_FAILED
                    for account in seen.grant.accounts
                    if USED + account.id not in (reason.item or {})
                )
                continue
            self._desk.forget(keys)
            await self._give_tokens_back(Settle(action, seen, nonce))
            return changed.after
        raise ContendedError("others kept changing the authorization")

    def _account_updates(
        self, changed: Changed, gone: set[tuple[Key, str]]
    ) -> tuple[list[Key], list[Update]]:
        """What goes back to the accounts; those of windows that are long over are gone."""
        changes: dict[Key, dict[str, Balance]] = {}
        for account in changed.after.grant.accounts:
            if (account.key, account.id) not in gone:
                changes.setdefault(account.key, {})[account.id] = changed.change
        now_ms = self._desk.clock.now_ms()
        updates = [account_update(key, some, {}, now_ms) for key, some in changes.items()]
        return list(changes), updates

    async def _give_tokens_back(self, command: Settle) -> None:
        """Giving back is worth a try, no more: what is lost refills by time."""
        for debit in tokens_beyond(command):
            self._desk.forget([(debit.entity, debit.resource)])
            with contextlib.suppress(StoreError):
                await self._desk.store.update(adjust(debit))


def _change(org_id: str, seen: Authorization) -> Change:
    grant = seen.grant
    before = {
        "client_id": grant.client_id,
        "model_label": grant.label,
        "status": seen.state.value,
        "held_usd_micros": -(-grant.held_usd_picos // PICOS_PER_MICRO),
    }
    after = {"status": State.VOIDED.value}
    return Change(_ACTION, _target(seen), OrgId(org_id), before, after)


def _repetition(org_id: str, seen: Authorization) -> Change:
    """Somebody asked for a void that was made before: nothing was different after it."""
    return Change(_ACTION, _target(seen), OrgId(org_id))


def _target(seen: Authorization) -> str:
    return f"authorization/{seen.shown_id}"
