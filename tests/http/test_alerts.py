"""Alerts over HTTP: channels that hide their secrets, deliveries, and the list."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from alerts.topics_server import TOPIC
from hook_server import Hook, running_hook
from http_fixtures import ENVIRONMENT, KEY, ORG, Api, Reply, Tenant, store_url
from minting import minted
from pricekeeper.clock import SystemClock
from receivers import Receivers, running_receivers
from scraping import scrape, until
from serving import Server, running_server
from tenant_matrix import without_id

SECRET = "not-to-be-seen-again-again"
BUDGETS = [
    {"name": "daily", "window": "DAY", "limit_usd_micros": 20_000, "alert_at_pct": [50, 100]}
]


@pytest.fixture(scope="module")
def receivers() -> Iterator[Receivers]:
    with running_receivers() as running:
        yield running


@pytest.fixture(scope="module", params=["sqlite-file", "dynoxide"])
def server(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    receivers: Receivers,
) -> Iterator[Server]:
    """A server that aggregates every second, and may call this machine."""
    folder = tmp_path_factory.mktemp("alerts")
    environment = {
        **ENVIRONMENT,
        **receivers.topics.environment,
        "PRICEKEEPER_AGGREGATOR_INTERVAL_SECS": "1",
        "PRICEKEEPER_ALERT_NETWORKS": "127.0.0.0/8",
        "PRICEKEEPER_ALERT_TOPICS": TOPIC,
    }
    store = store_url(request, request.param, folder)
    with running_server(folder, environment=environment, store=store) as running:
        yield running


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with running_hook() as running:
        yield running


@pytest.fixture
def tenant(api: Api) -> Tenant:
    made = Tenant(api).register()
    settings = {**ORG, "budgets": BUDGETS, "alerts": {"quota_at_pct": []}}
    assert api.provision("PUT", made.org, settings).status == 200
    return made


def put_channel(tenant: Tenant, hook: Hook, name: str = "ops", **changes: Any) -> Reply:
    body = {"kind": "WEBHOOK", "url": hook.url, "secret": SECRET, **changes}
    return tenant.api.provision("PUT", f"{tenant.org}/alert-channels/{name}", body)


def spend(tenant: Tenant) -> None:
    assert tenant.record(request_id=minted(SystemClock().now_ms())).status == 202


def listed(tenant: Tenant, query: str = "") -> list[dict[str, Any]]:
    return tenant.api.pages(f"/api/v1/alerts{query}", "alerts", token=tenant.org_token)


def test_a_crossed_threshold_is_delivered_and_listed(
    tenant: Tenant, hook: Hook, server: Server
) -> None:
    assert put_channel(tenant, hook).status == 201
    spend(tenant)

    def told() -> list[dict[str, Any]]:
        return [one.json for one in hook.requests if one.json["org_id"] == tenant.org_id]

    until(lambda: bool(told()), server.output)
    until(lambda: [one["state"] for one in listed(tenant)] == ["delivered"], server.output)
    (alert,) = listed(tenant)
    (sent,) = told()
    assert sent.pop("foreign").keys() == {"title", "text"}
    assert {**sent, "state": "delivered"} == {
        **{name: alert[name] for name in sent if name != "test"},
        "test": False,
        "state": "delivered",
    }
    assert (alert["kind"], alert["about"]["threshold_pct"]) == ("BUDGET", 50)
    assert alert["deliveries"] == [
        {"channel": "ops", "state": "delivered", "at": alert["deliveries"][0]["at"]}
    ]
    metrics = scrape(tenant.api)
    assert metrics['pricekeeper_alerts_total{kind="BUDGET"}'] >= 1
    name = 'pricekeeper_alert_deliveries_total{channel="WEBHOOK",outcome="delivered"}'
    assert metrics[name] >= 1
    assert metrics["pricekeeper_alert_outbox_age_seconds"] == 0
    assert "alert_decided" in server.output()
    assert "alert_delivered" in server.output()


def test_what_is_secret_about_a_channel_is_in_no_answer_and_in_no_log(
    tenant: Tenant, hook: Hook, server: Server
) -> None:
    """People see where it is, and what goes there."""
    made = put_channel(tenant, hook, kinds=["BUDGET", "QUOTA", "BUDGET"])
    path = f"{tenant.org}/alert-channels"
    shown = tenant.api.provision("GET", path)
    tried = tenant.api.provision("POST", f"{path}/ops/test")

    origin = hook.url.removesuffix("/a-secret-path")
    assert made.json == {
        "channel": "ops",
        "kind": "WEBHOOK",
        "address": origin,
        "kinds": ["BUDGET", "QUOTA"],
        "updated_at": made.json["updated_at"],
        "status": "created",
    }
    assert [one["address"] for one in shown.json["channels"]] == [origin]
    assert tried.json["outcome"] == "delivered"
    for text in (made.data, shown.data, tried.data, server.output().encode()):
        assert b"secret-path" not in text
        assert SECRET.encode() not in text


def test_a_channel_is_changed_without_saying_its_secrets_again(tenant: Tenant, hook: Hook) -> None:
    """What is left out of a change stays; another kind of change says what it needs."""
    put_channel(tenant, hook)
    path = f"{tenant.org}/alert-channels/ops"

    changed = tenant.api.provision("PUT", path, {"kind": "WEBHOOK", "kinds": ["QUOTA"]})
    hook.requests.clear()
    tried = tenant.api.provision("POST", f"{path}/test")

    assert (changed.status, changed.json["status"]) == (200, "updated")
    assert tried.json == {
        "channel": "ops",
        "outcome": "delivered",
        "alert_id": hook.requests[0].headers["idempotency-key"],
    }
    assert tenant.api.provision("DELETE", path).status == 204
    for gone in (
        tenant.api.provision("DELETE", path),
        tenant.api.provision("POST", f"{path}/test"),
    ):
        assert (gone.status, gone.code) == (404, "NOT_FOUND")


def test_a_password_is_not_sent_to_another_server(
    tenant: Tenant, receivers: Receivers, api: Api
) -> None:
    """Of an organisation and of the deployment: it is said again, or the change is refused."""
    first = receivers.of_kind("EMAIL").body
    elsewhere = {"kind": "EMAIL", "url": "smtp://127.0.0.1:9"}
    for path in (f"{tenant.org}/alert-channels/mail", "/api/v1/alert-channels/mail"):
        assert api.provision("PUT", path, first).status == 201
        refused = api.provision("PUT", path, elsewhere)
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
        assert [one["field"] for one in refused.json["errors"]] == ["secret", "user"]
        assert all("state it again" in one["message"] for one in refused.json["errors"])
        assert api.provision("POST", f"{path}/test").json["outcome"] == "delivered"
        said = {**elsewhere, "user": first["user"], "secret": first["secret"]}
        assert api.provision("PUT", path, said).status == 200
        assert api.provision("DELETE", path).status == 204


def test_a_test_says_what_is_wrong(tenant: Tenant, hook: Hook) -> None:
    put_channel(tenant, hook, url=hook.url.replace("127.0.0.1", "localhost"))
    path = f"{tenant.org}/alert-channels/ops/test"
    hook.status = 403
    refused = tenant.api.provision("POST", path).json
    hook.status = 200
    put_channel(tenant, hook, url="http://127.0.0.1:9/")
    assert (refused["outcome"], refused["error"]) == ("failed", "answered HTTP 403")
    assert "can't be reached" in tenant.api.provision("POST", path).json["error"]


def test_a_bad_channel_is_refused_and_changes_nothing(tenant: Tenant, receivers: Receivers) -> None:
    """Every bad field is named, and what a kind does not have."""
    cases: list[tuple[str, dict[str, Any], list[str]]] = [
        ("WEBHOOK", {"url": None, "secret": None}, ["url", "secret"]),
        ("WEBHOOK", {"url": "http://169.254.169.254/latest/meta-data"}, ["url"]),
        ("WEBHOOK", {"url": "https://10.0.0.1/"}, ["url"]),
        ("WEBHOOK", {"url": "https://user:pass@example.com/"}, ["url"]),
        ("WEBHOOK", {"secret": "short"}, ["secret"]),
        ("WEBHOOK", {"secret": "whsec_not base64 at all!!"}, ["secret"]),
        ("WEBHOOK", {"kind": "PIGEON"}, ["kind"]),
        ("WEBHOOK", {"kinds": ["BUDGET", "WEATHER"]}, ["kinds[1]"]),
        ("WEBHOOK", {"extra": 1}, ["extra"]),
        ("SLACK", {"url": None}, ["url"]),
        ("SLACK", {"url": "https://10.0.0.1/services/T000"}, ["url"]),
        ("SLACK", {"secret": SECRET, "sender": "a@example.com"}, ["secret", "sender"]),
        ("SNS", {"url": "https://sns.eu-central-1.amazonaws.com"}, ["url"]),
        ("SNS", {"url": f"{TOPIC}-2"}, ["url"]),
        ("SNS", {"url": "arn:aws:sqs:eu-central-1:123456789012:alerts"}, ["url"]),
        ("SNS", {"recipients": ["ops@example.com"], "user": "a"}, ["user", "recipients"]),
        ("EMAIL", {"sender": None, "recipients": None}, ["sender", "recipients"]),
        ("EMAIL", {"recipients": ["a@example.com", "b\r\n@c"]}, ["recipients[1]"]),
        ("EMAIL", {"recipients": ["a@example.com"] * 11}, ["recipients"]),
        ("EMAIL", {"recipients": "a@example.com"}, ["recipients"]),
        ("EMAIL", {"user": None}, ["user"]),
        ("EMAIL", {"url": "https://smtp.example.com"}, ["url"]),
        ("EMAIL", {"url": "smtps://10.0.0.1"}, ["url"]),
    ]
    hook = {"kind": "WEBHOOK", "url": "https://hooks.invalid/", "secret": SECRET}
    path = f"{tenant.org}/alert-channels"
    for kind, changes, fields in cases:
        good = hook if kind == "WEBHOOK" else receivers.of_kind(kind).body
        refused = tenant.api.provision("PUT", f"{path}/people", good | changes)
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST"), (kind, changes)
        assert [one["field"] for one in refused.json["errors"]] == fields, (kind, changes)
    assert tenant.api.provision("GET", path).json == {"channels": []}


@pytest.mark.parametrize("kind", ["SLACK", "SNS", "EMAIL"])
def test_a_channel_of_every_kind_is_set_shown_tried_and_removed(
    tenant: Tenant, receivers: Receivers, server: Server, kind: str
) -> None:
    receiver = receivers.of_kind(kind)
    channels = f"{tenant.org}/alert-channels"
    made = tenant.api.provision("PUT", f"{channels}/people", receiver.body)
    listed = tenant.api.provision("GET", channels)
    tried = tenant.api.provision("POST", f"{channels}/people/test")
    gone = tenant.api.provision("DELETE", f"{channels}/people")

    assert made.status == 201, made.data
    (shown,) = listed.json["channels"]
    assert (shown["kind"], shown["address"]) == (kind, receiver.address)
    assert shown.keys() == {"channel", "kind", "address", "kinds", "updated_at"}
    assert tried.json["outcome"] == "delivered", tried.data
    assert [tried.json["alert_id"] in text for text in receiver.texts()[-1:]] == [True]
    for text in (made.data, listed.data, tried.data, server.output().encode()):
        assert receiver.secret.encode() not in text
    assert gone.status == 204
    assert tenant.api.provision("GET", channels).json == {"channels": []}


def test_names_and_numbers_of_channels_are_bounded(tenant: Tenant, hook: Hook) -> None:
    """Eight of an organisation; a name is a short one in small letters."""
    for number in range(8):
        assert put_channel(tenant, hook, f"ops-{number}").status == 201
    assert put_channel(tenant, hook, "ops-8").status == 409
    assert put_channel(tenant, hook, "ops-7").status == 200
    for bad in ("OPS", "-ops", "o" * 33, "a%23b"):
        assert put_channel(tenant, hook, bad).status == 400


def test_the_deployment_has_channels_of_its_own(tenant: Tenant, hook: Hook, api: Api) -> None:
    body = {"kind": "WEBHOOK", "url": hook.url, "secret": SECRET}
    made = api.provision("PUT", "/api/v1/alert-channels/platform", body)
    spend(tenant)
    until(lambda: [one["state"] for one in listed(tenant)] == ["unsent"], str)

    def seen() -> list[dict[str, Any]]:
        return api.pages(f"/api/v1/alerts?org_id={tenant.org_id}", "alerts")

    until(lambda: [one["state"] for one in seen()] == ["delivered"], str)
    assert made.status == 201
    assert seen()[0]["deliveries"][0]["channel"] == "platform"
    assert listed(tenant)[0]["deliveries"] == []
    everybody = api.provision("GET", "/api/v1/alerts").json["alerts"]
    assert tenant.org_id in {one["org_id"] for one in everybody}
    assert api.provision("DELETE", "/api/v1/alert-channels/platform").status == 204


def test_who_may_see_and_change_what(tenant: Tenant, hook: Hook, api: Api) -> None:
    """An organisation's key is for its own; apps see nothing; others do not exist."""
    other = Tenant(api).register()
    put_channel(tenant, hook)
    key = other.issue_key()
    absent = str(uuid.uuid4())

    def asked(path: str, **how: Any) -> tuple[int, dict[str, str], bytes]:
        return without_id(api.call("GET", path, **how))

    for org_id, path in ((tenant.org_id, tenant.org), (absent, f"/api/v1/orgs/{absent}")):
        assert asked(f"{path}/alert-channels", key=key)[0] == 404
        assert asked(f"/api/v1/alerts?org_id={org_id}", key=key)[0] == 404
        assert asked(f"/api/v1/alerts?org_id={org_id}", token=other.org_token)[0] == 404
    mine, missing = (f"/api/v1/alerts?org_id={one}" for one in (tenant.org_id, absent))
    assert asked(mine, key=key) == asked(missing, key=key)
    assert asked(mine, token=other.org_token) == asked(missing, token=other.org_token)
    assert asked("/api/v1/alerts", token=tenant.app_token)[0] == 403
    assert asked("/api/v1/alerts")[0] == 401
    assert asked("/api/v1/alert-channels", key=key)[0] == 403
    assert asked("/api/v1/alerts", key=key)[0] == 200
    assert asked(f"{other.org}/alert-channels", key=key)[0] == 200
    assert asked(f"/api/v1/alerts?org_id={absent}", key=KEY)[0] == 404


def test_a_key_for_some_organisations_sees_the_alerts_of_these(tenant: Tenant, api: Api) -> None:
    """Of all that it covers together, of each, and of no other; nothing of the deployment."""
    others = [Tenant(api).register() for _ in range(2)]
    for one in others:
        api.provision("PUT", one.org, {**ORG, "budgets": BUDGETS})
    for one in (tenant, *others):
        spend(one)
        until(lambda one=one: bool(listed(one)), str)  # type: ignore[misc]
    covered = [tenant.org_id, others[0].org_id]
    body = {"name": "some", "role": "VIEWER", "org_ids": covered}
    key = api.provision("POST", "/api/v1/admin-keys", body).json["key"]

    def seen(query: str = "") -> Reply:
        return api.call("GET", f"/api/v1/alerts{query}", key=key)

    assert {one["org_id"] for one in seen().json["alerts"]} == set(covered)
    assert {one["org_id"] for one in seen("?kind=BUDGET").json["alerts"]} == set(covered)
    assert seen(f"?org_id={covered[1]}").json["alerts"][0]["org_id"] == covered[1]
    assert seen(f"?org_id={others[1].org_id}").status == 404
    assert api.call("GET", "/api/v1/alert-channels", key=key).status == 403


def test_the_list_is_filtered_and_paged(tenant: Tenant, hook: Hook) -> None:
    """By kind and by state; what is no such thing is refused, all of it at once."""
    spend(tenant)
    spend(tenant)
    until(lambda: len(listed(tenant)) == 2, str)

    newest, oldest = listed(tenant)
    assert listed(tenant, "?kind=QUOTA") == []
    assert listed(tenant, "?kind=BUDGET&state=unsent") == [newest, oldest]
    assert listed(tenant, "?state=delivered") == []
    assert listed(tenant, f"?after={newest['id']}") == [oldest]
    query = "?kind=x&state=y&after=z&org_id=1"
    refused = tenant.api.call("GET", f"/api/v1/alerts{query}", token=tenant.org_token)
    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    named = {one["field"] for one in refused.json["errors"]}
    assert named == {"kind", "state", "after", "org_id"}


def test_thresholds_of_quotas_are_settings(tenant: Tenant, api: Api) -> None:
    """Shown, patched, restored and put again; a bad one is named."""
    body = {**ORG, "alerts": {"quota_at_pct": [100, 50, 100]}}
    shown = api.provision("PUT", tenant.org, body).json["configuration"]
    restored = api.provision("PATCH", tenant.org, {"alerts": {"quota_at_pct": None}})
    bad = api.provision("PUT", tenant.org, {**ORG, "alerts": {"quota_at_pct": [0, 201], "x": 1}})

    others = {"denied_pct": 50, "unsettled_pct": 10, "anomaly_pct": 300, "secret_days": 90}
    assert shown["alerts"] == {"quota_at_pct": [50, 100], **others}
    assert restored.json["configuration"]["alerts"] == {"quota_at_pct": [80, 100], **others}
    assert bad.status == 400
    named = ["quota_at_pct[0]", "quota_at_pct[1]", "x"]
    assert [one["field"] for one in bad.json["errors"]] == [f"alerts.{name}" for name in named]
