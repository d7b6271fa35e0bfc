"""A real server on each store, and two tenants in it."""

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from serving import Server, running_server

KEY = "3f9c1e7a5b8d2460c7e1f3a9b5d80264"
METRICS_TOKEN = "test-metrics-token"
CLAIM = "/api/v1/credentials/claim"
FORCED = "?force_check=true"
ENVIRONMENT = {
    "PRICEKEEPER_PROVISIONING_KEY": KEY,
    "PRICEKEEPER_METRICS_TOKEN": METRICS_TOKEN,
    "PRICEKEEPER_API_RATE_LIMITS": "off",
    "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS": "0",
    "PRICEKEEPER_REQUEST_DEADLINE_SECS": "60",  # a busy machine may be slow
}
ORG: dict[str, Any] = {
    "org_name": "Acme",
    "timezone": "Europe/Berlin",
    "quota_scope": "APP",
    "model_ordering": ["premium", "standard", "economy"],
    "quotas": {"premium": 1_000_000, "standard": 500_000, "economy": 200_000},
    "rate_limits": {
        "*": {"rpm": {"capacity": 10, "refill_amount": 10, "refill_period_ms": 60_000}}
    },
}


@dataclass(frozen=True)
class Reply:
    """An answer with any status."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def code(self) -> str:
        """The stable code of a problem, which must be one."""
        assert self.headers["content-type"] == "application/problem+json", self.data
        assert self.json["status"] == self.status
        assert self.json["request_id"] == self.headers["x-request-id"]
        code: str = self.json["code"]
        return code


@dataclass
class Api:
    """Calls to a server, over its socket."""

    url: str

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        data: bytes | None = None,
    ) -> Reply:
        sent = {"content-type": "application/json", **(headers or {})}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        if key is not None:
            sent["x-api-key"] = key
        if data is None and body is not None:
            data = json.dumps(body).encode()
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, received, answer.read())
        finally:
            connection.close()

    def provision(self, method: str, path: str, body: Any = None) -> Reply:
        return self.call(method, path, body, key=KEY)

    def claim(self, made: Reply) -> Reply:
        """Claim the secret that a creation or a rotation has made ready."""
        token = {"token": made.json["secret_retrieval"]["token"]}
        return self.call("POST", CLAIM, token)

    def refresh(self, token: str) -> Reply:
        body = {"grant_type": "refresh_token", "refresh_token": token}
        return self.call("POST", "/auth/refresh", body)

    def pages(self, path: str, name: str, **how: Any) -> list[Any]:
        """All rows of a list, page after page; by default, with the deployment's key."""
        rows: list[Any] = []
        after = ""
        while True:
            page = self.call("GET", path + after, **(how or {"key": KEY}))
            assert page.status == 200, page.data
            rows += page.json[name]
            if "next" not in page.json:
                return rows
            after = f"{'&' if '?' in path else '?'}after={page.json['next']}"


@dataclass
class Tenant:
    """An organisation with an app, and tokens of both."""

    api: Api
    org_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    app_id: str = "web"
    secrets: dict[str, str] = field(default_factory=dict)
    app_token: str = ""
    org_token: str = ""

    @property
    def org(self) -> str:
        return f"/api/v1/orgs/{self.org_id}"

    @property
    def app(self) -> str:
        return f"{self.org}/apps/{self.app_id}"

    @property
    def client_id(self) -> str:
        return f"org-{self.org_id}-app-{self.app_id}"

    def quota_line(self, label: str) -> str:
        """The metric that says how much of the app's quota is used."""
        whose = f'app="Web",app_id="{self.app_id}",label="{label}",org="Acme"'
        return f'pricekeeper_quota_used_ratio{{{whose},org_id="{self.org_id}"}}'

    def register(self) -> "Tenant":
        for path, body in ((self.org, ORG), (self.app, {"app_name": "Web"})):
            made = self.api.provision("PUT", path, body)
            assert made.status == 201, made.data
            claimed = self.api.claim(made)
            self.secrets[claimed.json["client_id"]] = claimed.json["client_secret"]
        self.org_token = self.login(f"org-{self.org_id}")["access_token"]
        self.app_token = self.login()["access_token"]
        return self

    def credentials(self, secret: str = "", *, client_id: str = "") -> dict[str, str]:
        """What a client logs in with: by default the app, with its own secret."""
        client_id = client_id or self.client_id
        secret = secret or self.secrets[client_id]
        grant = {"grant_type": "client_credentials"}
        return {**grant, "client_id": client_id, "client_secret": secret}

    def basic(self, secret: str = "", *, client_id: str = "") -> dict[str, str]:
        """The same as a header."""
        sent = self.credentials(secret, client_id=client_id)
        text = f"{sent['client_id']}:{sent['client_secret']}".encode()
        return {"authorization": f"Basic {base64.b64encode(text).decode()}"}

    def try_login(self, secret: str = "") -> Reply:
        return self.api.call("POST", "/auth/token", self.credentials(secret))

    def login(self, client_id: str = "") -> Any:
        body = self.credentials(client_id=client_id)
        granted = self.api.call("POST", "/auth/token", body)
        assert granted.status == 200, granted.data
        return granted.json

    def issue_key(self) -> str:
        """A provisioning key of the organisation's own."""
        issued = self.api.provision("POST", f"{self.org}/provisioning-key")
        assert issued.status == 201, issued.data
        key: str = issued.json["provisioning_key"]
        return key

    def ask(self, method: str, rest: str, body: Any = None) -> Reply:
        """Ask with the app's token for something below the app's path."""
        return self.api.call(method, f"{self.app}/{rest}", body, token=self.app_token)

    def record(self, body: Any = None, **changes: Any) -> Reply:
        """Send this usage record, or a new one."""
        return self.ask("POST", "usage", usage(**changes) if body is None else body)

    def record_many(self, *records: Any) -> Reply:
        return self.ask("POST", "usage/batch", {"requests": records})

    def select(self, query: str = "") -> Reply:
        return self.ask("GET", f"model-selection{query}")

    def acquire(self, tokens: int = 1, resource: str = "premium", **more: Any) -> Reply:
        body = {"resource": resource, "consume": {"rpm": tokens}, **more}
        return self.ask("POST", "limits/acquire", body)


def usage(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": str(uuid.uuid4()),
        "model_label": "premium",
        "input_tokens": 1000,
        "output_tokens": 500,
        **changes,
    }


def dynamodb_url(endpoint: str) -> str:
    """A store on that engine, in tables of its own."""
    return f"dynamodb://us-east-1?prefix=t-{uuid.uuid4().hex[:8]}-&endpoint={endpoint}"


def store_url(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    """A new store of that kind."""
    if kind == "sqlite-file":
        return f"sqlite:///{folder}/store.db"
    return dynamodb_url(request.getfixturevalue(kind))


SERVERS = {"sqlite-file": "sqlite_server", "dynoxide": "dynamodb_server"}


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all modules that need no server of their own; tenants keep them apart."""
    with running_server(tmp_path_factory.mktemp("server"), environment=ENVIRONMENT) as running:
        yield running


@pytest.fixture(scope="session")
def dynamodb_server(tmp_path_factory: pytest.TempPathFactory, dynoxide: str) -> Iterator[Server]:
    """The same on a DynamoDB engine."""
    folder, store = tmp_path_factory.mktemp("server"), dynamodb_url(dynoxide)
    with running_server(folder, environment=ENVIRONMENT, store=store) as running:
        yield running


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(SERVERS[request.param])
    return found


@pytest.fixture(scope="module")
def api(server: Server) -> Api:
    return Api(server.url)


@pytest.fixture(scope="module")
def tenant(api: Api) -> Tenant:
    return Tenant(api).register()


@pytest.fixture(scope="module")
def other(api: Api) -> Tenant:
    return Tenant(api).register()
