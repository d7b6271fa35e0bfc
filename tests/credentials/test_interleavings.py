"""Lost replies, crashes, late copies and jumping clocks, in orders that a seed decides.

Promise 6: a one-time secret has at most one claimant. And acknowledged changes hold.
"""

from collections import Counter
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any

import pytest

from attribution import BY
from credentials.conftest import NEW_PEPPER, OLD_PEPPER, Instance, instance
from faulty_store import Crashed, Faults, FaultyStore, InterleavedClock, Interleaving
from pricekeeper.clock import ManualClock
from pricekeeper.credentials import ClaimedSecret, Peppers, Provisioned, Retrieval, Rotation, Secret
from pricekeeper.errors import (
    ContendedError,
    InvalidClientError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from pricekeeper.storage import Set, Store, Update, Write
from pricekeeper.storage.tables import SECRET_RETRIEVAL_TOKENS
from pricekeeper.tenants import Client
from pricekeeper.values import AppId
from tenants.conftest import new_org_id, org_body

FAULTS = Faults(
    refused_pct=4,
    request_lost_pct=4,
    reply_lost_pct=8,
    late_pct=8,
    resent_pct=4,
    crashed_pct=3,
)
UNSURE = (OutcomeUnknownError, StoreUnavailableError, ContendedError, Crashed)
BOTH = Peppers(NEW_PEPPER, OLD_PEPPER)


class Witness:
    """The real store, and a record of which claims were really made in it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.claims: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def transact(self, operations: Sequence[Write]) -> None:
        await self.store.transact(operations)
        use, *others = operations
        if isinstance(use, Update) and use.table is SECRET_RETRIEVAL_TOKENS:
            (new_hash,) = [
                action.value
                for other in others
                if isinstance(other, Update)
                for action in other.actions
                if isinstance(action, Set) and action.attribute == "client_secret_hash"
            ]
            self.claims.append((use.key.pk, str(new_hash)))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Wobble:
    """A wall clock that is set a minute ahead or back at any moment."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._offset_ms = 0

    def __call__(self, random: Random) -> None:
        if random.random() < 0.1:
            offset_ms = random.choice((-60_000, 0, 60_000))
            self._clock.jump_ms(offset_ms - self._offset_ms)
            self._offset_ms = offset_ms
        self._clock.advance_ms(random.randrange(100))


async def attempted(work: Awaitable[Any]) -> Any:
    """The result; ``None`` if it is unknown, or nothing was done."""
    try:
        return await work
    except UNSURE:
        return None


class Actor:
    """One who registers, rotates, claims and logs in, through a new process after a crash."""

    def __init__(self, store: FaultyStore, turns: Interleaving, clock: ManualClock) -> None:
        self._store = store
        self._turns = turns
        self._clock = InterleavedClock(clock, turns, clock.advance_ms)
        self.claimed: list[tuple[Secret, ClaimedSecret]] = []

    def process(self) -> Instance:
        return instance(self._store, self._clock, BOTH)

    async def act(self, client: Client, tokens: list[Secret], steps: int = 8) -> None:
        """Do anything at all, with tokens and secrets that all actors share."""
        random = self._turns.random
        for _ in range(steps):
            choice, process = random.randrange(10), self.process()
            try:
                if choice < 3 or not tokens:
                    rotation = await process.credentials.rotate(client, random.choice((0, 1)), BY)
                    tokens.append(rotation.retrieval.token)
                elif choice < 7:
                    token = random.choice(tokens)
                    self.claimed.append(
                        (token, await process.credentials.claim(token.reveal(), BY))
                    )
                elif choice < 9 and self.claimed:
                    secret = self.claimed[-1][1].client_secret
                    await process.credentials.authenticate(client.client_id, secret.reveal())
                elif choice == 9:
                    await process.credentials.revoke_now(client, BY, previous_only=True)
            except (NotFoundError, InvalidClientError, *UNSURE):
                continue


@pytest.mark.parametrize("kind", ["org", "app"])
async def test_a_token_has_at_most_one_claimant_whatever_happens(
    store: Store, clock: ManualClock, seeds: range, kind: str
) -> None:
    """Three at once, with the same tokens; the store itself is the witness."""
    befell: Counter[str] = Counter()
    claims = 0
    for seed in seeds:
        client = Client(new_org_id(), AppId("api") if kind == "app" else None)
        witness, turns = Witness(store), Interleaving(seed, Wobble(clock))
        shaky = FaultyStore(witness, turns, FAULTS)
        tokens = [(await instance(store, clock).register(client)).token]
        actors = [Actor(shaky, turns, clock) for _ in range(3)]

        outcomes = await turns.run(*(actor.act(client, tokens) for actor in actors))
        await shaky.deliver()
        assert outcomes == [None] * 3, seed
        befell += shaky.befell

        claimed = [pair for actor in actors for pair in actor.claimed]
        used = [token for token, _ in claimed]
        assert len(set(used)) == len(used), f"{seed}: a token with two claimants"
        made_keys = [key for key, _ in witness.claims]
        assert len(set(made_keys)) == len(made_keys), f"{seed}: a token was used twice"
        made = {new_hash for _, new_hash in witness.claims}
        for _, one in claimed:
            text = one.client_secret.reveal()
            assert BOTH.hash(client.client_id, text) in made, f"{seed}: a secret of thin air"
        sound = instance(store, clock, BOTH)
        live = [one for _, one in claimed if await sound.opens(client, one.client_secret)]
        assert len(live) <= 2, seed
        claims += len(claimed)
    assert claims > len(seeds) // 2
    assert len(seeds) < 100 or min(befell.values()) > 10, befell


@pytest.mark.parametrize("kind", ["org", "app"])
async def test_what_was_acknowledged_works_whatever_came_before(
    store: Store, clock: ManualClock, seeds: range, kind: str
) -> None:
    """One alone, who tries again after every doubt: no earlier attempt spoils a later success."""
    successes: Counter[str] = Counter()
    for seed in seeds:
        client = Client(new_org_id(), AppId("api") if kind == "app" else None)
        turns = Interleaving(seed, Wobble(clock))
        shaky = FaultyStore(store, turns, FAULTS)
        sound = instance(store, clock, BOTH)
        await sound.tenants.put_org(client.org_id, org_body(), BY)
        if client.app_id is None:
            await sound.tenants.delete_org(client.org_id, BY)
        actor = Actor(shaky, turns, clock)

        async def opens(secret: Secret, sound: Instance = sound, client: Client = client) -> bool:
            return await turns.alone(sound.opens(client, secret))  # noqa: B023 - awaited here

        async def live(actor: Actor = actor, client: Client = client) -> None:
            retrieval: Retrieval | None = None
            old: Secret | None = None
            for _ in range(12):
                if retrieval is None:
                    retrieval = await self_service(actor.process(), client)
                    continue
                token, retrieval = retrieval.token.reveal(), None
                claimed = await attempted(actor.process().credentials.claim(token, BY))
                if claimed is None:
                    # Unknown: only a new token helps. If the secret was made, it is the older one
                    # of two by then, and is replaced.
                    old = None
                    continue
                assert await opens(claimed.client_secret)
                if claimed.old_secret_expires_at_epoch is not None and old is not None:
                    assert await opens(old)
                old = claimed.client_secret
                successes["claims"] += 1

        outcomes = await turns.run(live())
        assert outcomes == [None], seed
    assert successes["claims"] > len(seeds)


async def self_service(process: Instance, client: Client) -> Retrieval | None:
    """A retrieval token of a rotation or a registration."""
    try:
        rotation: Rotation | None = await attempted(process.credentials.rotate(client, 1, BY))
    except NotFoundError:
        provisioned: Provisioned | None = await attempted(process.provision(client))
        return None if provisioned is None else provisioned.retrieval
    return None if rotation is None else rotation.retrieval


async def test_a_revoked_secret_stays_revoked(
    store: Store, clock: ManualClock, seeds: range
) -> None:
    """Claims, upgrades and rotations that arrive after the revocation bring nothing back."""
    for seed in seeds:
        client, turns = Client(new_org_id()), Interleaving(seed, Wobble(clock))
        shaky = FaultyStore(store, turns, FAULTS)
        before = instance(store, clock, Peppers(OLD_PEPPER))
        secrets = [await before.secret_of(client), await before.rotated(client, 168)]
        token = (await before.credentials.rotate(client, 168, BY)).retrieval.token
        claimant, user = Actor(shaky, turns, clock), Actor(shaky, turns, clock)
        claimant.claimed = [(token, ClaimedSecret(client.client_id, secrets[0], None))]

        async def use(user: Actor = user, client: Client = client) -> None:
            for secret in secrets:  # noqa: B023 - run within this turn of the loop
                try:
                    await attempted(
                        user.process().credentials.authenticate(client.client_id, secret.reveal())
                    )
                except InvalidClientError:
                    continue

        async def revoke(client: Client = client) -> None:
            await turns.turn()  # noqa: B023 - run within this turn of the loop
            sound = instance(store, clock, BOTH)
            await turns.alone(sound.credentials.revoke_now(client, BY))  # noqa: B023

        async def claim(claimant: Actor = claimant, token: Secret = token) -> None:
            try:
                got = await attempted(claimant.process().credentials.claim(token.reveal(), BY))
            except NotFoundError:
                return
            if got is not None:
                secrets.append(got.client_secret)  # noqa: B023

        await turns.run(use(), revoke(), claim(), use())
        await shaky.deliver()
        sound = instance(store, clock, BOTH)
        opened = [await sound.opens(client, secret) for secret in secrets]
        assert not any(opened), seed
