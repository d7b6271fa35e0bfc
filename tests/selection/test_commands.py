"""An operator's commands when the wire is bad, or when there are two operators."""

import asyncio

import pytest

from attribution import BY
from faulty_store import Faults, Interleaving
from pricekeeper.errors import ContendedError, OutcomeUnknownError
from selection.conftest import FailingStore, NeverFirst, World
from selection.policies import ECONOMY, PREMIUM, STANDARD, policy


@pytest.mark.parametrize("applied", [True, False])
async def test_an_override_whose_reply_is_lost_is_set_once(world: World, applied: bool) -> None:
    """The entry in the audit trail says whether it was applied; if not, it is sent again."""
    mine = policy(client=world.app)
    here = world.instance(FailingStore(world.store, OutcomeUnknownError("lost"), applied=applied))
    assert (await here.select(mine)).label == PREMIUM

    await here.set_override(mine, ECONOMY, BY)

    assert (await here.select(mine)).label == ECONOMY
    assert (await world.sticky_item(mine))["override_version"] == 1


@pytest.mark.parametrize("applied", [True, False])
async def test_an_override_whose_reply_is_lost_is_cleared_once(world: World, applied: bool) -> None:
    """Clearing again finds nothing to clear."""
    mine = policy(client=world.app)
    await world.instance().set_override(mine, ECONOMY, BY)
    here = world.instance(FailingStore(world.store, OutcomeUnknownError("lost"), applied=applied))

    assert await here.clear_override(mine, BY)

    assert not await here.clear_override(mine, BY)
    assert (await here.select(mine)).label == PREMIUM


async def test_of_two_operators_the_later_wins_and_neither_fails(world: World) -> None:
    """Their commands are put in some order, which everybody sees alike."""
    mine = policy(client=world.app)
    labels = (PREMIUM, STANDARD, ECONOMY)
    operators = [world.instance() for _ in labels]

    await asyncio.gather(
        *(one.set_override(mine, label, BY) for one, label in zip(operators, labels, strict=True))
    )

    assert (await world.sticky_item(mine))["override_version"] == 3
    assert len({(await one.select(mine)).label for one in operators}) == 1


async def test_a_command_that_never_gets_its_turn_is_given_up(world: World) -> None:
    """After a bounded number of attempts, and as something that may work later."""
    here = world.instance(NeverFirst(world.store, Interleaving(0), Faults()))

    with pytest.raises(ContendedError):
        await here.set_override(policy(client=world.app), ECONOMY, BY)
    await world.instance().set_override(policy(client=world.app), ECONOMY, BY)
    with pytest.raises(ContendedError):
        await here.clear_override(policy(client=world.app), BY)
