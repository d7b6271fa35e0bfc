"""Whose receipt was met, and what is known of a sending whose reply was lost."""

import asyncio

import pytest

from metering.conftest import PREMIUM, MeteringMaker
from metering.scripted_store import Step, fails, reply_lost, request_lost
from metering.test_committing import (
    Bench,
    a_usage,
    bench,
    clock,
    id_kind,
    memory,
    metering,
    wire,
)
from pricekeeper.errors import InvalidOperationError, OutcomeUnknownError, StoreUnavailableError
from pricekeeper.metering import Outcome

__all__ = ["bench", "clock", "id_kind", "memory", "metering", "wire"]

INVALID = fails(InvalidOperationError("scripted"))


async def test_a_duplicate_adds_nothing_to_the_total_it_is_told(
    bench: Bench, new_metering: MeteringMaker
) -> None:
    """Neither where it was counted nor where it is met for the first time."""
    known = [a_usage(), a_usage()]
    await asyncio.gather(*(bench.record(usage) for usage in known))
    for instance, counted in ((bench.metering, 2), (new_metering(bench.wire, bench.clock), 0)):
        for usage in (*known, *known):
            again = await instance.record(bench.policy, usage)
            assert again.outcome is Outcome.DUPLICATE
            assert again.daily_total is not None
            assert again.daily_total.requests == counted


async def test_a_commit_that_is_divided_still_knows_its_own_receipts(bench: Bench) -> None:
    """It had been applied; each half meets what the whole has written, and that is no duplicate."""
    bench.wire.script.extend([reply_lost, INVALID])
    answers = await asyncio.gather(*(bench.record() for _ in range(4)))
    assert [answer.outcome for answer in answers] == [Outcome.ACCEPTED] * 4
    assert await bench.requests() == {PREMIUM: 4}


@pytest.mark.parametrize("lost", [reply_lost, request_lost])
async def test_a_commit_that_is_divided_stays_in_doubt(bench: Bench, lost: Step) -> None:
    """What a half fails with later does not prove that the whole was not applied."""
    down = fails(StoreUnavailableError("scripted"))
    bench.wire.script.extend([lost, INVALID, down, down])
    usages = [a_usage(), a_usage()]
    outcomes = await asyncio.gather(
        *(bench.record(usage) for usage in usages), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 2
    for usage in usages:
        await bench.record(usage)
    assert await bench.requests() == {PREMIUM: 2}
