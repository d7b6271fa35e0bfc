"""The service with its gateway, a stand-in for Bedrock, an app, and the judge of their books."""

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.models import BY_LABEL, bill, write_deployment
from http_fixtures import KEY, METRICS_TOKEN, Api, Reply
from pricekeeper.cli.demo import demo_settings
from pricekeeper.clock import SystemClock
from pricekeeper.settings import BedrockLocation, Settings
from pricekeeper.standin import BilledCall, Ledger
from pricekeeper.testing.serving import running_service
from scraping import until

GENEROUS_USD_MICROS = 10**12
BUDGET = "all"


class ShiftedClock(SystemClock):
    """The machine's clock, which a test may set forward."""

    def __init__(self) -> None:
        super().__init__()
        self.shift_ms = 0
        self.stopped_at_ms: int | None = None
        """Wall time stops there, if set."""

    def now_ms(self) -> int:
        if self.stopped_at_ms is not None:
            return self.stopped_at_ms
        return super().now_ms() + self.shift_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.shift_ms


@dataclass(frozen=True)
class Books:
    """What the ledger of an app says, in micro-dollars."""

    spent: int
    held: int
    unsettled: int


@dataclass
class App:
    """An app with a secret, and a budget over everything that it does."""

    api: Api
    org_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    app_id: str = "web"
    secret: str = ""
    org_secret: str = ""
    token: str = ""

    @property
    def org(self) -> str:
        return f"/api/v1/orgs/{self.org_id}"

    @property
    def path(self) -> str:
        return f"{self.org}/apps/{self.app_id}"

    @property
    def client_id(self) -> str:
        return f"org-{self.org_id}-app-{self.app_id}"

    @property
    def pair(self) -> str:
        """What a client sends that can hold nothing but a key."""
        return f"{self.client_id}:{self.secret}"

    @property
    def basic(self) -> str:
        return f"Basic {base64.b64encode(self.pair.encode()).decode()}"

    def register(self, limit_usd_micros: int = GENEROUS_USD_MICROS, **changes: Any) -> "App":
        """Make the organisation and the app, with that budget, and log in."""
        budget = {"name": BUDGET, "window": "MONTH", "limit_usd_micros": limit_usd_micros}
        settings = {
            "org_name": "Acme",
            "timezone": "UTC",
            "quota_scope": "APP",
            "model_ordering": list(BY_LABEL),
            "quotas": dict.fromkeys(BY_LABEL, GENEROUS_USD_MICROS),
            "budgets": [budget],
            "tag_keys": ["team"],
            **changes,
        }
        self.org_secret = self._claim(self._put(self.org, settings))
        self.secret = self._claim(self._put(self.path, {"app_name": "Web"}))
        self.token = self.login()
        return self

    def login(self) -> str:
        body = {"grant_type": "client_credentials", "client_id": self.client_id}
        reply = self.api.call("POST", "/auth/token", {**body, "client_secret": self.secret})
        assert reply.status == 200, reply.data
        token: str = reply.json["access_token"]
        return token

    def aws_credentials(self) -> dict[str, str]:
        reply = self.api.call("GET", "/auth/aws-credentials", headers={"authorization": self.basic})
        assert reply.status == 200, reply.data
        made: dict[str, str] = reply.json
        return made

    def books(self) -> Books:
        """What the app's budget has in it at this moment."""
        reply = self.api.call("GET", f"{self.path}/budgets", token=self.token)
        assert reply.status == 200, reply.data
        one = next(one for one in reply.json["budgets"] if one["name"] == BUDGET)
        return Books(*(one[f"{name}_usd_micros"] for name in ("spent", "held", "unsettled")))

    def unfinished(self, status: str) -> list[dict[str, Any]]:
        """The authorizations that are open, or unsettled."""
        return self._list(f"{self.path}/authorizations?status={status}", "authorizations")

    def usage(self) -> list[dict[str, Any]]:
        """The usage records of the app, the newest first."""
        return self._list(f"{self.org}/usage?app_id={self.app_id}", "records")

    def _list(self, path: str, name: str) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            reply = self.api.call("GET", path + after, token=self.token)
            assert reply.status == 200, reply.data
            found += reply.json[name]
            if "next" not in reply.json:
                return found
            after = f"&after={reply.json['next']}"

    def _put(self, path: str, body: dict[str, Any]) -> Any:
        made = self.api.provision("PUT", path, body)
        assert made.status in (200, 201), made.data
        return made.json

    def _claim(self, made: Any) -> str:
        retrieval = {"token": made["secret_retrieval"]["token"]}
        claimed = self.api.call("POST", "/api/v1/credentials/claim", retrieval)
        secret: str = claimed.json["client_secret"]
        return secret


@dataclass
class World:
    """A service that answers, and where its calls go."""

    url: str
    ledger: Ledger
    clock: ShiftedClock
    upstream_url: str = ""
    stop: Callable[[], None] = lambda: None
    """End the service before its block does."""
    location: dict[str, Any] = field(default_factory=dict)
    """The settings by which another service has the same store."""

    @property
    def api(self) -> Api:
        return Api(self.url)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def post(self, path: str, body: Any, app: App, **headers: str) -> Reply:
        """One call through the gateway, with the app's secret as bearer."""
        sent = {"authorization": f"Bearer {app.pair}", **headers}
        data = body if isinstance(body, bytes) else None
        body = None if data is not None else body
        return self.api.call("POST", f"/bedrock{path}", body, data=data, headers=sent)

    def converse(self, app: App, model: str = "premium", text: str = "hello", **more: Any) -> Reply:
        return self.post(f"/model/{model}/converse", converse_body(text, **more), app)

    def assert_equal(self, app: App, entries: list[BilledCall] | None = None) -> int:
        """The app's books are the stand-in's bill, to the micro-dollar, and nothing is held."""
        expected = bill(self.ledger.entries if entries is None else entries)
        books = Books(-1, -1, -1)

        def is_settled() -> bool:
            nonlocal books
            books = app.books()
            return books == Books(expected, 0, 0)

        until(is_settled, lambda: f"{books} and a bill of {expected}")
        return expected

    def assert_unsettled(self, app: App, count: int = 1) -> None:
        """So many calls are charged at their hold: above the bill, and marked once they expire."""
        expected = bill(self.ledger.entries)
        until(lambda: len(app.unfinished("open")) == count, lambda: app.unfinished("open"))
        books = app.books()
        assert books.spent + books.held >= expected, (books, expected)
        held = sum(one["held_usd_micros"] for one in app.unfinished("open"))
        assert books.held == held
        self.clock.shift_ms += 901_000
        until(lambda: app.books().held == 0, app.books)
        books = app.books()
        marked = app.unfinished("unsettled")
        assert (len(marked), books.unsettled) == (count, held)
        assert books.spent + books.unsettled >= expected, (books, expected)


def held_by(reply: Reply) -> int:
    """What the answer to a call says was held for it, in micro-dollars."""
    return int(reply.headers["x-pricekeeper-held-usd-micros"])


def converse_body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"text": text}]}], **more}


def claude_body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def directive(**script: Any) -> str:
    """A text of the user that says what the stand-in does."""
    return f"Say something. [[standin {json.dumps(script)}]]"


def gateway_settings(folder: Path, upstream: str) -> Settings:
    """A small deployment whose gateway sends calls on to there, unsigned."""
    return replace(
        demo_settings(folder),
        provisioning_key=KEY,
        metrics_token=METRICS_TOKEN,
        config_path=write_deployment(folder),
        api_limits_per_minute={},
        aggregator_interval_secs=0,
        request_deadline_ms=60_000,
        bedrock=BedrockLocation(upstream, "us-east-1", signs=False),
    )


@contextmanager
def running_world(
    folder: Path, upstream: str, ledger: Ledger | None = None, **changes: Any
) -> Iterator[World]:
    """The service on a free port, until the end of the block."""
    folder.mkdir(exist_ok=True)
    settings = replace(gateway_settings(folder, upstream), **changes)
    clock = ShiftedClock()
    with ExitStack() as opened:
        url = opened.enter_context(running_service(settings, clock))
        location = {"store": settings.store, "data_dir": settings.data_dir}
        yield World(url, ledger or Ledger(), clock, upstream, opened.close, location)


@contextmanager
def connection_to(world: World) -> Iterator[HTTPConnection]:
    """One connection to the service."""
    connection = HTTPConnection(*world.address, timeout=30)
    try:
        yield connection
    finally:
        connection.close()
