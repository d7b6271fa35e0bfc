"""Clients behind one address: the mistakes of one never keep another out.

The server knows all callers by one address, as behind a load balancer without a trusted
``X-Forwarded-For``.
"""

import base64
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from http_fixtures import ENVIRONMENT, KEY, ORG, Api, Reply, Tenant
from serving import Server, running_server
from slowness import slow

SETTING = "PRICEKEEPER_API_RATE_LIMITS"
CLAIM = "/api/v1/credentials/claim"
INVALID_TOKEN = 'Bearer realm="pricekeeper", error="invalid_token"'
NARROW = "failures=3,token=12,refresh=12,revoke=12,claim=12"
ATTEMPTS = 20
"""More than any of the limits lets pass at once."""

Start = Callable[[str], AbstractContextManager[Server]]


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server with these limits, on each store."""

    def started(limits: str) -> AbstractContextManager[Server]:
        folder: Path = tmp_path_factory.mktemp("near")
        store = None
        if request.param == "dynoxide":
            endpoint = request.getfixturevalue("dynoxide")
            prefix = f"near-{uuid.uuid4().hex[:8]}-"
            store = f"dynamodb://us-east-1?prefix={prefix}&endpoint={endpoint}"
        environment = {**ENVIRONMENT, SETTING: limits}
        return running_server(folder, environment=environment, store=store)

    return started


@pytest.fixture(scope="module")
def shared(start: Start) -> Iterator[Api]:
    """A server with narrow limits, whose one address keeps failing."""
    with start(NARROW) as server:
        yield Api(server.url)


@pytest.fixture
def barred(shared: Api) -> Tenant:
    """A tenant at an address that has just failed too often."""
    tenant = Tenant(shared).register()
    flood(shared)
    return tenant


def login(api: Api, client_id: str, secret: str) -> Reply:
    body = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    return api.call("POST", "/auth/token", body)


def refresh(api: Api, token: str) -> Reply:
    body = {"grant_type": "refresh_token", "refresh_token": token}
    return api.call("POST", "/auth/refresh", body)


def flood(api: Api) -> None:
    """Guess more often than any limit allows, until guesses are refused for it."""
    replies = [login(api, f"org-{uuid.uuid4()}", "pks_guess") for _ in range(ATTEMPTS)]
    assert {reply.status for reply in replies} <= {401, 429}
    assert replies[-1].status == 429


def basic(tenant: Tenant) -> dict[str, str]:
    text = f"{tenant.client_id}:{tenant.secrets[tenant.client_id]}"
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def test_a_valid_credential_gets_in(barred: Tenant) -> None:
    """Login, refresh, introspection, revocation and a claim, each after a flood of guesses."""
    api, secret = barred.api, barred.secrets[barred.client_id]
    granted = login(api, barred.client_id, secret)
    assert granted.status == 200, granted.data
    flood(api)
    refreshed = refresh(api, granted.json["refresh_token"])
    assert refreshed.status == 200, refreshed.data
    token = {"token": refreshed.json["refresh_token"]}
    flood(api)
    assert api.call("POST", "/auth/introspect", token, headers=basic(barred)).json["active"]
    flood(api)
    assert api.call("POST", "/auth/revoke", token, headers=basic(barred)).status == 200
    made = api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG)
    flood(api)
    claimed = api.call("POST", CLAIM, {"token": made.json["secret_retrieval"]["token"]})
    assert claimed.status == 200, claimed.data


def test_guesses_in_a_clients_own_name_do_not_use_up_its_logins(barred: Tenant) -> None:
    """A client's name is no secret: only who proves to be the client counts as the client."""
    api, guess = barred.api, {"token": "x", "client_id": barred.client_id, "client_secret": "guess"}
    for _ in range(ATTEMPTS):
        assert login(api, barred.client_id, "pks_guess").status in (401, 429)
        assert api.call("POST", "/auth/revoke", {**guess, "client_secret": "pks_x"}).status in (
            401,
            429,
        )
    assert login(api, barred.client_id, barred.secrets[barred.client_id]).status == 200
    assert api.call("POST", "/auth/revoke", {"token": "x"}, headers=basic(barred)).status == 200


def test_guessed_claims_do_not_use_up_those_of_others(barred: Tenant) -> None:
    """Wrong retrieval tokens are failures of the address, and nothing else."""
    api = barred.api
    made = api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG)
    guesses = [api.call("POST", CLAIM, {"token": "pkr_guess"}).status for _ in range(ATTEMPTS)]
    assert set(guesses) <= {404, 429}
    assert guesses[-1] == 429
    claim = {"token": made.json["secret_retrieval"]["token"]}
    assert api.call("POST", CLAIM, claim).status == 200


@pytest.mark.parametrize("how", ["evicted", "revoked", "ended"])
def test_a_token_of_ours_is_no_guess(barred: Tenant, how: str) -> None:
    """However often it is retried, the answer is 401 with a challenge, and a login helps."""
    api, client_id = barred.api, barred.client_id
    granted = barred.login(client_id)
    token = granted["access_token"]
    if how == "evicted":
        for _ in range(5):
            barred.login(client_id)
    elif how == "revoked":
        assert api.call("POST", "/auth/revoke", {"token": token}, token=token).status == 200
    else:
        assert api.call("DELETE", "/auth/sessions", token=token).status == 204
    for _ in range(ATTEMPTS):
        refused = api.call("GET", f"{barred.app}/limits", token=token)
        assert (refused.status, refused.code) == (401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"] == INVALID_TOKEN
        if how != "revoked":  # of that session, one access token was
            spent = refresh(api, granted["refresh_token"])
            assert (spent.status, spent.json["error"]) == (400, "invalid_grant")
    again = barred.login(client_id)
    assert api.call("GET", f"{barred.app}/limits", token=again["access_token"]).status == 200
    assert refresh(api, again["refresh_token"]).status == 200


def test_a_forged_token_is_told_so_however_often(barred: Tenant) -> None:
    """A holder whose key was withdrawn can't be told from a forger, and has to log in again."""
    forged = f"{barred.app_token[:-4]}AAAA"
    for token in ("nonsense", forged) * ATTEMPTS:
        refused = barred.api.call("GET", f"{barred.app}/limits", token=token)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, INVALID_TOKEN)


def test_tokens_of_ours_and_nothing_at_all_bar_no_address(start: Start) -> None:
    with start("failures=1") as server:
        tenant = Tenant(Api(server.url)).register()
        granted = tenant.login(tenant.client_id)
        tenant.api.call("DELETE", "/auth/sessions", token=granted["access_token"])
        for _ in range(3):
            path = f"{tenant.app}/limits"
            assert tenant.api.call("GET", path, token=granted["access_token"]).status == 401
            assert refresh(tenant.api, granted["refresh_token"]).status == 400
            assert tenant.api.call("GET", path).status == 401
            assert tenant.api.call("GET", tenant.org).status == 401
            assert tenant.api.call("POST", "/auth/revoke", {"token": "x"}).status == 401
        assert login(tenant.api, tenant.client_id, "guess").status == 401
        assert login(tenant.api, tenant.client_id, "guess").status == 429
        assert tenant.api.call("GET", tenant.org, key="wrong").status == 401
        assert tenant.api.call("GET", tenant.org, key="wrong").status == 429


def test_eight_processes_share_five_sessions(start: Start) -> None:
    with start("on") as server:
        tenant = Tenant(Api(server.url)).register()
        tokens = [tenant.login(tenant.client_id)["access_token"] for _ in range(8)]
        refused = 0
        for _ in range(12):
            for process in range(8):
                reply = tenant.api.call("GET", f"{tenant.app}/limits", token=tokens[process])
                if reply.status != 200:
                    assert reply.headers["www-authenticate"] == INVALID_TOKEN
                    refused += 1
                    tokens[process] = tenant.login(tenant.client_id)["access_token"]
                    reply = tenant.api.call("GET", f"{tenant.app}/limits", token=tokens[process])
                assert reply.status == 200, reply.data
        assert refused > 60  # more than the failures that an address has in a minute


@pytest.mark.parametrize("method", ["GET", *slow("PUT")])
def test_a_barred_address_guesses_no_key(start: Start, method: str) -> None:
    """Keys are refused before they are compared: a right one would tell that it is right.

    Neither do keys that were guessed keep clients out, nor clients' guesses the key.
    """
    with start("failures=2") as server:
        api = Api(server.url)
        tenant = Tenant(api).register()
        for _ in range(3):
            login(api, tenant.client_id, "pks_guess")
        assert login(api, tenant.client_id, "pks_guess").status == 429
        assert api.call(method, tenant.org, ORG, key=KEY).status == 200
        wrong = [api.call(method, tenant.org, ORG, key=KEY[:-1] + end) for end in "xyz"]
        assert [reply.status for reply in wrong] == [401, 401, 429]
        right = api.call(method, tenant.org, ORG, key=KEY)
        assert (right.status, right.code) == (429, "RATE_LIMIT_EXCEEDED")
        assert 0 < int(right.headers["retry-after"]) <= 60
        assert api.call("GET", f"{tenant.app}/limits", token=tenant.app_token).status == 200
        assert tenant.login(tenant.client_id)["access_token"]
