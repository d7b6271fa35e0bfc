"""Clients behind one address: the mistakes of one never keep another out.

The server knows all callers by one address, as behind a load balancer without a trusted
``X-Forwarded-For``.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from http_fixtures import CLAIM, KEY, ORG, Api, Reply, Tenant, store_url
from served import served
from slowness import slow

SETTING = "PRICEKEEPER_API_RATE_LIMITS"
INVALID_TOKEN = 'Bearer realm="pricekeeper", error="invalid_token"'
NARROW = "failures=3,token=12,refresh=12,revoke=12,claim=12"
ATTEMPTS = 20
"""More than any of the limits lets pass at once."""

Start = Callable[[str], AbstractContextManager[Api]]


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server with these limits, on each store."""

    def started(limits: str) -> AbstractContextManager[Api]:
        folder = tmp_path_factory.mktemp("near")
        return served(folder, {SETTING: limits}, store=store_url(request, request.param, folder))

    return started


@pytest.fixture(scope="module")
def shared(start: Start) -> Iterator[Api]:
    """A server with narrow limits, whose one address keeps failing."""
    with start(NARROW) as api:
        yield api


@pytest.fixture
def barred(shared: Api) -> Tenant:
    """A tenant at an address that has just failed too often."""
    tenant = Tenant(shared).register()
    flood(shared)
    return tenant


def login(api: Api, client_id: str, secret: str) -> Reply:
    body = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    return api.call("POST", "/auth/token", body)


def flood(api: Api) -> None:
    """Guess more often than any limit allows, until guesses are refused for it."""
    replies = [login(api, f"org-{uuid.uuid4()}", "pks_guess") for _ in range(ATTEMPTS)]
    assert {reply.status for reply in replies} <= {401, 429}
    assert replies[-1].status == 429


def test_a_valid_credential_gets_in(barred: Tenant) -> None:
    """Login, refresh, introspection, revocation and a claim, each after a flood of guesses."""
    api, headers = barred.api, barred.basic()
    granted = barred.login()
    flood(api)
    refreshed = api.refresh(granted["refresh_token"])
    assert refreshed.status == 200, refreshed.data
    token = {"token": refreshed.json["refresh_token"]}
    flood(api)
    assert api.call("POST", "/auth/introspect", token, headers=headers).json["active"]
    flood(api)
    assert api.call("POST", "/auth/revoke", token, headers=headers).status == 200
    made = api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG)
    flood(api)
    assert api.claim(made).status == 200


def test_guesses_in_a_clients_own_name_do_not_use_up_its_logins(barred: Tenant) -> None:
    """A client's name is no secret: only who proves to be the client counts as the client."""
    api, guess = barred.api, {"token": "x", "client_id": barred.client_id, "client_secret": "pks_x"}
    for _ in range(ATTEMPTS):
        for guessed in (barred.try_login("pks_guess"), api.call("POST", "/auth/revoke", guess)):
            assert guessed.status in (401, 429)
    assert barred.try_login().status == 200
    assert api.call("POST", "/auth/revoke", {"token": "x"}, headers=barred.basic()).status == 200


def test_guessed_claims_do_not_use_up_those_of_others(barred: Tenant) -> None:
    """Wrong retrieval tokens are failures of the address, and nothing else."""
    api = barred.api
    made = api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG)
    guesses = [api.call("POST", CLAIM, {"token": "pkr_guess"}).status for _ in range(ATTEMPTS)]
    assert set(guesses) <= {404, 429}
    assert guesses[-1] == 429
    assert api.claim(made).status == 200


@pytest.mark.parametrize("how", ["evicted", "revoked", "ended"])
def test_a_token_of_ours_is_no_guess(barred: Tenant, how: str) -> None:
    """However often it is retried, the answer is 401 with a challenge, and a login helps."""
    api, granted = barred.api, barred.login()
    token = granted["access_token"]
    if how == "evicted":
        for _ in range(5):
            barred.login()
    elif how == "revoked":
        assert api.call("POST", "/auth/revoke", {"token": token}, token=token).status == 200
    else:
        assert api.call("DELETE", "/auth/sessions", token=token).status == 204
    for _ in range(ATTEMPTS):
        refused = api.call("GET", f"{barred.app}/limits", token=token)
        assert (refused.status, refused.code) == (401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"] == INVALID_TOKEN
        if how != "revoked":  # of that session, one access token was
            spent = api.refresh(granted["refresh_token"])
            assert (spent.status, spent.json["error"]) == (400, "invalid_grant")
    again = barred.login()
    assert api.call("GET", f"{barred.app}/limits", token=again["access_token"]).status == 200
    assert api.refresh(again["refresh_token"]).status == 200


def test_a_forged_token_is_told_so_however_often(barred: Tenant) -> None:
    """A holder whose key was withdrawn can't be told from a forger, and has to log in again."""
    forged = f"{barred.app_token[:-4]}AAAA"
    for token in ("nonsense", forged) * ATTEMPTS:
        refused = barred.api.call("GET", f"{barred.app}/limits", token=token)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, INVALID_TOKEN)


def test_tokens_of_ours_and_nothing_at_all_bar_no_address(start: Start) -> None:
    with start("failures=1") as api:
        tenant = Tenant(api).register()
        granted = tenant.login()
        token, path = granted["access_token"], f"{tenant.app}/limits"
        api.call("DELETE", "/auth/sessions", token=token)
        for _ in range(3):
            assert api.call("GET", path, token=token).status == 401
            assert api.refresh(granted["refresh_token"]).status == 400
            assert api.call("GET", path).status == 401
            assert api.call("GET", tenant.org).status == 401
            assert api.call("POST", "/auth/revoke", {"token": "x"}).status == 401
        assert [tenant.try_login("guess").status for _ in range(2)] == [401, 429]
        assert [api.call("GET", tenant.org, key="wrong").status for _ in range(2)] == [401, 429]


def test_eight_processes_share_five_sessions(start: Start) -> None:
    with start("on") as api:
        tenant = Tenant(api).register()
        tokens = [tenant.login()["access_token"] for _ in range(8)]
        refused = 0
        for process in [*range(8)] * 12:
            tenant.app_token = tokens[process]
            reply = tenant.ask("GET", "limits")
            if reply.status != 200:
                assert reply.headers["www-authenticate"] == INVALID_TOKEN
                refused += 1
                tenant.app_token = tokens[process] = tenant.login()["access_token"]
                reply = tenant.ask("GET", "limits")
            assert reply.status == 200, reply.data
        assert refused > 60  # more than the failures that an address has in a minute


@pytest.mark.parametrize("method", ["GET", *slow("PUT")])
def test_a_barred_address_guesses_no_key(start: Start, method: str) -> None:
    """Keys are refused before they are compared: a right one would tell that it is right.

    Neither do keys that were guessed keep clients out, nor clients' guesses the key.
    """
    with start("failures=2") as api:
        tenant = Tenant(api).register()
        guesses = [tenant.try_login("pks_guess").status for _ in range(4)]
        assert guesses[-1] == 429
        assert api.call(method, tenant.org, ORG, key=KEY).status == 200
        wrong = [api.call(method, tenant.org, ORG, key=KEY[:-1] + end).status for end in "xyz"]
        assert wrong == [401, 401, 429]
        right = api.call(method, tenant.org, ORG, key=KEY)
        assert (right.status, right.code) == (429, "RATE_LIMIT_EXCEEDED")
        assert 0 < int(right.headers["retry-after"]) <= 60
        assert tenant.ask("GET", "limits").status == 200
        assert tenant.login()["access_token"]
