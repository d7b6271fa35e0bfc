"""One deadline for each request: a hanging store is reported within it, and nothing counts twice.

A test releases the store only after it has the answers, so an answer that waits for the store never
comes. The bounds on time are the test's own patience.
"""

import asyncio
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apsw
import pytest
import uvicorn

from hanging_proxy import HangingProxy, hanging_proxy
from http_fixtures import FORCED, ORG, Api, Reply, Tenant, dynamodb_url, usage
from pricekeeper.http.app import make_app
from pricekeeper.http.metrics_listener import OneWorker
from pricekeeper.http.server import server_config
from pricekeeper.settings import Settings
from scraping import scrape, until
from served import settings_in

DEADLINE_MS = 1_000


class Hanging(Protocol):
    """A store that can be made to hang."""

    def hang(self) -> None: ...

    def go_on(self) -> None: ...


class HeldLock:
    """The write lock of a database file, held by another process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None

    def hang(self) -> None:
        self._connection = apsw.Connection(self._path)
        self._connection.set_busy_timeout(10_000)
        self._connection.execute("BEGIN IMMEDIATE")

    def go_on(self) -> None:
        if self._connection is not None:
            self._connection.execute("ROLLBACK")
            self._connection.close()
            self._connection = None


def tasks_of(worker: OneWorker) -> set[str]:
    """The names of what is under way on the worker's loop, but for requests."""
    assert worker.running is not None
    loop, _ = worker.running
    counted: list[set[str]] = []
    done = threading.Event()

    def look() -> None:
        counted.append({task.get_name() for task in asyncio.all_tasks(loop)})
        done.set()

    loop.call_soon_threadsafe(look)
    assert done.wait(20)
    return counted[0]


@dataclass
class Service:
    """A service on a store that can be made to hang."""

    api: Api
    tenant: Tenant
    store: Hanging
    worker: OneWorker
    kind: str


@contextmanager
def serving(settings: Settings) -> Iterator[tuple[Api, OneWorker]]:
    worker = OneWorker()
    server = uvicorn.Server(server_config(make_app(settings, worker=worker)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            until(lambda: server.started)
            yield Api(f"http://127.0.0.1:{listening.getsockname()[1]}"), worker
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(params=["sqlite-file", "dynoxide"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with ExitStack() as opened:
        store: HeldLock | HangingProxy = HeldLock(str(tmp_path / "store.db"))
        url = ""
        if request.param == "dynoxide":
            store = opened.enter_context(hanging_proxy(request.getfixturevalue("dynoxide")))
            url = dynamodb_url(store.endpoint)
        settings = settings_in(tmp_path, store=url, request_deadline_ms=DEADLINE_MS)
        api, worker = opened.enter_context(serving(settings))
        opened.callback(store.go_on)
        yield Service(api, Tenant(api).register(), store, worker, request.param)


def spent(tenant: Tenant) -> int:
    status = tenant.select(FORCED).json["quota_status"]["models_status"]["economy"]
    return int(status["spend_usd_micros"])


def test_every_operation_is_answered_while_the_store_hangs(service: Service) -> None:
    """With 503, when to come back, and whether it may have been applied."""
    tenant, api = service.tenant, service.api
    assert tenant.record().status == 202
    lease = tenant.acquire()
    assert lease.status == 200
    refresh_token = tenant.login()["refresh_token"]
    adjust = f"leases/{lease.json['lease_id']}/adjust"
    adjustment = {"adjustment_id": str(uuid.uuid4()), "delta": {"rpm": 1}}
    calls: dict[str, Callable[[], Reply]] = {
        "usage": tenant.record,
        "batch": lambda: tenant.record_many(usage(), usage()),
        "acquire": tenant.acquire,
        "adjust": lambda: tenant.ask("POST", adjust, adjustment),
        "login": tenant.try_login,
        "refresh": lambda: api.refresh(refresh_token),
        "provisioning": lambda: api.provision("PUT", f"/api/v1/orgs/{uuid.uuid4()}", ORG),
    }
    if service.kind != "sqlite-file":  # where a held lock does not block reads
        calls["selection"] = lambda: tenant.select(FORCED)
    service.store.hang()
    with ThreadPoolExecutor(len(calls)) as pool:
        replies = {name: pool.submit(call) for name, call in calls.items()}
        answers = {name: reply.result() for name, reply in replies.items()}
    assert {name: reply.status for name, reply in answers.items()} == dict.fromkeys(calls, 503)
    for name, reply in answers.items():
        assert reply.headers["retry-after"] == "1", name
        assert reply.json["code"] == "STORE_UNAVAILABLE", name
        assert reply.json["outcome"] in ("OUTCOME_UNKNOWN", "NOT_APPLIED"), name
    for name in ("usage", "batch", "acquire"):
        assert answers[name].json["outcome"] == "OUTCOME_UNKNOWN"
        assert "send the same request again" in answers[name].json["detail"]
    for name in ("login", "refresh"):
        assert answers[name].json["error"] == "temporarily_unavailable"
    samples = scrape(api)
    assert samples['pricekeeper_problems_total{code="DEADLINE_EXCEEDED"}'] == len(calls)


def test_what_was_given_up_counts_once_and_leaves_nothing_behind(service: Service) -> None:
    tenant = service.tenant
    first = tenant.record(model_label="economy")
    cost = first.json["cost_usd_micros"]
    until(lambda: "pricekeeper-commit" not in tasks_of(service.worker))
    at_rest = tasks_of(service.worker)
    records = [usage(model_label="economy") for _ in range(12)]
    service.store.hang()
    with ThreadPoolExecutor(len(records)) as pool:
        refused = list(pool.map(tenant.record, records))
        assert {one.json["outcome"] for one in refused} == {"OUTCOME_UNKNOWN"}
        service.store.go_on()
        until(lambda: tenant.record(records[0]).status == 202)
        again = list(pool.map(tenant.record, records))
    assert {one.status for one in again} == {202}
    assert [tenant.record(record).json["status"] for record in records] == ["duplicate"] * 12
    assert spent(tenant) == 13 * cost
    extra: set[str] = set()

    def is_at_rest() -> bool:
        extra.clear()
        extra.update(name for name in tasks_of(service.worker) if name.startswith("pricekeeper"))
        return extra <= at_rest

    until(is_at_rest, lambda: extra - at_rest)


def test_a_lease_that_was_given_up_is_granted_once_or_given_back(service: Service) -> None:
    """A named one is the same grant when it is asked for again; one without a name is undone."""
    tenant = service.tenant
    slow = {"rpm": {"capacity": 10, "refill_amount": 1, "refill_period_ms": 86_400_000}}
    settings = {"app_name": "Web", "rate_limits": {"*": slow}}
    assert tenant.api.provision("PUT", tenant.app, settings).status == 200
    until(lambda: tenant.acquire(lease_id=str(uuid.uuid5(uuid.NAMESPACE_DNS, "a"))).status == 200)
    lease_id = str(uuid.uuid4())
    service.store.hang()
    with ThreadPoolExecutor(2) as pool:
        named = pool.submit(lambda: tenant.acquire(lease_id=lease_id))
        nameless = pool.submit(tenant.acquire)
        assert {named.result().status, nameless.result().status} == {503}
    service.store.go_on()
    until(lambda: tenant.acquire(lease_id=lease_id).status == 200)

    def remaining() -> int:
        limits = tenant.ask("GET", "limits").json["resources"]
        return int(limits["premium"]["rpm"]["remaining"])

    until(lambda: remaining() == 8, remaining)


def test_nothing_was_applied_if_the_store_hangs_before_that(tmp_path: Path, dynoxide: str) -> None:
    """The caller can't even be recognised then, and hears that it was not applied."""
    with hanging_proxy(dynoxide) as store:
        url = dynamodb_url(store.endpoint)
        with serving(settings_in(tmp_path, store=url, request_deadline_ms=DEADLINE_MS)) as (api, _):
            tenant = Tenant(api).register()
            tenant.app_token = tenant.login()["access_token"]
            store.hang()
            refused = tenant.record()
            store.go_on()
    assert refused.json["outcome"] == "NOT_APPLIED"
    assert "was not applied" in refused.json["detail"]


def test_a_body_that_arrives_slowly_is_waited_for(service: Service) -> None:
    """Its time is bounded by itself; the deadline is for what the service does."""
    tenant = service.tenant
    body = b'{"request_id": "%s", "model_label": "premium", ' % str(uuid.uuid4()).encode()
    rest = b'"input_tokens": 1, "output_tokens": 1}'
    host, _, port = tenant.api.url.removeprefix("http://").partition(":")
    head = (
        f"POST {tenant.app}/usage HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {tenant.app_token}\r\nContent-Length: {len(body + rest)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as slow:
        slow.sendall(head.encode() + body)
        # A whole deadline passes on the service's own clock before the rest is sent.
        assert service.worker.running is not None
        loop, passed = service.worker.running[0], threading.Event()
        loop.call_soon_threadsafe(loop.call_later, 1.5 * DEADLINE_MS / 1000, passed.set)
        assert passed.wait(30)
        slow.sendall(rest)
        assert slow.recv(65_536).startswith(b"HTTP/1.1 202 ")


@pytest.mark.parametrize("service", ["sqlite-file"], indirect=True)
def test_readiness_says_that_the_write_lock_is_held(service: Service) -> None:
    until(lambda: service.api.call("GET", "/readyz").status == 200)
    service.store.hang()
    until(lambda: service.api.call("GET", "/readyz").status == 503)
    assert "write lock" in service.api.call("GET", "/readyz").json["reason"]
    service.store.go_on()
    until(lambda: service.api.call("GET", "/readyz").status == 200)
