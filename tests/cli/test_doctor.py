"""The doctor: all is well when it is, and each thing that can be wrong is found and has a fix."""

import asyncio
import os
import shutil
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.conftest import Cli, drop_a_table
from free_port import free_port
from pricekeeper.cli.checks import FREE_BYTES_CALM, FREE_BYTES_MIN
from pricekeeper.clock import SystemClock
from pricekeeper.errors import SettingsError
from pricekeeper.metering.items import checkpoint_update
from pricekeeper.settings import SqliteLocation, read_settings
from pricekeeper.storage import open_store

KEY = "PRICEKEEPER_PROVISIONING_KEY"
METRICS_PORT = "PRICEKEEPER_METRICS_PORT"
METRICS_TOKEN = "PRICEKEEPER_METRICS_TOKEN"


def levels(cli: Cli, *words: str) -> tuple[int, dict[str, str]]:
    done = cli("doctor", "--json", *words)
    for check in done.json["checks"]:
        assert check["level"] == "OK" or check["fix"] or "first start" in check["told"], check
    return done.code, {check["name"]: check["level"] for check in done.json["checks"]}


@pytest.fixture
def healthy(cli: Cli) -> Cli:
    cli.register()
    (cli.folder / "data").chmod(0o700)
    cli.monkeypatch.setenv(KEY, "a-key-of-thirty-two-characters--")
    cli.monkeypatch.setenv(METRICS_PORT, "9464")
    return cli


def test_a_healthy_deployment(healthy: Cli) -> None:
    """Nothing to look at, exit code 0."""
    code, found = levels(healthy)
    assert (code, set(found.values())) == (0, {"OK"})
    assert "all is well" in healthy("doctor").out


def test_before_the_first_start(cli: Cli) -> None:
    """Only the key is missing; the rest will be made. Nothing is made by looking."""
    code, found = levels(cli)
    assert code == 1
    assert {name for name, level in found.items() if level == "FAIL"} == {"provisioning key"}
    assert found["store"] == found["data folder"] == "WARN"
    assert list(cli.folder.iterdir()) == []


def checkpoint_at(path: Path, offset_ms: int) -> None:
    async def write() -> None:
        store = await open_store(SqliteLocation(str(path)), clock=SystemClock())
        await store.update(checkpoint_update(SystemClock().now_ms() + offset_ms))
        await store.close()

    asyncio.run(write())


class Ill(NamedTuple):
    check: str
    level: str
    make: Callable[[Cli], object]


ILLS = {
    "no key": Ill("provisioning key", "FAIL", lambda c: c.monkeypatch.delenv(KEY)),
    "demo key": Ill(
        "provisioning key", "WARN", lambda c: c.monkeypatch.setenv(KEY, "demo-provisioning-key")
    ),
    "short key": Ill("settings", "FAIL", lambda c: c.monkeypatch.setenv(KEY, "short")),
    "no metrics": Ill("metrics", "WARN", lambda c: c.monkeypatch.delenv(METRICS_PORT)),
    "metrics for all": Ill(
        "metrics", "WARN", lambda c: c.monkeypatch.setenv(METRICS_PORT, "0.0.0.0:9464")
    ),
    "demo token": Ill(
        "metrics", "WARN", lambda c: c.monkeypatch.setenv(METRICS_TOKEN, "demo-metrics-token")
    ),
    "bad store": Ill(
        "settings", "FAIL", lambda c: c.monkeypatch.setenv("PRICEKEEPER_STORE", "mysql://x")
    ),
    "no price source": Ill(
        "settings", "FAIL", lambda c: c.monkeypatch.setenv("PRICEKEEPER_PRICE_SOURCE", "genai")
    ),
    "no such file": Ill(
        "models", "FAIL", lambda c: c.monkeypatch.setenv("PRICEKEEPER_CONFIG", "nowhere.yaml")
    ),
    "open folder": Ill("data folder", "WARN", lambda c: (c.folder / "data").chmod(0o755)),
    "open pepper": Ill("pepper", "FAIL", lambda c: (c.folder / "data/pepper").chmod(0o644)),
    "lost pepper": Ill("pepper", "WARN", lambda c: (c.folder / "data/pepper").unlink()),
    "open keys": Ill(
        "signing keys", "FAIL", lambda c: (c.folder / "data/signing-keys.json").chmod(0o640)
    ),
    "broken keys": Ill(
        "signing keys", "FAIL", lambda c: (c.folder / "data/signing-keys.json").write_text("{}")
    ),
    "open store": Ill("store file", "WARN", lambda c: (c.folder / "demo.db").chmod(0o644)),
    "no store": Ill("store", "WARN", lambda c: (c.folder / "demo.db").unlink()),
    "not ours": Ill("store", "FAIL", lambda c: (c.folder / "demo.db").write_text("x" * 4096)),
    "missing table": Ill("tables", "FAIL", lambda c: drop_a_table(c.folder / "demo.db")),
    "sleepy aggregator": Ill(
        "aggregator", "WARN", lambda c: checkpoint_at(c.folder / "demo.db", -3_600_000)
    ),
    "clock behind": Ill(
        "aggregator", "FAIL", lambda c: checkpoint_at(c.folder / "demo.db", 3_600_000)
    ),
    "little room": Ill("disk", "WARN", lambda c: leave_free(c, FREE_BYTES_CALM - 1)),
    "no room": Ill("disk", "FAIL", lambda c: leave_free(c, FREE_BYTES_MIN - 1)),
}


def leave_free(cli: Cli, free_bytes: int) -> None:
    usage = shutil.disk_usage(cli.folder)._replace(free=free_bytes)
    cli.monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize("ill", ILLS.values(), ids=ILLS)
def test_each_ill_is_found(healthy: Cli, ill: Ill) -> None:
    """The check that is about it says so, and FAIL is what the exit code follows."""
    ill.make(healthy)
    code, found = levels(healthy)
    assert found[ill.check] == ill.level
    assert code == int("FAIL" in found.values())


def test_metrics_beyond_this_machine_are_well_behind_a_token(healthy: Cli) -> None:
    """Whoever reaches the listener then has to know it."""
    healthy.monkeypatch.setenv(METRICS_PORT, "0.0.0.0:9464")
    healthy.monkeypatch.setenv(METRICS_TOKEN, "a-token-of-thirty-two-characters")
    assert levels(healthy)[1]["metrics"] == "OK"


def test_a_bad_setting_is_told_as_serve_tells_it(healthy: Cli) -> None:
    """Which one, what is wrong with it, and what would be right; there is nothing more to see."""
    healthy.monkeypatch.setenv("PRICEKEEPER_PRICE_SOURCE", "aws:us-east")
    (check,) = healthy("doctor", "--json").json["checks"]
    with pytest.raises(SettingsError, match=r"_PRICE_SOURCE: .*use genai-prices") as told:
        read_settings(os.environ)
    assert (check["level"], check["told"]) == ("FAIL", str(told.value))


def test_a_service_from_outside(service: Cli) -> None:
    """Alive, ready, on time, and it knows our credentials."""
    service.register()
    service.become(f"org-{next(iter(service.secrets)).removeprefix('org-')[:36]}")
    code, found = levels(service, *service.place)
    assert (code, set(found.values())) == (0, {"OK"})
    names = {"service", "ready", "metrics", "provisioning key", "credentials", "time"}
    assert names <= found.keys()


def test_a_service_that_shows_its_metrics_to_everybody(cli: Cli) -> None:
    """As one did before it asked for a token, or as a proxy may that brings the token along."""
    with socketserver.TCPServer(("127.0.0.1", 0), Open) as open_server:
        thread = threading.Thread(target=open_server.serve_forever)
        thread.start()
        code, found = levels(cli, "--url", f"http://127.0.0.1:{open_server.server_address[1]}")
        open_server.shutdown()
        thread.join()
    assert (code, found["metrics"]) == (1, "FAIL")


class Open(BaseHTTPRequestHandler):
    """Answers whatever is asked."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_service_that_refuses(service: Cli) -> None:
    """A wrong key, a wrong secret, a wrong name: each is told."""
    service.monkeypatch.setenv(KEY, "wrong-wrong-wrong-wrong")
    service.monkeypatch.setenv("PRICEKEEPER_CLIENT_ID", "org-nobody")
    service.monkeypatch.setenv("PRICEKEEPER_CLIENT_SECRET", "pks_wrong")
    code, found = levels(service, *service.place)
    assert (code, found["provisioning key"], found["credentials"]) == (1, "FAIL", "FAIL")


def test_a_service_that_is_not_there(cli: Cli) -> None:
    """One line, exit code 1."""
    code, found = levels(cli, "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, found) == (1, {"service": "FAIL"})
