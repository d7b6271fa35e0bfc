"""The command line's face: help with examples, --json everywhere, quick to start, clean output."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from alerts.topics_server import TOPIC
from cli.conftest import ORG, ORG_FLAGS, Cli
from pricekeeper.cli.commands import app

GUIDE = Path(__file__).parents[2] / "docs" / "cli.md"
SERVES = {("serve",)}
TRIES_CHANNELS = ["alerts", "test", "--org", "$ORG"]


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that lead to it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


def test_these_are_the_commands() -> None:
    """All that was promised, and nothing by accident."""
    assert {" ".join(path) for path in COMMANDS} == {
        "serve", "demo", "watch", "adopt", "apply", "aggregate", "export", "doctor",
        "org put", "org set", "org get", "org list", "org delete",
        "app put", "app set", "app get", "app list", "app delete",
        "admin-keys create", "admin-keys list", "admin-keys rotate", "admin-keys delete",
        "admin-keys whoami",
        "credentials rotate", "credentials claim", "credentials provisioning-key",
        "override set", "override clear",
        "credentials revoke", "freeze", "unfreeze", "limits reset",
        "usage show", "usage list", "usage void", "spend", "ledger rebuild", "ledger check",
        "limits show", "limits repair", "sessions list", "sessions end",
        "authorizations list", "authorizations show", "authorizations void", "budgets", "forecast",
        "alerts list", "alerts channels", "alerts set", "alerts remove", "alerts test",
        "audit list", "audit verify", "audit export", "authorizations revoke",
        "prices show", "prices refresh", "prices check",
        "migrate", "tables create", "tables status", "tables show",
        "spool show", "spool flush",
        "keys rotate", "keys new", "keys new-pepper",
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_helps_with_an_example(path: tuple[str, ...]) -> None:
    """Of itself, in its help and in the guide; and it can answer in JSON."""
    command = COMMANDS[path]
    example = f"pricekeeper {' '.join(path)}"
    assert re.search(rf"\[dim\].*{example}", command.help), "help"
    assert re.search(rf"^{example}\b", GUIDE.read_text("utf-8"), re.MULTILINE), "docs/cli.md"
    options = {name for parameter in command.params for name in parameter.opts}
    assert ("--json" in options) is (path not in SERVES)


def test_help_is_shown(cli: Cli) -> None:
    """For the whole and for a part, with the exit codes where people look first."""
    assert "5 unavailable" in cli("--help").out
    assert "delete" in cli("org", "--help").out
    assert "usage show" in cli("usage", "show", "--help").out
    assert cli("--version").out.startswith("pricekeeper ")
    assert cli("no-such-command").code == 2


def spool_settings(cli: Cli) -> dict[str, str]:
    """The environment of an app that keeps its files here; its service can't be reached."""
    return {
        "PRICEKEEPER_URL": "http://127.0.0.1:9",
        "PRICEKEEPER_CLIENT_ID": f"org-{ORG}-app-chat",
        "PRICEKEEPER_CLIENT_SECRET": "pks_made-up",
        "PRICEKEEPER_SPOOL_DIR": str(cli.folder / "spool"),
    }


KEPT_IN_FILES = {
    "secret.txt": "of-a-webhook-that-is-not-there",
    "address.txt": "https://hooks.slack.com/services/T0/B0/x",
    "password.txt": "of-a-mail-server-that-is-not-there",
}


def test_the_guides_examples_work(cli: Cli) -> None:
    """In order, as they are written, but for what only a person knows."""
    text = GUIDE.read_text("utf-8").replace("\\\n", " ")
    (exported,) = re.findall(r"^export ORG=(\S+)$", text, re.MULTILINE)
    cli.monkeypatch.setenv(
        "PRICEKEEPER_PROVISIONING_KEY", "a-key-of-more-than-thirty-two-characters"
    )
    cli.monkeypatch.setenv("PRICEKEEPER_ALERT_TOPICS", TOPIC)
    known = {"$ORG": exported}
    for name, kept in KEPT_IN_FILES.items():
        (cli.folder / name).write_text(f"{kept}\n", encoding="utf-8")
    ran = 0
    for line in re.findall(r"^pricekeeper (.*)$", text, re.MULTILINE):
        words = line.partition("  #")[0].replace("'", "").split()
        if words[0] in ("serve", "demo", "adopt") or words in (["watch", "$ORG"], TRIES_CHANNELS):
            continue  # they have tests of their own
        if words[:2] == ["credentials", "claim"]:
            rotated = cli.ok("credentials", "rotate", exported)
            typed = io.StringIO(rotated["secret_retrieval"]["token"])
            cli.monkeypatch.setattr(sys, "stdin", typed)
        words = [known.get(word, word) for word in words]
        with cli.monkeypatch.context() as app:
            if words[0] == "spool":
                for name, value in spool_settings(cli).items():
                    app.setenv(name, value)
            done = cli(*words)
        made_up = "--session" in words or words[:2] in (
            ["authorizations", "show"],
            ["authorizations", "void"],
            ["authorizations", "revoke"],
            ["usage", "void"],
            ["admin-keys", "rotate"],
            ["admin-keys", "delete"],
        )
        expected = 3 if made_up else 0
        assert done.code == expected, (line, done)
        if "--yaml" in words:
            (cli.folder / "acme.yaml").write_text(f"org_id: {exported}\n{done.out}", "utf-8")
            (cli.folder / "org.yaml").write_text(done.out, encoding="utf-8")
        ran += 1
    assert ran > 20


def in_a_process(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    settings = {
        "PRICEKEEPER_STORE": f"sqlite:///{folder}/store.db",
        "PRICEKEEPER_DATA_DIR": str(folder / "data"),
    }
    return subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "pricekeeper", *words],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_stdout_has_json_and_nothing_else(tmp_path: Path) -> None:
    """Also from a process that logs what it does: that goes nowhere, or to stderr if asked for."""
    put = in_a_process(tmp_path, "org", "put", ORG, *ORG_FLAGS, "--json")
    assert (put.returncode, put.stderr) == (0, "")
    rotated = in_a_process(tmp_path, "credentials", "rotate", ORG, "--json")
    assert json.loads(rotated.stdout)["client_id"] == f"org-{ORG}"
    assert rotated.stderr == ""
    missing = in_a_process(tmp_path, "app", "get", ORG, "nope", "--json")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert missing.stderr.startswith("NOT_FOUND")


def test_help_imports_little() -> None:
    """What explains itself needs no server, client or database."""
    program = """
import sys
from pricekeeper.cli.commands import app
heavy = ("aiohttp", "apsw", "botocore", "joserfc", "structlog", "uvicorn", "yaml")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
