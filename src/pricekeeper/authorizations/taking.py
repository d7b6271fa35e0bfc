"""The tokens of a candidate: taken from its buckets, or looked for, by the limiter's engine.

A call takes its tokens before it is decided whether there is money for it. If its answer may be
shortened, it takes them for as long an answer as the buckets have tokens for.
"""

from __future__ import annotations

from pricekeeper.authorizations.authorization import TOKENS
from pricekeeper.authorizations.decision import Candidate, Lacking, Room, Taken, Wanted
from pricekeeper.errors import DeniedBy, Obstacle
from pricekeeper.limiter import Answer, DeniedDebit, Taker, denied_debits


async def take_tokens(taker: Taker, wanted: Wanted, candidate: Candidate) -> Taken | Lacking:
    """Take the tokens of a candidate. Nothing is taken if one bucket has too little."""
    output_tokens = candidate.max_output_tokens
    while True:  # ends: each answer is shorter than the one before
        debits = wanted.debits(candidate, output_tokens)
        if not debits:
            return Taken(output_tokens, (), {})
        answer = await taker.take(debits)
        if not answer.denied:
            return Taken(output_tokens, debits, answer.statuses)
        shorter = _fitting(wanted, candidate, answer)
        if shorter is None or shorter >= output_tokens:
            return _lacking(candidate, answer.denied)
        output_tokens = shorter


async def look_for_tokens(taker: Taker, wanted: Wanted, candidate: Candidate) -> Room | Lacking:
    """Whether the buckets have the tokens of a candidate now; takes nothing."""
    answer = await taker.look(wanted.debits(candidate, candidate.max_output_tokens))
    if not answer.denied:
        return Room(candidate.max_output_tokens, answer.statuses)
    denied, shorter = answer.denied, _fitting(wanted, candidate, answer)
    if shorter is not None:
        denied = denied_debits(wanted.debits(candidate, shorter), answer.lines)
        if not denied:
            return Room(shorter, answer.statuses)
    return _lacking(candidate, denied)


def _fitting(wanted: Wanted, candidate: Candidate, answer: Answer) -> int | None:
    least = candidate.min_output_tokens
    if least is None or wanted.consume is not None:
        return None
    longest = candidate.max_output_tokens
    for one in answer.denied:
        for violation in one.violations:
            if violation.limit == TOKENS:
                longest = min(longest, violation.available - candidate.input_tokens)
    return max(least, longest)


def _lacking(candidate: Candidate, denied: tuple[DeniedDebit, ...]) -> Lacking:
    scopes = {bucket.key.pk: bucket.scope for bucket in candidate.chain.buckets}
    return Lacking(
        tuple(
            DeniedBy(
                Obstacle.LIMIT,
                violation.limit,
                scopes[violation.entity],
                candidate.label,
                violation.requested,
                violation.available,
                retry_after_ms=violation.retry_after_ms,
            )
            for one in denied
            for violation in one.violations
        )
    )
