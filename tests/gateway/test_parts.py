"""The gateway beside the API: there with an upstream, alone if that is wanted, and measured."""

from typing import Any

import pytest

from gateway.conftest import MakeWorld
from gateway.wire import Caller
from gateway.world import App, World, converse_body, directive
from pricekeeper.gateway.meter import GatewayMeter
from pricekeeper.telemetry.families import families_of
from scraping import scrape, until

PATH = "/bedrock/model/premium/converse"


def test_without_an_upstream_there_is_no_gateway(make_world: MakeWorld) -> None:
    world = make_world(bedrock=None)
    reply = world.api.call("POST", PATH, converse_body())
    assert (reply.status, reply.code) == (404, "NOT_FOUND")


def test_the_api_alone_has_no_gateway(make_world: MakeWorld) -> None:
    world = make_world(serves_gateway=False)
    app = App(world.api).register()
    assert world.converse(app).status == 404
    assert world.ledger.attempts == {}


def test_the_gateway_alone_hands_out_credentials_and_nothing_else(make_world: MakeWorld) -> None:
    """With what an app was given by an instance that has the API, on the same store."""
    whole = make_world()
    app = App(whole.api).register()
    whole.stop()
    world = make_world(serves_api=False, **whole.location)
    alone = App(world.api, app.org_id, secret=app.secret)
    assert world.converse(alone).status == 200
    assert alone.aws_credentials()["Token"]
    for method, path in (("GET", f"{app.path}/budgets"), ("GET", "/api/v1/orgs"),
                         ("PUT", app.org)):  # fmt: skip
        reply = world.api.call(method, path, {}, token=alone.login(), key="x")
        assert reply.status == 404, path
    assert world.api.call("GET", "/healthz").status == 200


OUTCOMES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "served", "premium"),
    ({"model": "nope"}, "refused", "none"),
    ({"text": directive(fate="ThrottlingException")}, "upstream_refused", "premium"),
    ({"text": directive(fate="hangs-up")}, "upstream_lost", "premium"),
]


@pytest.mark.parametrize(("call", "outcome", "label"), OUTCOMES)
def test_calls_are_counted_by_label_and_outcome(
    world: World, app: App, call: dict[str, Any], outcome: str, label: str
) -> None:
    name = f'pricekeeper_gateway_calls_total{{label="{label}",outcome="{outcome}"}}'
    before = scrape(world.api).get(name, 0)
    world.converse(app, **call)
    until(lambda: scrape(world.api).get(name, 0) == before + 1)


def test_denied_and_throttled_are_told_apart_from_bedrocks_own(world: World) -> None:
    limit = {"*": {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 3_600_000}}}
    before = scrape(world.api)
    world.converse(App(world.api).register(limit_usd_micros=5))
    fast = App(world.api).register(rate_limits=limit)
    for _ in range(2):
        world.converse(fast)

    def moved(name: str) -> float:
        full = f'pricekeeper_gateway_calls_total{{label="none",outcome="{name}"}}'
        return scrape(world.api).get(full, 0) - before.get(full, 0)

    until(lambda: [moved("denied"), moved("throttled")] == [1, 1])
    errors = 'pricekeeper_gateway_upstream_errors_total{status="429"}'
    assert scrape(world.api).get(errors, 0) == before.get(errors, 0)


def test_every_family_of_the_gateway_is_shown(world: World, app: App) -> None:
    """Times too: to the first byte, and what the gateway adds."""
    world.converse(app)
    world.converse(app, text=directive(fate="ThrottlingException"))
    names = {name.partition("{")[0] for name in scrape(world.api)}
    for family in families_of(GatewayMeter()):
        assert names & {family.name + end for end in ("_total", "_count")}, family.name
    assert scrape(world.api)["pricekeeper_gateway_added_seconds_count"] >= 2
    assert scrape(world.api)["pricekeeper_gateway_first_byte_seconds_count"] >= 2


@pytest.mark.parametrize(
    "header",
    ["authorization", "x-amz-security-token", "host", "x-pricekeeper-tag-team",
     "x-amzn-bedrock-service-tier", "anthropic-beta"],
)  # fmt: skip
def test_a_header_that_is_there_twice_says_nothing(world: World, app: App, header: str) -> None:
    """Two readers of such a request could take it for two different ones."""
    with Caller(world) as caller:
        lines = [f"{header}: one", f"{header}: two", "connection: close"]
        caller.send(app, "/model/premium/converse", converse_body(), *lines)
        assert b" 400 " in caller.read_all().split(b"\r\n")[0]
    assert world.ledger.attempts == {}
