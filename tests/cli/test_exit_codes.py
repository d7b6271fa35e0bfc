"""The exit codes are those that the guide promises, for every kind of failure, in both places."""

import os
import re
from pathlib import Path

import pytest

from cli.conftest import MISSING_ORG, ORG, ORG_FLAGS, Cli, drop_a_table
from client.scripted import Reply
from free_port import free_port
from pricekeeper.cli import exits

GUIDE = Path(__file__).parents[2] / "docs" / "cli.md"
KEY = "PRICEKEEPER_PROVISIONING_KEY"
CHAT = f"org-{ORG}-app-chat"
NAMED = {
    "done": exits.OK,
    "failed": exits.FAILED,
    "usage": exits.USAGE,
    "not found": exits.NOT_FOUND,
    "refused": exits.REFUSED,
    "unavailable": exits.UNAVAILABLE,
    "interrupted": 130,
}

USAGE: dict[str, tuple[str, ...]] = {
    "no such command": ("no-such-command",),
    "no such option": ("org", "list", "--colour"),
    "no such store": ("org", "list", "--store", "mysql://x"),
    "no such file": ("org", "list", "--config", "nowhere.yaml"),
    "a bad file": ("org", "list", "--config", "bad.yaml"),
    "a bad settings file": ("org", "put", ORG, "--file", "bad.yaml"),
    "no price source": ("prices", "check", "--source", "somewhere"),
    "no such label": ("prices", "refresh", "--source", "genai-prices", "--accept", "gold"),
    "both places": ("org", "list", "--url", "http://127.0.0.1:1", "--store", "sqlite:///x.db"),
    "no url": ("org", "list", "--url", "ftp://127.0.0.1"),
    "no terminal": ("org", "delete", ORG),
    "no uuid": ("org", "get", "no-uuid"),
}


def test_the_guide_has_these_codes() -> None:
    """And their names."""
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+)[:|]", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert {name.strip(): int(code) for code, name in rows} == NAMED


@pytest.mark.parametrize("words", USAGE.values(), ids=USAGE)
def test_a_wrong_command_line_or_file_is_usage(cli: Cli, words: tuple[str, ...]) -> None:
    """The caller can mend it, and nothing was done."""
    cli.register()
    (cli.folder / "bad.yaml").write_text("models: [", encoding="utf-8")
    done = cli(*words)
    assert (done.code, done.out) == (exits.USAGE, "")
    assert done.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PRICEKEEPER_STORE", "mysql://x"),
        ("PRICEKEEPER_CONFIG", "nowhere.yaml"),
        ("PRICEKEEPER_LOG_LEVEL", "loud"),
        ("PRICEKEEPER_SETTINGS", "nowhere"),
    ],
)
def test_a_wrong_setting_is_usage(cli: Cli, name: str, value: str) -> None:
    """As it would be on the command line."""
    cli.register()
    cli.monkeypatch.setenv(name, value)
    assert cli("org", "list").code == exits.USAGE


def test_what_is_not_there_is_not_found(anywhere: Cli) -> None:
    """An organisation, an app, a session, a used token; each with the command that lists them."""
    anywhere.register()
    anywhere.become(CHAT)
    token = anywhere.ok("credentials", "rotate", ORG)["secret_retrieval"]["token"]
    anywhere.ok("credentials", "claim", token)
    for words, told in (
        (("org", "get", MISSING_ORG), "org list"),
        (("app", "get", ORG, "nope"), "org list"),
        (("credentials", "claim", token), "works once, for ten minutes; 'pricekeeper credentials"),
        (
            ("sessions", "end", ORG, "chat", "--session", "000-Zm9vYmFyYmF6cXV4cXV1eA"),
            "sessions list",
        ),
    ):
        done = anywhere(*words)
        assert (done.code, done.out) == (exits.NOT_FOUND, ""), words
        (line,) = done.err.splitlines()
        assert told in line
        assert token not in line


def test_credentials_that_are_missing_wrong_or_not_for_this_are_refused(service: Cli) -> None:
    """The provisioning key's and a client's; the error names what to set."""
    service.register()
    key = os.environ[KEY]
    service.monkeypatch.delenv(KEY)

    def refused(*words: str) -> str:
        done = service(*words)
        assert (done.code, done.out) == (exits.REFUSED, ""), words
        return done.err

    assert "PRICEKEEPER_CLIENT_ID" in refused("usage", "show", ORG, "chat")
    assert KEY in refused("usage", "show", ORG, "--key", key[::-1])
    assert KEY in refused("org", "list")
    service.become(CHAT)
    assert f"use the credentials of org-{ORG}" in refused("usage", "show", ORG)
    service.monkeypatch.setenv("PRICEKEEPER_CLIENT_SECRET", "pks_wrong")
    assert "PRICEKEEPER_CLIENT_SECRET" in refused("usage", "show", ORG, "chat")
    service.monkeypatch.setenv(KEY, "another-key-entirely")
    assert service("org", "list", "--key", key).code == exits.OK, "it counts before the variable"


def test_what_was_tried_in_vain_has_failed(cli: Cli) -> None:
    """No store, a table that is missing, a check of the doctor, prices that differ."""
    assert cli("org", "list").code == exits.FAILED
    assert cli("doctor").code == exits.FAILED
    cli.register()
    assert cli("prices", "check", "--source", "genai-prices").code in (exits.OK, exits.FAILED)
    drop_a_table(cli.folder / "demo.db")
    assert cli("tables", "status").code == exits.FAILED


def test_who_can_not_be_reached_is_unavailable(cli: Cli) -> None:
    """Later may work."""
    done = cli("org", "list", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out) == (exits.UNAVAILABLE, "")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, exits.USAGE),
        (401, exits.REFUSED),
        (403, exits.REFUSED),
        (404, exits.NOT_FOUND),
        (409, exits.FAILED),
        (413, exits.USAGE),
        (429, exits.UNAVAILABLE),
        (500, exits.FAILED),
        (502, exits.UNAVAILABLE),
        (503, exits.UNAVAILABLE),
        (504, exits.UNAVAILABLE),
    ],
)
def test_every_answer_of_a_service_has_its_code(status: int, code: int) -> None:
    """By its status."""
    from pricekeeper.client.errors import error_of  # noqa: PLC0415

    reply = Reply(status, {"code": "X", "detail": "no"})
    body = reply.encoded().partition(b"\r\n\r\n")[2]
    assert exits.exit_code(error_of(status, {}, body)) == code


def test_a_quota_from_the_help_goes_over_the_file(anywhere: Cli) -> None:
    """``--file org.yaml --quota premium=75``: all else is the file's."""
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--rate-limit", "*:rpm=60/1m")
    file = anywhere.folder / "org.yaml"
    file.write_text(anywhere("org", "get", ORG, "--yaml").out, encoding="utf-8")
    words = ("-f", str(file), "--quota", "premium=75", "--rate-limit", "*:tpm=9/1s")
    put = anywhere.ok("org", "put", ORG, *words)["configuration"]
    assert put["timezone"] == "Europe/Berlin"
    assert put["quotas"] == {"premium": 75_000_000, "standard": 20_000_000, "economy": 500_000}
    assert set(put["rate_limits"]["*"]) == {"rpm", "tpm"}
