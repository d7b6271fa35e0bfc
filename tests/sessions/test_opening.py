"""Opening a session: what it costs, whose place it takes, and what happens if it is repeated."""

from datetime import datetime
from random import Random

import pytest

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.errors import InvalidTokenError, InvalidValueError, OutcomeUnknownError
from pricekeeper.sessions import Lifetimes, Login, Opened, Sessions, make_labels
from pricekeeper.sessions.items import block_key
from pricekeeper.storage import Put
from pricekeeper.storage.tables import SESSIONS
from pricekeeper.telemetry import StoreMeter
from sessions.conftest import LIMIT, Client, InstantClock, RecordingStore
from stores import stored


async def test_below_the_limit_a_login_is_one_reading_and_one_conditional_write(
    client: Client, meter: StoreMeter
) -> None:
    for number in range(1, LIMIT + 1):
        meter.clear()
        await client.open()
        assert meter.calls == {"query": 1, "put": 1}
        assert len(await client.live()) == number


async def test_at_the_limit_a_login_is_one_reading_and_one_transaction_of_two(
    client: Client, meter: StoreMeter
) -> None:
    """The oldest session's slot is taken over and its refresh token blocklisted."""
    opened = [await client.open() for _ in range(LIMIT)]
    client.store = RecordingStore(client.store)
    meter.clear()
    newest = await client.open()
    assert meter.calls == {"query": 1, "transact": 1}
    (transaction,) = client.store.transactions
    assert len(transaction) == 2
    assert newest.session.id.slot == opened[0].session.id.slot
    live = [session.id for session in await client.live()]
    assert live == [one.session.id for one in (*opened[1:], newest)]


async def test_the_blocklist_entry_lasts_as_long_as_the_token_would(client: Client) -> None:
    """Its key and its expiry are the documented ones."""
    opened = [await client.open() for _ in range(LIMIT)]
    await client.open()
    key = block_key(opened[0].session.refresh_hash)
    assert (key.pk, key.sk) == (f"BLOCK#refresh#{opened[0].session.refresh_hash}", "BLOCK")
    block = await stored(client.store, SESSIONS, key)
    assert block["expires_at_epoch"] == opened[0].session.ends_at_epoch
    assert block["user_id"] == opened[0].session.subject
    evicted_at = datetime.fromisoformat(block["evicted_at"])
    assert abs(evicted_at.timestamp() * 1000 - client.clock.now_ms()) < 60_000
    assert opened[0].session.ends_at_epoch == (opened[0].session.opened_at_ms // 1000 + 30 * 86_400)


async def test_an_expired_session_costs_no_live_one_its_place(
    client: Client, meter: StoreMeter
) -> None:
    """Its slot is free, although the store may still keep the item."""
    client.lifetimes = Lifetimes(idle_secs=60, absolute_secs=60)
    await client.open()
    client.lifetimes = Lifetimes()
    staying = [await client.open() for _ in range(LIMIT - 1)]
    client.clock.shift_ms += 61_000
    meter.clear()
    newest = await client.open()
    assert meter.calls == {"query": 1, "put": 1}
    live = [session.id for session in await client.live()]
    assert live == [opened.session.id for opened in (*staying, newest)]


async def test_sessions_of_an_earlier_token_generation_take_no_place(
    client: Client, meter: StoreMeter
) -> None:
    """When everything of a client has ended, its slots are free at once."""
    dead = [await client.open() for _ in range(LIMIT)]
    client.generation = "second"
    assert await client.live() == ()
    for number in range(1, LIMIT + 1):
        meter.clear()
        await client.open()
        assert meter.calls == {"query": 1, "put": 1}
        assert len(await client.live()) == number
    for opened in dead:
        with pytest.raises(InvalidTokenError):
            await client.refresh(opened.refresh_token)


@pytest.mark.parametrize(("before", "after"), [(8, 5), (100, 1)])
async def test_a_lowered_limit_holds_at_the_next_login(
    client: Client, before: int, after: int
) -> None:
    """Sessions beyond the limit are ended and blocklisted, then the login continues."""
    opened = [await client.open(limit=before) for _ in range(before)]
    newest = await client.open(limit=after)
    live = await client.live()
    assert len(live) == after
    assert newest.session in live
    assert all(session.id.slot < after for session in live)
    for ended in (one for one in opened if one.session not in live):
        assert await client.store.get(SESSIONS, block_key(ended.session.refresh_hash)) is not None
        with pytest.raises(InvalidTokenError):
            await client.refresh(ended.refresh_token)


@pytest.mark.parametrize("live", [0, LIMIT])
async def test_a_lost_reply_does_not_open_a_second_session(client: Client, live: int) -> None:
    """The write was applied, the reply was lost: the next attempt finds its own session."""
    for _ in range(live):
        await client.open()

    class ReplyLost(FaultyStore):
        lost = 0

        async def put(self, operation: Put) -> None:
            await super().put(operation)
            self._lose()

        async def transact(self, *arguments: object, **options: object) -> None:
            await super().transact(*arguments, **options)  # type: ignore[arg-type]
            self._lose()

        def _lose(self) -> None:
            if self.lost == 0:
                self.lost = 1
                raise OutcomeUnknownError("injected: the reply was lost")

    before = {session.id for session in await client.live()}
    store = ReplyLost(client.store, Interleaving(0), Faults())
    sessions = Sessions(store, clock=InstantClock(client.clock), keys=client.keys)
    opened = await sessions.open_session(client.login())
    assert store.lost == 1
    assert {session.id for session in await client.live()} - before == {opened.session.id}
    await client.refresh(opened.refresh_token)


async def test_a_slot_is_chosen_at_random_so_that_racers_spread(client: Client) -> None:
    """Two instances that see the same free slots do not both want the first."""
    chosen = set()
    for seed in range(8):
        lone = Client(client.store, client.clock, client.keys)
        sessions = Sessions(
            client.store, clock=client.clock, keys=client.keys, randomness=Random(seed)
        )
        chosen.add((await sessions.open_session(lone.login())).session.id.slot)
    assert len(chosen) > 1


@pytest.mark.parametrize("limit", [0, -1, 101])
async def test_an_impossible_limit_is_refused(client: Client, limit: int) -> None:
    with pytest.raises(InvalidValueError, match="session_limit"):
        await client.open(limit=limit)


async def test_labels_are_shown(client: Client) -> None:
    labels = make_labels("python-httpx/0.28 \x00\u202e", " 2001:db8::1 ")
    login = Login(client.id, client.generation, LIMIT, labels)
    await client.instance().open_session(login)
    (session,) = await client.live()
    assert session.labels.user_agent == "python-httpx/0.28"
    assert session.labels.address == "2001:db8::1"


async def test_an_opened_session_does_not_show_its_token(client: Client) -> None:
    """Not even in a log of everything; and the store holds the hash alone."""
    opened = await client.open()
    assert opened.refresh_token not in repr(opened)
    assert isinstance(opened, Opened)
    assert "1111" not in repr(client.keys.current_refresh_key())
