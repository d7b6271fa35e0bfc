"""A person at a terminal: secrets are whole, and questions can be left."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.conftest import ORG, ORG_FLAGS
from cli.terminals import CTRL_C, in_a_terminal
from free_port import free_port
from slowness import slow

CHAT = f"org-{ORG}-app-chat"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a deployment with an organisation."""
    folder = tmp_path_factory.mktemp("people") / "data"
    assert piped("org", "put", ORG, *ORG_FLAGS, environment=settings_of(folder)).returncode == 0
    return folder


@pytest.fixture
def environment(data: Path, tmp_path: Path) -> Mapping[str, str]:
    """A store with an organisation, of the test's own."""
    return settings_of(Path(shutil.copytree(data, tmp_path / "data")))


def settings_of(folder: Path) -> dict[str, str]:
    return {
        "PRICEKEEPER_STORE": f"sqlite:///{folder}/store.db",
        "PRICEKEEPER_DATA_DIR": str(folder),
    }


def piped(
    *words: str, environment: Mapping[str, str], stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command whose output goes into a pipe, as in ``command | cat``."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "pricekeeper", *words],
        env={**inherited, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def retrieval_token(environment: Mapping[str, str]) -> str:
    done = piped("credentials", "rotate", ORG, "--json", environment=environment)
    token: str = json.loads(done.stdout)["secret_retrieval"]["token"]
    return token


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
def test_a_claimed_secret_is_whole_in_a_terminal(
    environment: Mapping[str, str], columns: int
) -> None:
    """On a line of its own, which the terminal may break but we don't; the secret opens."""
    token = retrieval_token(environment)
    words = ("credentials", "claim", token)
    with in_a_terminal(*words, columns=columns, environment=environment) as terminal:
        assert terminal.end() == 0
    lines = [line.strip() for line in terminal.printed.splitlines()]
    (secret,) = (line for line in lines if line.startswith("export PRICEKEEPER_CLIENT_SECRET="))
    assert_opens(environment, secret.partition("=")[2])


@pytest.mark.slow
def test_a_claimed_secret_is_whole_in_a_pipe(environment: Mapping[str, str]) -> None:
    """For ``| tee``, ``> file`` and ``eval``."""
    token = retrieval_token(environment)
    done = piped("credentials", "claim", "-", environment=environment, stdin=f"{token}\n")
    assert done.returncode == 0, done.stderr
    (secret,) = (
        line.strip() for line in done.stdout.splitlines() if "PRICEKEEPER_CLIENT_SECRET" in line
    )
    assert_opens(environment, secret.partition("=")[2])


def assert_opens(environment: Mapping[str, str], secret: str) -> None:
    """Whether that is the organisation's secret, by the service's own check."""
    program = """
import asyncio, os, sys
from pricekeeper.bootstrap import open_services
from pricekeeper.settings import read_settings

async def main():
    async with open_services(read_settings(os.environ)) as services:
        await services.credentials.authenticate(sys.argv[1], sys.argv[2])

asyncio.run(main())
"""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program, f"org-{ORG}", secret],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
def test_a_secret_is_not_lost_where_stdout_can_not_be_written(
    environment: Mapping[str, str], redirection: str, words: tuple[str, ...]
) -> None:
    """It is shown once and never again, so it is shown on stderr, with what is wrong."""
    program = [sys.executable, "-m", "pricekeeper", "credentials", "claim", "-", *words]
    done = subprocess.run(  # noqa: S602  # our own program, and nothing from outside
        f"{shlex.join(program)} {redirection}",
        shell=True,
        env={**os.environ, **environment},
        input=retrieval_token(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert re.search(r"PRICEKEEPER_CLIENT_SECRET=pks_[\w-]{40,}", done.stderr)
    assert "stdout can't be written" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_first_ctrl_c_ends_a_question(environment: Mapping[str, str]) -> None:
    """Nothing was done, and the exit code says so."""
    with in_a_terminal("org", "delete", ORG, environment=environment) as terminal:
        terminal.read_until("[y/N]:")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    assert piped("org", "get", ORG, environment=environment).returncode == 0


@pytest.mark.parametrize(
    ("keys", "code", "after"), [("y\r", 0, 3), *slow(("n\r", 1, 0), ("\r", 1, 0))]
)
def test_a_question_is_answered(
    environment: Mapping[str, str], keys: str, code: int, after: int
) -> None:
    """Yes does it; no, or nothing, does not."""
    with in_a_terminal("org", "delete", ORG, environment=environment) as terminal:
        terminal.read_until("[y/N]:")
        terminal.type(keys)
        assert terminal.end() == code
    assert piped("org", "get", ORG, environment=environment).returncode == after


def test_a_secret_is_asked_for_and_not_shown(environment: Mapping[str, str]) -> None:
    """``-`` in a terminal does not show it."""
    token = retrieval_token(environment)
    words = ("credentials", "claim", "-")
    with in_a_terminal(*words, environment=environment) as terminal:
        terminal.read_until("secret (not shown): ")
        terminal.type(f"{token}\r")
        assert terminal.end() == 0
    assert token not in terminal.printed
    assert "export PRICEKEEPER_CLIENT_SECRET=pks_" in terminal.printed


@pytest.mark.slow
def test_the_first_ctrl_c_ends_the_wait_for_a_secret(environment: Mapping[str, str]) -> None:
    """And for a file that is to come from stdin."""
    for words, question in (
        (("credentials", "claim", "-"), "secret (not shown): "),
        (("org", "list", "--key", "-"), "secret (not shown): "),
        (("org", "put", ORG, "--file", "-"), "end with ctrl-d:"),
    ):
        with in_a_terminal(*words, environment=environment) as terminal:
            terminal.read_until(question)
            terminal.type(CTRL_C)
            assert terminal.end() == 130


@pytest.mark.parametrize("columns", [40, *slow(80)])
def test_the_demos_exports_are_whole(tmp_path: Path, columns: int) -> None:
    """They are there to be pasted."""
    settings = {
        "PRICEKEEPER_STORE": f"sqlite:///{tmp_path}/data/store.db",
        "PRICEKEEPER_DATA_DIR": str(tmp_path / "data"),
        "PRICEKEEPER_DRAIN_SECS": "0",
    }
    words = ("serve", "--demo", "--port", str(free_port()))
    with in_a_terminal(*words, columns=columns, environment=settings) as terminal:
        terminal.read_until("/docs")
    secret = (tmp_path / "data" / "demo-secret").read_text("ascii").strip()
    assert f"export PRICEKEEPER_CLIENT_SECRET={secret}\n" in terminal.printed


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "live"), [(40, False), (80, True)])
def test_the_demo_fits_the_terminal(columns: int, live: bool) -> None:
    """A live picture from 80 columns on, and lines in less; its numbers are whole everywhere."""
    words = ("demo", "--secs", "6", "--calls", "60")  # a slow machine has a day in these secs
    with in_a_terminal(*words, columns=columns, environment={}) as terminal:
        assert terminal.end() == 0
    frames = [line for line in terminal.printed.splitlines() if line.startswith("night-reports ")]
    assert any("%" in line for line in frames) is live
    assert all(len(line) <= columns for line in frames)
    assert "…" not in terminal.printed
    assert "✓ equal" in terminal.printed
