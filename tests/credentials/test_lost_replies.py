"""After a lost reply a secret is returned only if it is known to be valid."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from attribution import BY
from credentials.conftest import OLD_PEPPER, Instance, instance
from faulty_store import (
    LATE,
    REFUSED,
    REPLY_LOST,
    REQUEST_LOST,
    SENT_TWICE,
    Faults,
    FaultyStore,
    GoesDark,
    Interleaving,
)
from pricekeeper.credentials import ClaimedSecret, Peppers, Provisioned, Rotation
from pricekeeper.credentials import items as credential_items
from pricekeeper.errors import (
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TransactionCancelledError,
)
from pricekeeper.storage import Store
from pricekeeper.tenants import Client, Generation
from stores import ShiftedClock

Work = Callable[[Instance], Coroutine[Any, Any, Any]]


async def under(faults: Faults | None, one: Instance, clock: ShiftedClock, work: Work) -> Any:
    """What the work comes to with such a store: its result or its error."""
    turns = Interleaving(1)
    kind = GoesDark if faults is None else FaultyStore
    shaky = instance(kind(one.store, turns, faults or Faults()), clock)
    return (await turns.run(work(shaky)))[0]


class TestClaim:
    async def test_it_is_recognised_and_the_secret_handed_out(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """The hash that was to be written is there, so the secret in hand is the good one."""
        token = (await one.register(client)).token.reveal()
        claimed = await under(REPLY_LOST, one, clock, lambda on: on.credentials.claim(token, BY))
        assert isinstance(claimed, ClaimedSecret)
        assert await one.opens(client, claimed.client_secret)

    @pytest.mark.parametrize(
        ("faults", "told"),
        [(REQUEST_LOST, OutcomeUnknownError), (REFUSED, StoreUnavailableError)],
    )
    async def test_what_was_not_applied_uses_nothing_up(
        self,
        one: Instance,
        clock: ShiftedClock,
        client: Client,
        faults: Faults,
        told: type[Exception],
    ) -> None:
        """A lost request may still arrive; here it never does, and the token is good."""
        token = (await one.register(client)).token.reveal()
        outcome = await under(faults, one, clock, lambda on: on.credentials.claim(token, BY))
        assert isinstance(outcome, told)
        claimed = await one.credentials.claim(token, BY)
        assert await one.opens(client, claimed.client_secret)

    async def test_if_nothing_can_be_read_nobody_knows(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """The claim was made and the secret is lost: that is not called unavailable."""
        token = (await one.register(client)).token.reveal()
        told = await under(None, one, clock, lambda on: on.credentials.claim(token, BY))
        assert isinstance(told, OutcomeUnknownError)
        with pytest.raises(NotFoundError):
            await one.credentials.claim(token, BY)
        assert await one.opens(client, await one.rotated(client, 0))


class TestRotation:
    async def test_it_is_recognised_and_its_token_works(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        await one.register(client)
        rotation = await under(
            REPLY_LOST, one, clock, lambda on: on.credentials.rotate(client, 0, BY)
        )
        assert isinstance(rotation, Rotation)
        claimed = await one.credentials.claim(rotation.retrieval.token.reveal(), BY)
        assert await one.opens(client, claimed.client_secret)

    @pytest.mark.parametrize("faults", [REQUEST_LOST, None])
    async def test_else_nobody_knows_and_the_next_one_works(
        self, one: Instance, clock: ShiftedClock, client: Client, faults: Faults | None
    ) -> None:
        await one.register(client)
        told = await under(faults, one, clock, lambda on: on.credentials.rotate(client, 0, BY))
        assert isinstance(told, OutcomeUnknownError)
        assert await one.opens(client, await one.rotated(client, 0))


class TestTheRest:
    @pytest.mark.parametrize("faults", [REPLY_LOST, None])
    async def test_a_registration_is_recognised_or_can_be_mended(
        self, one: Instance, clock: ShiftedClock, client: Client, faults: Faults | None
    ) -> None:
        """Sent again it is an update, without a token; a rotation gives one."""
        await one.register(client.org)
        if client.app_id is None:
            await one.tenants.delete_org(client.org_id, BY)
        told = await under(faults, one, clock, lambda on: on.provision(client))
        if faults is REPLY_LOST:
            assert isinstance(told, Provisioned)
            assert told.retrieval is not None
            await one.credentials.claim(told.retrieval.token.reveal(), BY)
        else:
            assert isinstance(told, OutcomeUnknownError)
        again = await one.provision(client)
        assert (again.created, again.retrieval) == (False, None)
        assert await one.opens(client, await one.rotated(client, 0))

    async def test_ending_the_grace_or_everything_can_be_repeated(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """Recognised if the reply is lost, or a second copy meets the first; else unknown."""

        async def end_grace(on: Instance) -> None:
            await on.credentials.revoke_now(client, BY, previous_only=True)

        async def revoke(on: Instance) -> None:
            await on.credentials.revoke_now(client, BY)

        old, new = await one.secret_of(client), await one.rotated(client, 168)
        told = await under(REQUEST_LOST, one, clock, end_grace)
        assert isinstance(told, OutcomeUnknownError)
        assert [await one.opens(client, secret) for secret in (old, new)] == [True, True]
        assert await under(REPLY_LOST, one, clock, end_grace) is None
        assert [await one.opens(client, secret) for secret in (old, new)] == [False, True]
        newest = await one.rotated(client, 168)
        assert await under(SENT_TWICE, one, clock, end_grace) is None
        assert [await one.opens(client, secret) for secret in (new, newest)] == [False, True]
        assert isinstance(await under(REFUSED, one, clock, revoke), StoreUnavailableError)
        assert isinstance(await under(REQUEST_LOST, one, clock, revoke), OutcomeUnknownError)
        assert await one.opens(client, newest)
        assert await under(SENT_TWICE, one, clock, revoke) is None
        assert not await one.opens(client, newest)
        assert await under(REPLY_LOST, one, clock, revoke) is None

    async def test_a_revocation_that_arrives_late_revokes_nothing_that_came_after_its_repeat(
        self, one: Instance, clock: ShiftedClock, client: Client
    ) -> None:
        """Who heard nothing, revoked again and handed out a new secret is not locked out by it."""
        await one.secret_of(client)
        unknown = 0
        for seed in range(8):
            turns = Interleaving(seed)
            store = FaultyStore(one.store, turns, LATE)
            (told,) = await turns.run(instance(store, clock).credentials.revoke_now(client, BY))
            unknown += isinstance(told, OutcomeUnknownError)
            await one.credentials.revoke_now(client, BY)
            secret = await one.rotated(client, 0)
            await store.deliver()
            assert await one.opens(client, secret)
        assert unknown


async def test_each_half_of_a_claim_refuses_to_be_made_twice(
    store: Store, clock: ShiftedClock, client: Client
) -> None:
    """The token by being used, the client by waiting for it no more: either would be enough."""
    one = instance(store, clock)
    token = (await one.register(client)).token
    key, now_epoch = credential_items.retrieval_key(token), clock.now_epoch()
    claimable = credential_items.Claimable(key, client, 0, None)
    new_hash = Peppers(OLD_PEPPER).hash(client.client_id, "secret")
    begins = Generation("next", clock.now_ms())
    operations = credential_items.claim_operations(claimable, new_hash, now_epoch, begins)
    await store.transact(operations)
    for half in operations[:2]:
        with pytest.raises(TransactionCancelledError):
            await store.transact([half])
