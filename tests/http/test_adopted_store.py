"""`pricekeeper adopt` takes over an organisation of a store in the schema document's literal shape.

On both kinds of store, with a running service. The other store has the document's attributes and no
others. What the service says afterwards is asked over a socket.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import bcrypt
import pytest

import stored_items as written
from faulty_store import Crashed, Faults, FaultyStore, Interleaving
from http_fixtures import FORCED, Api, Tenant, usage
from pricekeeper.adoption import Adopter, Adoption
from pricekeeper.clock import SystemClock
from pricekeeper.errors import ConflictError, NotFoundError, UnreadableItemError
from pricekeeper.metering import AggregationReport, Aggregator
from pricekeeper.pricing import PriceBook, load_catalogue
from pricekeeper.settings import parse_store_location
from pricekeeper.storage import Item, Put, Store, Update, Write, open_store
from pricekeeper.values import OrgId
from store_server import api, location, server

__all__ = ["api", "location", "server"]

SECRET = "a-secret-of-before"
APP = "app-production-api"


class Imported:
    """A server, and another store with one organisation and app of the document in it."""

    def __init__(self, api: Api, location: str, source: str, **changes: Any) -> None:
        self.api = api
        self.location = location
        self.source = source
        self.org_id = str(uuid.uuid4())
        hashed = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)).decode()
        self.write(
            written.org_config(self.org_id, client_secret_hash=hashed, **changes),
            written.app_config(self.org_id, APP, client_secret_hash=hashed),
        )

    @property
    def scope(self) -> str:
        return f"ORG#{self.org_id}#APP#{APP}"

    @property
    def org(self) -> str:
        return f"/api/v1/orgs/{self.org_id}"

    @property
    def app(self) -> str:
        return f"{self.org}/apps/{APP}"

    @property
    def token(self) -> str:
        return str(self.login(f"org-{self.org_id}-app-{APP}")["access_token"])

    def write(self, *items: Any) -> None:
        """Write items into the other store."""
        written.write_items(self.source, *items)

    def adopt(self, *items: Any, stop_after: int | None = None) -> Adoption:
        """Write these items into the other store, and adopt it.

        With ``stop_after``, our store goes away after so many writes.
        """
        self.write(*items)

        async def run(source: Store, store: Store) -> Adoption:
            ours = store if stop_after is None else StoppingStore(store, stop_after)
            adopter = Adopter(
                source, ours, SystemClock(), retention_days=90, labels=load_catalogue(None).labels
            )
            return await adopter.adopt(OrgId(self.org_id))

        return written.on_store(
            self.source,
            lambda source: self._on_both(source, run),
        )

    async def _on_both(
        self, source: Store, run: Callable[[Store, Store], Awaitable[Adoption]]
    ) -> Adoption:
        store = await open_store(parse_store_location(self.location), clock=SystemClock())
        try:
            return await run(source, store)
        finally:
            await store.close()

    def login(self, client_id: str) -> Any:
        tenant = Tenant(self.api, self.org_id, secrets={client_id: SECRET})
        return tenant.login(client_id)

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


class StoppingStore(FaultyStore):
    """Takes so many writes, and then no more: the process is killed."""

    def __init__(self, store: Store, left: int) -> None:
        super().__init__(store, Interleaving(0), Faults())
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crashed

    async def put(self, operation: Put) -> None:
        self._count()
        await super().put(operation)

    async def update(self, operation: Update) -> Item:
        self._count()
        return await super().update(operation)

    async def transact(self, operations: Sequence[Write]) -> None:
        self._count()
        await super().transact(operations)


@pytest.fixture(scope="module")
def source(location: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another store of the same kind."""
    if location.startswith("sqlite"):
        made = f"sqlite:///{tmp_path_factory.mktemp('other')}/other.db"
    else:
        made = location.replace("prefix=t-", "prefix=theirs-")
    written.on_store(made, lambda store: store.create_tables())
    return made


@pytest.fixture
def imported(api: Api, location: str, source: str) -> Imported:
    return Imported(api, location, source)


def test_config_is_read_with_its_inheritance(imported: Imported) -> None:
    """An organisation and an app, by themselves and in lists, and settings can be replaced."""
    assert imported.adopt().clients_added == 2
    listed = imported.api.pages("/api/v1/orgs", "orgs")
    assert imported.org_id in [one["org_id"] for one in listed]
    org = imported.api.provision("GET", imported.org).json["configuration"]
    assert org["quotas"] == {"premium": 10_000_000, "standard": 5_000_000, "economy": 2_000_000}
    app = imported.api.provision("GET", imported.app).json
    assert app["configuration"]["quotas"]["premium"] == 50_000_000
    assert "refresh_interval_normal_secs" in app["inherited_fields"]
    apps = imported.api.provision("GET", f"{imported.org}/apps").json["apps"]
    assert [one["app_id"] for one in apps] == [APP]
    body: dict[str, Any] = {"org_name": "renamed", "timezone": "UTC", "quota_scope": "APP"}
    body |= {"model_ordering": ["premium"], "quotas": {"premium": 1}}
    assert imported.api.provision("PUT", imported.org, body).json["status"] == "updated"
    assert imported.adopt().clients_added == 0
    org = imported.api.provision("GET", imported.org).json
    assert org["org_name"] == "renamed", "a second adoption replaces nothing"


def test_logins_sessions_and_limits(imported: Imported) -> None:
    imported.adopt()
    org_token = imported.login(f"org-{imported.org_id}")["access_token"]
    assert imported.api.call("GET", "/auth/sessions", token=org_token).status == 200
    sessions = imported.get("/auth/sessions")
    assert (len(sessions["sessions"]), sessions["limit"]) == (1, 5)
    assert imported.get(f"{imported.app}/limits") == {"resources": {}, "org_resources": {}}


def test_a_total_alone_is_what_was_spent(imported: Imported) -> None:
    """In micro-dollars, once; for selection, whether it sums or not, and for aggregates.

    At fifty of fifty dollars the next model is recommended.
    """
    day = written.today()
    adoption = imported.adopt(
        written.daily_total(imported.scope, "premium", day, cost_usd_micros=50_000_000)
    )
    assert (adoption.accounts, adoption.accounts_changed) == (1, 1)
    assert adoption.cost_usd_picos == 50_000_000_000_000
    for query in ("", FORCED):
        answer = imported.select(query)
        spent = answer["quota_status"]["models_status"]["premium"]
        assert spent["spend_usd_micros"] == 50_000_000
        assert answer["recommended_model"]["label"] == "standard"
        assert answer["recommended_model"]["reason"] in ("QUOTA_EXCEEDED", "STICKY_FALLBACK")
    today = imported.get(f"{imported.app}/aggregates/today")
    assert today["models"]["premium"]["cost_usd_micros"] == 50_000_000
    assert today["models"]["premium"]["requests"] == 342
    assert imported.aggregate().failed == 0


def test_nothing_is_counted_twice(imported: Imported) -> None:
    """Shards and their total are one sum, however often they are adopted; ours counts beside it."""
    day = written.today()
    shards = [written.shard(imported.scope, "premium", number, day) for number in range(8)]
    old_total = written.daily_total(imported.scope, "premium", day, requests=300)
    imported.adopt(*shards, old_total)
    record = usage(input_tokens=1_000, output_tokens=0, cache_read_tokens=7)
    answer = imported.api.call("POST", f"{imported.app}/usage", record, token=imported.token)
    cost = answer.json["cost_usd_micros"]
    spent = 8 * 1_250_000 + cost
    for _ in range(2):
        report = imported.aggregate()
        assert (report.failed, report.unreadable) == (0, 0)
        assert imported.adopt().accounts_changed == 0
        forced = imported.select(FORCED)["quota_status"]["models_status"]["premium"]
        assert forced["spend_usd_micros"] == spent
        premium = imported.get(f"{imported.app}/aggregates/today")["models"]["premium"]
        assert (premium["cost_usd_micros"], premium["requests"]) == (spent, 8 * 42 + 1)
        assert premium["cache_read_tokens"] == 7
    more = written.shard(imported.scope, "premium", 3, day, requests=50, cost_usd_micros=1_250_001)
    assert imported.adopt(more).accounts_changed == 1
    premium = imported.get(f"{imported.app}/aggregates/today")["models"]["premium"]
    assert (premium["cost_usd_micros"], premium["requests"]) == (spent + 1, 8 * 42 + 9)


def test_an_adoption_that_is_killed_is_completed_by_the_next(imported: Imported) -> None:
    """Wherever it stops, the organisation can't be used before all of its spend is here."""
    day = written.today()
    scopes = (imported.scope, f"ORG#{imported.org_id}")
    imported.write(
        *(written.shard(scope, "premium", n, day) for scope in scopes for n in range(8)),
        *(written.daily_total(scope, "standard", day) for scope in scopes),
        written.sticky_state(imported.scope, day),
    )
    stopped = 0
    while True:
        try:
            last = imported.adopt(stop_after=stopped)
        except Crashed:
            stopped += 1
            assert stopped < 40
            assert imported.api.provision("GET", imported.org).status == 404
            continue
        break
    assert stopped >= 5
    assert imported.adopt() == replace(last, accounts_changed=0, sticky_added=0, clients_added=0)
    models = imported.select()["quota_status"]["models_status"]
    assert models["premium"]["spend_usd_micros"] == 8 * 1_250_000
    assert models["standard"]["spend_usd_micros"] == 9_500_000


def test_a_fallback_holds(imported: Imported) -> None:
    fallback = written.sticky_state(imported.scope, written.today())
    assert imported.adopt(fallback).sticky_added == 1
    answer = imported.select()["recommended_model"]
    assert (answer["label"], answer["reason"]) == ("standard", "STICKY_FALLBACK")


def test_an_override_of_the_document_holds_and_can_be_cleared(imported: Imported) -> None:
    """Its reason makes it one; also back to a model whose quota is spent."""
    day = written.today()
    override = {"active_model_label": "premium", "active_model_index": 0}
    override |= {"previous_model_label": "standard", "reason": "MANUAL_OVERRIDE"}
    imported.adopt(
        written.daily_total(imported.scope, "premium", day, cost_usd_micros=60_000_000),
        written.sticky_state(imported.scope, day, **override),
    )
    answer = imported.select()["recommended_model"]
    assert (answer["label"], answer["reason"]) == ("premium", "MANUAL_OVERRIDE")
    assert imported.api.provision("DELETE", f"{imported.app}/model-override").status == 204
    assert imported.adopt().sticky_added == 0, "a cleared override stays cleared"
    answer = imported.select(FORCED)["recommended_model"]
    assert (answer["label"], answer["reason"]) == ("standard", "QUOTA_EXCEEDED")


def test_what_is_no_store_of_the_document_is_refused(imported: Imported) -> None:
    """A store of ours, an organisation that it does not have, and a counter that is none."""
    imported.adopt()
    ours = Imported(imported.api, imported.source, imported.location)
    with pytest.raises(ConflictError, match="nothing to adopt"):
        ours.adopt()
    stranger = Imported(imported.api, imported.location, imported.source)
    stranger.org_id = str(uuid.uuid4())
    with pytest.raises(NotFoundError):
        stranger.adopt()
    damaged = Imported(imported.api, imported.location, imported.source)
    with pytest.raises(UnreadableItemError):
        damaged.adopt(written.shard(damaged.scope, "premium", 1, "20990101", requests="many"))
    assert imported.api.provision("GET", damaged.org).status == 404


def test_a_price_of_the_document_is_in_force(imported: Imported) -> None:
    """The price that was just read is remembered for a minute, so another process is asked."""
    imported.adopt()
    model_id = imported.select()["recommended_model"]["bedrock_model_id"]
    today = datetime.now(UTC).date()
    price = written.price(model_id, today.isoformat(), input_price_usd_micros_per_1m=77_000_000)
    written.write_items(imported.location, price)

    async def read(store: Store) -> Any:
        catalogue = load_catalogue(None)
        models = {model.bedrock_model_id: model for model in map(catalogue.model, catalogue.labels)}
        book = PriceBook(store, SystemClock(), catalogue)
        return (await book.find_prices(models[model_id], today)).table.default.input

    assert written.on_store(imported.location, read) == 77_000_000


def test_a_revoked_token_counts_no_more(imported: Imported) -> None:
    imported.adopt()
    token = imported.login(f"org-{imported.org_id}-app-{APP}")["access_token"]
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    revoked = written.revoked_token(claims["jti"], claims["sub"])
    written.write_items(imported.location, revoked)
    refused = imported.api.call("GET", f"{imported.app}/limits", token=token)
    assert refused.status == 401


def test_a_retrieval_token_that_the_client_does_not_name_claims_nothing(
    imported: Imported,
) -> None:
    """The document keeps it readable, and no client's item names it: there is no secret in it."""
    imported.adopt()
    token = str(uuid.uuid4())
    hashed = hashlib.sha256(token.encode()).hexdigest()
    for key in (token, hashed):
        made = written.retrieval_token(key, imported.org_id, APP)
        written.write_items(imported.location, made)
    claimed = imported.api.call("POST", "/api/v1/credentials/claim", {"token": token})
    assert claimed.status == 404
    rotate = f"{imported.app}/credentials/rotate"
    rotated = imported.api.provision("POST", rotate, {"grace_period_hours": 1})
    assert imported.api.claim(rotated).status == 200
