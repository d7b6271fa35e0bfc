"""The doctor: a healthy deployment passes, and each problem is found and has a fix."""

import os
import shutil
import socketserver
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import botocore.session
import pytest

import stored_items as written
from cli.conftest import ORG, Cli, drop_a_table
from free_port import free_port
from pricekeeper.cli.checks import FREE_BYTES_CALM, FREE_BYTES_MIN
from pricekeeper.cli.checks_secrets import Ages
from pricekeeper.cli.demo import demo_settings
from pricekeeper.cli.listening import Listening, write_note
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.errors import SettingsError
from pricekeeper.metering.aggregator import closable_tick
from pricekeeper.metering.items import checkpoint_update
from pricekeeper.settings import read_settings
from pricekeeper.storage import Key, Set, Update
from pricekeeper.storage.format import FORMAT_KEY
from pricekeeper.storage.sqlite.moments import Moments, write_moments
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, config_key
from pricekeeper.testing.serving import running_service
from pricekeeper.values import parse_app_id, parse_org_id

KEY = "PRICEKEEPER_PROVISIONING_KEY"
METRICS_PORT = "PRICEKEEPER_METRICS_PORT"
METRICS_TOKEN = "PRICEKEEPER_METRICS_TOKEN"


def levels(cli: Cli, *words: str) -> tuple[int, dict[str, str]]:
    done = cli("doctor", "--json", *words)
    for check in done.json["checks"]:
        assert check["level"] == "OK" or check["fix"] or "first start" in check["told"], check
    return done.code, {check["name"]: check["level"] for check in done.json["checks"]}


def check_of(cli: Cli, name: str, *words: str) -> Any:
    (check,) = [
        one for one in cli("doctor", "--json", *words).json["checks"] if one["name"] == name
    ]
    return check


@pytest.fixture
def healthy(cli: Cli) -> Cli:
    cli.register()
    (cli.folder / "data").chmod(0o700)
    cli.monkeypatch.setenv(KEY, "a-key-of-more-than-thirty-two-characters")
    cli.monkeypatch.setenv(METRICS_PORT, "9464")
    return cli


def test_a_healthy_deployment(healthy: Cli) -> None:
    """Nothing to look at, exit code 0."""
    code, found = levels(healthy)
    assert (code, set(found.values())) == (0, {"OK"})
    assert "all checks passed" in healthy("doctor").out


def test_clients_of_the_schema_document(healthy: Cli) -> None:
    """They are read, and their secrets are as old as they say."""
    org_id = str(uuid.uuid4())
    index = (CONFIG, {"PK": "ORGS", "SK": org_id})
    written.write_items(
        os.environ["PRICEKEEPER_STORE"],
        index,
        written.org_config(org_id),
        written.app_config(org_id, "app-production-api"),
    )
    code, found = levels(healthy)
    assert (code, found["stored items"], found["client secrets"]) == (0, "OK", "WARN")


def test_a_client_that_can_not_be_read(healthy: Cli) -> None:
    """The others are looked at, and the count says where it is."""
    org_id, lost = (parse_org_id(str(uuid.uuid4())) for _ in range(2))

    written.write_items(
        os.environ["PRICEKEEPER_STORE"],
        *((CONFIG, {"PK": "ORGS", "SK": one}) for one in (org_id, lost)),
        (CONFIG, {"PK": f"ORG#{lost}", "SK": "ORG", "org_name": 5}),
    )
    code, found = levels(healthy)
    assert (code, found["stored items"], found["client secrets"]) == (0, "WARN", "OK")


def test_before_the_first_start(cli: Cli) -> None:
    """Only the key is missing; the rest will be made. Nothing is made by looking."""
    code, found = levels(cli)
    assert code == 1
    assert {name for name, level in found.items() if level == "FAIL"} == {"provisioning key"}
    assert found["store"] == found["data folder"] == "WARN"
    assert list(cli.folder.iterdir()) == []


def checkpoint_at(cli: Cli, offset_ms: int) -> None:
    began_ms = SystemClock().now_ms() + offset_ms
    update = checkpoint_update(began_ms, closable_tick(began_ms))
    cli.on_store(lambda store: store.update(update))


def administered(cli: Cli, *options: str, is_over: bool = False) -> None:
    """Retire the environment's key, for one in the store; and let that one end, if it should."""
    cli.monkeypatch.delenv(KEY)
    made = cli.ok("admin-keys", "create", "platform", "--role", "ADMIN", *options)
    if is_over:
        end = Update(CONFIG, Key("ADMIN_KEYS", made["key_id"]), (Set("key_ends_at_epoch", 1),))
        cli.on_store(lambda store: store.update(end))


def test_a_key_in_the_store_stands_in_for_the_environments(healthy: Cli) -> None:
    """Then the environment's can be retired."""
    administered(healthy)
    code, found = levels(healthy)
    assert (code, found["provisioning key"], found["administrators"]) == (0, "OK", "OK")


class Ill(NamedTuple):
    check: str
    level: str
    make: Callable[[Cli], object]


ILLS = {
    "no key": Ill("administrators", "FAIL", lambda c: c.monkeypatch.delenv(KEY)),
    "no key that lasts": Ill("administrators", "WARN", lambda c: administered(c, "--days", "7")),
    "all keys expired": Ill("administrators", "WARN", lambda c: administered(c, is_over=True)),
    "demo key": Ill(
        "provisioning key", "WARN", lambda c: c.monkeypatch.setenv(KEY, "demo-provisioning-key")
    ),
    "short key": Ill("provisioning key", "FAIL", lambda c: c.monkeypatch.setenv(KEY, "short")),
    "dull key": Ill("provisioning key", "FAIL", lambda c: c.monkeypatch.setenv(KEY, "a" * 64)),
    "exposed": Ill("proxies", "WARN", lambda c: listened(c, "0.0.0.0")),  # noqa: S104
    "all believed": Ill(
        "proxies", "WARN", lambda c: c.monkeypatch.setenv("PRICEKEEPER_TRUSTED_PROXIES", "*")
    ),
    "bad proxies": Ill(
        "settings", "FAIL", lambda c: c.monkeypatch.setenv("PRICEKEEPER_TRUSTED_PROXIES", "lb")
    ),
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
    "damaged": Ill("damage", "FAIL", lambda c: damage(c.folder / "demo.db")),
    "not ours": Ill("damage", "FAIL", lambda c: (c.folder / "demo.db").write_text("x" * 4096)),
    "missing table": Ill("tables", "FAIL", lambda c: drop_a_table(c.folder / "demo.db")),
    "another format": Ill("format", "FAIL", lambda c: format_version(c, 2)),
    "sleepy aggregator": Ill("aggregator", "WARN", lambda c: checkpoint_at(c, -3_600_000)),
    "clock behind": Ill("aggregator", "FAIL", lambda c: checkpoint_at(c, 3_600_000)),
    "store ahead": Ill("store's time", "FAIL", lambda c: moments(c, ahead_ms=3_600_000)),
    "clock leapt": Ill("store's time", "FAIL", lambda c: moments(c, leap_ms=-3_600_000)),
    "old secret": Ill("client secrets", "WARN", lambda c: secret_made(c, days_ago=91)),
    "little room": Ill("disk", "WARN", lambda c: leave_free(c, FREE_BYTES_CALM - 1)),
    "no room": Ill("disk", "FAIL", lambda c: leave_free(c, FREE_BYTES_MIN - 1)),
}


def moments(cli: Cli, ahead_ms: int = 0, leap_ms: int = 0) -> None:
    """Let a service have noted that time, or that its clock has leapt."""
    connection = apsw.Connection(str(cli.folder / "demo.db"))
    write_moments(connection, Moments(SystemClock().now_ms() + ahead_ms, leap_ms))
    connection.close()


def damage(path: Path) -> None:
    """Overwrite every page but the first, as a dying disk does."""
    whole = path.read_bytes()
    path.write_bytes(whole[:4_096] + b"\xa5" * (len(whole) - 4_096))


def secret_made(cli: Cli, days_ago: int) -> None:
    """Let the app's secret have been claimed so many days ago."""
    client = Client(parse_org_id(ORG), parse_app_id("chat"))
    then = SystemClock().now_ms() // 1000 - days_ago * 86_400
    made = Set("client_secret_created_at_epoch", then)
    cli.on_store(lambda store: store.update(Update(CONFIG, config_key(client), (made,))))


def format_version(cli: Cli, version: int) -> None:
    """Let a newer version have migrated the store."""
    item = {**FORMAT_KEY.attributes, "version": version}
    written.write_items(os.environ["PRICEKEEPER_STORE"], (CONFIG, item))


def listened(cli: Cli, host: str) -> None:
    """Leave the note that a service leaves when it starts."""
    write_note(cli.folder / "data", Listening(host, 8080, None))


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


def test_a_damaged_file_is_left_as_it_is(healthy: Cli) -> None:
    """The doctor says what to do, and does not write to it."""
    path = healthy.folder / "demo.db"
    damage(path)
    before = path.read_bytes()
    check = check_of(healthy, "damage")
    assert "stop the service" in check["fix"]
    assert "backup" in check["fix"]
    assert path.read_bytes() == before


def test_an_old_secret_is_named(healthy: Cli) -> None:
    """Its client, its age, and what to do; 90 days is not old yet."""
    secret_made(healthy, days_ago=90)
    assert levels(healthy)[1]["client secrets"] == "OK"
    secret_made(healthy, days_ago=400)
    check = check_of(healthy, "client secrets")
    assert check["told"] == f"1 older than 90 days, of 2 clients: org-{ORG}-app-chat (400 days)"
    assert "credentials rotate" in check["fix"]


def test_an_old_secret_is_seen_through_a_service(service: Cli) -> None:
    """With the provisioning key alone."""
    service.register()
    secret_made(service, days_ago=91)
    check = check_of(service, "client secrets", *service.place)
    assert f"org-{ORG}-app-chat (91 days)" in check["told"]


def test_many_old_secrets_are_counted() -> None:
    """The oldest by name, the rest by number; who has no time for its secret is not guessed at."""
    ages = Ages(now_epoch=200 * 86_400)
    for days in range(100):
        ages.note(f"c{days}", days * 86_400)
    ages.note("imported", None)
    assert ages.summary.startswith("100 older than 90 days, of 101 clients: c0 (200 days), c1 (199")
    assert ages.summary.endswith("c9 (191 days), 90 more")


def test_a_table_whose_items_do_not_expire_is_found(healthy: Cli, dynoxide: str) -> None:
    """A restored table has lost that, and a start does not look; `tables create` mends it."""
    prefix = f"doctor-{uuid.uuid4().hex[:8]}-"
    store = f"dynamodb://us-east-1?prefix={prefix}&endpoint={dynoxide}"
    healthy.monkeypatch.setenv("PRICEKEEPER_STORE", store)
    healthy.ok("tables", "create")
    assert levels(healthy) == (0, {**levels(healthy)[1], "expiry": "OK"})
    client: Any = botocore.session.get_session().create_client(
        "dynamodb", "us-east-1", endpoint_url=dynoxide
    )
    off = {"Enabled": False, "AttributeName": "expires_at_epoch"}
    client.update_time_to_live(TableName=f"{prefix}Sessions", TimeToLiveSpecification=off)

    code, found = levels(healthy)
    assert (code, found["expiry"]) == (0, "WARN")
    assert "Sessions" in healthy("doctor").out
    healthy.ok("tables", "create")
    assert levels(healthy)[1]["expiry"] == "OK"


def test_metrics_beyond_this_machine_are_well_behind_a_token(healthy: Cli) -> None:
    """The listener then requires it."""
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
    """Answers every request."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_service_that_refuses(service: Cli) -> None:
    """A wrong key, secret or name is reported."""
    service.monkeypatch.setenv(KEY, "wrong-wrong-wrong-wrong")
    service.monkeypatch.setenv("PRICEKEEPER_CLIENT_ID", "org-missing")
    service.monkeypatch.setenv("PRICEKEEPER_CLIENT_SECRET", "pks_wrong")
    code, found = levels(service, *service.place)
    assert (code, found["provisioning key"], found["credentials"]) == (1, "FAIL", "FAIL")


def test_a_service_that_is_not_there(cli: Cli) -> None:
    """One line, exit code 1."""
    code, found = levels(cli, "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, found) == (1, {"service": "FAIL"})


def test_a_service_whose_clock_is_in_doubt(cli: Cli, tmp_path: Path) -> None:
    """It answers, and the report says what it can't do."""
    clock = ManualClock()
    with running_service(demo_settings(tmp_path), clock) as url:
        assert levels(cli, "--url", url)[1]["ready"] == "OK"
        clock.jump_ms(3_600_000)
        code, found = levels(cli, "--url", url)
        assert (code, found["ready"]) == (1, "FAIL")
        assert "clock is in doubt" in cli("doctor", "--url", url).out
