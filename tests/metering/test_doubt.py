"""Whose receipt was met, and what is known of a sending whose reply was lost."""

import asyncio

import pytest

from metering.conftest import PREMIUM, MeteringMaker, QuickClock
from metering.scripted_store import ScriptedStore, Step, fails, reply_lost, request_lost
from metering.test_committing import (
    a_usage,
    clock,
    id_kind,
    memory,
    metering,
    requests,
    wire,
)
from pricekeeper.errors import InvalidOperationError, OutcomeUnknownError, StoreUnavailableError
from pricekeeper.metering import Metering, Outcome
from pricekeeper.tenants import Policy

__all__ = ["clock", "id_kind", "memory", "metering", "wire"]

INVALID = fails(InvalidOperationError("scripted"))


async def test_a_duplicate_adds_nothing_to_the_total_it_is_told(
    metering: Metering,
    new_metering: MeteringMaker,
    wire: ScriptedStore,
    policy: Policy,
    clock: QuickClock,
) -> None:
    """Neither where it was counted nor where it is met for the first time."""
    known = [a_usage(), a_usage()]
    await asyncio.gather(*(metering.record(policy, usage) for usage in known))
    for instance, counted in ((metering, 2), (new_metering(wire, clock), 0)):
        for usage in (*known, *known):
            again = await instance.record(policy, usage)
            assert again.outcome is Outcome.DUPLICATE
            assert again.daily_total is not None
            assert again.daily_total.requests == counted


async def test_a_commit_that_is_divided_still_knows_its_own_receipts(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock
) -> None:
    """It had been applied; each half meets what the whole has written, and that is no duplicate."""
    wire.script.extend([reply_lost, INVALID])
    answers = await asyncio.gather(*(metering.record(policy, a_usage()) for _ in range(4)))
    assert [answer.outcome for answer in answers] == [Outcome.ACCEPTED] * 4
    assert await requests(metering, policy, clock) == {PREMIUM: 4}


@pytest.mark.parametrize("lost", [reply_lost, request_lost])
async def test_a_commit_that_is_divided_stays_in_doubt(
    metering: Metering, wire: ScriptedStore, policy: Policy, clock: QuickClock, lost: Step
) -> None:
    """What a half fails with later does not prove that the whole was not applied."""
    down = fails(StoreUnavailableError("scripted"))
    wire.script.extend([lost, INVALID, down, down])
    usages = [a_usage(), a_usage()]
    outcomes = await asyncio.gather(
        *(metering.record(policy, usage) for usage in usages), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 2
    for usage in usages:
        await metering.record(policy, usage)
    assert await requests(metering, policy, clock) == {PREMIUM: 2}
