"""Everything about tokens at once, on three instances and an unreliable wire, as a seed decides.

With losses, repeats, delays and deaths: never more than N live sessions, and a token whose end was
acknowledged is refused at once on the instance that ended it, and after half a minute everywhere.
Tokens outside the session slots are included.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from faulty_store import Crashed, Faults, FaultyStore, InterleavedClock, Interleaving
from memory_store import MemoryStore
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    InvalidTokenError,
    NotFoundError,
    OutcomeUnknownError,
    SessionLimitRaceError,
    StoreUnavailableError,
)
from pricekeeper.storage import Store
from pricekeeper.tenants import Client
from pricekeeper.tokens import ACCESS_SECS, TokenGrant
from pricekeeper.tokens.access_token import generation_sid
from tenants.conftest import new_org_id
from tokens.conftest import LIMIT, Instance, Member

ACTORS = 6
STEPS = 10
SEEDS = range(40)
EVERYWHERE_MS = 30_000
FAULTS = Faults(
    refused_pct=3,
    request_lost_pct=3,
    reply_lost_pct=5,
    late_pct=4,
    resent_pct=5,
    crashed_pct=2,
)
_NO_ANSWER = (
    Crashed,
    NotFoundError,
    OutcomeUnknownError,
    SessionLimitRaceError,
    StoreUnavailableError,
)


@dataclass
class Ended:
    """When something was acknowledged as ended, and by which instance if that is known."""

    at_ms: int
    by: Instance | None


@dataclass
class Story:
    """All replies."""

    grants: list[TokenGrant] = field(default_factory=list)
    ended: dict[str, Ended] = field(default_factory=dict)
    maybe_ended: set[str] = field(default_factory=set)
    """Access tokens with a begun revocation, whose outcome may be unknown."""
    did: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class World:
    """One client, three instances, each with what it remembers."""

    def __init__(self, real: Store, clock: ManualClock, keyring: str, seed: int) -> None:
        self.clock = clock
        self.turns = Interleaving(seed, self._between)
        self.wire = FaultyStore(real, self.turns, FAULTS)
        self.calm = Instance(real, clock, keyring)
        paced = InterleavedClock(clock, self.turns, clock.advance_ms)
        self.instances = [Instance(self.wire, paced, keyring) for _ in range(3)]
        self.story = Story()
        self.member: Member

    def _between(self, random: Random) -> None:
        """Time passes, and now and then a clock is set, forward or back."""
        self.clock.advance_ms(random.choice([0, 50, 500, 4_000]))
        if random.random() < 0.02:
            self.clock.jump_ms(random.choice([-20_000, -1_000, 1_000, 20_000]))

    async def act(self) -> None:
        random = self.turns.random
        actions = ("login", "fetch", "refresh", "revoke", "end", "end_all", *["validate"] * 5)
        weights = (4, 3, 4, 2, 2, 1, *[3] * 5)
        for _ in range(STEPS):
            (what,) = random.choices(actions, weights)
            at = random.choice(self.instances)
            try:
                await getattr(self, f"_{what}")(at)
            except _NO_ANSWER as error:
                self.story.did[type(error).__name__] += 1
            else:
                self.story.did[what] += 1

    def _any(self) -> TokenGrant | None:
        return self.turns.random.choice(self.story.grants) if self.story.grants else None

    def _mark(self, name: str, by: Instance | None) -> None:
        self.story.ended.setdefault(name, Ended(self.clock.monotonic_ms(), by))

    async def _login(self, at: Instance) -> None:
        self.story.grants.append(await self.member.login(at))

    async def _fetch(self, at: Instance) -> None:
        """Get a token outside the slots: without a refresh token, and of the generation."""
        authenticated = await at.identity.authenticate(self.member.id, self.member.secret)
        made = at.identity.issue_outside_slots(authenticated)
        sid = generation_sid(authenticated.policy.token_generation)
        self.story.grants.append(TokenGrant(made.token, "", ACCESS_SECS, 0, "", sid))

    async def _refresh(self, at: Instance) -> None:
        if grant := self._any():
            try:
                self.story.grants.append(await at.identity.refresh(grant.refresh_token))
            except InvalidTokenError:
                self.story.did["refresh refused"] += 1

    async def _revoke(self, at: Instance) -> None:
        if grant := self._any():
            access = not grant.refresh_token or self.turns.random.random() < 0.5
            token = grant.access_token if access else grant.refresh_token
            if access:
                self.story.maybe_ended.add(token)
            await at.identity.revoke(self.member.id, token)
            self._mark(grant.access_token if access else grant.session_id, at)

    async def _end(self, at: Instance) -> None:
        if grant := self._any():
            await at.identity.end_session(self.member.id, grant.session_id)
            self._mark(grant.session_id, at)

    async def _end_all(self, at: Instance) -> None:
        before = {grant.session_id for grant in self.story.grants}
        await at.identity.end_all_sessions(self.member.id)
        for session_id in before:
            self._mark(session_id, at)

    async def _validate(self, at: Instance) -> None:
        grant = self._any()
        if grant is None:
            return
        started_ms = self.clock.monotonic_ms()
        marks = [self.story.ended.get(name) for name in (grant.access_token, grant.session_id)]
        try:
            await at.identity.validate(grant.access_token)
        except InvalidTokenError:
            self.story.did["validate refused"] += 1
            return
        for ended in marks:
            if ended is None:
                continue
            if ended.by is at:
                self.story.broken.append("it worked on, where it was ended")
            if started_ms >= ended.at_ms + EVERYWHERE_MS:
                self.story.broken.append(f"it worked {started_ms - ended.at_ms} ms later")

    async def watch(self) -> None:
        """Look at the sessions all the time; what is not there any more was evicted."""
        for _ in range(30):
            await self.turns.turn()
            known = {grant.session_id for grant in self.story.grants}
            live, generation = await self._read_live()
            if len(live) > LIMIT:
                self.story.broken.append(f"{len(live)} live sessions")
            for session_id in known - live - {generation}:
                self._mark(session_id, None)

    async def _read_live(self) -> tuple[set[str], str]:
        """What lives now: the sessions, and what tokens outside the slots name instead."""
        listed = await self.calm.identity.list_sessions(self.member.id)
        policy = await self.calm.tenants.read_registered_policy(self.member.client)
        return {str(session.id) for session in listed}, generation_sid(policy.token_generation)

    async def settle(self) -> None:
        await self.wire.deliver()
        self.clock.advance_ms(EVERYWHERE_MS)
        live, generation = await self._read_live()
        assert len(live) <= LIMIT
        live |= {generation}
        assert not live & self.story.ended.keys()
        for grant in self.story.grants:
            if grant.session_id not in live or grant.access_token in self.story.ended:
                for at in (*self.instances, self.calm):
                    with pytest.raises(InvalidTokenError):
                        await at.identity.validate(grant.access_token)
            elif grant.access_token not in self.story.maybe_ended:
                await self.calm.identity.validate(grant.access_token)


async def test_the_promises_hold_in_every_order(keyring: str) -> None:
    """Forty seeds; together they do everything, and meet every fault."""
    clock = ManualClock()
    memory = MemoryStore(clock)
    did: Counter[str] = Counter()
    befell: Counter[str] = Counter()
    for seed in SEEDS:
        world = World(memory, clock, keyring, seed)
        world.member = await world.calm.register(Client(new_org_id()))
        await world.turns.run(*(world.act() for _ in range(ACTORS)), world.watch())
        assert world.story.broken == [], f"seed {seed}"
        await world.settle()
        did += world.story.did
        befell += world.wire.befell
    wanted = (
        *("login", "fetch", "refresh", "revoke", "end", "end_all"),
        *("validate", "validate refused"),
    )
    assert min(did[what] for what in wanted) > 30
    assert befell.keys() == {"refused", "request_lost", "reply_lost", "late", "resent", "crashed"}
