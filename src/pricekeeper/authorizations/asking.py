"""One call on its way to an answer: its tokens, then its money, or what denies it.

Whatever becomes of the call, and whether its caller waits for that or has left, tokens that it does
not need go back to their buckets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pricekeeper.authorizations.claims import Claim, Place
from pricekeeper.authorizations.commands import Answer, Authorize, Existing
from pricekeeper.authorizations.decision import (
    Denied,
    Granted,
    Room,
    Speed,
    Taken,
    Wanted,
    Wants,
    find_first_with_room,
)
from pricekeeper.authorizations.desk import Desk
from pricekeeper.authorizations.taking import negated
from pricekeeper.errors import ContendedError
from pricekeeper.ledger.book import Book
from pricekeeper.limiter.bucket import Debit


class Asking:
    """A call that asks to be authorized."""

    def __init__(self, desk: Desk, wanted: Wanted, place: Place | None) -> None:
        self._desk = desk
        self._wanted = wanted
        self._claim = None if place is None else Claim(place)
        self._speeds: dict[int, Speed] = {}
        self._granted: Granted | None = None
        self._is_submitted = False
        """Whether it is being decided: then `_end` is told what becomes of it, in any case."""
        self._has_left = False
        """Whether nobody waits for the answer any more."""

    async def ask(self) -> Granted | Denied | Existing:
        """Take the tokens of the first candidate that there may be money for, then the money."""
        wants = self._begin()
        try:
            for _ in range(2 * len(self._wanted.candidates) + 2):
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

    def _begin(self) -> Wants | None:
        """What to take before it is decided the first time; nothing if the first has no limits.

        That is the first candidate that there is money for, as far as this process knows.
        """
        wanted = self._wanted
        first = wanted.candidates[0]
        if not first.chain.buckets:
            self._speeds[0] = Taken(first.max_output_tokens, (), {})
            return None
        log = self._desk.ledger.log_of(wanted.org_id)
        return Wants(0 if log.position is None else find_first_with_room(log.book, wanted))

    async def _learn(self, wants: Wants) -> None:
        """Find out about the tokens that decide it; those of other candidates go back."""
        tokens, candidates = self._desk.tokens, self._wanted.candidates
        for rank in wants.look:
            self._speeds[rank] = await tokens.look(self._wanted, candidates[rank])
        if wants.take is None:
            return
        for rank, speed in self._speeds.items():
            if isinstance(speed, Taken):
                tokens.give_back(negated(speed.debits))
                self._speeds[rank] = Room(speed.output_tokens, speed.limits)
        self._speeds[wants.take] = await tokens.take(self._wanted, candidates[wants.take])

    def _decide(self) -> asyncio.Future[Answer]:
        command = Authorize(self._wanted, self._speeds, self._desk, self._claim, self._end)
        self._desk.ledger.submit(self._wanted.org_id, command)
        self._is_submitted = True
        return command.future

    def _end(self, answer: Answer | None, book: Book | None) -> None:
        """The call was decided, or could not be: settle its tokens."""
        org_id, self._is_submitted = self._wanted.org_id, False
        if isinstance(answer, Wants) and not self._has_left:
            return
        if not isinstance(answer, Granted) or book is None:
            self._give_all_back()
            return
        self._granted = answer
        taken = self._speeds.pop(answer.rank, None)
        output_tokens = answer.authorization.grant.max_output_tokens
        if isinstance(taken, Taken) and taken.output_tokens != output_tokens:
            needed = self._wanted.debits(self._wanted.candidates[answer.rank], output_tokens)
            self._desk.tokens.give_back(_less(taken.debits, needed))
        self._give_all_back()
        self._desk.note_granted(org_id, answer.authorization, book)
        if self._has_left and not self._wanted.asked_as:
            self._desk.give_up(answer.authorization)

    def _leave(self) -> None:
        """The caller is told nothing: what it would have got goes back, now or when it is there."""
        self._has_left = True
        if self._is_submitted:
            return  # it may be granted yet, with the tokens that it has
        if self._granted is None:
            self._give_all_back()
        elif not self._wanted.asked_as:
            self._desk.give_up(self._granted.authorization)

    def _give_all_back(self) -> None:
        if not self._speeds:
            return
        for rank, speed in list(self._speeds.items()):
            if isinstance(speed, Taken):
                self._desk.tokens.give_back(negated(speed.debits))
                del self._speeds[rank]


def _less(taken: Iterable[Debit], needed: Iterable[Debit]) -> list[Debit]:
    """What is to be given back of what was taken."""
    left: list[Debit] = []
    for had, has in zip(taken, needed, strict=True):
        tokens = {name: has.tokens[name] - count for name, count in had.tokens.items()}
        left.append(Debit(had.entity, had.resource, had.limits, tokens))
    return left
