"""Tokens and sessions over HTTP, as RFC 6749, 7009, 7662, 7517 and 8414 have them."""

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from http_fixtures import Api, Reply, Tenant
from served import served
from tenant_matrix import without_id

FORM = {"content-type": "application/x-www-form-urlencoded"}
METADATA = "/.well-known/oauth-authorization-server"


def form(api: Api, path: str, fields: dict[str, str], **more: Any) -> Reply:
    headers = {**FORM, **more.pop("headers", {})}
    return api.call("POST", path, data=urlencode(fields).encode(), headers=headers, **more)


def test_a_token_by_basic_form_or_json(api: Api, tenant: Tenant) -> None:
    """The three ways give the same shape."""
    for reply in (
        form(api, "/auth/token", {"grant_type": "client_credentials"}, headers=tenant.basic()),
        form(api, "/auth/token", tenant.credentials()),
        tenant.try_login(),
    ):
        assert reply.status == 200, reply.data
        assert reply.headers["cache-control"] == "no-store"
        assert reply.json.keys() == {
            *("access_token", "refresh_token", "token_type", "expires_in"),
            *("refresh_expires_in", "scope", "session_id"),
        }
        assert (reply.json["expires_in"], reply.json["token_type"]) == (3600, "Bearer")
        assert reply.json["refresh_expires_in"] == 2592000


def test_errors_look_as_the_rfc_has_them(api: Api, tenant: Tenant) -> None:
    """`error` and `error_description`, with our code beside them."""
    grant = {"grant_type": "client_credentials"}
    for fields, status, error in (
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({}, 400, "invalid_request"),
        (grant, 400, "invalid_request"),
        ({**grant, "client_id": "x"}, 401, "invalid_client"),
    ):
        reply = form(api, "/auth/token", fields)
        assert (reply.status, reply.json["error"]) == (status, error)
        assert reply.json["error_description"]
        assert reply.headers["content-type"] == "application/json"
    wrong = form(api, "/auth/token", grant, headers=tenant.basic("pks_x"))
    assert (wrong.status, wrong.json["error"]) == (401, "invalid_client")
    assert wrong.headers["www-authenticate"].startswith("Basic")


def refresh_form(token: str, **more: str) -> dict[str, str]:
    return {"grant_type": "refresh_token", "refresh_token": token, **more}


def test_refresh_rotates_and_a_spent_token_ends_the_session(api: Api) -> None:
    """The successor works; presenting something that never was one does not."""
    tenant = Tenant(api).register()
    first = tenant.login()
    second = form(api, "/auth/refresh", refresh_form(first["refresh_token"]))
    assert second.status == 200
    assert second.json["refresh_token"] != first["refresh_token"]
    assert second.json["session_id"] == first["session_id"]
    again = form(api, "/auth/refresh", refresh_form(first["refresh_token"]))
    assert again.json["refresh_token"] == second.json["refresh_token"]
    bad = form(api, "/auth/refresh", refresh_form("pkrt_nonsense"))
    assert (bad.status, bad.json["error"]) == (400, "invalid_grant")


def test_a_refresh_token_is_exchanged_at_the_token_endpoint(api: Api) -> None:
    """RFC 6749, section 6: with the client's credentials, by Basic or in the body."""
    tenant = Tenant(api).register()
    granted = tenant.login()
    token = granted["refresh_token"]
    refused = form(api, "/auth/token", refresh_form(token))
    assert (refused.status, refused.json["error"]) == (401, "invalid_client")
    assert refused.headers["www-authenticate"] == 'Basic realm="pricekeeper"'
    by_basic = form(api, "/auth/token", refresh_form(token), headers=tenant.basic())
    assert by_basic.status == 200, by_basic.data
    assert by_basic.json.keys() == granted.keys()
    assert by_basic.json["session_id"] == granted["session_id"]
    token = by_basic.json["refresh_token"]
    body = {**tenant.credentials(), **refresh_form(token)}
    by_body = api.call("POST", "/auth/token", body)
    assert by_body.status == 200, by_body.data
    assert by_body.json["refresh_token"] != token


@pytest.mark.parametrize("path", ["/auth/token", "/auth/refresh"])
def test_credentials_that_come_with_a_refresh_must_be_right(
    api: Api, other: Tenant, path: str
) -> None:
    """A wrong secret is refused, and so is another client's token; neither spends it."""
    tenant = Tenant(api).register()
    token = tenant.login()["refresh_token"]
    wrong = form(api, path, refresh_form(token), headers=tenant.basic("pks_wrong"))
    assert (wrong.status, wrong.json["error"]) == (401, "invalid_client")
    theirs = form(api, path, refresh_form(token), headers=other.basic())
    assert (theirs.status, theirs.json["error"]) == (400, "invalid_grant")
    never = form(api, path, refresh_form("pkrt_nonsense"), headers=other.basic())
    assert without_id(theirs) == without_id(never)
    mine = form(api, path, refresh_form(token), headers=tenant.basic())
    assert (mine.status, mine.json["token_type"]) == (200, "Bearer")


def test_a_refresh_token_belongs_to_its_grant(api: Api, tenant: Tenant) -> None:
    for fields in (
        {"grant_type": "refresh_token"},
        {"grant_type": "client_credentials", "refresh_token": "pkrt_x"},
    ):
        reply = form(api, "/auth/token", fields, headers=tenant.basic())
        assert (reply.status, reply.json["error"]) == (400, "invalid_request")
        assert "refresh_token" in reply.json["error_description"]


def test_a_deployment_may_ask_for_the_secret_at_every_refresh(tmp_path: Path) -> None:
    """Then a refresh token alone, be it stolen or not, is worth nothing."""
    with served(tmp_path, {"PRICEKEEPER_REFRESH_AUTH": "required"}) as api:
        tenant = Tenant(api).register()
        grant = refresh_form(tenant.login()["refresh_token"])
        refused = form(api, "/auth/refresh", grant)
        assert (refused.status, refused.json["error"]) == (401, "invalid_client")
        assert form(api, "/auth/refresh", grant, headers=tenant.basic()).status == 200


def test_a_bearer_that_does_not_count_is_told_so_at_oauth_endpoints(api: Api) -> None:
    """RFC 6750: with what is wrong if a token came, and without if none did."""
    tenant = Tenant(api).register()
    bearer = 'Bearer realm="pricekeeper"'
    for path in ("/auth/revoke", "/auth/introspect"):
        wrong = form(api, path, {"token": "x"}, token="nonsense")
        assert (wrong.status, wrong.json["error"]) == (401, "invalid_token")
        assert wrong.headers["www-authenticate"] == f'{bearer}, error="invalid_token"'
        nothing = form(api, path, {"token": "x"})
        assert (nothing.status, nothing.headers["www-authenticate"]) == (401, bearer)
    reply = api.call("GET", f"{tenant.org}/aggregates/today", token=tenant.app_token)
    assert reply.headers["www-authenticate"] == f'{bearer}, error="insufficient_scope"'


def test_revoking_is_for_ones_own_tokens(api: Api, other: Tenant) -> None:
    tenant = Tenant(api).register()
    mine = tenant.login()
    for token in ("nonsense", other.app_token):
        reply = form(api, "/auth/revoke", {"token": token}, headers=tenant.basic())
        assert reply.status == 200
    assert other.ask("GET", "limits").status == 200
    assert form(api, "/auth/revoke", {"token": mine["access_token"]}).status == 401
    revoke = {"token": mine["refresh_token"]}
    assert form(api, "/auth/revoke", revoke, token=mine["access_token"]).status == 200
    gone = api.call("GET", f"{tenant.app}/limits", token=mine["access_token"])
    assert (gone.status, gone.code) == (401, "UNAUTHORIZED")
    assert api.refresh(mine["refresh_token"]).json["error"] == "invalid_grant"


def test_introspection_speaks_of_ones_own_tokens(api: Api, tenant: Tenant, other: Tenant) -> None:
    """Another's is as inactive as one that never was."""
    headers = tenant.basic()
    mine = form(api, "/auth/introspect", {"token": tenant.app_token}, headers=headers).json
    assert (mine["active"], mine["sub"]) == (True, tenant.client_id)
    assert mine["app_id"] == tenant.app_id
    for token in (other.app_token, "nonsense"):
        found = form(api, "/auth/introspect", {"token": token}, headers=headers)
        assert found.json == {"active": False}


def test_sessions_are_listed_ended_and_limited(api: Api) -> None:
    """At most five; the oldest gives way; ending one or all stops their tokens."""
    tenant = Tenant(api).register()
    oldest = tenant.app_token
    grants = [tenant.login() for _ in range(5)]
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
    metadata = api.call("GET", METADATA).json
    assert metadata["token_endpoint"] == f"{api.url}/auth/token"
    assert metadata["jwks_uri"] == f"{api.url}/.well-known/jwks.json"


def test_the_metadata_promises_what_the_endpoints_do(api: Api) -> None:
    """RFC 8414: each grant and each way to authenticate that it names, tried where it says."""
    tenant = Tenant(api).register()
    metadata = api.call("GET", METADATA).json
    token = tenant.login()["refresh_token"]
    fields = {"client_credentials": {}, "refresh_token": {"refresh_token": token}}
    assert set(metadata["grant_types_supported"]) == fields.keys()
    path = metadata["token_endpoint"].removeprefix(api.url)
    for grant in metadata["grant_types_supported"]:
        body = {"grant_type": grant, **fields[grant]}
        assert form(api, path, body, headers=tenant.basic()).status == 200, grant
    scopes = {scope for client in tenant.secrets for scope in tenant.login(client)["scope"].split()}
    assert set(metadata["scopes_supported"]) == scopes
    client = tenant.credentials()
    del client["grant_type"]
    ways: dict[str, dict[str, Any]] = {
        "client_secret_basic": {"headers": tenant.basic()},
        "client_secret_post": {"fields": client},
        "Bearer": {"token": tenant.login()["access_token"]},
    }
    for endpoint in ("token", "revocation", "introspection"):
        path = metadata[f"{endpoint}_endpoint"].removeprefix(api.url)
        for way in metadata[f"{endpoint}_endpoint_auth_methods_supported"]:
            more = dict(ways[way])
            body = {"token": "x"} if endpoint != "token" else {"grant_type": "client_credentials"}
            reply = form(api, path, {**body, **more.pop("fields", {})}, **more)
            assert reply.status == 200, (endpoint, way)


def test_where_everything_is_follows_from_the_issuer(tmp_path: Path) -> None:
    with served(tmp_path, {"PRICEKEEPER_ISSUER": "https://keeper.example.com/"}) as api:
        told = api.call("GET", METADATA, headers={"host": "evil.example"})
    assert told.json["token_endpoint"] == "https://keeper.example.com/auth/token"
    assert told.headers["cache-control"] == "public, max-age=300"


def test_a_host_that_is_none_is_not_repeated(api: Api) -> None:
    for host in ("a b", '"><script>', "x?y#", "a/b", "[::1", "x:y"):
        refused = api.call("GET", METADATA, headers={"host": host})
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    for good in ("keeper.example.com:8443", "[::1]:80"):
        told = api.call("GET", METADATA, headers={"host": good})
        assert told.json["token_endpoint"] == f"http://{good}/auth/token"
        assert told.headers["cache-control"] == "no-store"
