"""An administrator's void: what a client was granted goes back, with its entry in the audit trail.

It is the void that the client itself could ask for. What a client may not void itself, because the
gateway made the call or it expired more than 24 hours ago, gives money back to budgets: that takes
a key which may raise them. Its sheet is written in the transaction of its entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution
from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.reading import Seen
from pricekeeper.authorizations.settling import Void
from pricekeeper.pricing import PICOS_PER_MICRO
from pricekeeper.storage import Write
from pricekeeper.tenants import BudgetRule
from pricekeeper.values import OrgId

_ACTION: Final = "authorization.void"


async def void_by_admin(
    desk: Desk, trail: AuditTrail, org_id: str, seen: Seen, by: Attribution, rule: BudgetRule
) -> Authorization:
    """Give back what any client was granted; voiding it again changes nothing.

    Raises `ConflictError` if it was captured: then there is a usage record to void.
    `NotPermittedError` if the client could not void it itself, and the key may not raise budgets.
    """
    authorization = seen.authorization
    if authorization.grant.terms.by_gateway:
        rule.require_reach(by, "voiding a call of the gateway")
    if not authorization.may_be_settled_at(desk.clock.now_ms()):
        rule.require_reach(by, "voiding a call that expired more than 24 hours ago")

    async def send(operations: Sequence[Write]) -> None:
        before = command.seen.authorization.at(desk.clock.now_ms())
        await trail.apply(by, _change(org_id, before), operations)

    action = Void(by.reason or "", by_admin=True)
    command = desk.submit(org_id, action, seen, send=send)
    settled = await command.future
    if not settled.changed:  # it was voided before: nothing was different after this
        repetition = Change(_ACTION, _target(settled.authorization), OrgId(org_id))
        await trail.apply(by, repetition, ())
    await desk.return_tokens(action, settled)
    return settled.authorization


def _change(org_id: str, seen: Authorization) -> Change:
    grant = seen.grant
    before = {
        "client_id": grant.terms.client_id,
        "model_label": grant.terms.label,
        "status": seen.state.value,
        "held_usd_micros": -(-grant.held_usd_picos // PICOS_PER_MICRO),
    }
    after = {"status": State.VOIDED.value}
    return Change(_ACTION, _target(seen), OrgId(org_id), before, after)


def _target(seen: Authorization) -> str:
    return f"authorization/{seen.shown_id}"
