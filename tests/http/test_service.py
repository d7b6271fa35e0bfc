"""The service as a process: starting, sharing the work, logging, and stopping in order."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from http_fixtures import ENVIRONMENT, FORCED, KEY, Api, Tenant, store_url, usage
from raw_http import connected, received
from scraping import until
from served import served
from serving import Server, running_server
from workers import Connection, connections_to_each

WRITERS = 8
STOP_SECS_MAX = 20


def record(**changes: Any) -> dict[str, Any]:
    """Something that costs a whole number of micro-dollars."""
    return usage(model_label="economy", input_tokens=1000, output_tokens=0, **changes)


def spent_usd_micros(tenant: Tenant) -> int:
    """What the counters say now."""
    status = tenant.select(FORCED).json["quota_status"]
    spent: int = status["models_status"]["economy"]["spend_usd_micros"]
    return spent


def cost_usd_micros(tenant: Tenant) -> int:
    """What one of our records costs."""
    cost: int = tenant.record(record()).json["cost_usd_micros"]
    assert cost > 0
    return cost


@dataclass
class Load:
    """Writers that continue until the server is gone, and their answers."""

    tenant: Tenant
    sent: list[str] = field(default_factory=list)
    answers: list[tuple[str, int]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self.threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(STOP_SECS_MAX)
            assert not thread.is_alive()

    @property
    def acknowledged(self) -> list[str]:
        return [request_id for request_id, status in self.answers if status == 202]

    def _write(self) -> None:
        with suppress(OSError, HTTPException):  # the server is gone
            while True:
                body = record()
                self.sent.append(body["request_id"])
                self.answers.append((body["request_id"], self.tenant.record(body).status))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_under_load_loses_and_breaks_nothing(tmp_path: Path, workers: int) -> None:
    """Readiness ends first, while requests are still served; none of them is answered with a 5xx.

    Every record that was acknowledged is there after the restart, and counts once.
    """
    environment = {**ENVIRONMENT, "PRICEKEEPER_DRAIN_SECS": "1"}
    arguments = ("--workers", str(workers))
    with running_server(tmp_path, *arguments, environment=environment) as server:
        tenant = Tenant(Api(server.url)).register()
        load = Load(tenant)
        load.start()
        until(lambda: len(load.answers) > 50)
        assert tenant.api.call("GET", "/readyz").status == 200
        server.process.send_signal(signal.SIGTERM)
        unready = []

        def is_unready() -> bool:
            unready.append(tenant.api.call("GET", "/readyz"))
            return unready[-1].status == 503

        until(is_unready)
        answered_until_then = len(load.answers)
        assert unready[-1].json["status"] == "draining"
        assert int(unready[-1].headers["retry-after"]) >= 1
        load.join()
        server.process.wait(STOP_SECS_MAX)
    assert len(load.answers) > answered_until_then
    assert {status for _, status in load.answers} == {202}
    loud = [line for line in log_lines(server) if line["level"] in ("warning", "error")]
    assert {line["event"] for line in loud} <= {"audit"}

    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        tenant.api = Api(server.url)
        spent, cost = spent_usd_micros(tenant), cost_usd_micros(tenant)
        assert len(load.acknowledged) * cost <= spent <= len(load.sent) * cost
        assert spent % cost == 0
        for start in range(0, len(load.acknowledged), 100):
            some = [record(request_id=name) for name in load.acknowledged[start : start + 100]]
            again = tenant.record_many(*some)
            assert again.json["duplicates"] == len(some)


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """Who asks twice means it: the pause for load balancers is cut short."""
    environment = {**ENVIRONMENT, "PRICEKEEPER_DRAIN_SECS": "60"}
    with running_server(tmp_path, environment=environment) as server:
        api = Api(server.url)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: api.call("GET", "/readyz").status == 503)
        assert api.call("GET", "/healthz").status == 200
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(STOP_SECS_MAX)
        assert "Traceback" not in server.output()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite-file", "dynoxide"])
def test_two_workers_count_exactly(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """The same records arrive at both, twice and at once; together they count each of them once."""
    store, arguments = store_url(request, kind, tmp_path), ("--workers", "2")
    with running_server(tmp_path, *arguments, environment=ENVIRONMENT, store=store) as server:
        tenant = Tenant(Api(server.url)).register()
        path = f"{tenant.app}/usage"
        records = [record() for _ in range(60)]

        def send_all(connection: Connection) -> list[str]:
            replies = [connection.call("POST", path, r, token=tenant.app_token) for r in records]
            assert {reply.status for reply in replies} == {202}
            return [reply.json["status"] for reply in replies]

        with (
            connections_to_each(server, workers=2, each=2) as connections,
            ThreadPoolExecutor(len(connections)) as pool,
        ):
            statuses = [status for told in pool.map(send_all, connections) for status in told]
        assert statuses.count("accepted") == len(records)
        assert statuses.count("duplicate") == len(records) * (len(connections) - 1)
        spent = spent_usd_micros(tenant)
        assert spent == len(records) * cost_usd_micros(tenant)


def test_keys_and_pepper_survive_a_restart(tmp_path: Path) -> None:
    """Tokens, refresh tokens, secrets and unclaimed retrieval tokens are as good as before."""
    with served(tmp_path) as api:
        tenant = Tenant(api).register()
        keys = api.call("GET", "/.well-known/jwks.json").json
        granted = tenant.login()
        rotate = f"{tenant.org}/credentials/rotate"
        rotated = api.provision("POST", rotate, {"grace_period_hours": 1})
    with served(tmp_path) as tenant.api:
        assert tenant.api.call("GET", "/.well-known/jwks.json").json == keys
        tenant.app_token = granted["access_token"]
        assert tenant.ask("GET", "limits").status == 200
        assert tenant.api.refresh(granted["refresh_token"]).status == 200
        assert tenant.login()["access_token"]
        assert tenant.api.claim(rotated).status == 200
    kept = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "data").iterdir()}
    assert kept.keys() >= {"pepper", "signing-keys.json"}
    assert {kept["pepper"], kept["signing-keys.json"]} == {0o600}


PROVISIONING_KEY, HEX = "PRICEKEEPER_PROVISIONING_KEY", "openssl rand -hex 32"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "setting", "fix"),
    [
        ({}, PROVISIONING_KEY, HEX),
        ({PROVISIONING_KEY: "too-short"}, PROVISIONING_KEY, HEX),
        ({PROVISIONING_KEY: "a" * 64}, PROVISIONING_KEY, HEX),
        ({PROVISIONING_KEY: "demo-provisioning-key"}, PROVISIONING_KEY, HEX),
        ({"PRICEKEEPER_METRICS_TOKEN": "demo-metrics-token"}, "PRICEKEEPER_METRICS_TOKEN", HEX),
        ({"PRICEKEEPER_PRICE_SOURCE": "genai"}, "PRICEKEEPER_PRICE_SOURCE", "use genai-prices"),
    ],
    ids=["no key", "short key", "dull key", "public key", "public token", "no price source"],
)
def test_with_a_bad_setting_it_does_not_start(
    tmp_path: Path, given: dict[str, str], setting: str, fix: str
) -> None:
    """One line that names the setting and says what to do; nothing is created."""
    key = {} if setting == PROVISIONING_KEY else {PROVISIONING_KEY: KEY}
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [sys.executable, "-m", "pricekeeper", "serve", "--store", "sqlite:///store.db"],
        env={**kept, **key, **given},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert setting in told
    assert fix in told
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "proxies", "loud"),
    [
        ("0.0.0.0", None, True),  # noqa: S104 - that is the point
        ("0.0.0.0", "10.0.0.0/16", False),  # noqa: S104
        ("0.0.0.0", "none", False),  # noqa: S104
        ("127.0.0.1", None, False),
    ],
)
def test_who_listens_to_everybody_is_asked_for_the_proxies(
    tmp_path: Path, host: str, proxies: str | None, *, loud: bool
) -> None:
    environment = dict(ENVIRONMENT)
    if proxies is not None:
        environment["PRICEKEEPER_TRUSTED_PROXIES"] = proxies
    with running_server(tmp_path, "--host", host, environment=environment) as server:
        assert Api(server.url).provision("GET", "/api/v1/orgs").status == 200
        printed = [line for line in server.output().splitlines() if line.startswith("WARNING")]
        logged = [line for line in log_lines(server) if line["event"] == "trusted_proxies_not_set"]
    assert (len(printed), len(logged)) == ((1, 1) if loud else (0, 0))
    assert all("PRICEKEEPER_TRUSTED_PROXIES" in line for line in printed)
    store = f"sqlite:///{tmp_path}/store.db"
    settings = {**os.environ, **environment, "PRICEKEEPER_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "pricekeeper", "doctor", "--json", "--store", store],
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["proxies"]["level"] == ("WARN" if loud else "OK")


def log_lines(server: Server) -> list[dict[str, Any]]:
    """The log, without lines for a person who started the server by hand."""
    return [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {**ENVIRONMENT, "PRICEKEEPER_LOG_LEVEL": "debug"}
    with running_server(tmp_path_factory.mktemp("logged"), environment=environment) as server:
        yield server


def test_every_request_has_a_line_under_its_id(logged: Server) -> None:
    """The caller's id if it sent a sane one, which the answer has too; else one of ours."""
    api = Api(logged.url)
    mine = api.call("GET", "/healthz", headers={"x-request-id": "order-66.a_b"})
    ours = api.call("GET", "/nonsense", headers={"x-request-id": "not sane: \t<script>"})
    assert mine.headers["x-request-id"] == "order-66.a_b"
    wanted = {mine.headers["x-request-id"], ours.headers["x-request-id"]}

    def found() -> dict[str, dict[str, Any]]:
        lines = [line for line in log_lines(logged) if line["event"] == "request"]
        return {line["request_id"]: line for line in lines if line["request_id"] in wanted}

    until(lambda: found().keys() == wanted, logged.output)
    line = found()["order-66.a_b"]
    assert {name: line[name] for name in ("level", "method", "route", "status")} == {
        "level": "info",
        "method": "GET",
        "route": "/healthz",
        "status": 200,
    }
    assert line["elapsed_us"] > 0
    assert line["timestamp"].endswith("Z")
    assert found()[ours.headers["x-request-id"]]["status"] == 404
    assert "script" not in logged.output()


def test_no_secret_is_ever_logged(logged: Server) -> None:
    """Wherever a caller puts it, in its place or out of it: canaries never reach the log."""
    api = Api(logged.url)
    tenant = Tenant(api).register()
    granted = tenant.login()
    fetched = api.call("GET", "/auth/aws-credentials", headers=tenant.basic()).json
    rotate = f"{tenant.app}/credentials/rotate"
    rotated = api.provision("POST", rotate, {"grace_period_hours": 1})
    retrieval = rotated.json["secret_retrieval"]["token"]
    canaries = {
        "access token": granted["access_token"],
        "refresh token": granted["refresh_token"],
        "client secret": tenant.secrets[tenant.client_id],
        "retrieval token": retrieval,
        "token outside the slots": fetched["Token"],
        "AWS secret": fetched["SecretAccessKey"],
        "provisioning key": KEY,
    }
    for canary in canaries.values():
        misplace(api, tenant, canary)
    api.claim(rotated)
    last = api.call("GET", "/healthz", headers={"x-request-id": "the-last-one"})
    assert last.status == 200
    until(lambda: "the-last-one" in logged.output())
    output = logged.output()
    assert {name for name, canary in canaries.items() if canary in output} == set()
    # Half of one is no good either, nor is what a form or a header makes of it.
    assert tenant.basic()["authorization"].removeprefix("Basic ") not in output
    for name in canaries.keys() - {"provisioning key"}:
        assert canaries[name][-20:] not in output, name
    assert "Traceback" not in output


def misplace(api: Api, tenant: Tenant, canary: str) -> None:
    """Send it everywhere that a request has room for it."""
    basic = tenant.basic(canary)["authorization"]
    for headers in (
        {"authorization": canary},
        {"authorization": f"Bearer {canary}"},
        {"authorization": basic},
        {"authorization": f"Token token={canary}"},
        {"x-api-key": canary},
        {"x-request-id": canary},
        {"user-agent": canary, "referer": f"http://127.0.0.1/?token={canary}"},
        {"cookie": f"session={canary}", "x-forwarded-for": canary},
        {"content-type": canary},
        {"if-none-match": canary},
    ):
        api.call("GET", f"{tenant.app}/limits", headers=headers)
        api.call("POST", "/auth/token", data=b"{}", headers=headers)
        api.call("GET", "/auth/aws-credentials", headers=headers)
    for path in (
        f"/{canary}",
        f"/api/v1/orgs/{canary}",
        f"/api/v1/orgs?after={canary}&limit={canary}",
        f"{tenant.org}/apps/{canary}",
        f"/nonsense?access_token={canary}",
    ):
        api.provision("GET", path)
    api.call("DELETE", f"/auth/sessions/{canary}", token=tenant.app_token)
    for body in ({"token": canary}, {canary: canary}, {"grant_type": canary}, canary, [canary]):
        for path in ("/auth/token", "/auth/revoke", "/auth/introspect", "/auth/refresh"):
            api.call("POST", path, body)
        api.call("POST", "/api/v1/credentials/claim", body)
        api.provision("PUT", tenant.org, body)
    form = f"grant_type=client_credentials&client_id={canary}&client_secret={canary}".encode()
    kind = {"content-type": "application/x-www-form-urlencoded"}
    api.call("POST", "/auth/token", data=form, headers=kind)
    with connected(api.url, f"{canary} {canary}\r\n\r\n".encode()) as raw:
        received(raw)
