"""Many at once, on every store: one claimant, at most two secrets."""

import asyncio

import pytest

from attribution import BY
from credentials.conftest import Instance, instance
from pricekeeper.credentials import ClaimedSecret, Secret
from pricekeeper.errors import ContendedError, NotFoundError
from pricekeeper.storage import Store
from pricekeeper.tenants import Client
from stores import ShiftedClock
from tenants.conftest import org_body

RACERS = 50


@pytest.mark.parametrize("replaces", [False, True], ids=["first", "rotation"])
async def test_of_50_racing_claims_one_gets_a_secret_and_it_works(
    store: Store, clock: ShiftedClock, client: Client, replaces: bool
) -> None:
    """The first secret of a client, or one that replaces another."""
    one = instance(store, clock)
    token = (await one.register(client)).token.reveal()
    if replaces:
        await one.credentials.claim(token, BY)
        token = (await one.credentials.rotate(client, 1, BY)).retrieval.token.reveal()
    racers = [instance(store, clock) for _ in range(RACERS)]
    outcomes = await asyncio.gather(
        *(racer.credentials.claim(token, BY) for racer in racers), return_exceptions=True
    )
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, ClaimedSecret)]
    losers = [outcome for outcome in outcomes if outcome is not winner]
    assert all(isinstance(loser, (NotFoundError, ContendedError)) for loser in losers), losers
    assert await one.opens(client, winner.client_secret)


async def test_of_50_racing_registrations_one_gets_a_token_and_it_works(
    store: Store, clock: ShiftedClock, client: Client
) -> None:
    await instance(store, clock).tenants.put_org(client.org_id, org_body(), BY)
    if client.app_id is None:
        await instance(store, clock).tenants.delete_org(client.org_id, BY)

    racers = [instance(store, clock) for _ in range(RACERS)]
    provisioned = await asyncio.gather(*(racer.provision(client) for racer in racers))
    (winner,) = [outcome for outcome in provisioned if outcome.created]
    assert [outcome.retrieval for outcome in provisioned if outcome is not winner] == [None] * 49
    assert winner.retrieval is not None
    one = instance(store, clock)
    claimed = await one.credentials.claim(winner.retrieval.token.reveal(), BY)
    assert await one.opens(client, claimed.client_secret)


async def test_racing_rotations_leave_at_most_two_secrets(
    store: Store, clock: ShiftedClock, client: Client
) -> None:
    """The last claim has a valid secret; of all others at most one is still valid."""
    one = instance(store, clock)
    first = await one.secret_of(client)

    async def rotate(racer: Instance) -> Secret | None:
        try:
            return await racer.rotated(client, 168)
        except (NotFoundError, ContendedError):
            return None  # its token was replaced before it could be claimed

    racers = [instance(store, clock) for _ in range(12)]
    claimed = [secret for secret in await asyncio.gather(*map(rotate, racers)) if secret]
    live = [secret for secret in [first, *claimed] if await one.opens(client, secret)]
    assert claimed
    assert len(live) == 2
    assert set(live) & set(claimed)
