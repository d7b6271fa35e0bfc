"""Credentials as AWS SDKs fetch them, over a socket, by hand and with the real botocore."""

import base64
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import ContainerProvider, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError
from botocore.utils import ContainerMetadataFetcher

from http_fixtures import Api, Reply, Tenant
from pricekeeper.bootstrap.secrets import KEY_FILE
from pricekeeper.clock import SystemClock
from pricekeeper.http.openapi import openapi
from pricekeeper.http.operation import Route
from pricekeeper.http.routes import ROUTES
from pricekeeper.tokens import Keys
from pricekeeper.tokens.aws_credentials import find_secret_access_key
from pricekeeper.wire.operation import Access
from scraping import scrape
from served import served
from tenant_matrix import BODIES, path_of, without_id

PATH = "/auth/aws-credentials"
LIMITS = "PRICEKEEPER_API_RATE_LIMITS"
ISSUED = 'pricekeeper_tokens_total{event="issued_outside_slots"}'
BASIC = 'Basic realm="pricekeeper"'
GRANT = {"grant_type": "client_credentials"}
OF_CLIENTS = [
    operation
    for operation in ROUTES
    if operation.access in (Access.APP, Access.ORG, Access.ANY_CLIENT)
    and operation.name != "streamEvents"  # it does not end
]


def fetch(tenant: Tenant, client_id: str = "", secret: str = "") -> Reply:
    headers = tenant.basic(secret, client_id=client_id)
    return tenant.api.call("GET", PATH, headers=headers)


def token_of(tenant: Tenant, client_id: str = "") -> str:
    fetched = fetch(tenant, client_id)
    assert fetched.status == 200, fetched.data
    token: str = fetched.json["Token"]
    return token


def sessions(tenant: Tenant, token: str) -> list[dict[str, object]]:
    return tenant.api.pages("/auth/sessions", "sessions", token=token)


def test_the_answer_is_what_a_container_endpoint_gives(tenant: Tenant) -> None:
    reply = fetch(tenant)
    assert reply.status == 200, reply.data
    assert reply.json.keys() == {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"}
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["content-type"] == "application/json"
    assert re.fullmatch("[A-Z0-9]{16,128}", reply.json["AccessKeyId"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reply.json["Expiration"])
    left = datetime.fromisoformat(reply.json["Expiration"]) - datetime.now(UTC)
    assert 3_500 < left.total_seconds() <= 3_600


@pytest.fixture(scope="module")
def pair(api: Api) -> tuple[Tenant, Tenant]:
    """Two tenants that ask for the same: one with sessions, one without."""
    one, other = (Tenant(api).register() for _ in range(2))
    return one, other


@pytest.mark.parametrize("operation", OF_CLIENTS, ids=lambda operation: operation.name)
def test_the_token_opens_what_any_access_token_opens(
    api: Api, pair: tuple[Tenant, Tenant], operation: Route
) -> None:
    """Every operation of a client answers as it does to a token with a session."""

    def answered(tenant: Tenant, *, has_session: bool) -> int:
        by_app = operation.access is Access.APP
        client_id = tenant.client_id if by_app else f"org-{tenant.org_id}"
        path = path_of(operation, tenant.org_id, tenant.app_id)
        session = tenant.login(client_id)["access_token"]
        token = session if has_session else token_of(tenant, client_id)
        return api.call(operation.method, path, BODIES.get(operation.name), token=token).status

    expected = answered(pair[0], has_session=True)
    assert expected not in (401, 403)
    assert answered(pair[1], has_session=False) == expected


def test_an_apps_token_is_confined_to_the_app(api: Api, tenant: Tenant, other: Tenant) -> None:
    token = token_of(tenant)
    assert api.call("GET", f"{tenant.org}/aggregates/today", token=token).status == 403
    assert api.call("GET", f"{other.app}/limits", token=token).status == 404


def test_a_wrong_secret_is_refused_as_a_login_is(tenant: Tenant) -> None:
    """The same status, challenge and OAuth body, to the byte."""
    secret = tenant.secrets[tenant.client_id]
    for wrong in (
        tenant.basic("pks_wrong"),
        tenant.basic(secret, client_id=f"org-{uuid.uuid4()}"),
        tenant.basic(secret, client_id=f"org-{tenant.org_id}"),
        tenant.basic("nothing", client_id="unknown"),
        {"authorization": "Basic not-base64!"},
        *(
            {"authorization": f"Basic {base64.b64encode(text).decode()}"}
            for text in (b"no colon", f"{tenant.client_id}:".encode())
        ),
    ):
        refused = tenant.api.call("GET", PATH, headers=wrong)
        login = tenant.api.call("POST", "/auth/token", GRANT, headers=wrong)
        assert without_id(refused) == without_id(login)
        assert (refused.status, refused.json["error"]) == (401, "invalid_client")
        assert refused.headers["www-authenticate"] == BASIC


def test_nothing_but_a_secret_by_basic_counts(tenant: Tenant) -> None:
    """Neither an access token nor a secret elsewhere, and the challenge says what does."""
    secret = tenant.secrets[tenant.client_id]
    client = {"client_id": tenant.client_id, "client_secret": secret}
    for reply in (
        tenant.api.call("GET", PATH),
        tenant.api.call("GET", PATH, token=tenant.app_token),
        tenant.api.call("GET", PATH, client),
        tenant.api.call("GET", f"{PATH}?client_id={tenant.client_id}&client_secret={secret}"),
    ):
        assert (reply.status, reply.json["error"]) == (401, "invalid_client")
        assert reply.headers["www-authenticate"] == BASIC
        assert reply.headers["cache-control"] == "no-store"


def test_eight_processes_at_a_limit_of_five_leave_each_other_alone(api: Api) -> None:
    """None is evicted, no session is, and no list of sessions shows them."""
    tenant = Tenant(api).register()
    opened = [tenant.app_token, *(tenant.login()["access_token"] for _ in range(4))]
    fleet = [token_of(tenant) for _ in range(8)]
    for token in (*opened, *fleet):
        assert api.call("GET", f"{tenant.app}/limits", token=token).status == 200
    assert len(sessions(tenant, fleet[0])) == 5
    assert not any(one["current"] for one in sessions(tenant, fleet[0]))
    assert tenant.api.provision("GET", f"{tenant.app}/sessions").json["limit"] == 5


def test_its_client_revokes_and_introspects_it(api: Api) -> None:
    """By that token, or by another; its sid is no session that could be ended."""
    tenant = Tenant(api).register()
    first, second = token_of(tenant), token_of(tenant)
    told = api.call("POST", "/auth/introspect", {"token": first}, token=second).json
    assert (told["active"], told["token_type"]) == (True, "access_token")
    assert (told["sub"], told["scope"]) == (tenant.client_id, "app:use")
    assert told["exp"] - told["iat"] == 3_600
    ended = api.call("DELETE", f"/auth/sessions/{told['sid']}", token=second)
    assert (ended.status, ended.code) == (404, "NOT_FOUND")
    assert api.call("POST", "/auth/revoke", {"token": first}, token=first).status == 200
    assert api.call("GET", f"{tenant.app}/limits", token=first).status == 401
    told = api.call("POST", "/auth/introspect", {"token": first}, token=second).json
    assert told == {"active": False}
    assert api.call("GET", f"{tenant.app}/limits", token=second).status == 200
    assert api.call("DELETE", "/auth/sessions", token=second).status == 204
    assert api.call("GET", f"{tenant.app}/limits", token=second).status == 401


def test_the_document_says_how_it_is_opened() -> None:
    """By HTTP Basic, and by nothing else."""
    document = openapi(ROUTES)
    described = document["paths"][PATH]["get"]
    assert described["security"] == [{"clientSecret": []}]
    assert document["components"]["securitySchemes"]["clientSecret"] == {
        "type": "http",
        "scheme": "basic",
    }
    assert described["responses"].keys() == {"200", "401", "405", "429", "503"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("narrow")


@pytest.fixture(scope="module")
def narrow(folder: Path) -> Iterator[Api]:
    """A server with few logins a minute, and few failures."""
    with served(folder, {LIMITS: "token=6,failures=4"}) as api:
        yield api


def until_refused(attempt: Callable[[], Reply], attempts_max: int = 20) -> Reply:
    for _ in range(attempts_max):
        reply = attempt()
        if reply.status == 429:
            return reply
    raise AssertionError("it was never too often")


def test_it_counts_as_a_login(narrow: Api) -> None:
    tenant = Tenant(narrow).register()
    refused = until_refused(lambda: fetch(tenant))
    assert refused.json["error"] == "temporarily_unavailable"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["ratelimit-limit"] == "6"
    login = tenant.try_login()
    assert (login.status, login.json["error"]) == (429, "temporarily_unavailable")
    assert fetch(Tenant(narrow).register()).status == 200


def test_guesses_bar_the_address_as_guesses_at_a_login_do(narrow: Api) -> None:
    """Coming without credentials is none; a right secret gets in all the same."""
    tenant = Tenant(narrow).register()
    for _ in range(20):
        assert narrow.call("GET", PATH).status == 401
    until_refused(lambda: fetch(tenant, secret="pks_guess"))
    assert tenant.try_login("pks_guess").status == 429
    assert fetch(tenant, f"org-{tenant.org_id}").status == 200


def test_the_secret_comes_back_from_the_key_file_alone(narrow: Api, folder: Path) -> None:
    """So it survives a restart, and every instance that has the file can make it."""
    tenant = Tenant(narrow).register()
    made = fetch(tenant).json
    keys = Keys.in_file(folder / "data" / KEY_FILE, SystemClock())
    assert find_secret_access_key(made["Token"], keys) == made["SecretAccessKey"]


def provider(tenant: Tenant, secret: str = "") -> ContainerProvider:
    """Botocore's own, as the environment of a process configures it."""
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{tenant.api.url}{PATH}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": tenant.basic(secret)["authorization"],
    }
    fetcher: Any = ContainerMetadataFetcher(sleep=lambda _: None)
    return ContainerProvider(environ=environment, fetcher=fetcher)


def test_botocore_fetches_them_by_two_environment_variables(api: Api) -> None:
    """Once for many calls; what it would send as its session token is an access token."""
    tenant = Tenant(api).register()
    before = scrape(api)[ISSUED]
    loaded = provider(tenant).load()
    assert isinstance(loaded, RefreshableCredentials)
    frozen = [loaded.get_frozen_credentials() for _ in range(20)]
    assert scrape(api)[ISSUED] == before + 1
    assert len(set(frozen)) == 1
    assert str(frozen[0].access_key).startswith("PK")
    assert str(frozen[0].secret_key).startswith("pkas_")
    path = f"{tenant.app}/model-selection"
    assert api.call("GET", path, token=frozen[0].token).status == 200


def test_botocore_is_told_that_a_secret_is_wrong(tenant: Tenant) -> None:
    """It asks three times, and raises; what it says has no secret in it."""
    wrong = tenant.secrets[f"org-{tenant.org_id}"]
    with pytest.raises(CredentialRetrievalError, match="non 200 response 401") as refused:
        provider(tenant, wrong).load()
    assert wrong not in str(refused.value)
