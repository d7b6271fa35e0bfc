"""Every metric changes when it should, by the right amount, on a real server."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_proxy import Fault, FaultProxy
from http_fixtures import ENVIRONMENT, METRICS_TOKEN, ORG, Api, Tenant, dynamodb_url, usage
from scraping import moves, scrape, until
from served import served
from serving import running_server
from workers import connections_to_each

USAGE = "/api/v1/orgs/{org_id}/apps/{app_id}/usage"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server on a SQLite file, with API limits too low for prefetching.

    Prefetched tokens would be returned a second later, during another test.
    """
    kinds = ("token", "claim", "refresh", "revoke", "provisioning", "aggregates", "selection")
    limits = {"PRICEKEEPER_API_RATE_LIMITS": ",".join(f"{kind}=119" for kind in kinds)}
    with served(tmp_path_factory.mktemp("metrics"), limits) as api:
        yield api


@pytest.fixture
def tenant(api: Api) -> Tenant:
    return Tenant(api).register()


def timed(method: str, route: str, status: int) -> str:
    labels = f'method="{method}",route="{route}",status="{status}"'
    return f"pricekeeper_request_seconds_count{{{labels}}}"


def test_requests_are_timed_by_route_and_status(api: Api) -> None:
    """A route is a pattern, so ids and invalid paths add no lines."""
    org = "/api/v1/orgs/{org_id}"
    with moves(api, {timed("GET", "/healthz", 200): 3, timed("GET", org, 404): 4}):
        for _ in range(3):
            api.call("GET", "/healthz")
        for _ in range(4):
            api.provision("GET", f"/api/v1/orgs/{uuid.uuid4()}")
    with moves(api, {timed("GET", "none", 404): 20, timed("other", "/healthz", 405): 2}):
        for number in range(20):
            api.call("GET", f"/nonsense/{number}")
        for method in ("PROPFIND", "TRACE"):
            api.call(method, "/healthz")


def test_latency_falls_into_its_bucket(api: Api) -> None:
    """Buckets are cumulative: the last one has all."""
    api.call("GET", "/healthz")
    samples = scrape(api)
    health = 'method="GET",route="/healthz",status="200"'
    name = f'pricekeeper_request_seconds_bucket{{le="%s",{health}}}'
    counts = [samples[name % bound] for bound in ("0.0005", "0.01", "0.25", "2.5", "+Inf")]
    assert counts == sorted(counts)
    assert counts[-1] == samples[timed("GET", "/healthz", 200)] > 0


def test_problems_are_counted_by_their_error(api: Api, tenant: Tenant) -> None:
    expected = {"NOT_FOUND": 1, "INVALID_VALUE": 1, "UNAUTHORIZED": 1, "INVALID_CLIENT": 1}
    with moves(api, {f'pricekeeper_problems_total{{code="{c}"}}': n for c, n in expected.items()}):
        api.call("GET", "/nonsense")
        api.provision("GET", "/api/v1/orgs/not-a-uuid")
        api.call("GET", f"{tenant.app}/limits")
        tenant.try_login("wrong")


def test_retrieval_tokens_issued_claimed_and_refused(api: Api) -> None:
    name = 'pricekeeper_retrieval_tokens_total{event="%s"}'
    path, claim = f"/api/v1/orgs/{uuid.uuid4()}", "/api/v1/credentials/claim"
    used, unknown = name % "refused_used", name % "refused_unknown"
    with moves(api, {name % "issued": 1, name % "claimed": 0, used: 0, unknown: 0}):
        token = api.provision("PUT", path, ORG).json["secret_retrieval"]["token"]
        api.provision("PUT", path, ORG)  # an update issues none
    with moves(api, {name % "issued": 0, name % "claimed": 1, used: 1, unknown: 1}):
        assert api.call("POST", claim, {"token": token}).status == 200
        assert api.call("POST", claim, {"token": token}).status == 404
        assert api.call("POST", claim, {"token": "pkr_mistyped"}).status == 404
    with moves(api, {name % "issued": 1}):
        api.provision("POST", f"{path}/credentials/rotate", {"grace_period_hours": 0})


def test_tokens_issued_refreshed_and_refused(api: Api, tenant: Tenant) -> None:
    event, kind = 'pricekeeper_tokens_total{event="%s"}', 'pricekeeper_revocations_total{kind="%s"}'
    with moves(api, {event % "issued": 1, event % "login_refused": 1}):
        first = tenant.login()["refresh_token"]
        tenant.try_login("wrong")
    with moves(api, {event % "refreshed": 2, event % "refresh_refused": 0}):
        second = api.refresh(first).json["refresh_token"]
        assert api.refresh(second).status == 200
    with moves(api, {event % "refresh_refused": 2, kind % "reused": 1, kind % "session": 0}):
        assert api.refresh(first).status == 400
        assert api.refresh("pkf_unheard-of").status == 400


def test_revocation_is_answered_from_memory_or_from_the_store(api: Api, tenant: Tenant) -> None:
    answer = 'pricekeeper_token_checks_total{answer="%s"}'
    token = tenant.login()["access_token"]
    with moves(api, {answer % "store": 1, answer % "memory": 3, answer % "refused": 0}):
        for _ in range(4):
            assert api.call("GET", f"{tenant.app}/limits", token=token).status == 200
    with moves(api, {answer % "store": 0, answer % "memory": 0, answer % "refused": 2}):
        for bad in (f"{token}x", "nonsense"):
            assert api.call("GET", f"{tenant.app}/limits", token=bad).status == 401


def test_revocations_by_kind(api: Api, tenant: Tenant) -> None:
    """By clients and by administrators."""
    kind = 'pricekeeper_revocations_total{kind="%s"}'
    with moves(api, {kind % "token": 1, kind % "session": 2, kind % "evicted": 0}):
        grants = [tenant.login() for _ in range(3)]
        access, refresh = grants[0]["access_token"], grants[1]["refresh_token"]
        for token in (access, access, refresh):  # the second time it is revoked already
            api.call("POST", "/auth/revoke", {"token": token}, token=tenant.app_token)
        path = f"/auth/sessions/{grants[2]['session_id']}"
        assert api.call("DELETE", path, token=tenant.app_token).status == 204
    with moves(api, {kind % "evicted": 2}):
        for _ in range(5):  # two live on: the first, and the one whose access token was revoked
            tenant.login()
    with moves(api, {kind % "client": 1}):
        token = tenant.login()["access_token"]
        assert api.call("DELETE", "/auth/sessions", token=token).status == 204
    with moves(api, {kind % "session": 1, kind % "client": 1}):
        session = tenant.login()["session_id"]
        assert api.provision("DELETE", f"{tenant.app}/sessions/{session}").status == 204
        assert api.provision("DELETE", f"{tenant.app}/sessions").status == 204
    why = {"reason": "leaked"}
    with moves(api, {kind % "rotation": 1, kind % "credentials": 1}):
        rotate = f"{tenant.app}/credentials/rotate"
        for hours in (0, 1):
            made = api.provision("POST", rotate, {"grace_period_hours": hours})
            assert api.claim(made).status == 200
        assert api.provision("POST", f"{tenant.app}/credentials/revoke", why).status == 200
    with moves(api, {'pricekeeper_problems_total{code="FROZEN"}': 1}):
        assert api.provision("PUT", f"{tenant.org}/freeze", why).status == 200
        path = f"{tenant.app}/model-selection"
        assert api.call("GET", path, token=tenant.org_token).status == 403


def test_usage_and_the_size_of_its_commits(api: Api, tenant: Tenant) -> None:
    """One commit counts ten records that come together; a duplicate needs none."""
    outcome = 'pricekeeper_usage_records_total{outcome="%s"}'
    size, records = "pricekeeper_usage_commit_records", [usage() for _ in range(10)]
    body = {"requests": [*records, records[0]]}
    with moves(
        api,
        {
            outcome % "accepted": 10,
            outcome % "duplicate": 1,
            f"{size}_count": 1,
            f"{size}_sum": 10,
            f'{size}_bucket{{le="8.0"}}': 0,
            f'{size}_bucket{{le="16.0"}}': 1,
        },
    ):
        batch = tenant.ask("POST", "usage/batch", body)
        assert batch.status == 207


def test_store_calls_and_the_size_of_commits(api: Api, tenant: Tenant) -> None:
    """A usage record whose id has no time is a put and an update, and a commit for each.

    A new tick of the ledger may begin meanwhile: its marks are puts.
    """
    call, size = 'pricekeeper_store_calls_total{call="%s"}', "pricekeeper_store_commit_operations"
    commits = (f"{size}_count", f"{size}_sum", f'{size}_bucket{{le="1.0"}}')
    tenant.record()
    before = scrape(api)
    for _ in range(3):
        tenant.record()
    moved: dict[str, float] = {}

    def are_counted() -> bool:
        moved.update({name: value - before.get(name, 0) for name, value in scrape(api).items()})
        return all(moved[name] == 3 + moved.get(call % "put", 0) for name in commits)

    until(are_counted, lambda: moved)
    assert moved[call % "update"] == 3
    assert 3 <= moved[call % "put"] <= 5


def test_selections_flips_and_quotas(api: Api, tenant: Tenant) -> None:
    reason, flips = 'pricekeeper_selections_total{reason="%s"}', "pricekeeper_sticky_flips_total"
    path = f"{tenant.app}/model-selection"
    with moves(api, {reason % "NORMAL": 1, reason % "warm": 2, f'{flips}{{outcome="made"}}': 0}):
        for _ in range(3):
            assert api.call("GET", path, token=tenant.app_token).status == 200

    def used(label: str) -> float:
        return scrape(api)[tenant.quota_line(label)]

    assert used("premium") == 0
    with moves(api, {f'{flips}{{outcome="made"}}': 2, reason % "EXHAUSTED": 1}):
        for label in ("premium", "standard", "economy"):
            record = usage(model_label=label, input_tokens=400_000, output_tokens=100_000)
            tenant.record(record)
            answer = api.call("GET", f"{path}?force_check=true", token=tenant.app_token)
            granted = answer.status == 200
            of = answer.json["quota_status"]["models_status"] if granted else answer.json["models"]
            spent = {name: status["quota_pct"] / 100 for name, status in of.items()}
            assert {name: used(name) for name in spent} == pytest.approx(spent)
            assert used(label) > 1


def test_limits_by_name_and_outcome(api: Api, tenant: Tenant) -> None:
    """A tenant's own limits, and the API's; only the limit that denies is counted as denied."""
    limit = 'pricekeeper_limit_decisions_total{limit="%s",outcome="%s"}'
    own = 'pricekeeper_api_limit_decisions_total{limit="%s",outcome="%s"}'
    path = f"{tenant.app}/limits/acquire"
    with moves(api, {limit % ("rpm", "granted"): 1, limit % ("rpm", "denied"): 2}):
        for count in (6, 6, 11):
            body = {"resource": "premium", "consume": {"rpm": count}}
            api.call("POST", path, body, token=tenant.app_token)
    with moves(api, {own % ("selection", "granted"): 5, own % ("failures", "granted"): 1}):
        for _ in range(5):
            tenant.select()
        api.call("GET", f"{tenant.app}/model-selection", token="nonsense")


@pytest.mark.slow
async def test_on_dynamodb_faults_attempts_and_capacity(
    tmp_path: Path, dynamodb_local: str
) -> None:
    def watch(proxy: FaultProxy) -> None:
        with served(tmp_path, store=dynamodb_url(proxy.endpoint)) as api:
            tenant = Tenant(api).register()
            faults = (Fault.THROTTLE, Fault.CONFLICT, Fault.CLOSE_AFTER)
            proxy.next("TransactWriteItems", *faults)
            with moves(
                api,
                {
                    'pricekeeper_store_faults_total{kind="throttled"}': 1,
                    'pricekeeper_store_faults_total{kind="conflict"}': 1,
                    'pricekeeper_store_faults_total{kind="ambiguous"}': 1,
                    'pricekeeper_store_attempts_total{action="TransactWriteItems"}': 4,
                    'pricekeeper_store_calls_total{call="transact"}': 1,
                    'pricekeeper_store_capacity_units_total{kind="write",table="AuditTrail"}': 2,
                },
            ):
                frozen = api.provision("PUT", f"{tenant.app}/freeze", {"reason": "a test"})
                assert frozen.status == 200
            reads = 'pricekeeper_store_capacity_units_total{kind="read",table="Config"}'
            assert scrape(api)[reads] > 0

    async with FaultProxy(dynamodb_local) as proxy:
        await asyncio.to_thread(watch, proxy)


@pytest.mark.slow
def test_with_two_workers_a_scrape_speaks_for_both(tmp_path: Path) -> None:
    with running_server(tmp_path, "--workers", "2", environment=ENVIRONMENT) as server:
        api = Api(server.url)
        tenant = Tenant(api).register()
        with (
            connections_to_each(server, workers=2, each=1) as connections,
            moves(
                api,
                {
                    timed("POST", USAGE, 202): 20,
                    'pricekeeper_usage_records_total{outcome="accepted"}': 20,
                    "pricekeeper_usage_commit_records_sum": 20,
                    "pricekeeper_usage_commit_records_count": 20,
                    'pricekeeper_token_checks_total{answer="refused"}': 2,
                },
            ),
        ):
            for connection in connections:
                for _ in range(10):
                    body = usage(input_tokens=100, output_tokens=0)
                    path = f"{tenant.app}/usage"
                    assert connection.call("POST", path, body, token=tenant.app_token).status == 202
                assert connection.call("GET", f"{tenant.app}/limits", token="none").status == 401

        # A gauge has the value that was set last, by any worker.
        name = tenant.quota_line("premium")
        path = f"{tenant.app}/model-selection?force_check=true"
        with connections_to_each(server, workers=2, each=1) as connections:
            for connection in connections:
                body = usage(input_tokens=10_000, output_tokens=0)
                connection.call("POST", f"{tenant.app}/usage", body, token=tenant.app_token)
                answer = connection.call("GET", path, token=tenant.app_token)
                spent = answer.json["quota_status"]["quota_pct"] / 100
                # So that this worker has carried its counts over.
                connection.call("GET", "/metrics", token=METRICS_TOKEN)
                assert scrape(api)[name] == pytest.approx(spent)
