"""Secrets need not be on the command line: they come from stdin, a file or the variable, too."""

import io
import os
import sys

import pytest

from cli.conftest import ORG, Cli
from cli.test_face import COMMANDS
from pricekeeper.cli.options import LENGTH_MAX

KEY = "PRICEKEEPER_PROVISIONING_KEY"
CHAT = f"org-{ORG}-app-chat"
SECRETS = {"--key", "--client-secret", "--secret", "token"}


def typed(cli: Cli, text: str) -> None:
    cli.monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def kept(cli: Cli, text: str) -> str:
    path = cli.folder / "kept-secret"
    path.write_text(text, encoding="utf-8")
    return f"@{path}"


def test_the_key_comes_from_a_file_or_stdin(service: Cli) -> None:
    """It counts before the variable's."""
    key = os.environ[KEY]
    service.monkeypatch.setenv(KEY, "another-key-of-thirty-two-characters")
    assert service("org", "list").code == 4
    assert service("org", "list", "--key", kept(service, f"{key}\n")).code == 0
    assert service("org", "list", "--key", kept(service, f"{key}\r\n")).code == 0
    typed(service, f"{key}\n")
    assert service("org", "list", "--key", "-").code == 0


def test_a_clients_secret_comes_from_a_file_or_stdin(service: Cli) -> None:
    """Its id is no secret."""
    service.register()
    words = ("usage", "show", ORG, "chat", "--client-id", CHAT, "--client-secret")
    assert service(*words, kept(service, service.secrets[CHAT])).code == 0
    typed(service, service.secrets[CHAT])
    assert service(*words, "-").code == 0
    service.become(CHAT)
    assert service(*words[:4]).code == 0


def test_a_retrieval_token_comes_from_a_file_stdin_or_the_variable(anywhere: Cli) -> None:
    """Each of them claims, as the argument does."""
    anywhere.register()

    def token() -> str:
        told: str = anywhere.ok("credentials", "rotate", ORG)["secret_retrieval"]["token"]
        return told

    assert anywhere("credentials", "claim").code == 2
    assert anywhere("credentials", "claim", kept(anywhere, token())).code == 0
    typed(anywhere, f"{token()}\n")
    assert anywhere("credentials", "claim", "-").code == 0
    anywhere.monkeypatch.setenv("PRICEKEEPER_RETRIEVAL_TOKEN", token())
    assert anywhere("credentials", "claim").code == 0
    assert anywhere("credentials", "claim", token()).code == 0


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n", "x" * (LENGTH_MAX + 1)])
def test_what_is_no_secret_is_told_and_not_shown(cli: Cli, text: str) -> None:
    """A file that was mixed up with another, for example."""
    for given in (kept(cli, text), "-"):
        typed(cli, text)
        done = cli("org", "list", "--key", given)
        assert (done.code, done.out) == (2, "")
        assert "put the secret alone there, on one line" in done.err
        assert text.strip() not in done.err or not text.strip()


def test_a_file_that_is_not_there_is_told(cli: Cli) -> None:
    """With its name; and so is one that is no text."""
    done = cli("credentials", "claim", "@nowhere")
    assert (done.code, done.out) == (2, "")
    assert "@nowhere: No such file or directory" in done.err
    (cli.folder / "binary").write_bytes(b"\xff\xfe")
    assert "is not text" in cli("credentials", "claim", "@binary").err


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_says_so_and_why(cli: Cli, path: tuple[str, ...]) -> None:
    """Wherever a secret can be given; the address of a webhook is one."""
    text = " ".join(cli(*path, "--help").out.replace("│", " ").split())
    secrets = SECRETS | ({"--to"} if path[0] == "alerts" else set())
    takes = {name for one in COMMANDS[path].params for name in one.opts} & secrets
    told = "- reads stdin, @FILE a file, since others can see command lines"
    assert text.count(told) == len(takes)
