"""Tokens outside the session slots: what ends them and what does not, and what they cost."""

import hmac
import json
import re
from base64 import b32decode, urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from attribution import BY
from pricekeeper.clock import ManualClock, TrustedClock
from pricekeeper.errors import ClockInDoubtError, InvalidTokenError, NotFoundError
from pricekeeper.storage import Store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.telemetry.logs import redacted
from pricekeeper.tenants import Client
from pricekeeper.tokens import ACCESS_SECS, AwsCredentials, Keys
from pricekeeper.tokens.access_token import generation_in, generation_sid
from pricekeeper.tokens.aws_credentials import (
    derive_access_key_id,
    derive_secret_access_key,
    find_secret_access_key,
)
from pricekeeper.tokens.keyring import new_keyring
from pricekeeper.tokens.keys import KeyFile
from pricekeeper.tokens.validation import VALIDITY_AGE_MS_MAX
from pricekeeper.values import AppId
from tokens.conftest import LIMIT, Instance, Member, MovableClock
from tokens.test_validation import ENDINGS, evict, lower_limit, works

ENDING_ALSO_THESE = (
    *("revoke_access", "end_all_sessions", "revoke_secrets", "revoke_previous"),
    *("rotate_without_grace", "delete"),
)
FLEET = 8 * LIMIT
BOTO_REFRESHES_SECS = 15 * 60


async def issue(at: Instance, member: Member) -> AwsCredentials:
    authenticated = await at.identity.authenticate(member.id, member.secret)
    return at.identity.issue_outside_slots(authenticated)


def claims_of(segment: str) -> Any:
    return json.loads(urlsafe_b64decode(segment + "=" * (-len(segment) % 4)))


@pytest.mark.parametrize("ending", ENDING_ALSO_THESE)
async def test_what_ends_here_ends_here_at_once_and_everywhere_in_half_a_minute(
    here: Instance, there: Instance, org: Member, clock: MovableClock, ending: str
) -> None:
    """Promise 5, for everything that can end a token without a session."""
    token = (await issue(here, org)).token
    for instance in (here, there):
        assert await works(instance, token)
    await ENDINGS[ending](here, org, token, "")
    assert not await works(here, token)
    clock.pass_ms(VALIDITY_AGE_MS_MAX)
    assert not await works(there, token)


@pytest.mark.parametrize("whole", [True, False], ids=["org", "app"])
async def test_an_app_falls_with_its_deletion_and_does_not_come_back(
    here: Instance, there: Instance, org: Member, clock: MovableClock, *, whole: bool
) -> None:
    """Neither by its own deletion nor by its organisation's, also if both are created again."""
    app = await here.register(Client(org.client.org_id, AppId("api")))
    token = (await issue(here, app)).token
    assert await works(here, token)
    assert await works(there, token)
    if whole:
        await here.tenants.delete_org(org.client.org_id, BY)
    else:
        await here.tenants.delete_app(org.client.org_id, AppId("api"), BY)
    assert not await works(here, token)
    if whole:
        await here.register(org.client)
    await here.register(app.client)
    clock.pass_ms(VALIDITY_AGE_MS_MAX)
    assert not await works(here, token)
    assert not await works(there, token)


async def test_no_login_ends_it_and_it_ends_no_session(here: Instance, org: Member) -> None:
    """Promise 4 is about sessions: however many tokens are outside, the slots are not touched."""
    sessions = [await org.login(here) for _ in range(LIMIT)]
    fleet = [(await issue(here, org)).token for _ in range(FLEET)]
    for token in (*fleet, *(grant.access_token for grant in sessions)):
        assert await works(here, token)
    listed = await here.identity.list_sessions(org.id)
    assert [str(session.id) for session in listed] == [grant.session_id for grant in sessions]
    await evict(here, org, "", "")
    await lower_limit(here, org, "", "")
    for token in fleet:
        assert await works(here, token)
    assert len(await here.identity.list_sessions(org.id)) == 1


async def test_one_that_is_revoked_leaves_its_siblings(here: Instance, org: Member) -> None:
    first, second = [(await issue(here, org)).token for _ in range(2)]
    await here.identity.revoke(org.id, first)
    assert not await works(here, first)
    assert await works(here, second)


async def test_nobody_else_revokes_it_or_learns_of_it(here: Instance, org: Member) -> None:
    """Not even an app of the organisation whose token it is."""
    app = await here.register(Client(org.client.org_id, AppId("api")))
    token = (await issue(here, org)).token
    await here.identity.revoke(app.id, token)
    assert await works(here, token)
    assert await here.identity.introspect(app.id, token) is None


async def test_a_rotation_with_grace_leaves_it(here: Instance, org: Member) -> None:
    token = (await issue(here, org)).token
    rotation = await here.credentials.rotate(org.client, 1, BY)
    await here.credentials.claim(rotation.retrieval.token.reveal(), BY)
    assert await works(here, token)


async def test_one_that_was_issued_while_everything_ended_is_dead(
    here: Instance, org: Member
) -> None:
    """The generation is that of the moment in which the secret was compared."""
    authenticated = await here.identity.authenticate(org.id, org.secret)
    await here.identity.end_all_sessions(org.id)
    late = here.identity.issue_outside_slots(authenticated)
    assert not await works(here, late.token)
    assert await works(here, (await issue(here, org)).token)


async def test_one_that_comes_after_works_where_the_old_state_is_remembered(
    here: Instance, there: Instance, org: Member
) -> None:
    """A policy that is older than the token is read again."""
    before = (await issue(there, org)).token
    assert await works(there, before)
    await here.identity.end_all_sessions(org.id)
    assert await works(there, (await issue(here, org)).token)
    assert not await works(there, before)


async def test_it_costs_one_read_and_no_write(
    here: Instance, org: Member, meter: StoreMeter
) -> None:
    """The client is read to check its secret; a first use looks for a revocation."""
    meter.clear()
    made = await issue(here, org)
    assert meter.calls == {"batch_get": 1}
    meter.clear()
    await here.identity.validate(made.token)
    assert meter.calls == {"batch_get": 1}  # of its client nothing: it was read a moment ago
    meter.clear()
    for _ in range(100):
        await here.identity.validate(made.token)
    assert meter.calls == {}


async def test_it_lives_an_hour_each_time(here: Instance, org: Member, clock: MovableClock) -> None:
    """Boto3 fetches for every call if less than a quarter of an hour is left."""
    for _ in range(3):
        now_epoch = clock.now_ms() // 1000
        made = await issue(here, org)
        assert 0 <= made.expires_at_epoch - ACCESS_SECS - now_epoch <= 60  # the machine may be slow
        assert made.expires_at_epoch - now_epoch > BOTO_REFRESHES_SECS
        principal = await here.identity.validate(made.token)
        assert principal.expires_at_epoch == made.expires_at_epoch
        clock.pass_ms(1_000_000)
    clock.pass_ms(ACCESS_SECS * 1000)
    assert not await works(here, made.token)


async def test_it_says_what_other_tokens_say(here: Instance, org: Member) -> None:
    """The same claims and scopes. Its ``sid`` is the generation, which is no session."""
    made, grant = await issue(here, org), await org.login(here)
    (header, claims, _), (same_header, same_claims, _) = (
        token.split(".") for token in (made.token, grant.access_token)
    )
    assert header == same_header
    assert claims_of(claims).keys() == claims_of(same_claims).keys()
    policy = await here.tenants.read_registered_policy(org.client)
    outside = await here.identity.introspect(org.id, made.token)
    inside = await here.identity.introspect(org.id, grant.access_token)
    assert outside is not None
    assert inside is not None
    assert (outside.scope, outside.token_type) == (inside.scope, inside.token_type)
    assert outside.session_id == generation_sid(policy.token_generation)
    with pytest.raises(NotFoundError):
        await here.identity.end_session(org.id, outside.session_id)
    assert await works(here, made.token)


def test_a_sid_names_a_session_or_a_generation() -> None:
    """Never both; a client that was imported has a generation without a name."""
    assert generation_in(generation_sid("0123456789abcdef")) == "0123456789abcdef"
    assert generation_in(generation_sid("")) == ""
    assert generation_in("000-Zm9vYmFyYmF6cXV4cXV1eA") is None


async def test_any_instance_derives_the_secret_from_the_token(
    here: Instance, there: Instance, org: Member
) -> None:
    """Nothing is stored for it, and no two tokens have the same."""
    first, second = [await issue(here, org) for _ in range(2)]
    assert there.identity.find_aws_secret(first.token) == first.secret_access_key
    assert there.identity.find_aws_secret(second.token) == second.secret_access_key
    assert first.secret_access_key != second.secret_access_key
    assert there.identity.find_aws_secret("nonsense") is None
    assert there.identity.find_aws_secret(f"x{first.token}") is None


def test_the_secret_is_of_its_key_and_of_its_purpose() -> None:
    """Another key makes another, and it is no seal of a refresh token over the same text."""
    one, other = (new_keyring(0).signing(0) for _ in range(2))
    secret = derive_secret_access_key("t", one)
    assert secret == derive_secret_access_key("t", one)
    assert secret != derive_secret_access_key("t", other)
    sealed = urlsafe_b64encode(hmac.digest(one.refresh.secret, b"t", "sha256")).decode()
    assert sealed.rstrip("=") not in secret
    assert derive_secret_access_key("\ud800", one)  # for any text


async def test_the_secret_lives_as_long_as_the_token_when_keys_rotate(
    here: Instance, org: Member, clock: MovableClock, tmp_path: Path
) -> None:
    """For its hour after a rotation; not at all once the old keys are dropped."""
    path = tmp_path / "keys.json"
    here.keys = Keys.in_file(path, clock)
    here.identity = here.make_identity(here.store)
    made = await issue(here, org)
    KeyFile(path).rotate(clock.now_ms() // 1000, ahead_secs=0)
    clock.pass_ms(2_000)
    restarted = Keys.in_file(path, clock)
    assert find_secret_access_key(made.token, restarted) == made.secret_access_key
    assert await works(here, made.token)
    again = await issue(here, org)
    assert again.token.partition(".")[0] != made.token.partition(".")[0]
    KeyFile(path).rotate(clock.now_ms() // 1000, drop_old=True)
    clock.pass_ms(2_000)
    for dropped in (made, again):
        assert here.identity.find_aws_secret(dropped.token) is None
        assert not await works(here, dropped.token)


async def test_its_name_is_harmless(here: Instance, org: Member) -> None:
    """Letters and digits that AWS SDKs take, made of the token's id and of nothing secret."""
    made = await issue(here, org)
    assert re.fullmatch("[A-Z0-9]{16,128}", made.access_key_id)
    principal = await here.identity.validate(made.token)
    assert made.access_key_id == derive_access_key_id(principal.token_id)
    encoded = made.access_key_id.removeprefix("PK")
    assert b32decode(encoded + "=" * (-len(encoded) % 8)).decode() == principal.token_id


async def test_its_secrets_are_nowhere_to_be_read(here: Instance, org: Member) -> None:
    with capture_logs() as logs:
        made = await issue(here, org)
        await here.identity.revoke(org.id, made.token)
        with pytest.raises(InvalidTokenError):
            await here.identity.validate(made.token)
    for secret in (made.secret_access_key, made.token):
        assert secret not in repr(made)
        assert secret not in str(logs)
        assert secret.encode() not in redacted(f'{{"event": "{secret}"}}'.encode())


async def test_none_is_issued_while_the_time_is_in_doubt(
    store: Store, keyring: str, here: Instance, org: Member
) -> None:
    """It would live for an hour of a doubted clock."""
    hands = ManualClock(here.clock.now_ms())
    doubtful = Instance(store, TrustedClock(hands), keyring)
    authenticated = await doubtful.identity.authenticate(org.id, org.secret)
    assert doubtful.identity.issue_outside_slots(authenticated).token
    hands.jump_ms(86_400_000)
    with pytest.raises(ClockInDoubtError):
        doubtful.identity.issue_outside_slots(authenticated)


async def test_it_is_counted_apart(here: Instance, org: Member) -> None:
    """An operator sees how many tokens no list of sessions shows."""
    await issue(here, org)
    assert (here.identity.meter.issued, here.identity.meter.issued_outside) == (0, 1)
