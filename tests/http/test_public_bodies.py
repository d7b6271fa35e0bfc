"""Bodies that are read before authentication: small, and failures count."""

import json
import uuid
from collections.abc import Iterator

import pytest

from http_fixtures import CLAIM, ENVIRONMENT, KEY, Api, Reply, Tenant, store_url
from pricekeeper.http.edge import BATCH_BYTES_MAX, BODY_BYTES_MAX, SETTINGS_BYTES_MAX
from scraping import moves
from serving import running_server

FAILURES = 6
FORM = {"content-type": "application/x-www-form-urlencoded"}
PUBLIC = ("/auth/token", "/auth/refresh", "/auth/revoke", "/auth/introspect", CLAIM)


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def strict(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """A server that lets an address fail a few times a minute, and everything else is free."""
    limits = "token=0,refresh=0,revoke=0,claim=0,provisioning=0,selection=0,aggregates=0"
    environment = {
        **ENVIRONMENT,
        "PRICEKEEPER_API_RATE_LIMITS": f"{limits},failures={FAILURES}",
        "PRICEKEEPER_TRUSTED_PROXIES": "127.0.0.1",
    }
    folder = tmp_path_factory.mktemp("bodies")
    store = store_url(request, request.param, folder)
    with running_server(folder, environment=environment, store=store) as server:
        yield Api(server.url)


def post(api: Api, path: str, data: bytes, **headers: str) -> Reply:
    return api.call("POST", path, data=data, headers=headers)


@pytest.mark.parametrize("path", PUBLIC)
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_ends_at_sixteen_kibibytes(api: Api, path: str, declared: bool) -> None:
    """Whether it says so before or not; up to there it is read and judged."""
    fits = json.dumps({"nonsense": 1}).encode().ljust(BODY_BYTES_MAX)
    for data, statuses in ((fits, (400, 401)), (fits + b" ", (413,))):
        if declared:
            reply = post(api, path, data)
        else:
            chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
            reply = post(api, path, chunked, **{"transfer-encoding": "chunked"})
        assert reply.status in statuses, reply.data
    assert reply.json["code"] == "PAYLOAD_TOO_LARGE"


def test_each_operation_has_a_bound_that_suits_it(api: Api, tenant: Tenant) -> None:
    """A batch of records has to fit, and settings with limits for every label."""
    bounds = {
        ("POST", f"{tenant.app}/usage"): BODY_BYTES_MAX,
        ("POST", f"{tenant.app}/limits/acquire"): BODY_BYTES_MAX,
        ("POST", f"{tenant.app}/usage/batch"): BATCH_BYTES_MAX,
        ("PUT", tenant.org): SETTINGS_BYTES_MAX,
    }
    for (method, path), bytes_max in bounds.items():
        fits = b"{}".rjust(bytes_max)
        for data, status in ((fits, 400), (b" " + fits, 413)):
            reply = api.call(method, path, data=data, token=tenant.app_token, key=KEY)
            assert reply.status == status, path


def test_a_body_with_many_values_is_refused_before_it_is_parsed(api: Api, tenant: Tenant) -> None:
    path = f"{tenant.app}/usage/batch"
    for filler in (b"{}", b"[]", b"0", b'{"a":0}'):
        data = b'{"requests":[' + b",".join([filler] * 50_000) + b"]}"
        reply = api.call("POST", path, data=data, token=tenant.app_token)
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
        assert "values at most" in reply.json["detail"]


BAD = {
    "no JSON": (b"{", {}),
    "a key twice": (b'{"token": "a", "token": "b"}', {}),
    "wrong fields": (b'{"nonsense": 1}', {}),
    "too large": (b"x" * 20_000, {}),
    "no form": (b"\xff", FORM),
    "a parameter twice": (b"token=a&token=b", FORM),
    "of no kind": (b"<x/>", {"content-type": "text/xml"}),
}


@pytest.mark.parametrize("path", PUBLIC)
@pytest.mark.parametrize(("data", "headers"), BAD.values(), ids=BAD)
def test_what_can_not_be_read_is_a_failure_of_its_address(
    strict: Api, path: str, data: bytes, headers: dict[str, str]
) -> None:
    """So that an address is refused after a few, as for wrong secrets; others are not."""
    mine = f"2001:db8:{uuid.uuid4().hex[:4]}:{uuid.uuid4().hex[:4]}::1"
    statuses = []
    for _ in range(3 * FAILURES):
        reply = post(strict, path, data, **headers, **{"x-forwarded-for": mine})
        statuses.append(reply.status)
        if reply.status == 429:
            break
    assert statuses[-1] == 429
    assert set(statuses[:-1]) <= {400, 413}
    assert FAILURES <= len(statuses) <= 2 * FAILURES
    other = f"2001:db8:{uuid.uuid4().hex[:4]}:{uuid.uuid4().hex[:4]}::2"
    assert post(strict, path, data, **headers, **{"x-forwarded-for": other}).status in (400, 413)


def test_a_misspelt_body_of_a_known_client_is_no_failure(strict: Api) -> None:
    """It is limited as that client, not as an address that others may share."""
    tenant = Tenant(strict).register()
    name = 'pricekeeper_api_limit_decisions_total{limit="failures",outcome="granted"}'
    with moves(strict, {name: 0}):
        for _ in range(2 * FAILURES):
            reply = strict.call("POST", f"{tenant.app}/usage", data=b"{", token=tenant.app_token)
            assert reply.status == 400
