"""Imported hashes are accepted, replaced at the first login, and never block other clients."""

import asyncio

import bcrypt
import pytest

from attribution import BY
from credentials.conftest import NEW_PEPPER, OLD_PEPPER, Instance, instance
from faulty_store import (
    LATE,
    REFUSED,
    REPLY_LOST,
    REQUEST_LOST,
    Faults,
    FaultyStore,
    Interleaving,
)
from pricekeeper.credentials import Authenticated, Peppers, Secret
from pricekeeper.credentials.verification import (
    PLACES_MAX,
    BcryptHashes,
)
from pricekeeper.errors import InvalidClientError, OverloadedError
from pricekeeper.storage import Set, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client, config_key
from stores import ShiftedClock

LEGACY = Secret("correct horse battery staple")


def bcrypt_hash(secret: Secret, cost: int = 4) -> str:
    return bcrypt.hashpw(secret.reveal().encode(), bcrypt.gensalt(cost)).decode()


async def plant(one: Instance, client: Client, stored: str) -> None:
    """Give the client a hash that was made elsewhere."""
    await one.register(client)
    planted = Update(CONFIG, config_key(client), (Set("client_secret_hash", stored),))
    await one.store.update(planted)


class TestBcrypt:
    async def test_it_is_accepted_once_and_is_an_hmac_from_then_on(
        self, one: Instance, meter: StoreMeter, client: Client
    ) -> None:
        """The first success costs a write, the second no bcrypt."""
        await plant(one, client, bcrypt_hash(LEGACY))
        meter.clear()
        assert await one.opens(client, LEGACY)
        assert dict(meter.calls) == {"batch_get": 1, "update": 1}
        assert (await one.item(client))["client_secret_hash"].startswith("hmac-sha256$v1$")
        meter.clear()
        assert await one.opens(client, LEGACY)
        assert dict(meter.calls) == {"batch_get": 1}

    async def test_a_wrong_secret_is_refused_and_changes_nothing(
        self, one: Instance, client: Client
    ) -> None:
        await plant(one, client, stored := bcrypt_hash(LEGACY))
        for text in ("wrong", "correct horse battery stapl", "", "x" * 73):
            assert not await one.opens(client, Secret(text))
        assert (await one.item(client))["client_secret_hash"] == stored

    async def test_it_keeps_its_grace_when_it_is_replaced(
        self, one: Instance, client: Client
    ) -> None:
        await plant(one, client, bcrypt_hash(LEGACY))
        new = await one.rotated(client, 1)
        assert await one.opens(client, LEGACY)
        assert await one.opens(client, new)
        item = await one.item(client)
        assert item["client_secret_previous_hash"].startswith("hmac-sha256$")
        assert await one.opens(client, LEGACY)

    @pytest.mark.parametrize(
        "stored", ["$2b$", "$2b$04$short", "$2b$xx$" + "a" * 53, "$2b$31$" + "a" * 53, "$2a$04$x"]
    )
    async def test_what_only_looks_like_one_opens_nothing(
        self, one: Instance, client: Client, stored: str
    ) -> None:
        """Nor does it take hours to say so."""
        await plant(one, client, stored)
        assert not await one.opens(client, LEGACY)

    async def test_the_event_loop_goes_on_meanwhile(self, one: Instance, client: Client) -> None:
        """A check takes a tenth of a second here; others are served all along."""
        await plant(one, client, bcrypt_hash(LEGACY, cost=11))
        checking, ticks = asyncio.create_task(one.opens(client, LEGACY)), 0
        while not checking.done():
            await asyncio.sleep(0)
            ticks += 1
        assert checking.result()
        assert ticks > 100

    async def test_the_line_has_an_end(self) -> None:
        """Callers beyond it are refused at once; the others get their answers."""
        hashes, stored = BcryptHashes(), bcrypt_hash(LEGACY)
        answers = await asyncio.gather(
            *(hashes.matches(f"org-{n}", stored, LEGACY.reveal()) for n in range(PLACES_MAX + 5)),
            return_exceptions=True,
        )
        assert answers[:PLACES_MAX] == [True] * PLACES_MAX
        assert all(isinstance(answer, OverloadedError) for answer in answers[PLACES_MAX:])
        assert await hashes.matches("org", stored, LEGACY.reveal())

    async def test_one_organisation_has_a_share_of_the_line(self) -> None:
        """Guesses at its clients leave places for the others, who have the next turn."""
        hashes, stored = BcryptHashes(), bcrypt_hash(LEGACY, cost=8)
        share, answered = PLACES_MAX // 2, list[str]()

        async def check(org_id: str) -> None:
            assert await hashes.matches(org_id, stored, LEGACY.reveal())
            answered.append(org_id)

        answers = await asyncio.gather(
            *(check(org_id) for org_id in ["guessed"] * (share + 5) + ["other"]),
            return_exceptions=True,
        )
        refused = [isinstance(answer, OverloadedError) for answer in answers]
        assert refused == [False] * share + [True] * 5 + [False]
        assert answered.index("other") < share // 2  # threads may finish in another order


class TestPeppers:
    async def test_a_new_pepper_takes_over_one_client_at_a_time(
        self, store: Store, clock: ShiftedClock, client: Client
    ) -> None:
        """Each at its next success; when all are through, the old one can be forgotten."""
        secret = await instance(store, clock, Peppers(OLD_PEPPER)).secret_of(client)
        between = instance(store, clock, Peppers(NEW_PEPPER, OLD_PEPPER))
        assert await between.opens(client, secret)
        assert (await between.item(client))["client_secret_hash"].startswith("hmac-sha256$v2$")
        assert await instance(store, clock, Peppers(NEW_PEPPER)).opens(client, secret)

    async def test_many_logins_upgrade_once_and_all_get_in(
        self, store: Store, clock: ShiftedClock, client: Client
    ) -> None:
        secret = await instance(store, clock, Peppers(OLD_PEPPER)).secret_of(client)
        between = instance(store, clock, Peppers(NEW_PEPPER, OLD_PEPPER))
        opened = await asyncio.gather(*(between.opens(client, secret) for _ in range(20)))
        assert opened == [True] * 20

    async def test_without_the_pepper_nothing_opens(
        self, store: Store, clock: ShiftedClock, client: Client
    ) -> None:
        """A stolen table is worthless, and so is ours if we lose the pepper."""
        secret = await instance(store, clock, Peppers(OLD_PEPPER)).secret_of(client)
        assert not await instance(store, clock, Peppers(NEW_PEPPER)).opens(client, secret)

    @pytest.mark.parametrize("faults", [REFUSED, REQUEST_LOST, REPLY_LOST])
    async def test_an_upgrade_that_fails_stops_nobody(
        self, store: Store, clock: ShiftedClock, client: Client, faults: Faults
    ) -> None:
        """The secret was right; the hash can wait, and is good either way."""
        secret = await instance(store, clock, Peppers(OLD_PEPPER)).secret_of(client)
        both = Peppers(NEW_PEPPER, OLD_PEPPER)
        turns = Interleaving(1)
        shaky = instance(FaultyStore(store, turns, faults), clock, both)
        login = shaky.credentials.authenticate(client.client_id, secret.reveal())
        (known,) = await turns.run(login)
        assert isinstance(known, Authenticated)
        assert await instance(store, clock, both).opens(client, secret)

    async def test_an_upgrade_never_brings_a_revoked_secret_back(
        self, store: Store, clock: ShiftedClock, client: Client
    ) -> None:
        """It was read before the revocation and is written after it."""
        sound = instance(store, clock, Peppers(OLD_PEPPER))
        secret = await sound.secret_of(client)
        turns = Interleaving(1)
        both = Peppers(NEW_PEPPER, OLD_PEPPER)
        late = FaultyStore(store, turns, LATE)
        shaky = instance(late, clock, both)
        await turns.run(shaky.credentials.authenticate(client.client_id, secret.reveal()))
        await sound.credentials.revoke_now(client, BY)
        await late.deliver()
        assert not await instance(store, clock, both).opens(client, secret)


async def test_an_unknown_client_is_refused_like_a_known_one(one: Instance) -> None:
    """Nothing is there to compare with, and the answer is the same."""
    with pytest.raises(InvalidClientError):
        await one.credentials.authenticate(
            "org-550e8400-e29b-41d4-a716-446655440000", LEGACY.reveal()
        )
