"""What a record carries besides its tokens, and what is counted although its price is not known."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from http_fixtures import ENVIRONMENT, METRICS_TOKEN, Api, Tenant, store_url, usage
from pricekeeper.clock import SystemClock
from pricekeeper.metering.journal import address_of
from pricekeeper.metering.posting import Poster
from pricekeeper.metering.receipt import Receipt
from pricekeeper.storage import Store
from serving import Server, running_server
from stored_items import on_store

MODELS = """
version: 1
models:
  premium:
    bedrock_model_id: us.anthropic.claude-opus-5-5
    family: claude
    tier: premium
    description: has a tier that costs more, and batch, which costs less
    burn_down_factor_permille: 5000
    default_pricing:
      input_price_usd_micros_per_1m: 4_000_000
      output_price_usd_micros_per_1m: 20_000_000
    service_tiers:
      priority: {multiplier_permille: 1750}
    batch: {multiplier_permille: 500}
  standard:
    bedrock_model_id: us.anthropic.claude-sonnet-5-5
    family: claude
    tier: standard
    description: has no tiers at all
    default_pricing:
      input_price_usd_micros_per_1m: 2_000_000
      output_price_usd_micros_per_1m: 10_000_000
  economy:
    bedrock_model_id: acme.free-v1:0
    family: free
    tier: economy
    description: costs nothing
    default_pricing:
      input_price_usd_micros_per_1m: 0
      output_price_usd_micros_per_1m: 0
"""


class Place(NamedTuple):
    """Where the server of a test keeps its data."""

    folder: Path
    store: str


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("server")
    return Place(folder, store_url(request, request.param, folder))


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Server]:
    config = place.folder / "models.yaml"
    config.write_text(MODELS, "utf-8")
    environment = {**ENVIRONMENT, "PRICEKEEPER_CONFIG": str(config)}
    with running_server(place.folder, environment=environment, store=place.store) as running:
        yield running


def stored_receipt(place: Place, tenant: Tenant, request_id: str) -> Receipt:
    """What the store has under that id, read beside the server."""

    async def read(store: Store) -> Receipt:
        clock = SystemClock()
        poster = Poster(store, clock, Random(0))
        found = await poster.read_receipts(tenant.org_id, 1, {request_id: address_of(request_id)})
        receipt = found[request_id]
        assert isinstance(receipt, Receipt)
        return receipt

    return on_store(place.store, read)


def post(tenant: Tenant, record: Any, path: str = "usage") -> Any:
    reply = tenant.ask("POST", path, record)
    assert reply.status in (202, 207), reply.data
    return reply.json


def test_tags_and_region_are_kept_with_the_receipt(tenant: Tenant, place: Place) -> None:
    """A duplicate is answered as before, and another tag is another record."""
    tags = {"team": "search", "feature": "größe \N{SNOWMAN}", "empty": ""}
    record = usage(tags=tags, calling_region="eu-central-1")
    first, second = post(tenant, record), post(tenant, record)
    receipt = stored_receipt(place, tenant, record["request_id"])
    assert (receipt.tags, receipt.calling_region) == (tags, "eu-central-1")
    assert (first["status"], second["status"]) == ("accepted", "duplicate")
    assert second["cost_usd_micros"] == first["cost_usd_micros"]
    other = tenant.record({**record, "tags": {**tags, "team": "ads"}})
    assert (other.status, other.code) == (409, "REQUEST_ID_REUSED")
    assert stored_receipt(place, tenant, record["request_id"]).tags == tags
    largest = {f"{n:02}" + "k" * 62: "\N{SNOWMAN}" * 85 + "x" for n in range(16)}
    record = usage(tags=largest)
    post(tenant, record)
    assert stored_receipt(place, tenant, record["request_id"]).tags == largest


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tags": {f"k{n}": "v" for n in range(17)}}, "tags"),
        ({"tags": {"k": "v" * 257}}, "tags"),
        ({"tags": {"k": "\N{SNOWMAN}" * 86}}, "tags.k"),
        ({"tags": {"": "v"}}, "tags"),
        *(({"service_tier": bad}, "service_tier") for bad in ("", "a" * 33, "two words", "a\nb")),
        ({"service_tier": "sn\N{SNOWMAN}w"}, "service_tier"),
        ({"service_tier": "priority", "batch": True}, "batch"),
    ],
    ids=range(10),
)
def test_what_is_beyond_the_bounds_is_refused(tenant: Tenant, change: Any, field: str) -> None:
    """Nothing of it is counted; batch with a tier is a contradiction."""
    record = usage(**change)
    reply = tenant.record(record)
    assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
    assert field in reply.data.decode()
    good = {name: value for name, value in record.items() if name not in change}
    assert post(tenant, good)["status"] == "accepted"


@pytest.mark.parametrize(
    ("label", "served", "cost_usd_micros"),
    [
        # 1,000 tokens in and 500 out at the highest prices: those of priority, or the only ones.
        ("premium", {"service_tier": "turbo"}, 7_000 + 17_500),
        ("premium", {"service_tier": "flex"}, 7_000 + 17_500),
        ("standard", {"service_tier": "priority"}, 2_000 + 5_000),
        ("standard", {"batch": True}, 2_000 + 5_000),
    ],
)
def test_a_tier_without_prices_is_counted_at_the_highest(
    tenant: Tenant, place: Place, label: str, served: dict[str, Any], cost_usd_micros: int
) -> None:
    """And marked, in the answer, in the answer to a duplicate and in the receipt."""
    record = usage(model_label=label, **served)

    first, second = post(tenant, record), post(tenant, record)

    assert (first["cost_usd_micros"], first["price_estimated"]) == (cost_usd_micros, True)
    assert (second["status"], second["price_estimated"]) == ("duplicate", True)
    receipt = stored_receipt(place, tenant, record["request_id"])
    assert receipt.price_estimated is True
    assert receipt.service_tier == served.get("service_tier", "batch")


def test_a_known_price_is_not_marked(tenant: Tenant, place: Place) -> None:
    """The answer and the receipt say so. A free model costs nothing."""
    record = usage(service_tier="priority")
    answer = post(tenant, record)
    assert (answer["cost_usd_micros"], answer["price_estimated"]) == (7_000 + 17_500, False)
    assert not stored_receipt(place, tenant, record["request_id"]).price_estimated
    answer = post(tenant, usage(model_label="economy"))
    assert (answer["cost_usd_micros"], answer["price_estimated"]) == (0, False)
    assert answer["daily_total"]["requests"] >= 1


def test_a_batch_marks_the_records_that_it_estimates(tenant: Tenant) -> None:
    records = [usage(), usage(service_tier="turbo")]
    results = post(tenant, {"requests": records}, "usage/batch")["results"]
    assert [result.get("price_estimated", False) for result in results] == [False, True]


def test_estimates_are_counted_and_logged(api: Api, server: Server, tenant: Tenant) -> None:
    """Once for each record in the metric, however often it is repeated; the log names the tier."""
    before = estimated_records(api)
    record = usage(model_label="standard", service_tier="reserved")
    for _ in range(3):
        post(tenant, record)
    assert estimated_records(api) == before + 1
    lines = server.output().splitlines()
    warnings = [json.loads(line) for line in lines if '"price_estimated"' in line]
    assert {line["label"] for line in warnings} >= {"standard"}
    assert all(line["level"] == "warning" and line["service_tier"] for line in warnings)


def estimated_records(api: Api) -> float:
    text = api.call("GET", "/metrics", token=METRICS_TOKEN).data.decode()
    name = 'pricekeeper_price_estimated_records_total{label="standard"}'
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_the_burn_down_factor_is_told(tenant: Tenant) -> None:
    """Where a client learns which model to call, and where it takes from the label's buckets."""
    assert tenant.select().json["recommended_model"]["burn_down_factor_permille"] == 5000
    for label, factor in (("premium", 5000), ("standard", 1000)):
        assert tenant.acquire(1, label).json["burn_down_factor_permille"] == factor
