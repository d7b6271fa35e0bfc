"""Logins, refreshes and endings at once, on an unreliable wire, in an order that a seed decides.

In any order, with losses, repeats, delays and deaths: never more than N are live, ended sessions
stay ended, refused tokens stay refused, and a holder of a current token can refresh it.
"""

from collections import Counter
from random import Random

import pytest

from faulty_store import Crashed, Faults, FaultyStore, InterleavedClock, Interleaving
from memory_store import MemoryStore
from pricekeeper.clock import ManualClock
from pricekeeper.errors import (
    InvalidTokenError,
    OutcomeUnknownError,
    SessionLimitRaceError,
    StoreUnavailableError,
)
from pricekeeper.sessions import Labels, Login, Opened, SessionId, Sessions
from pricekeeper.storage import Store
from sessions.conftest import FixedKeys

LIMIT = 3
ACTORS = 6
STEPS = 8
SEEDS = range(60)
FAULTS = Faults(
    refused_pct=4,
    request_lost_pct=4,
    reply_lost_pct=6,
    late_pct=5,
    resent_pct=6,
    crashed_pct=2,
)
_NO_ANSWER = (OutcomeUnknownError, SessionLimitRaceError, StoreUnavailableError, Crashed)


class World:
    """One client, many instances, and all replies."""

    def __init__(self, store: Store, seed: int) -> None:
        self.clock = ManualClock()
        self.turns = Interleaving(seed, self._between)
        self.random = Random(seed)
        self.real = store
        self.wire = FaultyStore(store, self.turns, FAULTS)
        self.calm = FaultyStore(store, self.turns, Faults())
        self.client_id = f"org-{seed}"
        self.held: list[Opened] = []
        self.refused: set[str] = set()
        self.ended: set[SessionId] = set()
        self.did: Counter[str] = Counter()
        self.broken: list[str] = []

    def _between(self, random: Random) -> None:
        """Time passes, and now and then a clock is set, forward or back."""
        self.clock.advance_ms(random.randrange(200))
        if random.random() < 0.03:
            self.clock.jump_ms(random.choice([-30_000, -2_000, 2_000, 30_000]))

    def instance(self, store: Store | None = None) -> Sessions:
        return Sessions(
            store or self.wire,
            clock=InterleavedClock(self.clock, self.turns, self.clock.advance_ms),
            keys=FixedKeys(),
            randomness=self.random,
        )

    def login(self) -> Login:
        return Login(self.client_id, "g", LIMIT, Labels())

    async def act(self) -> None:
        """One actor, which continues after an error as a client would."""
        for _ in range(STEPS):
            what = self.turns.random.choice(("login", "login", "refresh", "refresh", "end"))
            try:
                await getattr(self, f"_{what}")()
            except _NO_ANSWER as error:
                self.did[type(error).__name__] += 1
            else:
                self.did[what] += 1

    async def watch(self) -> None:
        """Look at the slots all the time."""
        for _ in range(40):
            live = await self.instance(self.calm).list_sessions(self.client_id, "g")
            if len(live) > LIMIT:
                self.broken.append(f"{len(live)} live sessions")
            self.broken += [f"{one.id} was ended" for one in live if one.id in self.ended]

    async def _login(self) -> None:
        self.held.append(await self.instance().open_session(self.login()))

    async def _refresh(self) -> None:
        if not self.held:
            return
        held = self.turns.random.choice(self.held)
        refused_before = held.refresh_token in self.refused
        sessions = self.instance()
        token = sessions.open_refresh_token(held.refresh_token)
        try:
            refreshed = await sessions.refresh(token, "g")
        except InvalidTokenError:
            self.refused.add(held.refresh_token)
        else:
            self.held.append(refreshed)
            if refused_before:
                self.broken.append("a refused token works again")

    async def _end(self) -> None:
        if self.held:
            session_id = self.turns.random.choice(self.held).session.id
            await self.instance().end_session(self.client_id, session_id)
            self.ended.add(session_id)

    async def settle(self) -> None:
        """When everything has arrived: who works, who does not."""
        await self.wire.deliver()
        sessions = self.instance(self.calm)
        live = {one.id: one for one in await sessions.list_sessions(self.client_id, "g")}
        assert len(live) <= LIMIT
        assert not live.keys() & self.ended
        for held in self.held:
            session = live.get(held.session.id)
            token = sessions.open_refresh_token(held.refresh_token)
            if session is not None and session.refresh_hash == token.hash:
                assert held.refresh_token not in self.refused
                await sessions.refresh(token, "g")
            elif session is None:
                with pytest.raises(InvalidTokenError):
                    await sessions.refresh(token, "g")


async def test_the_promises_hold_in_every_order() -> None:
    """Sixty seeds; together they do everything, and meet every fault."""
    memory = MemoryStore(ManualClock())
    did: Counter[str] = Counter()
    befell: Counter[str] = Counter()
    for seed in SEEDS:
        world = World(memory, seed)
        await world.turns.run(*(world.act() for _ in range(ACTORS)), world.watch())
        assert world.broken == [], f"seed {seed}"
        await world.settle()
        did += world.did
        befell += world.wire.befell
    assert min(did[what] for what in ("login", "refresh", "end")) > 100
    assert befell.keys() == {"refused", "request_lost", "reply_lost", "late", "resent", "crashed"}
