"""``alerts``: on the store and against a service, with a real webhook."""

import json
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from alerts.topics_server import TOPIC
from cli.conftest import MISSING_ORG, ORG, Cli, serving
from hook_server import Hook, running_hook
from pricekeeper.bootstrap import Services
from pricekeeper.metering import Usage
from pricekeeper.values import AppId, OrgId
from receivers import Receivers, running_receivers

SECRET = "a-secret-of-sixteen-or-more"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running_hook() as running:
        yield running


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    with running_receivers() as running:
        yield running


@pytest.fixture(params=["store", "service"])
def anywhere(
    request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cli]:
    """Commands on the store and against a service, where this machine may be called."""
    monkeypatch.setenv("PRICEKEEPER_ALERT_NETWORKS", "127.0.0.0/8")
    monkeypatch.setenv("PRICEKEEPER_ALERT_TOPICS", TOPIC)
    if request.param == "store":
        yield cli
        return
    networks, topics = (ip_network("127.0.0.0/8"),), frozenset({TOPIC})
    with serving(cli, alert_networks=networks, alert_topics=topics):
        yield cli


def test_channels_are_set_shown_tried_and_removed(anywhere: Cli, hook: Hook) -> None:
    """What is secret is never printed, and a test says what has happened."""
    anywhere.register()
    where = ("--org", ORG)
    made = anywhere(
        "alerts", "set", "ops", *where, "--to", hook.url, "--secret", SECRET, "--kinds", "budget"
    )
    listed = anywhere("alerts", "channels", *where)
    tried = anywhere("alerts", "test", *where)

    origin = hook.url.removesuffix("/a-secret-path")
    assert made.code == 0, made
    assert f"ops created: {origin}" in made.out
    assert f"pricekeeper alerts test --org {ORG} --channel ops" in made.out
    assert origin in listed.out
    assert "BUDGET" in listed.out
    assert (tried.code, "every test was delivered" in tried.out) == (0, True)
    assert [one.json["test"] for one in hook.requests] == [True]
    for done in (made, listed, tried):
        assert "secret" not in done.out + done.err

    hook.status = 500
    failed = anywhere("alerts", "test", *where, "--channel", "ops")
    assert failed.code == 1
    assert "answered HTTP 500" in failed.out
    assert anywhere.ok("alerts", "remove", "ops", *where)["status"] == "removed"
    gone = anywhere("alerts", "remove", "ops", *where)
    assert (gone.code, "pricekeeper alerts channels" in gone.err) == (3, True)
    assert anywhere("alerts", "test", *where).code == 1


@pytest.mark.parametrize("kind", ["SLACK", "SNS", "EMAIL"])
def test_a_channel_of_every_kind(
    anywhere: Cli, receivers: Receivers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Set, shown without its secret, tried and removed; what it does not have is named."""
    for variable, value in receivers.topics.environment.items():
        monkeypatch.setenv(variable, value)
    receiver, where = receivers.of_kind(kind), ("--org", ORG)
    anywhere.register()
    flags = {"url": "--to", "user": "--user", "secret": "--secret", "sender": "--from"}
    given = [
        word
        for name, flag in flags.items()
        if name in receiver.body
        for word in (flag, str(receiver.body[name]))
    ]
    if kind == "EMAIL":
        given += ["--mail-to", ", ".join(receiver.body["recipients"])]
    of_kind = ("--kind", kind.lower())
    extra = {"SLACK": "--secret", "SNS": "--mail-to", "EMAIL": "--to"}[kind]
    refused = anywhere("alerts", "set", "people", *where, *of_kind, *given, extra, "not-for-it")
    made = anywhere("alerts", "set", "people", *where, *of_kind, *given)
    anywhere.ok("alerts", "set", "people", *where, "--kinds", "budget")
    anywhere.ok("alerts", "set", "people", *where)  # what is not said stays
    (shown,) = anywhere.ok("alerts", "channels", *where)["channels"]
    listed = anywhere("alerts", "channels", *where)
    tried = anywhere("alerts", "test", *where, "--json")

    field = {"SLACK": "secret", "SNS": "recipients", "EMAIL": "url"}[kind]
    assert (refused.code, f"{field}: " in refused.err) == (2, True), refused
    assert (made.code, f"people created: {receiver.address}" in made.out) == (0, True), made
    assert (shown["kind"], shown["address"]) == (kind, receiver.address)
    assert shown["kinds"] == ["BUDGET"]
    assert tried.code == 0, tried
    (result,) = tried.json["channels"]
    assert [result["alert_id"] in text for text in receiver.texts()] == [True]
    for done in (refused, made, listed, tried):
        assert receiver.secret not in done.out + done.err
    assert anywhere.ok("alerts", "remove", "people", *where)["status"] == "removed"
    assert anywhere.ok("alerts", "channels", *where) == {"channels": []}


def test_another_server_needs_the_secret_again(anywhere: Cli, hook: Hook) -> None:
    """The command says which, and the channel is unchanged."""
    anywhere.register()
    where = ("--org", ORG)
    anywhere.ok("alerts", "set", "ops", *where, "--to", hook.url, "--secret", SECRET)
    before = anywhere.ok("alerts", "channels", *where)
    elsewhere = ("alerts", "set", "ops", *where, "--to", "https://hooks.example.com/other")
    refused = anywhere(*elsewhere)
    assert (refused.code, "secret: " in refused.err) == (2, True), refused
    assert "state it again" in refused.err
    assert anywhere.ok("alerts", "channels", *where) == before
    answer = anywhere.ok(*elsewhere, "--secret", SECRET)
    assert (answer["status"], answer["address"]) == ("updated", "https://hooks.example.com")


def test_the_deployment_has_channels_too(anywhere: Cli, hook: Hook) -> None:
    """Without --org it is the deployment that is meant."""
    anywhere.register()
    answer = anywhere.ok(
        "alerts", "set", "all", "--to", hook.url, "--secret", SECRET, "--kind", "webhook"
    )
    assert (answer["status"], answer["kinds"]) == ("created", [])
    assert [one["channel"] for one in anywhere.ok("alerts", "channels")["channels"]] == ["all"]
    assert anywhere.ok("alerts", "channels", "--org", ORG) == {"channels": []}
    assert "has no channels" in anywhere("alerts", "channels", "--org", ORG).out


def test_what_is_wrong_is_said(anywhere: Cli, hook: Hook) -> None:
    """The field and the fix, and nothing is made."""
    anywhere.register()
    missing = anywhere("alerts", "set", "ops", "--org", ORG)
    inside = anywhere(
        "alerts", "set", "ops", "--org", ORG, "--to", "https://10.0.0.1", "--secret", SECRET
    )
    assert (missing.code, "url: is required" in missing.err) == (2, True)
    assert (inside.code, "public address" in inside.err) == (2, True)
    assert anywhere("alerts", "list", "--kind", "weather").code == 2
    assert anywhere("alerts", "list", "--org", MISSING_ORG).code == 3
    assert anywhere("alerts", "channels", "--org", MISSING_ORG).code == 3


def test_the_list_shows_what_was_told(anywhere: Cli, hook: Hook) -> None:
    """From a usage record on: aggregate decides, and the list shows it."""
    anywhere.register()
    anywhere.ok("org", "set", ORG, "--quota", "premium=0.01")

    async def record(services: Services) -> None:
        policy = await services.tenants.find_policy(OrgId(ORG), AppId("chat"))
        usage = Usage(
            request_id="7c9e6679-7425-40de-944b-e07fc1f90a00",
            model_label="premium",
            input_tokens=1_000,
            output_tokens=500,
        )
        await services.metering.record(policy, usage)

    anywhere.on_services(record)
    assert anywhere("aggregate", place=()).code == 0
    answer = anywhere.ok("alerts", "list", "--org", ORG)
    shown = anywhere("alerts", "list").out

    assert [one["about"]["threshold_pct"] for one in answer["alerts"]] in ([100, 80], [80, 100])
    assert "Chat of Acme: 100 % of the quota of premium is spent" in shown
    assert json.dumps(answer)
