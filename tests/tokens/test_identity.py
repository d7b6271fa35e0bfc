"""What the HTTP layer calls: tokens for secrets, for refresh tokens, and answers about both."""

import base64
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from attribution import BY
from logins import log_in
from pricekeeper.errors import (
    InvalidClientError,
    InvalidTokenError,
    NotFoundError,
    StoreUnavailableError,
)
from pricekeeper.sessions import Lifetimes
from pricekeeper.storage import Query, Store
from pricekeeper.storage.tables import SESSIONS
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client
from pricekeeper.tokens import APP_USE, ORG_READ
from pricekeeper.values import AppId
from tenants.conftest import new_org_id
from tokens.conftest import AUDIENCE, ISSUER, LIMIT, Instance, Member, MovableClock

HOUR = 3_600
MONTH = 30 * 86_400


@pytest.fixture
async def app(here: Instance, org: Member) -> Member:
    return await here.register(Client(org.client.org_id, AppId("my.app-1")))


def read(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read header and claims, unverified."""
    header, claims = (
        json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        for part in token.split(".")[:2]
    )
    return header, claims


async def test_a_token_says_what_is_documented(
    here: Instance, org: Member, app: Member, clock: MovableClock
) -> None:
    """These claims and no others; an organisation's has no ``app_id``."""
    now = clock.now_ms() // 1000
    for member in (org, app):
        grant = await member.login(here)
        header, claims = read(grant.access_token)
        assert header == {"typ": "at+jwt", "alg": "ES256", "kid": here.keys.signing_key().kid}
        expected = {
            "iss": ISSUER,
            "sub": member.id,
            "aud": AUDIENCE,
            "exp": claims["iat"] + HOUR,
            "iat": claims["iat"],
            "jti": claims["jti"],
            "sid": grant.session_id,
            "org_id": member.client.org_id,
            "scope": grant.scope,
            "client_id": member.id,
        }
        if member.client.app_id is not None:
            expected["app_id"] = member.client.app_id
        assert claims == expected
        assert now <= claims["iat"] <= now + 5
        assert len(claims["jti"]) >= 22
        assert (grant.expires_in_secs, grant.refresh_expires_in_secs) == (HOUR, MONTH)


async def test_a_principal_is_the_client_and_what_it_may(
    here: Instance, org: Member, app: Member
) -> None:
    """An organisation acts for its apps and reads across them; an app keeps to itself."""
    of_org = await here.identity.validate((await org.login(here)).access_token)
    of_app = await here.identity.validate((await app.login(here)).access_token)
    assert (of_org.client_id, of_app.client_id) == (org.id, app.id)
    assert (of_org.client, of_app.client) == (org.client, app.client)
    assert of_org.scopes == {APP_USE, ORG_READ}
    assert of_app.scopes == {APP_USE}
    own, elsewhere = org.client.org_id, new_org_id()
    mine, other = AppId("my.app-1"), AppId("other")
    assert [of_org.may_use_app(own, mine), of_org.may_use_app(own, other)] == [True, True]
    assert [of_app.may_use_app(own, mine), of_app.may_use_app(own, other)] == [True, False]
    assert [of_org.may_read_org(own), of_app.may_read_org(own)] == [True, False]
    for principal in (of_org, of_app):
        assert not principal.may_use_app(elsewhere, mine)
        assert not principal.may_read_org(elsewhere)


async def test_what_logins_and_refreshes_cost(
    here: Instance, org: Member, app: Member, meter: StoreMeter
) -> None:
    """The client with its secret and policy, its slots, and a write; two at the limit."""
    for member in (org, app):
        meter.clear()
        grant = await member.login(here)
        assert meter.calls == {"batch_get": 1, "query": 1, "put": 1}
        meter.clear()
        await here.identity.refresh(grant.refresh_token)
        assert meter.calls == {"batch_get": 2, "update": 1}
        for _ in range(LIMIT - 1):
            await member.login(here)
        meter.clear()
        await member.login(here)
        assert meter.calls == {"batch_get": 1, "query": 1, "transact": 1}


@pytest.mark.parametrize("secret", ["", "wrong", "pks_" + "A" * 49])
async def test_a_wrong_secret_opens_nothing(here: Instance, org: Member, secret: str) -> None:
    with pytest.raises(InvalidClientError):
        await log_in(here.identity, org.id, secret)
    assert await here.identity.list_sessions(org.id) == ()


async def test_the_limit_of_the_policy_holds(here: Instance, there: Instance, org: Member) -> None:
    grants = [await org.login(at) for at in (here, there, here)]
    listed = await there.identity.list_sessions(org.id)
    assert [str(session.id) for session in listed] == [g.session_id for g in grants[-LIMIT:]]


async def test_refreshing_keeps_the_session_and_rotates_the_token(
    here: Instance, there: Instance, org: Member
) -> None:
    """On any instance; a retry gets the same refresh token."""
    grant = await org.login(here)
    refreshed = await there.identity.refresh(grant.refresh_token)
    assert refreshed.session_id == grant.session_id
    assert refreshed.refresh_token != grant.refresh_token
    assert read(refreshed.access_token)[1]["jti"] != read(grant.access_token)[1]["jti"]
    retried = await here.identity.refresh(grant.refresh_token)
    assert retried.refresh_token == refreshed.refresh_token
    for at in (here, there):
        assert (await at.identity.validate(retried.access_token)).session_id == grant.session_id


async def test_the_access_token_never_outlives_its_session(
    store: Store, clock: MovableClock, keyring: str
) -> None:
    short = Instance(store, clock, keyring, Lifetimes(idle_secs=HOUR, absolute_secs=2 * HOUR))
    org = await short.register(Client(new_org_id()))
    grant = await org.login(short)
    assert grant.refresh_expires_in_secs == HOUR
    for _ in range(3):
        clock.pass_ms(HOUR * 500)
        grant = await short.identity.refresh(grant.refresh_token)
    assert grant.expires_in_secs == grant.refresh_expires_in_secs
    assert abs(grant.expires_in_secs - HOUR // 2) <= 5
    clock.pass_ms(HOUR * 500 + 6_000)
    with pytest.raises(InvalidTokenError):
        await short.identity.validate(grant.access_token)


async def test_a_client_that_is_gone_can_not_refresh(
    here: Instance, there: Instance, org: Member
) -> None:
    """Its policy is read before anything is issued, not remembered."""
    grant = await org.login(there)
    await here.tenants.delete_org(org.client.org_id, BY)
    with pytest.raises(InvalidTokenError):
        await there.identity.refresh(grant.refresh_token)


async def test_one_revokes_ones_own_only(
    here: Instance, org: Member, app: Member, meter: StoreMeter
) -> None:
    """For foreign and unknown ones nothing is written, and the answer is the same."""
    grant = await org.login(here)
    stranger = await here.register(Client(new_org_id()))
    await here.identity.validate(grant.access_token)
    meter.clear()
    for other in (stranger, app):
        for token in (grant.access_token, grant.refresh_token, "unknown", "pkrt_unknown", ""):
            await here.identity.revoke(other.id, token)
    assert meter.calls == {}
    await here.identity.validate(grant.access_token)
    await here.identity.refresh(grant.refresh_token)


async def test_a_spent_refresh_token_can_still_end_its_session(here: Instance, org: Member) -> None:
    grant = await org.login(here)
    refreshed = await here.identity.refresh(grant.refresh_token)
    await here.identity.revoke(org.id, grant.refresh_token)
    with pytest.raises(InvalidTokenError):
        await here.identity.validate(refreshed.access_token)


async def test_introspection_shows_ones_own_living_tokens(
    here: Instance, org: Member, app: Member
) -> None:
    """Both kinds; everything else is simply not active."""
    grant = await org.login(here)
    access = await here.identity.introspect(org.id, grant.access_token)
    refresh = await here.identity.introspect(org.id, grant.refresh_token)
    assert access is not None
    assert refresh is not None
    claims = read(grant.access_token)[1]
    assert (access.token_type, refresh.token_type) == ("access_token", "refresh_token")
    assert (access.token_id, refresh.token_id) == (claims["jti"], None)
    assert (access.expires_at_epoch, access.issued_at_epoch) == (claims["exp"], claims["iat"])
    assert refresh.expires_at_epoch - refresh.issued_at_epoch == MONTH
    for shown in (access, refresh):
        assert shown.client_id == org.id
        assert shown.scope == grant.scope
        assert shown.session_id == grant.session_id
    for token in (grant.access_token, grant.refresh_token, "unknown", "pkrt_unknown", ""):
        assert await here.identity.introspect(app.id, token) is None
    rotated = await here.identity.refresh(grant.refresh_token)
    assert await here.identity.introspect(org.id, grant.refresh_token) is None
    await here.identity.revoke(org.id, rotated.refresh_token)
    for token in (grant.access_token, rotated.refresh_token):
        assert await here.identity.introspect(org.id, token) is None


async def test_sessions_are_listed_with_their_labels(here: Instance, org: Member) -> None:
    grant = await log_in(
        here.identity, org.id, org.secret, user_agent="curl/8", address="192.0.2.7"
    )
    (session,) = await here.identity.list_sessions(org.id)
    assert str(session.id) == grant.session_id
    assert (session.labels.user_agent, session.labels.address) == ("curl/8", "192.0.2.7")


async def test_another_clients_session_and_an_absent_one_answer_alike(
    here: Instance, org: Member, app: Member
) -> None:
    grant = await org.login(here)
    absent = "000-" + "n" * 22
    answers = set()
    for client_id, session_id in (
        (app.id, grant.session_id),
        (org.id, absent),
        (org.id, "nonsense"),
        (org.id, ""),
    ):
        with pytest.raises(NotFoundError) as missing:
            await here.identity.end_session(client_id, session_id)
        answers.add((str(missing.value), missing.value.code))
    assert len(answers) == 1
    await here.identity.end_session(org.id, grant.session_id)
    assert await here.identity.list_sessions(org.id) == ()
    assert await here.identity.list_sessions("org-unknown") == ()


async def test_the_published_keys_are_the_ones_that_sign(here: Instance, org: Member) -> None:
    header, _ = read((await org.login(here)).access_token)
    assert header["kid"] in [key["kid"] for key in here.identity.jwks()["keys"]]


async def test_nothing_that_opens_anything_is_logged_or_stored(
    here: Instance, org: Member, clock: MovableClock
) -> None:
    """Neither by a login nor by a refusal nor by a theft."""
    with capture_logs() as logs:
        grant = await org.login(here)
        refreshed = await here.identity.refresh(grant.refresh_token)
        clock.pass_ms(Lifetimes().grace_ms)
        with pytest.raises(InvalidTokenError):
            await here.identity.refresh(grant.refresh_token)
        with pytest.raises(InvalidTokenError):
            await here.identity.validate(refreshed.access_token)
        with pytest.raises(InvalidTokenError):
            await here.identity.validate(grant.access_token + "x")
    page = await here.store.query(Query(SESSIONS, f"SUBJECT#{org.id}"))
    for secret in (
        org.secret,
        grant.access_token,
        grant.refresh_token,
        refreshed.access_token,
        refreshed.refresh_token,
        "canary-request",
    ):
        for place in (str(logs), str(page.items), repr(grant), repr(refreshed)):
            assert secret not in place
    assert {line["event"] for line in logs} >= {"refresh_token_reused", "access_token_refused"}


async def test_a_closed_store_is_unavailable_and_not_a_refusal(here: Instance, org: Member) -> None:
    """A good secret or token is never reported as wrong."""
    grant = await org.login(here)
    await here.store.close()
    for call in (
        log_in(here.identity, org.id, org.secret),
        here.identity.refresh(grant.refresh_token),
        here.identity.validate(grant.access_token),
        here.identity.introspect(org.id, grant.access_token),
        here.identity.revoke(org.id, grant.refresh_token),
        here.identity.list_sessions(org.id),
        here.identity.end_session(org.id, grant.session_id),
        here.identity.end_all_sessions(org.id),
    ):
        with pytest.raises(StoreUnavailableError):
            await call
