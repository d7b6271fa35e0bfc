"""Refreshing: the token rotates, a retry gets the same successor, a thief ends the session."""

import asyncio
import base64
import re
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from faulty_store import Faults, FaultyStore, Interleaving
from pricekeeper.errors import (
    ConditionFailedError,
    InvalidTokenError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from pricekeeper.sessions import Lifetimes, Opened, Session, SessionId, Sessions
from pricekeeper.sessions.items import block_item
from pricekeeper.storage import Item, Put, Query, Update
from pricekeeper.storage.tables import SESSIONS
from pricekeeper.telemetry import StoreMeter
from sessions.conftest import LIMIT, Client

GRACE_MS = Lifetimes().grace_ms


async def test_a_refresh_is_one_reading_and_one_write(client: Client, meter: StoreMeter) -> None:
    """The session stays the same, its refresh token is another."""
    opened = await client.open()
    meter.clear()
    refreshed = await client.refresh(opened.refresh_token)
    assert meter.calls == {"batch_get": 1, "update": 1}
    assert refreshed.session.id == opened.session.id
    assert refreshed.refresh_token != opened.refresh_token
    assert await client.live() == (refreshed.session,)


async def test_a_retry_within_the_grace_gets_the_same_successor(client: Client) -> None:
    """Its owner may not have heard the answer; also on another instance."""
    opened = await client.open()
    first = await client.refresh(opened.refresh_token)
    client.clock.shift_ms += GRACE_MS - 1_000
    assert await client.refresh(opened.refresh_token) == first
    assert (await client.refresh(first.refresh_token)).session.rotation == 2


async def test_racing_refreshes_of_one_token_get_the_same_successor(client: Client) -> None:
    opened = await client.open()
    refreshed = await asyncio.gather(*(client.refresh(opened.refresh_token) for _ in range(20)))
    assert len({one.refresh_token for one in refreshed}) == 1
    assert {one.session.rotation for one in refreshed} == {1}


async def test_a_spent_token_after_the_grace_ends_the_session(client: Client) -> None:
    """The thief can't be told from the owner, so both lose."""
    opened = await client.open()
    refreshed = await client.refresh(opened.refresh_token)
    client.clock.shift_ms += GRACE_MS
    with capture_logs() as logs, pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)
    (reuse,) = [line for line in logs if line["event"] == "refresh_token_reused"]
    assert reuse["log_level"] == "warning"
    assert reuse["client_id"] == client.id
    assert reuse["session_id"] == str(opened.session.id)
    assert opened.refresh_token not in str(logs)
    assert await client.live() == ()
    with pytest.raises(InvalidTokenError):
        await client.refresh(refreshed.refresh_token)


async def test_a_token_spent_two_rotations_ago_ends_the_session_at_once(client: Client) -> None:
    """The grace is for the one before the current, whose owner may not have heard."""
    opened = await client.open()
    refreshed = await client.refresh(opened.refresh_token)
    await client.refresh(refreshed.refresh_token)
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)
    assert await client.live() == ()


async def test_the_session_of_a_thief_ends_alone(client: Client) -> None:
    """Other sessions of the client are not touched."""
    stolen, other = await client.open(), await client.open()
    await client.refresh(stolen.refresh_token)
    client.clock.shift_ms += GRACE_MS
    with pytest.raises(InvalidTokenError):
        await client.refresh(stolen.refresh_token)
    assert await client.live() == (other.session,)


async def test_an_unused_session_ends_and_a_used_one_goes_on(client: Client) -> None:
    client.lifetimes = Lifetimes(idle_secs=100, absolute_secs=1_000)
    idle, used = await client.open(), await client.open()
    client.clock.shift_ms += 60_000
    used = await client.refresh(used.refresh_token)
    client.clock.shift_ms += 60_000
    with pytest.raises(InvalidTokenError):
        await client.refresh(idle.refresh_token)
    assert (await client.refresh(used.refresh_token)).session.id == used.session.id


async def test_no_use_keeps_a_session_beyond_its_absolute_life(client: Client) -> None:
    client.lifetimes = Lifetimes(idle_secs=100, absolute_secs=250)
    opened = await client.open()
    end_epoch = opened.session.opened_at_ms // 1000 + 250
    for _ in range(3):
        client.clock.shift_ms += 80_000
        opened = await client.refresh(opened.refresh_token)
    assert opened.session.ends_at_epoch == end_epoch
    client.clock.shift_ms += 11_000
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)
    assert await client.live() == ()


async def test_a_blocklisted_token_is_refused_whatever_its_slot_says(client: Client) -> None:
    """The blocklist is asked before anything is issued."""
    opened = await client.open()
    await client.store.put(Put(SESSIONS, block_item(opened.session, client.clock.now_ms())))
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)
    assert (await client.live())[0].rotation == 0


async def test_another_token_generation_ends_every_session(client: Client) -> None:
    opened = await client.open()
    client.generation = "second"
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)


async def test_a_key_may_change_between_refreshes(client: Client) -> None:
    """Tokens of the old key are still accepted, new ones use the new key."""
    opened = await client.open()
    client.keys.keys.reverse()
    refreshed = await client.refresh(opened.refresh_token)
    assert refreshed.session.key_id == "k2"
    assert await client.refresh(opened.refresh_token) == refreshed
    client.keys.keys = client.keys.keys[:1]
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)
    assert (await client.refresh(refreshed.refresh_token)).session.rotation == 2


async def test_a_successor_whose_key_was_withdrawn_is_not_made_up(client: Client) -> None:
    """It can't be derived again, so a retry is refused like any other token."""
    opened = await client.open()
    client.keys.keys.reverse()
    await client.refresh(opened.refresh_token)
    client.keys.keys = client.keys.keys[1:]
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)


async def test_ending_a_session_stops_its_token(client: Client, meter: StoreMeter) -> None:
    """One write, for every rotation of the session; ending it twice finds nothing."""
    sessions = client.instance()
    opened, other = await client.open(), await client.open()
    refreshed = await client.refresh(opened.refresh_token)
    meter.clear()
    assert await sessions.end_session(client.id, opened.session.id)
    assert meter.calls == {"update": 1}
    assert not await sessions.end_session(client.id, opened.session.id)
    with pytest.raises(InvalidTokenError):
        await client.refresh(refreshed.refresh_token)
    assert await client.live() == (other.session,)


async def test_a_delayed_copy_of_a_login_does_not_bring_an_ended_session_back(
    client: Client,
) -> None:
    """The store may send a write again, and the first copy may still be on its way."""
    copies: list[Put] = []

    class Copying(FaultyStore):
        async def put(self, operation: Put) -> None:
            copies.append(operation)
            await super().put(operation)

    real, client.store = client.store, Copying(client.store, Interleaving(0), Faults())
    opened = await client.open()
    await client.instance().end_session(client.id, opened.session.id)
    with pytest.raises(ConditionFailedError):
        await real.put(copies[0])
    assert await client.live() == ()
    with pytest.raises(InvalidTokenError):
        await client.refresh(opened.refresh_token)


async def test_ending_a_session_recognises_its_own_write(client: Client) -> None:
    """A repeat after a lost reply finds the session ended, as requested."""

    class SentAgain(FaultyStore):
        async def update(self, operation: Update) -> Item:
            item = await super().update(operation)
            raise OutcomeUnknownError("injected: sent again", item)

    opened = await client.open()
    client.store = SentAgain(client.store, Interleaving(0), Faults())
    assert await client.instance().end_session(client.id, opened.session.id)


async def test_a_session_is_ended_by_its_own_client_only(client: Client) -> None:
    """Another client's session and an absent one answer alike."""
    opened = await client.open()
    stranger = Client(client.store, client.clock, client.keys)
    assert not await client.instance().end_session(stranger.id, opened.session.id)
    assert not await client.instance().end_session(client.id, SessionId(0, "x" * 22))
    assert await client.live() == (opened.session,)


async def test_finding_a_session_by_its_current_token(client: Client) -> None:
    sessions = client.instance()
    opened = await client.open()
    refreshed = await client.refresh(opened.refresh_token)

    async def found(token: str) -> Session | None:
        return await sessions.find(sessions.open_refresh_token(token), client.generation)

    assert await found(refreshed.refresh_token) == refreshed.session
    assert await found(opened.refresh_token) is None
    await sessions.end_session(client.id, opened.session.id)
    assert await found(refreshed.refresh_token) is None


async def test_whoever_listens_hears_of_every_session_that_may_have_ended(client: Client) -> None:
    """Evicted, beyond a lowered limit, ended, or ended because a token was reused."""
    heard: list[SessionId] = []
    sessions = client.instance()
    sessions.add_listener(heard.append)
    first, second, third = [await client.open(limit=3) for _ in range(3)]

    await sessions.open_session(client.login(limit=3))
    assert heard == [first.session.id]

    await client.refresh(second.refresh_token)
    client.clock.shift_ms += GRACE_MS
    with pytest.raises(InvalidTokenError):
        await sessions.refresh(sessions.open_refresh_token(second.refresh_token), client.generation)
    assert heard[1:] == [second.session.id]

    await sessions.end_session(client.id, third.session.id)
    assert heard[2:] == [third.session.id]

    before = [(await client.open(limit=4)).session.id for _ in range(3)]
    await sessions.open_session(client.login(limit=1))
    assert set(before) <= set(heard[3:])


class _Wire(FaultyStore):
    """A store whose next update meets a fault."""

    fault = ""

    async def update(self, operation: Update) -> Item:
        fault, self.fault = self.fault, ""
        if fault == "not applied":
            raise OutcomeUnknownError("injected: the request was lost")
        result = await super().update(operation)
        if fault == "applied":
            raise OutcomeUnknownError("injected: the reply was lost")
        return result


@pytest.mark.parametrize("fault", ["applied", "not applied"])
@pytest.mark.parametrize("slow_ms", [0, 60_000])
async def test_a_lost_reply_rotates_once(client: Client, fault: str, slow_ms: int) -> None:
    """Our own write is recognised, even if it took longer than the grace to learn about it."""
    opened = await client.open()
    wire = _Wire(client.store, Interleaving(0), Faults())
    wire.fault = fault

    class Slow(_Wire):
        async def get(self, *arguments: object, **options: object) -> Item | None:
            client.clock.shift_ms += slow_ms
            return await super().get(*arguments, **options)  # type: ignore[arg-type]

    wire.__class__ = Slow
    sessions = Sessions(wire, clock=client.clock, keys=client.keys)
    token = sessions.open_refresh_token(opened.refresh_token)
    refreshed = await sessions.refresh(token, client.generation)
    assert refreshed.session.rotation == 1
    assert await client.live() == (refreshed.session,)
    assert (await client.refresh(refreshed.refresh_token)).session.rotation == 2


async def test_an_unreadable_store_refuses_nothing_and_issues_nothing(client: Client) -> None:
    """The token stays good for the next try."""
    opened = await client.open()

    class Down(FaultyStore):
        async def batch_get(self, *_: object, **__: object) -> list[Item | None]:
            raise StoreUnavailableError("injected")

    down = Sessions(
        Down(client.store, Interleaving(0), Faults()), clock=client.clock, keys=client.keys
    )
    with pytest.raises(StoreUnavailableError):
        await down.refresh(down.open_refresh_token(opened.refresh_token), client.generation)
    await client.refresh(opened.refresh_token)


async def test_nothing_that_is_stored_opens_a_session(client: Client) -> None:
    """No refresh token, nor the beginning of one, is in the subject's items."""
    opened = await client.open()
    refreshed = await client.refresh(opened.refresh_token)
    page = await client.store.query(Query(SESSIONS, f"SUBJECT#{client.id}"))
    for one in (opened, refreshed):
        assert one.refresh_token[5:40] not in str(page.items)


async def test_a_refresh_token_is_one_word(client: Client) -> None:
    """So that the filters of logs hide all of it."""
    assert re.fullmatch(r"pkrt_[A-Za-z0-9_-]{100,}", (await client.open()).refresh_token)


async def test_the_limit_holds_for_refreshed_sessions(client: Client) -> None:
    """A refresh never makes a session younger: the oldest login goes first."""
    opened = [await client.open() for _ in range(LIMIT)]
    refreshed: Opened = await client.refresh(opened[0].refresh_token)
    await client.open()
    with pytest.raises(InvalidTokenError):
        await client.refresh(refreshed.refresh_token)


def reseal(token: str, change: Callable[[bytes, bytes], bytes]) -> str:
    """The token with another seal or body, spelt as tokens are."""
    encoded = token.removeprefix("pkrt_")
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    return "pkrt_" + base64.urlsafe_b64encode(change(raw[:32], raw[32:])).rstrip(b"=").decode()


MANGLED: dict[str, Callable[[str], str]] = {
    "empty": lambda token: token[:0],
    "prefix alone": lambda token: token[:5],
    "another prefix": lambda token: token.replace("pkrt_", "pkxt_", 1),
    "no prefix": lambda token: token.removeprefix("pkrt_"),
    "truncated": lambda token: token[:-8],
    "seal alone": lambda token: reseal(token, lambda seal, _: seal),
    "no seal": lambda token: reseal(token, lambda _, body: body),
    "zero seal": lambda token: reseal(token, lambda _, body: bytes(32) + body),
    "unknown key": lambda token: reseal(token, lambda s, b: s + b.replace(b"k1", b"k9", 1)),
    "another key": lambda token: reseal(token, lambda s, b: s + b.replace(b"k1", b"k2", 1)),
    "next rotation": lambda token: reseal(token, lambda s, b: s + b.replace(b".0.", b".1.", 1)),
    "another slot": lambda token: reseal(token, lambda s, b: s + re.sub(rb"\.0..-", b".099-", b)),
    "another client": lambda token: reseal(token, lambda s, b: s + b + b"0"),
    "fewer fields": lambda token: reseal(token, lambda s, b: s + b.partition(b".")[0]),
    "padded": lambda token: token + "=",
    "other spelling": lambda token: token + "A",
    "line break": lambda token: token + "\n",
    "space": lambda token: token[:20] + " " + token[20:],
    "not ascii": lambda token: token[:-1] + "é",
    "surrogate": lambda token: token[:-1] + "\ud800",
    "huge": lambda token: token + "A" * 1_000_000,
}


@pytest.mark.parametrize("how", MANGLED)
async def test_what_we_never_made_is_refused_without_asking_the_store(
    client: Client, meter: StoreMeter, how: str
) -> None:
    opened = await client.open()
    mangled = MANGLED[how](opened.refresh_token)
    assert mangled != opened.refresh_token
    meter.clear()
    with pytest.raises(InvalidTokenError) as refusal:
        await client.refresh(mangled)
    assert str(refusal.value) == "the token is not valid"
    assert meter.calls == {}
