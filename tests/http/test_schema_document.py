"""A store in the schema document's literal shape: every reader takes it as what it says.

Over a socket, on both stores. The items are written from outside, with the document's attributes
and no others, and read by a service that has never seen them.
"""

import base64
import hashlib
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import bcrypt
import pytest

import stored_items as written
from http_fixtures import Api, usage
from pricekeeper.clock import SystemClock
from pricekeeper.metering import AggregationReport, Aggregator
from pricekeeper.storage import Store
from store_server import api, location, server

__all__ = ["api", "location", "server"]

SECRET = "a-secret-of-before"
APP = "app-production-api"


class Imported:
    """A server on a store with one organisation and app of the document in it."""

    def __init__(self, api: Api, location: str, **changes: Any) -> None:
        self.api = api
        self.location = location
        self.org_id = str(uuid.uuid4())
        hashed = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)).decode()
        self.write(
            written.org_config(self.org_id, client_secret_hash=hashed, **changes),
            written.app_config(self.org_id, APP, client_secret_hash=hashed),
        )
        self.token = self.login(f"org-{self.org_id}-app-{APP}")["access_token"]

    @property
    def scope(self) -> str:
        return f"ORG#{self.org_id}#APP#{APP}"

    @property
    def org(self) -> str:
        return f"/api/v1/orgs/{self.org_id}"

    @property
    def app(self) -> str:
        return f"{self.org}/apps/{APP}"

    def write(self, *items: Any) -> None:
        written.write_items(self.location, *items)

    def login(self, client_id: str) -> Any:
        body = {
            "grant_type": "client_credentials",
            "client_id": client_id,
            "client_secret": SECRET,
        }
        granted = self.api.call("POST", "/auth/token", body)
        assert granted.status == 200, granted.data
        return granted.json

    def get(self, path: str) -> Any:
        reply = self.api.call("GET", path, token=self.token)
        assert reply.status == 200, reply.data
        return reply.json

    def select(self, query: str = "") -> Any:
        return self.get(f"{self.app}/model-selection{query}")

    def aggregate(self) -> AggregationReport:
        async def run(store: Store) -> AggregationReport:
            return await Aggregator(store, SystemClock()).run_once()

        return written.on_store(self.location, run)


@pytest.fixture
def imported(api: Api, location: str) -> Imported:
    return Imported(api, location)


def test_config_is_read_with_its_inheritance(imported: Imported) -> None:
    """An organisation and an app, by themselves and in lists, and settings can be replaced."""
    org = imported.api.provision("GET", imported.org).json["configuration"]
    assert org["quotas"] == {"premium": 10_000_000, "standard": 5_000_000, "economy": 2_000_000}
    app = imported.api.provision("GET", imported.app).json
    assert app["configuration"]["quotas"]["premium"] == 50_000_000
    assert "refresh_interval_normal_secs" in app["inherited_fields"]
    apps = imported.api.provision("GET", f"{imported.org}/apps").json["apps"]
    assert [one["app_id"] for one in apps] == [APP]
    body = {
        "org_name": "renamed",
        "timezone": "UTC",
        "quota_scope": "APP",
        "model_ordering": ["premium"],
        "quotas": {"premium": 1},
    }
    assert imported.api.provision("PUT", imported.org, body).json["status"] == "updated"
    listed = imported.api.provision("GET", "/api/v1/orgs").json["orgs"]
    assert imported.org_id in [one["org_id"] for one in listed]


def test_logins_sessions_and_limits(imported: Imported) -> None:
    """A bcrypt hash lets its owner in, whose sessions and limits are there like anybody's."""
    org_token = imported.login(f"org-{imported.org_id}")["access_token"]
    assert imported.api.call("GET", "/auth/sessions", token=org_token).status == 200
    sessions = imported.get("/auth/sessions")
    assert (len(sessions["sessions"]), sessions["limit"]) == (1, 5)
    assert imported.get(f"{imported.app}/limits") == {"resources": {}, "org_resources": {}}


def test_a_total_alone_is_what_was_spent(imported: Imported) -> None:
    """In micro-dollars, once; for selection, whether it sums or not, and for aggregates."""
    day = written.today()
    imported.write(written.daily_total(imported.scope, "premium", day))
    for query in ("", "?force_check=true"):
        spent = imported.select(query)["quota_status"]["models_status"]["premium"]
        assert spent["spend_usd_micros"] == 9_500_000
    today = imported.get(f"{imported.app}/aggregates/today")
    assert today["models"]["premium"]["cost_usd_micros"] == 9_500_000
    assert today["models"]["premium"]["requests"] == 342
    assert imported.aggregate().failed == 0


def test_a_spent_total_ends_the_model(imported: Imported) -> None:
    """Fifty of fifty dollars: the next one is recommended."""
    day = written.today()
    imported.write(written.daily_total(imported.scope, "premium", day, cost_usd_micros=50_000_000))
    answer = imported.select()
    assert answer["recommended_model"]["label"] == "standard"
    assert answer["recommended_model"]["reason"] == "QUOTA_EXCEEDED"


def test_shards_count_beside_what_is_counted_here(imported: Imported) -> None:
    """The document's counters and ours are summed; the total that was there is replaced by more."""
    day = written.today()
    imported.write(
        *(written.shard(imported.scope, "premium", number, day) for number in range(8)),
        written.daily_total(imported.scope, "premium", day, requests=300, output_tokens=600_000),
    )
    record = usage(input_tokens=1_000, output_tokens=0)
    answer = imported.api.call("POST", f"{imported.app}/usage", record, token=imported.token)
    cost = answer.json["cost_usd_micros"]
    assert answer.json["daily_total"]["cost_usd_micros"] == 9_500_000 + cost
    spent = 8 * 1_250_000 + cost
    forced = imported.select("?force_check=true")["quota_status"]["models_status"]["premium"]
    assert forced["spend_usd_micros"] == spent
    for _ in range(2):
        report = imported.aggregate()
        assert (report.failed, report.unreadable) == (0, 0)
    premium = imported.get(f"{imported.app}/aggregates/today")["models"]["premium"]
    assert (premium["cost_usd_micros"], premium["requests"]) == (spent, 8 * 42 + 1)


def test_a_total_without_its_shards_is_never_taken_back(imported: Imported) -> None:
    """Nobody knows where it came from, so it stands, and what is counted here is added once."""
    day = written.today()
    imported.write(written.daily_total(imported.scope, "premium", day))
    record = usage(input_tokens=1_000, output_tokens=0, cache_read_tokens=7)
    answer = imported.api.call("POST", f"{imported.app}/usage", record, token=imported.token)
    spent = 9_500_000 + answer.json["cost_usd_micros"]
    for _ in range(3):
        report = imported.aggregate()
        assert (report.failed, report.unreadable) == (0, 0)
        today = imported.get(f"{imported.app}/aggregates/today")
        assert today["models"]["premium"]["cost_usd_micros"] == spent
        assert today["models"]["premium"]["cache_read_tokens"] == 7


def test_a_fallback_holds(imported: Imported) -> None:
    """As long as it says."""
    imported.write(written.sticky_state(imported.scope, written.today()))
    answer = imported.select()
    assert answer["recommended_model"]["label"] == "standard"
    assert answer["recommended_model"]["reason"] == "STICKY_FALLBACK"


def test_an_override_of_the_document_holds_and_can_be_cleared(imported: Imported) -> None:
    """Its reason makes it one; also back to a model whose quota is spent."""
    day = written.today()
    imported.write(
        written.daily_total(imported.scope, "premium", day, cost_usd_micros=60_000_000),
        written.sticky_state(
            imported.scope,
            day,
            active_model_label="premium",
            active_model_index=0,
            previous_model_label="standard",
            reason="MANUAL_OVERRIDE",
        ),
    )
    answer = imported.select()["recommended_model"]
    assert (answer["label"], answer["reason"]) == ("premium", "MANUAL_OVERRIDE")
    cleared = imported.api.provision("DELETE", f"{imported.app}/model-override")
    assert cleared.status == 204
    answer = imported.select("?force_check=true")["recommended_model"]
    assert (answer["label"], answer["reason"]) == ("standard", "QUOTA_EXCEEDED")


def test_a_price_of_the_document_is_in_force(imported: Imported) -> None:
    """For the model and the day of its key."""
    model_id = imported.select()["recommended_model"]["bedrock_model_id"]
    imported.write(
        written.price(
            model_id,
            datetime.now(UTC).date().isoformat(),
            input_price_usd_micros_per_1m=77_000_000,
        )
    )
    # The price that was just read is remembered for a minute, so another process is asked.
    assert written.on_store(imported.location, _prices_of(model_id)) == 77_000_000


def _prices_of(model_id: str) -> Any:
    from pricekeeper.pricing import PriceBook, load_catalogue  # noqa: PLC0415

    async def read(store: Store) -> Any:
        catalogue = load_catalogue(None)
        model = next(
            model
            for model in map(catalogue.model, catalogue.labels)
            if model.bedrock_model_id == model_id
        )
        book = PriceBook(store, SystemClock(), catalogue)
        return (await book.find_prices(model, datetime.now(UTC).date())).table.default.input

    return read


def test_a_revoked_token_counts_no_more(imported: Imported) -> None:
    """By its jti."""
    token = imported.login(f"org-{imported.org_id}-app-{APP}")["access_token"]
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    imported.write(written.revoked_token(claims["jti"], claims["sub"]))
    refused = imported.api.call("GET", f"{imported.app}/limits", token=token)
    assert refused.status == 401


def test_a_retrieval_token_that_the_client_does_not_name_claims_nothing(
    imported: Imported,
) -> None:
    """The document keeps it readable, and no client's item names it: there is no secret in it."""
    token = str(uuid.uuid4())
    hashed = hashlib.sha256(token.encode()).hexdigest()
    for key in (token, hashed):
        imported.write(written.retrieval_token(key, imported.org_id, APP))
    claimed = imported.api.call("POST", "/api/v1/credentials/claim", {"token": token})
    assert claimed.status == 404
    rotated = imported.api.provision(
        "POST", f"{imported.app}/credentials/rotate", {"grace_period_hours": 1}
    )
    body = {"token": rotated.json["secret_retrieval"]["token"]}
    assert imported.api.call("POST", "/api/v1/credentials/claim", body).status == 200
