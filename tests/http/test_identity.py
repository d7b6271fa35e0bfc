"""Tokens and sessions over HTTP, as RFC 6749, 7009, 7662, 7517 and 8414 have them."""

import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from http_fixtures import ENVIRONMENT, Api, Reply, Tenant
from serving import running_server

FORM = {"content-type": "application/x-www-form-urlencoded"}


def form(api: Api, path: str, fields: dict[str, str], **more: Any) -> Reply:
    headers = {**FORM, **more.pop("headers", {})}
    return api.call("POST", path, data=urlencode(fields).encode(), headers=headers, **more)


def basic(tenant: Tenant, secret: str | None = None) -> dict[str, str]:
    text = f"{tenant.client_id}:{secret or tenant.secrets[tenant.client_id]}"
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def test_a_token_by_basic_form_or_json(api: Api, tenant: Tenant) -> None:
    """The three ways give the same shape."""
    grant = {"grant_type": "client_credentials"}
    client = {
        "client_id": tenant.client_id,
        "client_secret": tenant.secrets[tenant.client_id],
    }
    replies = [
        form(api, "/auth/token", grant, headers=basic(tenant)),
        form(api, "/auth/token", {**grant, **client}),
        api.call("POST", "/auth/token", {**grant, **client}),
    ]
    for reply in replies:
        assert reply.status == 200, reply.data
        assert reply.headers["cache-control"] == "no-store"
        assert reply.json.keys() == {
            *("access_token", "refresh_token", "token_type", "expires_in"),
            *("refresh_expires_in", "scope", "session_id"),
        }
        assert (reply.json["expires_in"], reply.json["token_type"]) == (3600, "Bearer")
        assert reply.json["refresh_expires_in"] == 2592000


@pytest.mark.parametrize(
    ("fields", "status", "error"),
    [
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({}, 400, "invalid_request"),
        ({"grant_type": "client_credentials"}, 400, "invalid_request"),
        ({"grant_type": "client_credentials", "client_id": "x"}, 401, "invalid_client"),
    ],
)
def test_errors_look_as_the_rfc_has_them(
    api: Api, tenant: Tenant, fields: dict[str, str], status: int, error: str
) -> None:
    """`error` and `error_description`, with our code beside them."""
    reply = form(api, "/auth/token", fields)
    assert (reply.status, reply.json["error"]) == (status, error)
    assert reply.json["error_description"]
    assert reply.headers["content-type"] == "application/json"
    wrong = form(
        api, "/auth/token", {"grant_type": "client_credentials"}, headers=basic(tenant, "pks_x")
    )
    assert (wrong.status, wrong.json["error"]) == (401, "invalid_client")
    assert wrong.headers["www-authenticate"].startswith("Basic")


def test_refresh_rotates_and_a_spent_token_ends_the_session(api: Api) -> None:
    """The successor works; presenting something that never was one does not."""
    tenant = Tenant(api).register()
    first = tenant.login(tenant.client_id)
    grant = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
    second = form(api, "/auth/refresh", grant)
    assert second.status == 200
    assert second.json["refresh_token"] != first["refresh_token"]
    assert second.json["session_id"] == first["session_id"]
    again = form(api, "/auth/refresh", grant)
    assert again.json["refresh_token"] == second.json["refresh_token"]
    bad = form(api, "/auth/refresh", {**grant, "refresh_token": "pkrt_nonsense"})
    assert (bad.status, bad.json["error"]) == (400, "invalid_grant")


def test_revoking_is_for_ones_own_tokens(api: Api, other: Tenant) -> None:
    """An unknown or another's token answers 200 and changes nothing of anybody's."""
    tenant = Tenant(api).register()
    mine = tenant.login(tenant.client_id)
    for token in ("nonsense", other.app_token):
        reply = form(api, "/auth/revoke", {"token": token}, headers=basic(tenant))
        assert reply.status == 200
    assert api.call("GET", f"{other.app}/limits", token=other.app_token).status == 200
    assert form(api, "/auth/revoke", {"token": mine["access_token"]}).status == 401
    revoke = {"token": mine["refresh_token"]}
    assert form(api, "/auth/revoke", revoke, token=mine["access_token"]).status == 200
    gone = api.call("GET", f"{tenant.app}/limits", token=mine["access_token"])
    assert (gone.status, gone.code) == (401, "UNAUTHORIZED")
    grant = {"grant_type": "refresh_token", "refresh_token": mine["refresh_token"]}
    assert form(api, "/auth/refresh", grant).json["error"] == "invalid_grant"


def test_introspection_speaks_of_ones_own_tokens(api: Api, tenant: Tenant, other: Tenant) -> None:
    """Another's is as inactive as one that never was."""
    mine = form(api, "/auth/introspect", {"token": tenant.app_token}, headers=basic(tenant)).json
    assert mine["active"] is True
    assert mine["sub"] == tenant.client_id
    assert mine["app_id"] == tenant.app_id
    for token in (other.app_token, "nonsense"):
        found = form(api, "/auth/introspect", {"token": token}, headers=basic(tenant))
        assert found.json == {"active": False}


def test_sessions_are_listed_ended_and_limited(api: Api) -> None:
    """At most five; the oldest gives way; ending one or all stops their tokens."""
    tenant = Tenant(api).register()
    oldest = tenant.app_token
    grants = [tenant.login(tenant.client_id) for _ in range(5)]
    assert api.call("GET", f"{tenant.app}/limits", token=oldest).status == 401
    token = grants[-1]["access_token"]
    listed = api.call("GET", "/auth/sessions", token=token).json
    assert len(listed["sessions"]) == listed["limit"] == 5
    assert sum(session["current"] for session in listed["sessions"]) == 1
    ended = grants[0]
    path = f"/auth/sessions/{ended['session_id']}"
    assert api.call("DELETE", path, token=token).status == 204
    assert api.call("DELETE", path, token=token).code == "NOT_FOUND"
    assert api.call("GET", f"{tenant.app}/limits", token=ended["access_token"]).status == 401
    assert api.call("DELETE", "/auth/sessions", token=token).status == 204
    assert api.call("GET", f"{tenant.app}/limits", token=token).status == 401


def test_keys_and_metadata_are_public(api: Api) -> None:
    """Public parts only, and every endpoint where it is."""
    keys = api.call("GET", "/.well-known/jwks.json").json["keys"]
    assert keys
    assert all(key.keys() == {"kty", "crv", "x", "y", "kid", "use", "alg"} for key in keys)
    metadata = api.call("GET", "/.well-known/oauth-authorization-server").json
    assert metadata["token_endpoint"] == f"{api.url}/auth/token"
    assert metadata["jwks_uri"] == f"{api.url}/.well-known/jwks.json"


def test_where_everything_is_follows_from_the_issuer(tmp_path: Path) -> None:
    """Not from what a caller says our name is; what follows from that is kept by nobody."""
    path = "/.well-known/oauth-authorization-server"
    environment = {**ENVIRONMENT, "PRICEKEEPER_ISSUER": "https://keeper.example.com/"}
    with running_server(tmp_path, environment=environment) as server:
        told = Api(server.url).call("GET", path, headers={"host": "evil.example"})
    assert told.json["token_endpoint"] == "https://keeper.example.com/auth/token"
    assert told.headers["cache-control"] == "public, max-age=300"


@pytest.mark.parametrize("host", ["a b", '"><script>', "x?y#", "a/b", "[::1", "x:y"])
def test_a_host_that_is_none_is_not_repeated(api: Api, host: str) -> None:
    """Nor is anything remembered that was made from one."""
    path = "/.well-known/oauth-authorization-server"
    refused = api.call("GET", path, headers={"host": host})
    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    for good in ("keeper.example.com:8443", "[::1]:80"):
        told = api.call("GET", path, headers={"host": good})
        assert told.json["token_endpoint"] == f"http://{good}/auth/token"
        assert told.headers["cache-control"] == "no-store"
