"""Never more than N live sessions, from any starting count, under any number of racing logins."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from faulty_store import Faults, FaultyStore, Interleaving, Overtaken
from pricekeeper.errors import (
    CancellationReason,
    InvalidTokenError,
    ReasonCode,
    SessionLimitRaceError,
    TransactionCancelledError,
)
from pricekeeper.sessions import Opened, Session, SessionId, Sessions
from pricekeeper.sessions.items import (
    block_item,
    block_key,
    session_from,
    session_item,
    slot_key,
)
from pricekeeper.sessions.service import (
    OPEN_ATTEMPTS_MAX,
    OPEN_BACKOFF,
)
from pricekeeper.sessions.session import derive, hash_of
from pricekeeper.storage import ITEM_ABSENT, ITEM_EXISTS, Delete, Item, Put, Update
from pricekeeper.storage.tables import SESSIONS
from pricekeeper.telemetry import StoreMeter
from sessions.conftest import LIMIT, Client, InstantClock, MeetingStore, Watch

RACERS = 100
STARTS = (0, LIMIT - 1, LIMIT, LIMIT + 3)


async def race(
    client: Client, start: int, login: Callable[[], Awaitable[Opened]]
) -> tuple[Watch, list[Opened], list[Opened]]:
    """Let 100 logins race from so many live sessions, watched all the time."""
    before = [await client.open(limit=max(LIMIT, start)) for _ in range(start)]
    winners: list[Opened] = []
    watch = Watch(client, lambda: LIMIT if winners or start <= LIMIT else start)
    done = asyncio.Event()
    watching = asyncio.create_task(watch.until(done))

    async def enter() -> None:
        try:
            winners.append(await login())
        except SessionLimitRaceError as race:
            assert race.cancellation_reasons

    await asyncio.gather(*(enter() for _ in range(RACERS)))
    await watch.look()
    done.set()
    await watching
    return watch, before, winners


@pytest.mark.parametrize("start", STARTS)
async def test_racing_logins_never_exceed_the_limit(client: Client, start: int) -> None:
    """At no observation more than N live; losers' tokens are refused, winners' work."""
    watch, before, winners = await race(client, start, client.open)
    assert watch.too_many == []
    assert watch.observations > 1
    assert len(winners) >= LIMIT
    live = {session.id for session in await client.live()}
    assert len(live) == LIMIT
    for opened in (*before, *winners):
        if opened.session.id in live:
            await client.refresh(opened.refresh_token)
        else:
            with pytest.raises(InvalidTokenError):
                await client.refresh(opened.refresh_token)


class ListThenInsert:
    """The seed document's own sequence: list, then insert, evicting if there are N already."""

    def __init__(self, client: Client, racers: int) -> None:
        self._client = client
        self._all_listed = asyncio.Barrier(racers)

    async def open(self) -> Opened:
        """All racers act on the same list."""
        client, now_ms = self._client, self._client.clock.now_ms()
        live = await client.live()
        await self._all_listed.wait()
        key = client.keys.current_refresh_key()
        session_id = SessionId(secrets.randbelow(10**9), secrets.token_urlsafe(16))
        token = derive(key, client.id, session_id, 0)
        session = Session(
            subject=client.id,
            id=session_id,
            token_generation=client.generation,
            rotation=0,
            key_id=key.id,
            refresh_hash=hash_of(token),
            previous_hash="",
            opened_at_ms=now_ms,
            refreshed_at_ms=now_ms,
            ends_at_epoch=client.lifetimes.end_epoch(now_ms, now_ms),
            labels=client.login().labels,
        )
        insert = Put(SESSIONS, session_item(session), ITEM_ABSENT)
        if len(live) < LIMIT:
            await client.store.put(insert)
            return Opened(session, token)
        oldest = live[0]
        evict = Delete(SESSIONS, slot_key(client.id, oldest.id.slot), ITEM_EXISTS)
        block = Put(SESSIONS, block_item(oldest, now_ms))
        try:
            await client.store.transact([evict, block, insert])
        except TransactionCancelledError as cancelled:
            raise SessionLimitRaceError(cancelled.reasons) from cancelled
        return Opened(session, token)


@pytest.mark.parametrize("start", [0, LIMIT - 1, LIMIT + 3])
async def test_the_check_catches_listing_then_inserting(client: Client, start: int) -> None:
    """The same race and the same watch find the documented sequence out."""
    watch, _, _ = await race(client, start, ListThenInsert(client, RACERS).open)
    assert watch.too_many


async def test_of_two_that_saw_the_same_one_loses(client: Client) -> None:
    """A single attempt does not try again: it says what stood in its way."""
    for _ in range(LIMIT):
        await client.open()
    client.store = MeetingStore(client.store, readers=2)
    attempts = [client.instance().opening(client.login()).attempt() for _ in range(2)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    (race,) = [outcome for outcome in outcomes if isinstance(outcome, SessionLimitRaceError)]
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Opened)]
    assert race.retryable
    assert [reason.code for reason in race.cancellation_reasons] == [
        "ConditionalCheckFailed",
        "None",
    ]
    taken_by = race.cancellation_reasons[0].item
    assert taken_by is not None
    assert session_from(taken_by) == winner.session


async def test_as_many_racers_as_free_slots_all_get_one(client: Client) -> None:
    client.store = MeetingStore(client.store, readers=LIMIT)
    opened = await asyncio.gather(*(client.open() for _ in range(LIMIT)))
    assert {one.session.id for one in opened} == {session.id for session in await client.live()}


async def test_a_victim_that_refreshes_just_before_its_eviction_is_evicted(client: Client) -> None:
    """The eviction insists on the token that it blocklists, so it looks again."""
    opened = [await client.open() for _ in range(LIMIT)]
    saved: list[Opened] = []

    async def refresh_first(_: object) -> None:
        if not saved:
            saved.append(await client.refresh(opened[0].refresh_token))

    store = Overtaken(client.store, refresh_first)
    late = Sessions(store, clock=client.clock, keys=client.keys)
    newest = await late.open_session(client.login())
    assert newest.session.id.slot == opened[0].session.id.slot
    for evicted in (opened[0], saved[0]):
        with pytest.raises(InvalidTokenError):
            await client.refresh(evicted.refresh_token)
    key = block_key(saved[0].session.refresh_hash)
    assert await client.store.get(SESSIONS, key) is not None


async def test_a_victim_that_is_evicted_while_it_refreshes_gets_nothing(client: Client) -> None:
    """Its slot has changed hands when it comes to write."""
    opened = [await client.open() for _ in range(LIMIT)]
    newest: list[Opened] = []

    class EvictFirst(FaultyStore):
        async def update(self, operation: Update) -> Item:
            newest.append(await client.open())
            return await super().update(operation)

    sessions = Sessions(
        EvictFirst(client.store, Interleaving(0), Faults()), clock=client.clock, keys=client.keys
    )
    token = sessions.open_refresh_token(opened[0].refresh_token)
    with pytest.raises(InvalidTokenError):
        await sessions.refresh(token, client.generation)
    assert newest[0].session in await client.live()
    await client.refresh(newest[0].refresh_token)


async def test_logins_on_one_instance_do_not_get_in_each_others_way(
    client: Client, meter: StoreMeter
) -> None:
    """They take turns, so a burst costs one reading and one write for each."""
    for _ in range(LIMIT):
        await client.open()
    meter.clear()
    sessions = client.instance()
    await asyncio.gather(*(sessions.open_session(client.login()) for _ in range(20)))
    assert (meter.calls["query"], meter.calls["transact"]) == (20, 20)
    assert len(await client.live()) == LIMIT


async def test_a_race_that_is_never_won_ends_after_a_bounded_number_of_attempts(
    client: Client, meter: StoreMeter
) -> None:
    """Another login is always first: the caller gets the error, and nothing was changed."""
    for _ in range(LIMIT):
        await client.open()

    store = Overtaken(client.store, lambda _: client.open())
    late = Sessions(store, clock=InstantClock(client.clock), keys=client.keys)
    with pytest.raises(SessionLimitRaceError) as failure:
        await late.open_session(client.login())
    assert failure.value.code == "SESSION_RACE"
    assert meter.calls["transact"] == 2 * OPEN_ATTEMPTS_MAX
    assert len(await client.live()) == LIMIT


async def test_pauses_between_attempts_are_drawn_from_growing_windows(client: Client) -> None:
    """Full jitter: anything from nothing up to a bound that doubles."""
    for _ in range(LIMIT):
        await client.open()

    class Refusing(FaultyStore):
        async def transact(self, *_: object, **__: object) -> None:
            raise TransactionCancelledError([CancellationReason(ReasonCode.CONFLICT)])

    paused: list[int] = []
    clock = InstantClock(client.clock, paused)
    for seed in range(20):
        sessions = Sessions(
            Refusing(client.store, Interleaving(0), Faults()),
            clock=clock,
            keys=client.keys,
            randomness=Random(seed),
        )
        with pytest.raises(SessionLimitRaceError):
            await sessions.open_session(client.login())
    rounds = [paused[start :: OPEN_ATTEMPTS_MAX - 1] for start in range(OPEN_ATTEMPTS_MAX - 1)]
    for number, pauses in enumerate(rounds):
        window_ms = min(OPEN_BACKOFF.longest_ms, OPEN_BACKOFF.first_ms << number)
        assert max(pauses) <= window_ms
        assert max(pauses) > window_ms // 2
        assert min(pauses) < window_ms // 2
