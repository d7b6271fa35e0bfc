"""Authorizations done wrong, in the ways they are done wrong elsewhere or nearly were here.

Each of these takes one line of defence away. The checks that hold the real one must catch every
one of them. `docs/proof.md` lists them, with the seed that catches each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from pricekeeper.authorizations import (
    attempts,
    books,
    expiry,
    regions,
    settling,
    transaction,
)
from pricekeeper.authorizations import items as authorization_items
from pricekeeper.authorizations.attempts import Attempts
from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.books import Books
from pricekeeper.authorizations.settling import Changed, Expire
from pricekeeper.budgets import Balance, Recounts, recounting
from pricekeeper.budgets import items as budget_items
from pricekeeper.budgets import service as budget_service
from pricekeeper.budgets.service import Budgets
from pricekeeper.metering import Metering, journal_items, posting
from pricekeeper.metering import receipt as receipts
from pricekeeper.metering.preparing import Preparer
from pricekeeper.storage import Condition, Key, Put, Update
from pricekeeper.storage.expressions import And, BeginsWith, Compare

Patch = pytest.MonkeyPatch


def _everywhere(patch: Patch, name: str, made: Any, *modules: Any) -> None:
    for module in modules:
        patch.setattr(module, name, made)


def limits_only_in_memory(patch: Patch) -> None:
    """The decision is right by what was seen, and its write has no condition."""
    real = budget_items.account_update

    def update(key: Key, changes: Mapping[str, Balance], _: Any, now_ms: int) -> Update:
        return real(key, changes, {}, now_ms)

    patch.setattr(transaction, "account_update", update)


async def _do_nothing(*_: Any) -> None:
    return None


def opened_twice(patch: Patch) -> None:
    """Whoever opens an account sets it to what it has measured, open or not."""
    real = budget_items.open_update

    def opened(*args: Any) -> Update:
        return msgspec.structs.replace(real(*args), condition=None)

    patch.setattr(budget_service, "open_update", opened)


def _with_conditions(
    patch: Patch, keep: Callable[[authorization_items.NewGrant | Any, Condition], Condition | None]
) -> None:
    """Let the conditions of what is granted and changed on a sheet be others."""
    real = authorization_items.sheet_update

    def update(key: Key, granted: Any, changed: Any, expires_at_epoch: int) -> Update:
        made = real(key, granted, changed, expires_at_epoch)
        assert isinstance(made.condition, And)
        kept = [
            other
            for one, part in zip((*granted, *changed), made.condition.parts, strict=True)
            if (other := keep(one, part)) is not None
        ]
        return msgspec.structs.replace(made, condition=And(tuple(kept)) if kept else None)

    patch.setattr(transaction, "sheet_update", update)


def change_without_condition(patch: Patch) -> None:
    """A settlement is written whatever has become of the authorization meanwhile."""
    _with_conditions(
        patch, lambda one, part: part if isinstance(one, authorization_items.NewGrant) else None
    )


def change_on_the_state_alone(patch: Patch) -> None:
    """An authorization that was extended is taken for the one that was seen."""

    def keep(one: Any, part: Condition) -> Condition:
        if isinstance(one, authorization_items.NewGrant) or not isinstance(part, Compare):
            return part
        return BeginsWith(part.attribute, str(part.value)[:1])

    _with_conditions(patch, keep)


def granted_twice_on_a_sheet(patch: Patch) -> None:
    """What arrives late grants again what was granted, and perhaps captured, since."""
    _with_conditions(
        patch, lambda one, part: None if isinstance(one, authorization_items.NewGrant) else part
    )


def granted_over_another(patch: Patch) -> None:
    """An id that the caller gave is not looked at: the same call is granted twice."""
    page, receipt = journal_items.take_place_update, receipts.take_place_put

    def update(*args: Any) -> Update:
        return msgspec.structs.replace(page(*args), condition=None)

    def put(*args: Any) -> Put:
        return msgspec.structs.replace(receipt(*args), condition=None)

    patch.setattr(transaction, "take_place_update", update)
    patch.setattr(transaction, "take_place_put", put)


def hold_kept_on_capture(patch: Patch) -> None:
    """What was held stays held beside what was spent."""
    patch.setattr(settling, "capture", lambda _, cost: Balance(cost, 0, 0))


def hold_released_in_part(patch: Patch) -> None:
    """What was used less is given back twice."""
    patch.setattr(settling, "capture", lambda held, _: Balance(-held, -held, 0))


def expired_is_free(patch: Patch) -> None:
    """What nobody settles is given back, as if it had not been called."""
    patch.setattr(settling, "expire", lambda held: Balance(-held, -held, 0))


def expired_twice(patch: Patch) -> None:
    """Whatever has become of it, what is due is charged at its hold."""
    real = settling.settle

    def settle(action: Any, seen: Authorization, now_ms: int, nonce: bytes) -> Changed | None:
        if isinstance(action, Expire) and seen.state is not State.VOIDED:
            after = msgspec.structs.replace(seen, state=State.UNSETTLED, nonce=nonce)
            return Changed(after, budget_items.expire(seen.held_usd_picos))
        return real(action, seen, now_ms, nonce)

    patch.setattr(attempts, "settle", settle)


def late_capture_as_if_open(patch: Patch) -> None:
    """A capture after the expiry releases a hold that is no longer there."""
    patch.setattr(settling, "capture_late", budget_items.capture)


def void_after_expiry_as_if_open(patch: Patch) -> None:
    """The charge of an expired call stays although it was voided."""
    real = settling.settle

    def settle(action: Any, seen: Authorization, now_ms: int, nonce: bytes) -> Changed | None:
        changed = real(action, seen, now_ms, nonce)
        if changed is not None and changed.after.state is State.VOIDED:
            return changed._replace(change=budget_items.capture(seen.held_usd_picos, 0))
        return changed

    patch.setattr(attempts, "settle", settle)


def counted_when_captured(patch: Patch) -> None:
    """A capture after midnight counts in the new day, and its hold in the old one."""
    real = Metering.price_captured

    async def price(self: Metering, policy: Any, usage: Any, _: int) -> Any:
        return await real(self, policy, usage, self._clock.now_ms())

    patch.setattr(Metering, "price_captured", price)


def record_beside_the_transaction(patch: Patch) -> None:
    """The hold is released first, then the record is written; some die in between."""
    real = Attempts.send

    async def send(self: Attempts, steps: Sequence[transaction.Step]) -> None:
        on_sheets = [one for one in steps if isinstance(one.concern, transaction.OnSheet)]
        others = [one for one in steps if one not in on_sheets]
        if others:
            await real(self, others)
        if on_sheets:
            await real(self, on_sheets)

    patch.setattr(Attempts, "send", send)


def hold_beside_the_transaction(patch: Patch) -> None:
    """The authorization is written first, and held afterwards; some die in between."""
    real = Attempts.send

    async def send(self: Attempts, steps: Sequence[transaction.Step]) -> None:
        on_accounts = [one for one in steps if isinstance(one.concern, transaction.OnAccounts)]
        others = [one for one in steps if one not in on_accounts]
        if others:
            await real(self, others)
        if on_accounts:
            await real(self, on_accounts)

    patch.setattr(Attempts, "send", send)


def own_change_not_known_again(patch: Patch) -> None:
    """Whoever lost the reply takes its own capture for another's."""
    patch.setattr(attempts, "is_own_change", lambda *_: False)


def no_hold_on_retry(patch: Patch) -> None:
    """What is decided anew is not held anew."""
    real = Books.hold
    seen: set[Any] = set()

    def hold(self: Books, accounts: Any, usd_picos: int) -> None:
        key = (tuple(accounts), usd_picos)
        if key in seen:
            return
        seen.add(key)
        real(self, accounts, usd_picos)

    patch.setattr(Books, "hold", hold)


def usage_does_not_debit(patch: Patch) -> None:
    """What was never authorized is not spent from budgets."""
    patch.setattr(Preparer, "_find_accounts", lambda *_: ())


def usage_debited_beside_the_record(patch: Patch) -> None:
    """The record first, then the budgets; some die in between."""
    real = posting.Poster._debits

    def debits(self: Any, submissions: Any, sent_at_ms: int) -> list[Update]:
        made = real(self, submissions, sent_at_ms)
        return made[:-1]

    patch.setattr(posting.Poster, "_debits", debits)


def nobody_sweeps(patch: Patch) -> None:
    """Only the process that granted a call expires it."""

    async def sweep(_: Any) -> expiry.Swept:
        return expiry.Swept()

    patch.setattr(expiry.Expiry, "sweep", sweep)


def marked_after_the_grant(patch: Patch) -> None:
    """The region of an authorization is marked only if its process lives on."""
    patch.setattr(regions.Regions, "mark", _do_nothing)


def swept_once(patch: Patch) -> None:
    """A region is not looked at again; what arrives late is held for ever."""
    _everywhere(patch, "VISITS_MS", regions.VISITS_MS[:1], expiry, regions)


def held_at_half(patch: Patch) -> None:
    """An average instead of the worst case."""

    def hold(usd_picos: int) -> Balance:
        return Balance(usd_picos // 2, usd_picos // 2, 0)

    patch.setattr(books, "hold", hold)


def window_of_another_zone(patch: Patch) -> None:
    """What is held against the day in UTC is spent in the organisation's."""
    real = Budgets.open_for

    async def opened(self: Budgets, policy: Any, label: str, tags: Any, at_ms: int) -> Any:
        return await real(self, policy, label, tags, at_ms - 12 * 3_600_000)

    patch.setattr(Budgets, "open_for", opened)


def nobody_recounts(patch: Patch) -> None:
    """What was counted by who did not know of a budget yet is never spent from it."""

    async def recount(*_: Any) -> bool:
        return True

    patch.setattr(Recounts, "recount", recount)


def recounted_twice(patch: Patch) -> None:
    """Two that find the same missing both add it, and so does one whose reply was lost."""
    real = budget_items.recount_update

    def update(*args: Any) -> Update:
        made = real(*args)
        assert isinstance(made.condition, And)
        return msgspec.structs.replace(made, condition=And(made.condition.parts[1:]))

    patch.setattr(recounting, "recount_update", update)


def recounted_by_one_look(patch: Patch) -> None:
    """What is counted while the journal is read is taken for missing."""
    real = recounting.read_open_accounts
    seen: dict[int, Any] = {}

    async def read(store: Any, policies: Any, now_ms: int) -> Any:
        known = seen.pop(id(policies), None)
        if known is None:
            known = seen[id(policies)] = await real(store, policies, now_ms)
        return known

    patch.setattr(recounting, "read_open_accounts", read)


Plant = Callable[[Patch], None]
BROKEN: dict[str, Plant] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        limits_only_in_memory,
        opened_twice,
        change_without_condition,
        change_on_the_state_alone,
        granted_twice_on_a_sheet,
        granted_over_another,
        hold_kept_on_capture,
        hold_released_in_part,
        expired_is_free,
        expired_twice,
        late_capture_as_if_open,
        void_after_expiry_as_if_open,
        counted_when_captured,
        record_beside_the_transaction,
        hold_beside_the_transaction,
        own_change_not_known_again,
        no_hold_on_retry,
        usage_does_not_debit,
        usage_debited_beside_the_record,
        nobody_sweeps,
        marked_after_the_grant,
        swept_once,
        held_at_half,
        window_of_another_zone,
        nobody_recounts,
        recounted_twice,
        recounted_by_one_look,
    )
}
CAUGHT_BY: dict[str, int] = {
    "limits only in memory": 16,
    "opened twice": 3,
    "change without condition": 1,
    "change on the state alone": 307,
    "granted twice on a sheet": 121,
    "granted over another": 15,
    "hold kept on capture": 0,
    "hold released in part": 0,
    "expired is free": 0,
    "expired twice": 5,
    "late capture as if open": 5,
    "void after expiry as if open": 17,
    "counted when captured": 7,
    "record beside the transaction": 0,
    "hold beside the transaction": 0,
    "own change not known again": 7,
    "no hold on retry": 0,
    "usage does not debit": 2,
    "usage debited beside the record": 2,
    "nobody sweeps": 0,
    "marked after the grant": 0,
    "swept once": 1094,
    "held at half": 0,
    "window of another zone": 0,
    "nobody recounts": 4,
    "recounted twice": 4,
    "recounted by one look": 4,
}
