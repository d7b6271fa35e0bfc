"""Broken authorizations: each variant removes one defence, and the checks must catch it.

`docs/proof.md` lists them with the seed that catches each.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from pricekeeper.authorizations import (
    authorization,
    authorizing,
    claims,
    expiry,
    reading,
    settler,
)
from pricekeeper.authorizations.authorization import Authorization, Changed, Expire, State
from pricekeeper.authorizations.authorizing import Authorize
from pricekeeper.authorizations.candidates import Candidates
from pricekeeper.authorizations.settler import Settle, Settler
from pricekeeper.budgets import Balance
from pricekeeper.budgets import items as budget_items
from pricekeeper.errors import OutcomeUnknownError
from pricekeeper.ledger import Decision, Draft, Ledger, filing, log, recounting
from pricekeeper.ledger import items as ledger_items
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.draft import AnyCommand
from pricekeeper.ledger.filing import Filer
from pricekeeper.ledger.log import OrgLog
from pricekeeper.ledger.recounting import Recounts
from pricekeeper.ledger.service import OpenAccount, PostRecords
from pricekeeper.ledger.sheet import ACCOUNTS
from pricekeeper.ledger.worker import Worker
from pricekeeper.metering import journal_items
from pricekeeper.metering.preparing import Preparer
from pricekeeper.storage import Key, Put, Set, Update, Write
from pricekeeper.storage.tables import RATE_BUCKETS

Patch = pytest.MonkeyPatch


def _unconditional(patch: Patch, module: Any, name: str, made_by: Callable[..., Any]) -> None:
    """Remove the condition from the results of a function."""

    def make(*args: Any, **kwargs: Any) -> Any:
        made = made_by(*args, **kwargs)
        fields = {field: getattr(made, field) for field in made.__struct_fields__}
        return type(made)(**{**fields, "condition": None})

    patch.setattr(module, name, make)


async def _do_nothing(*_: Any) -> None:
    return None


def sheet_without_condition(patch: Patch) -> None:
    """A sheet replaces one that another process has written."""
    _unconditional(patch, log, "sheet_put", ledger_items.sheet_put)


def opened_twice(patch: Patch) -> None:
    """Each process that opens an account adds the measured spend, also if it is open."""

    def decide(self: OpenAccount, draft: Draft) -> Decision:
        account = self._account
        draft.open(account.key, account.id, budget_items.spend(self._spent_usd_picos))
        return Decision.WRITES

    patch.setattr(OpenAccount, "decide", decide)


def settled_as_last_read(patch: Patch) -> None:
    """A settlement is written even if the authorization has changed since it was read."""
    real = Settle.decide

    def decide(self: Settle, draft: Draft) -> Decision:
        self.seen = self.seen._replace(generation=draft.book.generation)
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(draft, "outcome", lambda _: None)
            return real(self, draft)

    patch.setattr(Settle, "decide", decide)


def seen_before_it_was_filed(patch: Patch) -> None:
    """An authorization that was read before its outcome was filed counts as current."""
    real = Settle.decide

    def decide(self: Settle, draft: Draft) -> Decision:
        self.seen = self.seen._replace(generation=draft.book.generation)
        return real(self, draft)

    patch.setattr(Settle, "decide", decide)


def others_are_not_noted(patch: Patch) -> None:
    """A grant of this process stays open after other processes settle it."""
    patch.setattr(Settler, "_note_others", lambda *_: None)


def own_sheet_not_known_again(patch: Patch) -> None:
    """A process that lost a reply takes its own sheet for another's."""
    patch.setattr(log, "is_written_by", lambda *_: False)


def sent_again_elsewhere(patch: Patch) -> None:
    """A process that lost a reply writes the same again behind it, without reading."""

    async def look(*_: Any) -> None:
        return None

    real = OrgLog._write

    async def write(self: OrgLog, position: Any, *rest: Any) -> None:
        try:
            await real(self, position, *rest)
        except OutcomeUnknownError:
            self.book.next = position.next
            raise

    patch.setattr(OrgLog, "_look_at", look)
    patch.setattr(OrgLog, "_write", write)


def granted_over_another(patch: Patch) -> None:
    """The ids of callers are not checked: the same call is granted twice."""
    real = Authorize.decide

    def decide(self: Authorize, draft: Draft) -> Decision:
        if self._claim is not None:
            self._claim.existing = None
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(Book, "named", lambda *_: None)
            return real(self, draft)

    patch.setattr(Authorize, "decide", decide)


def claimed_over_a_record(patch: Patch) -> None:
    """A claim replaces a usage record or another claim."""
    _unconditional(patch, claims, "take_places_update", journal_items.take_places_update)


def claimed_after_the_grant(patch: Patch) -> None:
    """An id is not claimed: a usage record under it counts beside its authorization."""
    patch.setattr(claims.Claim, "reaches", lambda *_: True)


def claim_reaches_for_ever(patch: Patch) -> None:
    """A call is granted so far behind its claim that readers do not find it."""
    patch.setattr(claims.Claim, "reaches", lambda self, _: self.text is not None)
    patch.setattr(reading, "CLAIM_SHEETS", 1)


def claim_moved_unseen(patch: Patch) -> None:
    """A claim is moved without reading the grants behind it."""

    async def may_move(*_: Any) -> bool:
        return True

    patch.setattr(claims.Claims, "_may_move", may_move)


def hold_kept_on_capture(patch: Patch) -> None:
    """The hold stays beside the cost."""
    patch.setattr(authorization, "capture", lambda _, cost: Balance(cost, 0, 0))


def hold_released_in_part(patch: Patch) -> None:
    """The unused part of a hold is given back twice."""
    patch.setattr(authorization, "capture", lambda held, _: Balance(-held, -held, 0))


def expired_is_free(patch: Patch) -> None:
    """An expired authorization is given back."""
    patch.setattr(authorization, "expire", lambda held: Balance(-held, -held, 0))


def expired_twice(patch: Patch) -> None:
    """An authorization is charged at its hold in any state."""
    real = authorization.settle

    def settle(action: Any, seen: Authorization, now_ms: int) -> Changed | None:
        if isinstance(action, Expire) and seen.state is not State.VOIDED:
            after = msgspec.structs.replace(seen, state=State.UNSETTLED)
            return Changed(after, budget_items.expire(seen.grant.held_usd_picos))
        return real(action, seen, now_ms)

    patch.setattr(settler, "settle", settle)


def late_capture_as_if_open(patch: Patch) -> None:
    """A capture after the expiry releases a hold that is gone."""
    patch.setattr(authorization, "capture_late", budget_items.capture)


def void_after_expiry_as_if_open(patch: Patch) -> None:
    """A void after the expiry leaves the charge."""
    real = authorization.settle

    def settle(action: Any, seen: Authorization, now_ms: int) -> Changed | None:
        changed = real(action, seen, now_ms)
        if changed is not None and changed.after.state is State.VOIDED:
            return changed._replace(change=budget_items.capture(seen.grant.held_usd_picos, 0))
        return changed

    patch.setattr(settler, "settle", settle)


def counted_when_captured(patch: Patch) -> None:
    """A capture after midnight counts in the new day, and its hold in the old one."""
    real = Preparer.prepare_captured

    async def price(self: Preparer, policy: Any, usage: Any, _: int) -> Any:
        return await real(self, policy, usage, self._clock.now_ms())

    patch.setattr(Preparer, "prepare_captured", price)


def _in_two_writes(patch: Patch, is_later: Callable[[str], bool]) -> None:
    """Write some attributes of a sheet after it; some processes die in between."""
    real = OrgLog._send

    async def send(self: OrgLog, put: Put, operations: Any, how: Any) -> None:
        later = {name: value for name, value in put.item.items() if is_later(name)}
        first = {name: value for name, value in put.item.items() if name not in later}
        await real(self, Put(put.table, first, put.condition), operations, how)
        if later:
            actions = tuple(Set(name, value) for name, value in later.items())
            await self._store.update(Update(put.table, put.key, actions))

    patch.setattr(OrgLog, "_send", send)


def record_beside_the_sheet(patch: Patch) -> None:
    """The hold is released first and the record written later; some processes die in between."""
    _in_two_writes(patch, lambda name: len(name) == 14)


def hold_beside_the_sheet(patch: Patch) -> None:
    """The authorization is written first and held later; some processes die in between."""
    _in_two_writes(patch, lambda name: name == ACCOUNTS)


def no_hold_on_retry(patch: Patch) -> None:
    """A call that is decided again is not held again."""
    real = Authorize._grant
    seen: set[int] = set()

    def grant(self: Authorize, draft: Draft, choice: Any) -> Any:
        if id(self) in seen:
            patch.setattr(draft, "add", lambda *_: None)
        seen.add(id(self))
        return real(self, draft, choice)

    patch.setattr(Authorize, "_grant", grant)


def held_at_half(patch: Patch) -> None:
    """Half of the maximum cost is held."""

    def hold(usd_picos: int) -> Balance:
        return Balance(usd_picos // 2, usd_picos // 2, 0)

    patch.setattr(authorizing, "hold", hold)


def decided_apart(patch: Patch) -> None:
    """Commands decided together do not see each other."""

    def balance(self: Draft, key: Key, account_id: str) -> Balance | None:
        known = self.book.accounts(key)
        return None if known is None else known.balance(account_id)

    patch.setattr(Draft, "balance", balance)


def usage_does_not_debit(patch: Patch) -> None:
    """Usage without an authorization is not spent from budgets."""
    patch.setattr(Preparer, "_find_accounts", lambda *_: ())


def usage_debited_beside_the_record(patch: Patch) -> None:
    """The record is written first, then the budgets; some processes die in between."""

    async def post(
        self: Ledger, org_id: str, debits: Any, operations: Sequence[Write], _: Any = None
    ) -> None:
        await self._store.transact(operations)
        command = PostRecords(debits, ())
        self.submit(org_id, command)
        await command.future

    patch.setattr(Ledger, "post", post)


def no_sweeps(patch: Patch) -> None:
    """Only the process that granted a call expires it."""

    async def sweep(_: Any) -> expiry.Swept:
        return expiry.Swept()

    patch.setattr(expiry.Expiry, "sweep", sweep)


def marked_after_the_grant(patch: Patch) -> None:
    """A region is marked only if its process lives on."""
    patch.setattr(reading.Regions, "needs_mark", lambda *_: False)


def swept_once(patch: Patch) -> None:
    """A region is visited once; late sheets are held for ever."""
    for module in (expiry, reading):
        patch.setattr(module, "VISITS_MS", reading.VISITS_MS[:1])


def window_of_another_zone(patch: Patch) -> None:
    """The hold uses the day in UTC, the spend the organisation's day."""
    real = Candidates._make

    async def make(self: Candidates, policy: Any, request: Any, usable: Any, at_ms: int) -> Any:
        return await real(self, policy, request, usable, at_ms - 12 * 3_600_000)

    patch.setattr(Candidates, "_make", make)


def filed_twice(patch: Patch) -> None:
    """Every process that files a chapter adds it to the accounts."""
    _unconditional(patch, filing, "file_update", budget_items.file_update)


def filed_late_over_what_came_after(patch: Patch) -> None:
    """A late filing replaces newer ones."""
    _unconditional(patch, filing, "outcomes_update", ledger_items.outcomes_update)


def forgotten_before_it_was_filed(patch: Patch) -> None:
    """A chapter is forgotten when its filing begins."""
    real = OrgLog._file_sealed

    async def file_sealed(self: OrgLog, book: Book) -> None:
        kept = Book(book.org_id, book.chapters[0].chapter)
        kept.chapters = book.chapters
        book.drop_before(book.chapters[-1].chapter)
        await real(self, kept)

    patch.setattr(OrgLog, "_file_sealed", file_sealed)


def begins_behind_what_is_not_filed(patch: Patch) -> None:
    """The log begins behind a chapter that was not filed."""
    patch.setattr(Filer, "file_all", _do_nothing)


def accounts_only_partly_filed(patch: Patch) -> None:
    """Outcomes are filed, accounts are not."""
    patch.setattr(Filer, "_file_accounts", _do_nothing)


def read_while_it_was_filed(patch: Patch) -> None:
    """An account read before a chapter was filed is cached afterwards, without the chapter."""

    async def read_items(self: OrgLog, keys: Collection[Key]) -> None:
        book = self.book
        missing = book.unread(keys)
        if missing:
            found = await self._store.batch_get([(RATE_BUCKETS, key) for key in missing])
            for key, item in zip(missing, found, strict=True):
                book.remember(key, book.with_unfiled(key, item))

    patch.setattr(OrgLog, "read_items", read_items)


def passed_by(patch: Patch) -> None:
    """A sheet that a query missed is taken as absent, although it found a later one."""
    patch.setattr(OrgLog, "_fold_passed_by", _do_nothing)


def seal_does_not_end(patch: Patch) -> None:
    """A process that has not read the seal continues the old chapter."""
    real = Book.fold

    def fold(self: Book, sheet: Any, now_ms: int) -> None:
        real(self, msgspec.structs.replace(sheet, next=None), now_ms)

    patch.setattr(Book, "fold", fold)


def no_recounts(patch: Patch) -> None:
    """Spend that was counted without knowing a new budget is never added to it."""

    async def recount(*_: Any) -> bool:
        return True

    patch.setattr(Recounts, "recount", recount)


def recounted_twice(patch: Patch) -> None:
    """Two processes that find the same gap both add it, also after a lost reply."""

    def mends(self: Draft, key: Key) -> int:
        del self, key
        return 0

    patch.setattr(Draft, "mends", mends)
    real = recounting.read_open_accounts

    async def read(*args: Any) -> Mapping[Any, Any]:
        return {key: one._replace(mends=0) for key, one in (await real(*args)).items()}

    patch.setattr(recounting, "read_open_accounts", read)


def recounted_by_one_look(patch: Patch) -> None:
    """Spend that is counted while the journal is read is added twice."""
    real = recounting.read_open_accounts
    seen: dict[int, Any] = {}

    async def read(ledger: Any, policies: Any, now_ms: int) -> Any:
        known = seen.pop(id(policies), None)
        if known is None:
            known = seen[id(policies)] = await real(ledger, policies, now_ms)
        return known

    patch.setattr(recounting, "read_open_accounts", read)


def forgotten_while_it_lingered(patch: Patch) -> None:
    """A worker drops a lingering command if no other comes."""
    take, linger = Worker._take, Worker._linger

    async def linger_and_forget(self: Worker) -> None:
        await linger(self)
        if not self._awaited:
            self._waiting.clear()

    def take_if_any(self: Worker) -> list[AnyCommand]:
        return take(self) if self._waiting else []

    patch.setattr(Worker, "_linger", linger_and_forget)
    patch.setattr(Worker, "_take", take_if_any)


Plant = Callable[[Patch], None]
BROKEN: dict[str, Plant] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        sheet_without_condition,
        opened_twice,
        settled_as_last_read,
        seen_before_it_was_filed,
        others_are_not_noted,
        own_sheet_not_known_again,
        sent_again_elsewhere,
        granted_over_another,
        claimed_over_a_record,
        claimed_after_the_grant,
        claim_reaches_for_ever,
        claim_moved_unseen,
        hold_kept_on_capture,
        hold_released_in_part,
        expired_is_free,
        expired_twice,
        late_capture_as_if_open,
        void_after_expiry_as_if_open,
        counted_when_captured,
        record_beside_the_sheet,
        hold_beside_the_sheet,
        no_hold_on_retry,
        held_at_half,
        decided_apart,
        usage_does_not_debit,
        usage_debited_beside_the_record,
        no_sweeps,
        marked_after_the_grant,
        swept_once,
        window_of_another_zone,
        filed_twice,
        filed_late_over_what_came_after,
        forgotten_before_it_was_filed,
        begins_behind_what_is_not_filed,
        accounts_only_partly_filed,
        read_while_it_was_filed,
        passed_by,
        seal_does_not_end,
        no_recounts,
        recounted_twice,
        recounted_by_one_look,
        forgotten_while_it_lingered,
    )
}
CAUGHT_BY: dict[str, int] = {
    "sheet without condition": 1,
    "opened twice": 276,
    "settled as last read": 1,
    "seen before it was filed": 5,
    "others are not noted": 30,
    "own sheet not known again": 2,
    "sent again elsewhere": 178,
    "granted over another": 36,
    "claimed over a record": 47,
    "claimed after the grant": 1,
    "claim reaches for ever": 1,
    "claim moved unseen": 1256,
    "hold kept on capture": 1,
    "hold released in part": 1,
    "expired is free": 1,
    "expired twice": 14,
    "late capture as if open": 1,
    "void after expiry as if open": 78,
    "counted when captured": 3,
    "record beside the sheet": 1,
    "hold beside the sheet": 1,
    "no hold on retry": 1,
    "held at half": 1,
    "decided apart": 1,
    "usage does not debit": 2,
    "usage debited beside the record": 2,
    "no sweeps": 1,
    "marked after the grant": 2,
    "swept once": 7,
    "window of another zone": 0,
    "filed twice": 1,
    "filed late over what came after": 148,
    "forgotten before it was filed": 1,
    "begins behind what is not filed": 1,
    "accounts only partly filed": 1,
    "read while it was filed": 878,
    "passed by": 520,
    "seal does not end": 0,
    "no recounts": 4,
    "recounted twice": 4,
    "recounted by one look": 60,
    "forgotten while it lingered": 8,
}
