"""Who may read the metrics, and a separate listener that a busy service does not delay."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn

from free_port import free_port
from http_fixtures import ENVIRONMENT, METRICS_TOKEN, Api, Reply, Tenant, usage
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.http import metrics_listener
from pricekeeper.http.app import make_app
from pricekeeper.http.metrics_listener import (
    ALIVE_MS_MAX,
    BEAT_MS,
    HeartbeatInFile,
    MetricsListener,
    OneWorker,
    SeveralWorkers,
    Watched,
    beat_forever,
    read_heartbeat,
)
from pricekeeper.http.server import server_config
from scraping import read_samples, until
from served import served, settings_in
from serving import Server, running_server
from workers import connections_to_each

TOKEN = "PRICEKEEPER_METRICS_TOKEN"
PORT = "PRICEKEEPER_METRICS_PORT"
WITHOUT = {name: value for name, value in ENVIRONMENT.items() if name != TOKEN}
SPELLINGS = (
    *("/metrics", "/%6detrics", "/%6D%65trics", "/metrics?x=1", "/metrics#x"),
    *("/metrics/", "//metrics", "/./metrics", "/x/../metrics", "/%2fmetrics", "/%2Fmetrics"),
    *("/METRICS", "/metrics;x", "/metrics%00", "/%256detrics", "http://x/metrics"),
)


def asked(url: str, path: str, method: str = "GET", *, authorization: str | None = None) -> Reply:
    """The answer to a path, sent unchanged."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("host", "x")
        if authorization is not None:
            connection.putheader("authorization", authorization)
        connection.endheaders()
        answer = connection.getresponse()
        received = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, received, answer.read())
    finally:
        connection.close()


# The public port


@pytest.fixture(scope="module", params=["with a token", "without one"])
def public(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """A public server without a metrics listener."""
    token = METRICS_TOKEN if request.param == "with a token" else None
    with served(tmp_path_factory.mktemp("public"), metrics_token=token) as api:
        yield api


def test_nobody_reads_metrics_without_the_token(public: Api) -> None:
    """However the path is spelled."""
    for method, path in product(("GET", "HEAD"), SPELLINGS):
        reply = asked(public.url, path, method)
        assert reply.status in (401, 404), path
        assert b"pricekeeper_" not in reply.data


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer None", "Basic eDp5", METRICS_TOKEN, f"Basic {METRICS_TOKEN}",
     f"Bearer {METRICS_TOKEN}x", f"Bearer {METRICS_TOKEN[:-1]}", "Bearer \xfc"],
)  # fmt: skip
def test_another_token_does_not_open_them(public: Api, authorization: str) -> None:
    """Nor a part of it, nor the right one in another place."""
    reply = asked(public.url, "/metrics", authorization=authorization)
    assert (reply.status, reply.code) == (401, "UNAUTHORIZED")
    bearer = authorization.startswith("Bearer ") and bool(authorization[7:])
    error = ', error="invalid_token"' if bearer else ""
    assert reply.headers["www-authenticate"] == f'Bearer realm="pricekeeper"{error}'


def test_a_client_does_not_read_them(public: Api) -> None:
    """Neither an access token nor the provisioning key opens them."""
    tenant = Tenant(public).register()
    assert public.call("GET", "/metrics", token=tenant.app_token).status == 401
    assert public.call("GET", "/metrics", token=tenant.org_token).status == 401
    assert public.provision("GET", "/metrics").status == 401


def test_the_token_opens_them_where_one_is_set(request: pytest.FixtureRequest, public: Api) -> None:
    """In every spelling of the path."""
    status = 200 if "with a token" in request.node.name else 401
    for path in ("/metrics", "/%6detrics"):
        reply = asked(public.url, path, authorization=f"bearer {METRICS_TOKEN}")
        assert reply.status == status
        assert (b"pricekeeper_request_seconds" in reply.data) is (status == 200)


def test_guesses_are_failures_of_their_address(tmp_path: Path) -> None:
    """A missing token is no guess, and the right one still opens them."""
    with served(tmp_path, api_limits_per_minute={"failures": 3}) as api:
        without = {asked(api.url, "/metrics").status for _ in range(6)}
        guesses = [
            asked(api.url, "/metrics", authorization=f"Bearer {guess}").status for guess in range(6)
        ]
        right = asked(api.url, "/metrics", authorization=f"Bearer {METRICS_TOKEN}")
    assert without == {401}
    assert (guesses[0], guesses[-1]) == (401, 429)
    assert right.status == 200


# A separate listener


@contextmanager
def with_listener(folder: Path, *arguments: str) -> Iterator[tuple[Server, Api]]:
    """A server, and beside it its listener for metrics."""
    port = free_port()
    listening = ("--metrics-port", str(port))
    with running_server(folder, *listening, *arguments, environment=WITHOUT) as server:
        listener = Api(f"http://127.0.0.1:{port}")
        assert f"{listener.url}/metrics" in server.output()
        yield server, listener


def test_the_listener_has_metrics_and_health_and_nothing_else(tmp_path: Path) -> None:
    """The service itself has no metrics then. It says why the service is not ready."""
    with with_listener(tmp_path) as (server, listener):
        public = Api(server.url)
        assert listener.call("GET", "/healthz").json == {"status": "alive"}
        until(lambda: listener.call("GET", "/readyz").json == {"status": "ready"})
        assert listener.call("HEAD", "/healthz").status == 200
        tenant = Tenant(public).register()
        tenant.record()
        reply = listener.call("GET", "/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = read_samples(reply.data.decode())
        assert samples['pricekeeper_usage_records_total{outcome="accepted"}'] == 1
        assert public.call("GET", "/metrics").status == 401
        for path in ("/", "/docs", "/auth/token", tenant.org, "/openapi.json"):
            assert listener.call("GET", path).code == "NOT_FOUND"
        posted = listener.call("POST", "/metrics", data=b"{}")
        assert (posted.code, posted.headers["allow"]) == ("METHOD_NOT_ALLOWED", "GET, HEAD")
        (tmp_path / "store.db").unlink()
        until(lambda: listener.call("GET", "/readyz").status == 503)
        told = listener.call("GET", "/readyz").json
        assert told == public.call("GET", "/readyz").json
        assert "removed or replaced" in told["reason"]


def test_if_there_is_a_token_the_listener_asks_for_it(tmp_path: Path) -> None:
    """Health stays open."""
    with service_and_listener(tmp_path, METRICS_TOKEN) as (_, service, listener):
        for path in ("/metrics", "/%6detrics"):
            refused = asked(listener.url, path)
            assert refused.code == "UNAUTHORIZED"
            assert refused.headers["www-authenticate"] == 'Bearer realm="pricekeeper"'
        for api in (service, listener):
            assert api.call("GET", "/metrics", token=METRICS_TOKEN).status == 200
        assert listener.call("GET", "/healthz").status == 200


@pytest.mark.slow
def test_with_two_workers_one_listener_speaks_for_both(tmp_path: Path) -> None:
    """The parent process answers for both."""
    with with_listener(tmp_path, "--workers", "2") as (server, listener):
        tenant = Tenant(Api(server.url)).register()
        with connections_to_each(server, workers=2, each=1) as connections:
            for connection in connections:
                path = f"{tenant.app}/usage"
                assert connection.call("POST", path, usage(), token=tenant.app_token).status == 202
        name = 'pricekeeper_usage_records_total{outcome="accepted"}'

        def counted() -> float:
            return read_samples(listener.call("GET", "/metrics").data.decode()).get(name, 0)

        until(lambda: counted() == 2)
        until(lambda: listener.call("GET", "/healthz").status == 200)
        until(lambda: listener.call("GET", "/readyz").json == {"status": "ready"})


# A service that is stuck


@contextmanager
def in_a_thread(server: uvicorn.Server) -> Iterator[str]:
    """Serve from another thread of this process; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def listener_for(
    watched: Watched, service: str, clock: ManualClock | SystemClock, token: str | None = None
) -> uvicorn.Server:
    place = urlsplit(service)
    application = MetricsListener(watched, (place.hostname or "", place.port or 0), token, clock)
    return uvicorn.Server(server_config(application, lifespan="off", graceful_secs=1))


@contextmanager
def service_and_listener(
    folder: Path, token: str | None = None
) -> Iterator[tuple[OneWorker, Api, Api]]:
    """A service and its listener, each in a thread of this process."""
    worker = OneWorker()
    service = uvicorn.Server(server_config(make_app(settings_in(folder), worker=worker)))
    with in_a_thread(service) as url:
        listener = listener_for(worker, url, SystemClock(), token)
        with in_a_thread(listener) as listening:
            yield worker, Api(url), Api(listening)


def test_a_loop_that_stands_still_does_not_hold_up_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health and metrics are answered meanwhile; readiness says no."""
    goes_on = threading.Event()
    with service_and_listener(tmp_path) as (worker, _, listener), ExitStack() as opened:
        assert listener.call("GET", "/healthz").json == {"status": "alive"}
        until(lambda: listener.call("GET", "/readyz").json == {"status": "ready"})
        monkeypatch.setattr(metrics_listener, "PATIENCE_SECS", 0.1)
        opened.callback(goes_on.set)
        assert worker.running is not None
        worker.running[0].call_soon_threadsafe(goes_on.wait)
        assert listener.call("GET", "/healthz").json == {"status": "alive"}
        assert b"pricekeeper_problems" in listener.call("GET", "/metrics").data
        ready = listener.call("GET", "/readyz")
        assert (ready.status, ready.json["status"]) == (503, "unavailable")


class Beating:
    """Workers whose loops turn when the test says."""

    def __init__(self, *beats_ms: int | None) -> None:
        self.beats_ms: Sequence[int | None] = beats_ms

    def read_heartbeats_ms(self) -> Sequence[int | None]:
        return self.beats_ms

    async def read_exposition(self) -> bytes | None:
        return None


def test_alive_means_that_every_loop_has_turned_of_late() -> None:
    """Within ten seconds. A starting worker does not make the others fail."""
    clock, watched = ManualClock(), Beating(None, None)
    with in_a_thread(listener_for(watched, "http://127.0.0.1:1", clock)) as url:
        listener = Api(url)

        def health() -> tuple[int, str]:
            reply = listener.call("GET", "/healthz")
            return reply.status, reply.json["status"]

        assert health() == (503, "starting")
        assert listener.call("GET", "/metrics").status == 503
        assert listener.call("GET", "/readyz").json["status"] == "unavailable"
        watched.beats_ms = (clock.monotonic_ms(), None)
        assert health() == (200, "alive")
        clock.advance_ms(ALIVE_MS_MAX)
        assert health() == (200, "alive")
        clock.advance_ms(1)
        assert health() == (503, "stuck")
        watched.beats_ms = (clock.monotonic_ms(), clock.monotonic_ms() - ALIVE_MS_MAX - 1)
        assert health() == (503, "stuck")
        watched.beats_ms = (clock.monotonic_ms(), clock.monotonic_ms())
        assert health() == (200, "alive")


async def test_a_worker_leaves_its_sign_as_often_as_it_says(tmp_path: Path) -> None:
    """In a file that its parent process reads."""
    clock = ManualClock()
    beating = asyncio.create_task(beat_forever(HeartbeatInFile(tmp_path).beat, clock))
    workers = SeveralWorkers(tmp_path, lambda: [os.getpid(), 1])
    assert workers.read_heartbeats_ms() == [None, None]
    for beat in range(3):
        for _ in range(3):  # until it sleeps again
            await asyncio.sleep(0)
        assert workers.read_heartbeats_ms() == [beat * BEAT_MS, None]
        clock.advance_ms(BEAT_MS)
    beating.cancel()
    (tmp_path / f"heartbeat-{os.getpid()}").write_bytes(b"1")
    assert read_heartbeat(tmp_path, os.getpid()) is None
