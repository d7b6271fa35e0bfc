"""Hostile input on every endpoint: always a problem of the 4xx kind, and nothing changes."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from http_fixtures import KEY, Api, Tenant, usage
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from tenant_matrix import BODIES

DEEP = b"[" * 20_000 + b"]" * 20_000
RAW = [
    b"",
    b" ",
    b"null",
    b"true",
    b"0",
    b'""',
    b"[]",
    b"[[]]",
    b"{",
    b"}",
    b'{"a"}',
    b"{'a': 1}",
    b'{"a": 1,}',
    b'{"a": 1}{"a": 1}',
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"a": "\xc3\x28"}',
    b'{"a": "\\ud800"}',
    b'{"\\udfff": 1}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": -Infinity}',
    b'{"a": 1e999}',
    b'{"a": 1, "a": 2}',
    b'{"a": ' + b"9" * 400 + b"}",
    b'{"a": ' + b"9" * 5000 + b"}",
    DEEP,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"__proto__": {}}',
    b"a=b",
    b"<xml/>",
]
WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    1.5,
    -0.0,
    1e308,
    "",
    " ",
    "\u0000",
    "x" * 5000,
    "#",
    "ORG#1",
    "../../etc/passwd",
    "\u202e",
    "😀" * 100,
    "'; DROP TABLE Config; --",
    "${jndi:ldap://x}",
    [],
    [None],
    {},
    {"": ""},
    {"a": {"b": {"c": {}}}},
    [[[[[[[]]]]]]],
]
WITH_BODY = [operation for operation in ROUTES if operation.body is not None]


@pytest.fixture(scope="module")
def victim(api: Api) -> Tenant:
    """An app whose tokens may be ended: a value that fits may well do so."""
    return Tenant(api).register()


def target(operation: Route, tenant: Tenant, victim: Tenant) -> Tenant:
    return victim if operation.tag == "containment" else tenant


def path_of(operation: Route, tenant: Tenant) -> str:
    return operation.path.format(
        org_id=tenant.org_id,
        app_id=tenant.app_id,
        lease_id="7c9e6679-7425-40de-944b-e07fc1f90ae7",
        authorization_id="7c9e6679-7425-40de-944b-e07fc1f90ae7",
        request_id="7c9e6679-7425-40de-944b-e07fc1f90ae7",
        key_id="0" * 12,
        channel="ops",
        file="index.js",
        session_id="001-" + "x" * 22,
        date="2026-01-01",
    )


def assert_refused(reply: Any, sent: object) -> None:
    assert 400 <= reply.status < 500, (reply.status, reply.data, sent)
    body = reply.json
    assert body["code"]
    assert body["request_id"] == reply.headers["x-request-id"]
    if "error" not in body:
        assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_garbage_is_refused_everywhere(
    api: Api, tenant: Tenant, victim: Tenant, operation: Route
) -> None:
    """Bodies that are no JSON, or not quite, or JSON of another shape."""
    tenant = target(operation, tenant, victim)
    for data in RAW:
        reply = api.call(
            operation.method,
            path_of(operation, tenant),
            data=data,
            token=tenant.app_token,
            key=KEY,
        )
        assert_refused(reply, data[:50])


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_wrong_values_are_refused_everywhere(
    api: Api, tenant: Tenant, victim: Tenant, operation: Route
) -> None:
    """Every field, with every kind of wrong value; a 2xx only where the value happens to fit."""
    tenant = target(operation, tenant, victim)
    for name in operation.body.__struct_fields__:
        for value in WRONG:
            body = {name: value}
            if operation.name == "recordUsage":
                body = {**usage(), name: value}
            elif operation.name == "authorize":
                body = {"input_tokens": 1, "max_output_tokens": 1, name: value}
            reply = api.call(
                operation.method,
                path_of(operation, tenant),
                body,
                token=tenant.app_token,
                key=KEY,
            )
            assert reply.status < 500, (name, value, reply.data)
            if reply.status >= 400:
                assert_refused(reply, (name, value))


def test_a_body_that_is_too_large(api: Api, tenant: Tenant) -> None:
    for size in (1024 * 1024 + 1, 3 * 1024 * 1024):
        reply = tenant.record(data=b"x" * size)
        assert (reply.status, reply.code) == (413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/v1",
        "/api/v1/orgs/",
        "/api/v1/orgs//apps",
        "/API/V1/ORGS",
        "/auth/token/",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/" + "x" * 8000,
        "/healthz%00",
        "/docs/../metrics",
    ],
)
def test_unknown_paths_are_problems(api: Api, path: str) -> None:
    assert_refused(api.call("GET", path), path)


@pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "TRACE", "PROPFIND", "POST"])
def test_unknown_methods_are_problems(api: Api, method: str) -> None:
    """405 with the methods that there are."""
    reply = api.call(method, "/healthz")
    assert (reply.status, reply.code) == (405, "METHOD_NOT_ALLOWED")
    assert reply.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /auth/token HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /auth/token HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"POST /auth/token HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x00" * 1000,
    ],
    ids=range(9),
)
def test_raw_garbage_on_the_socket(api: Api, data: bytes) -> None:
    place = urlsplit(api.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=10) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        received = b""
        while part := raw.recv(65536):
            received += part
    if received:
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4"), received
        assert b"application/problem+json" in head or b"application/json" in head
        assert json.loads(body)["code"]
    assert api.call("GET", "/healthz").status == 200


def test_request_ids_are_kept_if_they_are_sane(api: Api) -> None:
    assert api.call("GET", "/healthz", headers={"x-request-id": "abc-1"}).headers[
        "x-request-id"
    ] == ("abc-1")
    for bad in ("", "x" * 65, "a b", "a\tb", "ü"):
        sent = {"x-request-id": bad.encode().decode("latin-1")}
        assert api.call("GET", "/healthz", headers=sent).headers["x-request-id"] != bad


def test_security_headers_are_on_every_answer(api: Api) -> None:
    for path in ("/healthz", "/docs", "/nope"):
        headers = api.call("GET", path, headers={"origin": "https://evil.example"}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "content-security-policy" in headers
        assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "content-type", "host"])
def test_who_says_something_twice_is_not_believed(api: Api, tenant: Tenant, name: str) -> None:
    """A proxy in front may have looked at the other one."""
    place = urlsplit(api.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=10) as raw:
        raw.sendall(
            f"GET {tenant.app}/limits HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {tenant.app_token}\r\nX-Api-Key: a\r\nContent-Type: a\r\n"
            f"{name}: a\r\n\r\n".encode()
        )
        received = b""
        while part := raw.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 400")
    assert name.encode() in received.partition(b"\r\n\r\n")[2].lower()


def test_an_escaped_slash_is_no_slash(api: Api, tenant: Tenant) -> None:
    """It would be part of a name, and no name has one."""
    for path in (f"{tenant.app}%2Fmodel-selection", f"{tenant.org}/apps%2fweb/model-selection"):
        reply = api.call("GET", path, token=tenant.app_token)
        assert (reply.status, reply.code) == (404, "NOT_FOUND")


DOTS = ("..", "%2e%2e", "%2E", "..%5c", "%252e%252e", "..%3b")
WITH_ID = [operation for operation in ROUTES if "{" in operation.path]


@pytest.mark.parametrize("operation", WITH_ID, ids=lambda operation: operation.name)
def test_no_id_is_a_dot_segment(api: Api, tenant: Tenant, victim: Tenant, operation: Route) -> None:
    """A proxy takes them for other paths, so no operation finds something by such an id."""
    known = path_of(operation, target(operation, tenant, victim)).split("/")
    for at, name in enumerate(operation.path.split("/")):
        for dots in DOTS if "{" in name else ():
            path = "/".join([*known[:at], dots, *known[at + 1 :]])
            body = BODIES.get(operation.name)
            reply = api.call(operation.method, path, body, token=tenant.app_token, key=KEY)
            assert 400 <= reply.status < 500, (path, reply.status)
