"""What everything that settles authorizations shares: the log, the marks, and what is open here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pricekeeper.authorizations.authorization import TOKENS, Authorization, HeldAccount, State
from pricekeeper.authorizations.claims import Claims, Place
from pricekeeper.authorizations.commands import Settle, Settled
from pricekeeper.authorizations.meter import AuthorizationMeter
from pricekeeper.authorizations.open_list import Due, OpenList
from pricekeeper.authorizations.reading import UNKNOWN, AuthorizationReader, Seen
from pricekeeper.authorizations.regions import Regions
from pricekeeper.authorizations.settling import Action, Capture, Void
from pricekeeper.authorizations.taking import TokenTaker
from pricekeeper.clock import Clock
from pricekeeper.concurrency import error_copy
from pricekeeper.errors import NotFoundError, StoreError
from pricekeeper.ledger import Ledger
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.command import Send
from pricekeeper.ledger.draft import Tell
from pricekeeper.limiter.bucket import Debit
from pricekeeper.limiter.limits import limit_of
from pricekeeper.metering import RecordOnSheet
from pricekeeper.metering.posting import Poster, TakenPlace, is_late
from pricekeeper.storage import Store
from pricekeeper.ticks import tick_of


class Desk:
    """Settles authorizations, and remembers those that this process has granted."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ledger: Ledger,
        poster: Poster,
        meter: AuthorizationMeter,
        *,
        on_change: Tell[Authorization] = lambda *_: None,
        on_record: Tell[RecordOnSheet] = lambda *_: None,
    ) -> None:
        """``on_change`` is told of what this process grants and settles, sheet by sheet.

        ``on_record`` is told of the records on a sheet.
        """
        self.note_changed = on_change
        self.note_captured = on_record
        self.clock = clock
        self.ledger = ledger
        self.poster = poster
        self.meter = meter
        self.open = OpenList()
        self.reader = AuthorizationReader(store, ledger)
        self.claims = Claims(store, self.reader)
        self.regions = Regions(store, clock, self.reader, poster.retention_days)
        self.tokens = TokenTaker(store, clock, ledger.random, meter)
        ledger.observers.append(self._note_others)

    def seen(self, due: Due) -> Seen:
        """An authorization of this process; if it has lost the log since, that is to be read."""
        is_read_on = self.ledger.log_of(due.org_id).is_at(due.book)
        return Seen(due.authorization, due.book.generation if is_read_on else UNKNOWN)

    async def read(self, org_id: str, own_id: str) -> Seen:
        """The authorization of that id; raises `NotFoundError` if there is none."""
        seen = await self.reader.find(org_id, own_id)
        if seen is None:
            raise NotFoundError("authorization")
        return seen

    async def find_named(self, org_id: str, place: Place) -> str | None:
        """The authorization that an id stands for which its caller gave it, if it does."""
        places = {place.request_id: place.address}
        there = await self.poster.read_receipts(org_id, place.lanes, places)
        taken = there.get(place.request_id)
        if isinstance(taken, StoreError):
            raise error_copy(taken)
        if not isinstance(taken, TakenPlace):
            return None
        return await self.reader.find_named(org_id, place.request_id, taken.authorization_id)

    def note_granted(self, org_id: str, granted: Authorization, book: Book) -> None:
        """Remember what was granted on that log."""
        self.meter.granted += 1
        self.open.add(org_id, granted, book)

    def give_up(self, granted: Authorization) -> None:
        """Give back what was granted to a caller that has left and does not know its id."""
        due = self.open.find(granted.id)
        if due is not None:
            self.submit(due.org_id, Void("its caller has left"), self.seen(due), follows=True)

    def submit(
        self,
        org_id: str,
        action: Action,
        seen: Seen,
        *,
        record: RecordOnSheet | None = None,
        since: tuple[HeldAccount, ...] = (),
        send: Send | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        follows: bool = False,
    ) -> Settle:
        """Have an authorization settled, or find that it is; whether anybody waits or not."""
        command = Settle(org_id, action, seen, self, record, since, send, on_failure)
        self.ledger.submit(org_id, command, follows=follows)
        return command

    def is_late(self, settled: Settled) -> bool:
        """Whether its record may have missed the last sum of its tick: then it needs a repair."""
        return settled.changed and is_late(tick_of(settled.sent_at_ms), self.clock.now_ms())

    async def return_tokens(self, void: Void, settled: Settled) -> None:
        """Have the tokens of a void in their buckets before it is answered."""
        if settled.changed:
            await self.tokens.give_back_now(tokens_beyond(void, settled.authorization))

    async def close(self) -> None:
        """Carry out what was accepted, then stop."""
        await self.ledger.close()
        await self.tokens.close()

    def _note_others(self, authorization_ids: Iterable[str]) -> None:
        """Other processes have settled these, or extended them."""
        for one in authorization_ids:
            self.open.remove(one)

    def note_settled(self, org_id: str, action: Action, settled: Settled) -> None:
        """Forget or remember it as it is now, and return tokens."""
        authorization = settled.authorization
        if authorization.state is State.OPEN:
            self.open.add(org_id, authorization, settled.book)
        else:
            self.open.remove(authorization.id)
        if not settled.changed:
            return
        self.meter.settled[str(authorization.state)] += 1
        if authorization.grant.terms.buckets:
            self.tokens.give_back(tokens_beyond(action, authorization))


def tokens_beyond(action: Action, authorization: Authorization) -> list[Debit]:
    """What a settlement takes from buckets beyond what was reserved; less than zero is given back.

    A capture settles the tokens of the call by Bedrock's own arithmetic. A void gives all back.
    """
    debits: list[Debit] = []
    grant = authorization.grant
    label, buckets = grant.terms.label, grant.terms.buckets
    if isinstance(action, Capture):
        beyond = action.bucket_tokens - grant.tokens.get(TOKENS, 0)
        for held in buckets if beyond else ():
            terms = held.terms.get(TOKENS)
            if terms is not None:
                limits = {TOKENS: limit_of(TOKENS, terms)}
                debits.append(Debit(held.entity, label, limits, {TOKENS: beyond}))
    elif isinstance(action, Void):
        for held in buckets:
            tokens = {name: -grant.tokens[name] for name in held.terms if grant.tokens[name]}
            if tokens:
                limits = {name: limit_of(name, held.terms[name]) for name in tokens}
                debits.append(Debit(held.entity, label, limits, tokens))
    return debits
