"""``pricekeeper admin-keys``: on the store, and against a service; and a service without a root."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from attribution import BY
from cli.conftest import MISSING_ORG, ORG, Cli
from http_fixtures import ENVIRONMENT, KEY, Api
from pricekeeper.authority import ALL_ORGS, Role
from pricekeeper.bootstrap import open_services, require_administrator
from pricekeeper.cli.demo import demo_settings
from pricekeeper.errors import SettingsError
from serving import running_server
from tokens.conftest import MovableClock

ADMIN_KEY = "PRICEKEEPER_ADMIN_KEY"
ROOT_KEY = "PRICEKEEPER_PROVISIONING_KEY"
CREATE = ("admin-keys", "create")


def test_a_key_is_made_shown_listed_rotated_and_ended(anywhere: Cli) -> None:
    """With the answers of the API, wherever the command works."""
    anywhere.register()
    made = anywhere.ok(*CREATE, "night shift", "--role", "operator", "--org", ORG, "--days", "90")
    assert (made["name"], made["role"], made["org_ids"]) == ("night shift", "OPERATOR", [ORG])
    assert made["key"].startswith("pka_")
    assert "expires_at" in made
    (found,) = anywhere.ok("admin-keys", "list")
    assert (found["key_id"], "key" in found) == (made["key_id"], False)
    fresh = anywhere.ok("admin-keys", "rotate", made["key_id"], "--grace-hours", "48")
    assert fresh["key_id"] == made["key_id"]
    assert fresh["key"] != made["key"]
    assert "old_key_expires_at" in fresh
    assert anywhere("admin-keys", "delete", made["key_id"], "--yes").code == 0
    assert anywhere.ok("admin-keys", "list") == []
    for words in (("rotate", made["key_id"]), ("delete", made["key_id"], "--yes")):
        done = anywhere("admin-keys", *words)
        assert (done.code, "'pricekeeper admin-keys list'" in done.err) == (3, True)


def test_what_a_person_sees(anywhere: Cli) -> None:
    """The key whole, on a line to paste; in the list everything but the key."""
    done = anywhere(*CREATE, "platform", "--role", "ADMIN")
    (line,) = [line.strip() for line in done.out.splitlines() if "export" in line]
    name, _, key = line.removeprefix("export ").partition("=")
    assert (name, len(key)) == (ADMIN_KEY, 65)
    assert "shown only once" in done.out
    listed = anywhere("admin-keys", "list").out
    assert key not in listed
    for text in (key[4:16], "platform", "ADMIN", "all organisations", "never"):
        assert text in listed


@pytest.mark.parametrize(
    "words",
    [
        ("x", "--role", "OWNER"),
        ("x",),
        ("a/b", "--role", "VIEWER"),
        ("x", "--role", "VIEWER", "--org", MISSING_ORG),
        ("x", "--role", "VIEWER", "--org", "acme"),
        ("x", "--role", "VIEWER", "--expires-at", "2020-01-01T00:00:00Z"),
        ("x", "--role", "VIEWER", "--expires-at", "soon"),
        ("x", "--role", "VIEWER", "--days", "1", "--expires-at", "2099-01-01T00:00:00Z"),
    ],
    ids=" ".join,
)
def test_what_can_not_be_meant_is_told(anywhere: Cli, words: tuple[str, ...]) -> None:
    """And nothing is made."""
    assert anywhere(*CREATE, *words).code == 2
    if (anywhere.folder / "demo.db").exists():
        assert anywhere.ok("admin-keys", "list") == []


def test_a_command_shows_the_admin_key_rather_than_the_deployments(service: Cli) -> None:
    """And the one on the command line rather than either. It may do what its role says."""
    service.register()
    viewer = service.ok(*CREATE, "night shift", "--role", "VIEWER")["key"]
    assert service.ok("admin-keys", "whoami") == {"kind": "DEPLOYMENT_KEY", "role": "ADMIN"}
    service.monkeypatch.setenv(ADMIN_KEY, viewer)
    assert service.ok("admin-keys", "whoami")["name"] == "night shift"
    assert service("org", "list").code == 0
    refused = service("freeze", ORG, "--reason", "leaked")
    assert refused.code == 4
    assert "this takes a key with the role OPERATOR" in refused.err
    assert "admin-keys whoami" in refused.err
    (service.folder / "root").write_text(os.environ[ROOT_KEY], "utf-8")
    key_file = f"@{service.folder / 'root'}"
    assert service("freeze", ORG, "--reason", "leaked", "--key", key_file).code == 0


def test_whoever_holds_the_store_may_do_everything(cli: Cli) -> None:
    """So an owner of the store is never locked out."""
    cli.ok(*CREATE, "platform", "--role", "ADMIN")
    assert cli.ok("admin-keys", "whoami") == {"kind": "DEPLOYMENT_KEY", "role": "ADMIN"}


def test_a_key_is_made_where_the_services_pepper_is(cli: Cli, tmp_path: Path) -> None:
    """Elsewhere its hash would be another one, and it would open nothing."""
    cli.register()
    cli.monkeypatch.setenv("PRICEKEEPER_DATA_DIR", str(tmp_path / "another"))
    done = cli(*CREATE, "platform", "--role", "ADMIN")
    assert (done.code, "pepper" in done.err) == (2, True)
    assert cli.ok("admin-keys", "list") == []


class TestWithoutARoot:
    """The environment's key is the root that can be retired."""

    def test_where_nobody_could_administer_nothing_starts(self, cli: Cli) -> None:
        """The message names the setting, and both ways out."""
        done = cli("serve")
        assert (done.code, done.out) == (2, "")
        assert "PRICEKEEPER_PROVISIONING_KEY: is not set" in done.err
        assert "openssl rand -hex 32" in done.err
        assert "pricekeeper admin-keys create" in done.err
        cli.ok(*CREATE, "night shift", "--role", "OPERATOR")
        assert cli("serve").code == 2

    def test_a_service_runs_on_keys_of_its_store_alone(self, cli: Cli, tmp_path: Path) -> None:
        """The first key is made on the store, the others with it; the retired one opens nothing."""
        root = cli.ok(*CREATE, "platform", "--role", "ADMIN")["key"]
        environment = {**ENVIRONMENT, ROOT_KEY: ""}
        store = os.environ["PRICEKEEPER_STORE"]
        with running_server(tmp_path, environment=environment, store=store) as server:
            api = Api(server.url)
            assert api.call("GET", "/api/v1/orgs", key=KEY).status == 401
            body = {"name": "another", "role": "ADMIN"}
            made = api.call("POST", "/api/v1/admin-keys", body, key=root)
            assert made.status == 201
            assert api.call("GET", "/api/v1/orgs", key=made.json["key"]).status == 200

    async def test_keys_that_have_expired_stop_no_app(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The service starts and logs it; a new key is made on the store."""
        structlog.reset_defaults()
        clock = MovableClock()
        settings = replace(demo_settings(tmp_path), provisioning_key=None)
        async with open_services(settings, clock=clock) as services:
            with pytest.raises(SettingsError, match="PRICEKEEPER_PROVISIONING_KEY"):
                await require_administrator(services)
            end = clock.now_ms() // 1000 + 60
            await services.admin_keys.create("platform", Role.ADMIN, ALL_ORGS, end, BY)
            capsys.readouterr()
            await require_administrator(services)
            assert "admin_keys_expired" not in capsys.readouterr().out
            clock.pass_ms(60_000)
            await require_administrator(services)
            assert "admin_keys_expired" in capsys.readouterr().out
