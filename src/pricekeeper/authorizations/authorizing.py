"""Authorizes one call: takes its tokens from the buckets, then holds its maximum cost in budgets.

Tokens that a call does not need go back to their buckets, whether it is granted, denied or given up
by its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pricekeeper.authorizations.authorization import Authorization, State
from pricekeeper.authorizations.claims import Claim, Existing, Place
from pricekeeper.authorizations.decision import (
    ChosenCandidate,
    Denied,
    Granted,
    Room,
    Speed,
    Taken,
    Wanted,
    Wants,
    choose,
    find_first_with_room,
    make_grant,
)
from pricekeeper.authorizations.items import GRANT, encode_grant
from pricekeeper.authorizations.settler import Settler
from pricekeeper.authorizations.taking import look_for_tokens, take_tokens
from pricekeeper.budgets import Balance
from pricekeeper.budgets.items import NOTHING, hold
from pricekeeper.errors import ContendedError
from pricekeeper.ledger import Command, Decision, Draft
from pricekeeper.ledger.book import Book
from pricekeeper.ledger.position import authorization_id_of
from pricekeeper.ledger.service import AccountKey
from pricekeeper.limiter import Debit, LimitStatus, negated
from pricekeeper.storage import Key

Answer: TypeAlias = Granted | Denied | Wants | Existing


class Call:
    """A call that waits for its authorization."""

    def __init__(self, settler: Settler, wanted: Wanted, place: Place | None) -> None:
        self.settler = settler
        self.wanted = wanted
        self.claim = None if place is None else Claim(place)
        self.speeds: dict[int, Speed] = {}
        self._granted: Granted | None = None
        self._is_submitted = False
        """Whether a command is under way, which calls `end` in any case."""
        self._has_left = False

    async def authorize(self) -> Granted | Denied | Existing:
        wants = self._begin()
        try:
            for _ in range(2 * len(self.wanted.candidates) + 2):
                if wants is not None:
                    await self._learn(wants)
                answer = await self._decide()
                if not isinstance(answer, Wants):
                    return answer
                wants = answer
        except BaseException:
            self._leave()
            raise
        self._leave()
        raise ContendedError("the limits and budgets of the call kept changing")

    def end(self, answer: Answer | None, book: Book | None) -> None:
        """Return tokens that are not needed; ``None`` if the call could not be decided."""
        self._is_submitted = False
        if isinstance(answer, Wants) and not self._has_left:
            return
        if not isinstance(answer, Granted) or book is None:
            self._give_all_back()
            return
        self._granted = answer
        taken = self.speeds.pop(answer.rank, None)
        output_tokens = answer.authorization.grant.max_output_tokens
        if isinstance(taken, Taken) and taken.output_tokens != output_tokens:
            needed = self.wanted.debits(self.wanted.candidates[answer.rank], output_tokens)
            self.settler.tokens.give_back(_less(taken.debits, needed))
        self._give_all_back()
        self.settler.note_granted(self.wanted.org_id, answer.authorization, book)
        if self._has_left and not self.wanted.asked_as:
            self.settler.give_up(answer.authorization)

    def _begin(self) -> Wants | None:
        """The first candidate that fits the balances in memory.

        ``None`` if the first candidate has no limits.
        """
        wanted = self.wanted
        first = wanted.candidates[0]
        if not first.chain.buckets:
            self.speeds[0] = Taken(first.max_output_tokens, (), {})
            return None
        book = self.settler.ledger.known_book(wanted.org_id)
        rank = 0 if book is None else find_first_with_room(book, wanted)
        return None if rank is None else Wants(rank)

    async def _learn(self, wants: Wants) -> None:
        tokens, candidates = self.settler.tokens, self.wanted.candidates
        for rank in wants.look:
            self.speeds[rank] = await look_for_tokens(tokens, self.wanted, candidates[rank])
        if wants.take is None:
            return
        for rank, speed in self.speeds.items():
            if isinstance(speed, Taken):
                tokens.give_back(negated(speed.debits))
                self.speeds[rank] = Room(speed.output_tokens, speed.limits)
        self.speeds[wants.take] = await take_tokens(tokens, self.wanted, candidates[wants.take])

    def _decide(self) -> asyncio.Future[Answer]:
        command = Authorize(self)
        self.settler.ledger.submit(self.wanted.org_id, command)
        self._is_submitted = True
        return command.future

    def _leave(self) -> None:
        """Give back the tokens of a caller that has left, now or once it is decided."""
        self._has_left = True
        if self._is_submitted:
            return  # it may still be granted, and then it needs its tokens
        if self._granted is None:
            self._give_all_back()
        elif not self.wanted.asked_as:
            self.settler.give_up(self._granted.authorization)

    def _give_all_back(self) -> None:
        for rank, speed in list(self.speeds.items()):
            if isinstance(speed, Taken):
                self.settler.tokens.give_back(negated(speed.debits))
                del self.speeds[rank]


class Authorize(Command[Answer]):
    """Decides a call on the log, with the tokens that were taken for it."""

    def __init__(self, call: Call) -> None:
        wanted = call.wanted
        candidates = wanted.candidates
        self.keys = candidates[0].chain.terms.keys
        if len(candidates) > 1:
            self.keys = dict.fromkeys(key for one in candidates for key in one.chain.terms.keys)
        self.name = wanted.asked_as
        self._call = call
        self._wanted = wanted
        self._claim = call.claim
        self._is_new = call.claim is None
        """Whether the id certainly has no authorization yet."""
        self._has_ended = False
        self._granted: Granted | None = None
        self._denied: Denied | None = None
        self._book: Book | None = None

    def decide(self, draft: Draft) -> Decision:
        wanted, claim = self._wanted, self._claim
        if claim is not None:
            own_id = draft.book.named(wanted.asked_as) or claim.existing
            if own_id is not None:
                self._end(Existing(own_id))
                return Decision.ANSWERED
            if claim.failure is not None:
                raise claim.failure
        choice = choose(draft, wanted, self._call.speeds)
        if isinstance(choice, Wants):
            self._end(choice)
            return Decision.ANSWERED
        if isinstance(choice, Denied):
            self._denied = choice
            if self._is_new:
                return Decision.DENIED
            draft.ask(("named", wanted.asked_as), self._look_up_name, self.fail)
            return Decision.WAITS
        if self._must_wait(draft):
            return Decision.WAITS
        self._granted, self._book = self._grant(draft, choice), draft.book
        return Decision.WRITES

    def note_written(self) -> None:
        self._end(self._granted)

    def deny(self) -> None:
        self._end(self._denied)

    def fail(self, error: BaseException) -> None:
        self._end(None)
        super().fail(error)

    def _must_wait(self, draft: Draft) -> bool:
        settler, org_id = self._call.settler, self._wanted.org_id
        regions, region, must_mark = settler.regions, draft.position.chapter.region, False
        if "grant" not in draft.found:
            must_mark = regions.needs_mark(org_id, region)
            if must_mark:
                draft.ask(("grant", region), lambda: regions.mark(org_id, region), self.fail)
            else:
                draft.found.add("grant")
        claim = self._claim
        must_claim = claim is not None and settler.claims.must_wait(draft, org_id, claim, self)
        return must_mark or must_claim

    async def _look_up_name(self) -> None:
        """Before a denial, check that the same id was not granted a moment ago."""
        if self._claim is not None:
            claims, place = self._call.settler.claims, self._claim.place
            own_id = await claims.find(self._wanted.org_id, place)
            if own_id is not None:
                self._end(Existing(own_id))
        self._is_new = True

    def _end(self, answer: Answer | None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._call.end(answer, self._book)
        if answer is not None:
            self.answer(answer)

    def _grant(self, draft: Draft, choice: ChosenCandidate) -> Granted:
        wanted, number = self._wanted, draft.take_number()
        candidate, speed = wanted.candidates[choice.rank], self._call.speeds.get(choice.rank)
        grant, terms = make_grant(wanted, choice)
        change = hold(grant.held_usd_picos)
        balances = [
            (account, draft.add(account.key, account.id, change))
            for account in candidate.chain.accounts
        ]
        data = encode_grant(grant, terms, draft.now_ms, wanted.hold_ms)
        draft.put({f"{GRANT}{number}": data, terms.name: terms.data})
        if wanted.asked_as:
            draft.name(number, wanted.asked_as)
        granted = Authorization(
            authorization_id_of(draft.position.sort_key, number),
            grant,
            State.OPEN,
            draft.now_ms + wanted.hold_ms,
        )
        draft.gather(self._call.settler.note_changed, granted)
        limits = speed.limits if isinstance(speed, Taken) else {}
        return Granted(granted, choice.rank, tuple(balances), limits)


async def try_out(settler: Settler, wanted: Wanted, now_ms: int) -> Granted | Denied:
    """Decide a dry run on the stored balances and limits; takes and holds nothing."""
    accounts = dict.fromkeys(one for some in wanted.candidates for one in some.chain.accounts)
    found = await settler.ledger.read_open(accounts)
    balances = _Balances(((one.key, one.id), has) for one, has in found.items())
    speeds: dict[int, Speed] = {}
    for rank, candidate in enumerate(wanted.candidates):
        speed = speeds[rank] = await look_for_tokens(settler.tokens, wanted, candidate)
        if isinstance(speed, Room):
            speeds[rank] = Taken(speed.output_tokens, (), speed.limits)
    choice = choose(balances, wanted, speeds)
    if isinstance(choice, Denied):
        return choice
    if not isinstance(choice, ChosenCandidate):
        raise LookupError("the limits of every candidate are known")  # noqa: TRY004
    grant, _ = make_grant(wanted, choice)
    granted = Authorization("", grant, State.OPEN, now_ms + wanted.hold_ms)
    change, chosen = hold(grant.held_usd_picos), speeds[choice.rank]
    after = tuple(
        (one, balances.get((one.key, one.id), NOTHING) + change)
        for one in wanted.candidates[choice.rank].chain.accounts
    )
    limits: Mapping[str, LimitStatus] = chosen.limits if isinstance(chosen, Taken) else {}
    return Granted(granted, choice.rank, after, limits)


class _Balances(dict[AccountKey, Balance]):
    def balance(self, key: Key, account_id: str) -> Balance | None:
        return self.get((key, account_id))


def _less(taken: Iterable[Debit], needed: Iterable[Debit]) -> list[Debit]:
    left: list[Debit] = []
    for had, has in zip(taken, needed, strict=True):
        tokens = {name: has.tokens[name] - count for name, count in had.tokens.items()}
        left.append(had.with_tokens(tokens))
    return left
