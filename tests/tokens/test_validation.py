"""What a token is worth, how soon that is known everywhere, and what it costs to know."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from attribution import BY
from faulty_store import Faults, FaultyStore, Interleaving
from logins import log_in
from pricekeeper.errors import InvalidTokenError, StoreUnavailableError
from pricekeeper.sessions import Lifetimes
from pricekeeper.storage import Item, Key, Store, Table
from pricekeeper.storage.tables import REVOKED_TOKENS
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client
from pricekeeper.tokens import Keys
from pricekeeper.tokens.keys import KeyFile
from pricekeeper.tokens.meter import IdentityMeter
from pricekeeper.tokens.validation import (
    CHANGED_MAX,
    RECALL_MS,
    VALIDITY_AGE_MS_MAX,
    Validator,
)
from pricekeeper.values import AppId
from stores import stored
from tenants.conftest import org_body
from tokens.conftest import AUDIENCE, ISSUER, LIMIT, Instance, Member, MovableClock


async def works(at: Instance, token: str) -> bool:
    """Whether the gate would let it in."""
    if at.identity.recall(token) is not None:
        return True
    try:
        await at.identity.validate(token)
    except InvalidTokenError:
        return False
    return True


async def test_a_warm_token_costs_no_store_call(
    here: Instance, org: Member, meter: StoreMeter
) -> None:
    """The first look is one read of the token and one of its client."""
    grant = await org.login(here)
    meter.clear()
    principal = await here.identity.validate(grant.access_token)
    assert meter.calls == {"batch_get": 1}  # of its client nothing: the login has just read it
    meter.clear()
    for _ in range(100):
        assert await here.identity.validate(grant.access_token) == principal
    assert meter.calls == {}


async def test_requests_at_one_moment_share_these_readings(
    here: Instance, there: Instance, org: Member, meter: StoreMeter
) -> None:
    """A cold process reads the token and its client once, for thirty requests as for one."""
    grant = await org.login(here)
    meter.clear()
    checks = (there.identity.validate(grant.access_token) for _ in range(30))
    assert len({one.client_id for one in await asyncio.gather(*checks)}) == 1
    assert meter.calls == {"batch_get": 2}


async def test_the_validity_is_checked_again_after_half_a_minute(
    here: Instance, org: Member, clock: MovableClock, meter: StoreMeter
) -> None:
    grant = await org.login(here)
    await here.identity.validate(grant.access_token)
    meter.clear()
    clock.pass_ms(VALIDITY_AGE_MS_MAX)
    assert await works(here, grant.access_token)
    assert meter.calls == {"batch_get": 2}


async def test_what_was_valid_is_recalled_for_a_second(
    here: Instance, org: Member, clock: MovableClock
) -> None:
    """Nothing is looked at meanwhile; a token that was never looked at is not known."""
    grant = await org.login(here)
    assert here.identity.recall(grant.access_token) is None
    principal = await here.identity.validate(grant.access_token)
    assert here.identity.recall(grant.access_token) == principal
    assert here.identity.recall(grant.access_token + "x") is None
    clock.pass_ms(RECALL_MS)
    assert here.identity.recall(grant.access_token) is None


async def test_nothing_is_recalled_beyond_its_end(
    here: Instance, org: Member, clock: MovableClock
) -> None:
    """A token that ends within the second is looked at again when it has ended."""
    token = (await org.login(here)).access_token
    ends_ms = (await here.identity.validate(token)).expires_at_epoch * 1000
    clock.pass_ms(ends_ms - clock.now_ms() - RECALL_MS // 2)
    assert await works(here, token)
    assert here.identity.recall(token) is not None
    clock.pass_ms(RECALL_MS // 2)
    assert here.identity.recall(token) is None
    assert not await works(here, token)


async def revoke_access(at: Instance, member: Member, token: str, _: str) -> None:
    await at.identity.revoke(member.id, token)


async def revoke_refresh(at: Instance, member: Member, _: str, refresh_token: str) -> None:
    await at.identity.revoke(member.id, refresh_token)


async def end_session(at: Instance, member: Member, token: str, _: str) -> None:
    principal = await at.identity.validate(token)
    await at.identity.end_session(member.id, principal.session_id)


async def end_all_sessions(at: Instance, member: Member, _: str, __: str) -> None:
    await at.identity.end_all_sessions(member.id)


async def evict(at: Instance, member: Member, _: str, __: str) -> None:
    for _step in range(LIMIT):
        await member.login(at)


async def lower_limit(at: Instance, member: Member, _: str, __: str) -> None:
    """Lower it to one session, and log in."""
    await at.tenants.put_org(member.client.org_id, org_body(session_limit=1), BY)
    await member.login(at)


async def revoke_secrets(at: Instance, member: Member, _: str, __: str) -> None:
    await at.credentials.revoke_now(member.client, BY)


async def revoke_previous(at: Instance, member: Member, _: str, __: str) -> None:
    """Stop the secret before the present one, and what either was exchanged for."""
    await at.credentials.revoke_now(member.client, BY, previous_only=True)


async def rotate_without_grace(at: Instance, member: Member, _: str, __: str) -> None:
    rotation = await at.credentials.rotate(member.client, 0, BY)
    await at.credentials.claim(rotation.retrieval.token.reveal(), BY)


async def delete(at: Instance, member: Member, _: str, __: str) -> None:
    await at.tenants.delete_org(member.client.org_id, BY)


ENDINGS: dict[str, Callable[[Instance, Member, str, str], Awaitable[None]]] = {
    ending.__name__: ending
    for ending in (
        revoke_access,
        revoke_refresh,
        end_session,
        end_all_sessions,
        evict,
        lower_limit,
        revoke_secrets,
        revoke_previous,
        rotate_without_grace,
        delete,
    )
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_what_ends_here_ends_here_at_once_and_everywhere_in_half_a_minute(
    here: Instance, there: Instance, org: Member, clock: MovableClock, ending: str
) -> None:
    """Promise 5, for everything that can end a token."""
    grant = await org.login(here)
    for instance in (here, there):
        assert await works(instance, grant.access_token)
    await ENDINGS[ending](here, org, grant.access_token, grant.refresh_token)
    assert not await works(here, grant.access_token)
    clock.pass_ms(VALIDITY_AGE_MS_MAX)
    assert not await works(there, grant.access_token)
    if ending != "revoke_access":
        with pytest.raises(InvalidTokenError):
            await there.identity.refresh(grant.refresh_token)


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("revoke_access", "revoked"),
        ("end_session", "its session has ended"),
        ("end_all_sessions", "all tokens of its client have ended"),
        ("delete", "its client is deleted"),
    ],
)
async def test_the_log_says_why_and_the_caller_does_not(
    here: Instance, org: Member, ending: str, reason: str
) -> None:
    """An operator sees the reasons; an attacker does not."""
    grant = await org.login(here)
    await ENDINGS[ending](here, org, grant.access_token, grant.refresh_token)
    with capture_logs() as logs, pytest.raises(InvalidTokenError, match="the token is not valid"):
        await here.identity.validate(grant.access_token)
    (line,) = logs
    assert (line["event"], line["reason"]) == ("access_token_refused", reason)
    assert line["client_id"] == org.id


async def test_a_reused_refresh_token_takes_the_access_tokens_with_it(
    here: Instance, org: Member, clock: MovableClock
) -> None:
    first = await org.login(here)
    second = await here.identity.refresh(first.refresh_token)
    assert await works(here, first.access_token)
    assert await works(here, second.access_token)
    clock.pass_ms(Lifetimes().grace_ms)
    with pytest.raises(InvalidTokenError):
        await here.identity.refresh(first.refresh_token)
    assert not await works(here, first.access_token)
    assert not await works(here, second.access_token)


async def test_an_app_falls_with_its_organisation(
    here: Instance, there: Instance, org: Member, clock: MovableClock
) -> None:
    """It stays invalid when the organisation is created again."""
    app = await here.register(Client(org.client.org_id, AppId("api")))
    grant = await app.login(here)
    assert await works(here, grant.access_token)
    assert await works(there, grant.access_token)
    await here.tenants.delete_org(org.client.org_id, BY)
    assert not await works(here, grant.access_token)
    await here.register(org.client)
    await here.register(app.client)
    clock.pass_ms(VALIDITY_AGE_MS_MAX)
    for instance in (here, there):
        assert not await works(instance, grant.access_token)
        with pytest.raises(InvalidTokenError):
            await instance.identity.refresh(grant.refresh_token)


async def test_ending_everything_leaves_what_comes_after(
    here: Instance, there: Instance, org: Member, meter: StoreMeter
) -> None:
    """A login right after it works at once, also where the old state is remembered."""
    before = await org.login(there)
    assert await works(there, before.access_token)
    meter.clear()
    await here.identity.end_all_sessions(org.id)
    assert meter.calls == {"batch_get": 1, "update": 1}
    after = await org.login(here)
    assert await works(here, after.access_token)
    assert await works(there, after.access_token)
    assert not await works(there, before.access_token)
    assert not await works(here, before.access_token)


async def test_revoking_an_access_token_leaves_its_session(here: Instance, org: Member) -> None:
    """Another token of the same session stays valid."""
    first = await org.login(here)
    second = await here.identity.refresh(first.refresh_token)
    await here.identity.revoke(org.id, first.access_token)
    assert not await works(here, first.access_token)
    assert await works(here, second.access_token)


async def test_a_revocation_is_kept_until_the_token_would_have_expired(
    here: Instance, org: Member, clock: MovableClock
) -> None:
    """Under its id, with the token's own expiry; revoking twice is once."""
    grant = await org.login(here)
    principal = await here.identity.validate(grant.access_token)
    await here.identity.revoke(org.id, grant.access_token)
    await here.identity.revoke(org.id, grant.access_token)
    item = await stored(here.store, REVOKED_TOKENS, Key(principal.token_id))
    assert item["client_id"] == org.id
    assert item["token_type"] == "access"
    assert item["expires_at_epoch"] == item["original_expiry_epoch"] == principal.expires_at_epoch
    clock.pass_ms(3_600_000)
    assert await here.store.get(REVOKED_TOKENS, Key(principal.token_id)) is None
    assert not await works(here, grant.access_token)


async def test_an_invalid_token_costs_nothing_more(
    here: Instance, org: Member, clock: MovableClock, meter: StoreMeter
) -> None:
    grant = await org.login(here)
    await here.identity.revoke(org.id, grant.access_token)
    assert not await works(here, grant.access_token)
    meter.clear()
    for _ in range(3):
        clock.pass_ms(VALIDITY_AGE_MS_MAX)
        assert not await works(here, grant.access_token)
    assert meter.calls == {}


async def test_a_token_ends_with_its_hour(
    here: Instance, org: Member, clock: MovableClock, meter: StoreMeter
) -> None:
    """Also from the cache, and without a read."""
    grant = await org.login(here)
    assert await works(here, grant.access_token)
    clock.pass_ms(3_590_000)
    assert await works(here, grant.access_token)
    clock.pass_ms(11_000)
    meter.clear()
    assert not await works(here, grant.access_token)
    assert meter.calls == {}


class _Unreadable(FaultyStore):
    """A store that can't be read."""

    down = True

    def __init__(self, store: Store) -> None:
        super().__init__(store, Interleaving(0), Faults())

    async def batch_get(
        self, keys: Sequence[tuple[Table, Key]], *, consistent: bool = True
    ) -> list[Item | None]:
        if self.down:
            raise StoreUnavailableError("injected")
        return await super().batch_get(keys, consistent=consistent)


async def test_a_store_that_can_not_be_read_is_never_a_yes(
    here: Instance, org: Member, clock: MovableClock
) -> None:
    """The outcome is unknown, so the caller gets the error. A recent result still counts."""
    grant = await org.login(here)
    wire = _Unreadable(here.store)
    identity = here.make_identity(wire)
    with pytest.raises(StoreUnavailableError):
        await identity.validate(grant.access_token)
    wire.down = False
    await identity.validate(grant.access_token)
    wire.down = True
    await identity.validate(grant.access_token)
    clock.pass_ms(VALIDITY_AGE_MS_MAX)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await identity.validate(grant.access_token)
    wire.down = False
    await identity.validate(grant.access_token)


async def test_an_answer_from_before_a_revocation_is_not_believed_after_it(
    here: Instance, org: Member
) -> None:
    """The reading was under way when the token was revoked: it is asked again."""
    grant = await org.login(here)

    class Overtaken(FaultyStore):
        revoked = False

        async def batch_get(self, *arguments: object, **options: object) -> list[Item | None]:
            answer = await super().batch_get(*arguments, **options)  # type: ignore[arg-type]
            if not self.revoked:
                self.revoked = True
                await identity.revoke(org.id, grant.refresh_token)
            return answer

    identity = here.make_identity(Overtaken(here.store, Interleaving(0), Faults()))
    await identity.validate(grant.access_token)  # it was asked before, and may hear the old answer
    with pytest.raises(InvalidTokenError):
        await identity.validate(grant.access_token)


async def test_a_slow_old_answer_does_not_replace_a_newer_one(
    here: Instance, org: Member, clock: MovableClock, meter: StoreMeter
) -> None:
    """Two ask at once, with an ending between them, and the one who asked first hears last."""
    grant = await org.login(here)
    slow, answered = asyncio.Event(), asyncio.Event()

    class Slow(FaultyStore):
        calls = 0

        async def batch_get(self, *arguments: object, **options: object) -> list[Item | None]:
            answer = await super().batch_get(*arguments, **options)  # type: ignore[arg-type]
            self.calls += 1
            if self.calls == 1:
                slow.set()
                await answered.wait()
            return answer

    identity = here.make_identity(Slow(here.store, Interleaving(0), Faults()))
    first = asyncio.create_task(identity.validate(grant.access_token))
    await slow.wait()
    clock.pass_ms(VALIDITY_AGE_MS_MAX - 1_000)
    identity.mark_changed("of another client")
    await identity.validate(grant.access_token)
    answered.set()
    await first
    clock.pass_ms(2_000)
    meter.clear()
    await identity.validate(grant.access_token)
    assert meter.calls["batch_get"] <= 1  # of its client at most: the check is 2 s old


def validator(at: Instance, verified_max: int) -> Validator:
    return Validator(
        at.store,
        clock=at.clock,
        keys=at.keys,
        tenants=at.tenants,
        issuer=ISSUER,
        audience=AUDIENCE,
        verified_max=verified_max,
        meter=IdentityMeter(),
    )


async def test_only_so_many_tokens_are_remembered(
    here: Instance, org: Member, meter: StoreMeter
) -> None:
    """Those used last; the others are verified again."""
    grant = await org.login(here)
    tokens = [grant.access_token]
    for _ in range(3):
        grant = await here.identity.refresh(grant.refresh_token)
        tokens.append(grant.access_token)
    bounded = validator(here, verified_max=2)
    for token in tokens[:2]:
        await bounded.validate(token)
    await bounded.validate(tokens[0])
    await bounded.validate(tokens[2])
    assert len(bounded._verified) == 2
    meter.clear()
    await bounded.validate(tokens[0])
    assert meter.calls == {}
    await bounded.validate(tokens[1])
    assert meter.calls == {"batch_get": 1}


async def test_an_invalid_token_is_not_remembered(here: Instance, org: Member) -> None:
    grant = await org.login(here)
    bounded = validator(here, verified_max=1)
    await bounded.validate(grant.access_token)
    for n in range(10):
        with pytest.raises(InvalidTokenError):
            await bounded.validate(f"{grant.access_token[:-8]}AAAAAA{n:02}")
    assert len(bounded._verified) == 1


async def test_more_endings_than_can_be_remembered_make_everything_be_asked_again(
    here: Instance, org: Member, meter: StoreMeter
) -> None:
    """Forgetting must not let a token live on."""
    grant = await org.login(here)
    bounded = validator(here, verified_max=10)
    principal = await bounded.validate(grant.access_token)
    bounded.mark_changed(principal.token_id)
    for n in range(CHANGED_MAX):
        bounded.mark_changed(f"another {n}")
    assert len(bounded._changed_at) <= CHANGED_MAX
    meter.clear()
    await bounded.validate(grant.access_token)
    assert meter.calls == {"batch_get": 1}


async def test_tokens_of_a_dropped_key_stop_also_where_they_are_remembered(
    here: Instance, org: Member, clock: MovableClock, tmp_path: Path
) -> None:
    """A verified signature is worth no more than its key."""
    path = tmp_path / "keys.json"
    keys = Keys.in_file(path, clock)
    here.keys = keys
    here.sessions._keys = keys
    identity = here.make_identity(here.store)
    grant = await log_in(identity, org.id, org.secret)
    await identity.validate(grant.access_token)
    KeyFile(path).rotate(clock.now_ms() // 1000, drop_old=True)
    clock.pass_ms(1_000)
    with pytest.raises(InvalidTokenError):
        await identity.validate(grant.access_token)
    with pytest.raises(InvalidTokenError):
        await identity.refresh(grant.refresh_token)
    again = await log_in(identity, org.id, org.secret)
    await identity.validate(again.access_token)
