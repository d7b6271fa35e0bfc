"""Hostile input on every endpoint: always a problem of the 4xx kind, and nothing changes."""

import json
import socket
from itertools import product
from typing import Any

import pytest

from http_fixtures import KEY, Api, Reply, Tenant, usage
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from raw_http import connected, received
from tenant_matrix import BODIES

DEEP = b"[" * 20_000 + b"]" * 20_000
RAW = [
    *(b"", b" ", b"null", b"true", b"0", b'""', b"[]", b"[[]]", b"{", b"}", b'{"a"}', b"\x00"),
    *(b"{'a': 1}", b'{"a": 1,}', b'{"a": 1}{"a": 1}', b'{"a": 1, "a": 2}', b'{"__proto__": {}}'),
    *(b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a": "\xc3\x28"}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}'),
    *(b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1e999}', b"a=b", b"<xml/>"),
    *(b'{"a": ' + b"9" * 400 + b"}", b'{"a": ' + b"9" * 5000 + b"}"),
    *(DEEP, b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
]
WRONG: list[Any] = [
    *(None, True, -1, 0, 2**63, 2**64, -(2**63) - 1, 10**30, 1.5, -0.0, 1e308),
    *("", " ", "\u0000", "x" * 5000, "#", "ORG#1", "../../etc/passwd", "\u202e", "😀" * 100),
    *("'; DROP TABLE Config; --", "${jndi:ldap://x}"),
    *([], [None], {}, {"": ""}, {"a": {"b": {"c": {}}}}, [[[[[[[]]]]]]]),
]
WITH_BODY = [operation for operation in ROUTES if operation.body is not None]


@pytest.fixture(scope="module")
def victim(api: Api) -> Tenant:
    """An app whose tokens may be ended: a value that fits may well do so."""
    return Tenant(api).register()


def target(operation: Route, tenant: Tenant, victim: Tenant) -> Tenant:
    return victim if operation.tag == "containment" else tenant


def path_of(operation: Route, tenant: Tenant) -> str:
    some_id = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    named = dict.fromkeys(("lease_id", "authorization_id", "request_id"), some_id)
    named |= {"key_id": "0" * 12, "channel": "ops", "file": "index.js", "date": "2026-01-01"}
    named |= {"session_id": "001-" + "x" * 22, "org_id": tenant.org_id, "app_id": tenant.app_id}
    return operation.path.format(**named)


def sent(operation: Route, tenant: Tenant, **body: Any) -> Reply:
    """The answer to a request with an app's token and the deployment's key."""
    path, token = path_of(operation, tenant), tenant.app_token
    return tenant.api.call(operation.method, path, **body, token=token, key=KEY)


def assert_refused(reply: Any, sent: object) -> None:
    assert 400 <= reply.status < 500, (reply.status, reply.data, sent)
    body = reply.json
    assert body["code"]
    assert body["request_id"] == reply.headers["x-request-id"]
    if "error" not in body:
        assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_garbage_is_refused_everywhere(tenant: Tenant, victim: Tenant, operation: Route) -> None:
    """Bodies that are no JSON, or not quite, or JSON of another shape."""
    tenant = target(operation, tenant, victim)
    for data in RAW:
        assert_refused(sent(operation, tenant, data=data), data[:50])


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_wrong_values_are_refused_everywhere(
    tenant: Tenant, victim: Tenant, operation: Route
) -> None:
    """Every field, with every kind of wrong value; a 2xx only where the value happens to fit."""
    tenant = target(operation, tenant, victim)
    needed = {"authorize": {"input_tokens": 1, "max_output_tokens": 1}}
    for name, value in product(operation.body.__struct_fields__, WRONG):
        others = usage() if operation.name == "recordUsage" else needed.get(operation.name, {})
        reply = sent(operation, tenant, body={**others, name: value})
        assert reply.status < 500, (name, value, reply.data)
        if reply.status >= 400:
            assert_refused(reply, (name, value))


def test_a_body_that_is_too_large(api: Api, tenant: Tenant) -> None:
    for size in (1024 * 1024 + 1, 3 * 1024 * 1024):
        reply = api.call("POST", f"{tenant.app}/usage", data=b"x" * size, token=tenant.app_token)
        assert (reply.status, reply.code) == (413, "PAYLOAD_TOO_LARGE")


def test_unknown_paths_and_methods_are_problems(api: Api) -> None:
    """405 with the methods that there are."""
    for path in (
        *("/api", "/api/v1", "/api/v1/orgs/", "/api/v1/orgs//apps", "/API/V1/ORGS", "/auth/token/"),
        *("/%2e%2e/%2e%2e/etc/passwd", "/" + "x" * 8000, "/healthz%00", "/docs/../metrics"),
    ):
        assert_refused(api.call("GET", path), path)
    for method in ("PATCH", "OPTIONS", "TRACE", "PROPFIND", "POST"):
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
        *(
            b"POST /auth/token HTTP/1.1\r\nHost: x\r\n" + header
            for header in (
                b"Content-Length: -5\r\n\r\n",
                b"Content-Length: abc\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            )
        ),
        b"\x00" * 1000,
    ],
    ids=range(9),
)
def test_raw_garbage_on_the_socket(api: Api, data: bytes) -> None:
    with connected(api.url, data) as raw:
        raw.shutdown(socket.SHUT_WR)
        answer = received(raw)
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4"), answer
        assert b"application/problem+json" in head or b"application/json" in head
        assert json.loads(body)["code"]
    assert api.call("GET", "/healthz").status == 200


def test_request_ids_are_kept_if_they_are_sane(api: Api) -> None:
    for name in ("abc-1", "", "x" * 65, "a b", "a\tb", "ü"):
        headers = {"x-request-id": name.encode().decode("latin-1")}
        answered = api.call("GET", "/healthz", headers=headers).headers["x-request-id"]
        assert (answered == name) == (name == "abc-1")


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
    request = (
        f"GET {tenant.app}/limits HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: Bearer {tenant.app_token}\r\nX-Api-Key: a\r\nContent-Type: a\r\n"
        f"{name}: a\r\n\r\n"
    )
    with connected(api.url, request.encode()) as raw:
        answer = received(raw)
    assert answer.startswith(b"HTTP/1.1 400")
    assert name.encode() in answer.partition(b"\r\n\r\n")[2].lower()


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
