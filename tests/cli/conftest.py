"""Commands run in this process, on a store of their own or against a real service."""

import asyncio
import base64
import io
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import apsw
import pytest
import structlog
import typer.main

from pricekeeper.authorizations import AuthorizationRequest
from pricekeeper.bootstrap import Services
from pricekeeper.cli import command, main
from pricekeeper.cli.demo import demo_settings
from pricekeeper.cli.opening import open_local_services
from pricekeeper.clock import SystemClock
from pricekeeper.settings import read_settings
from pricekeeper.storage import Store
from pricekeeper.testing.serving import running_service
from pricekeeper.values import AppId, OrgId
from stored_items import on_store

ORG = "550e8400-e29b-41d4-a716-446655440000"
MISSING_ORG = "550e8400-e29b-41d4-a716-44665544ffff"
QUOTAS = ("--quota", "premium=50", "--quota", "standard=20", "--quota", "economy=0.5")
ORG_FLAGS = (
    *("--name", "Acme", "--timezone", "Europe/Berlin", "--scope", "APP"),
    *("--order", "premium,standard,economy", *QUOTAS),
)


@pytest.fixture(scope="session", autouse=True)
def one_command_tree() -> Iterator[None]:
    """Typer builds the tree of all commands for each call, which takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The answer; fails if there is anything else on stdout."""
        return json.loads(self.out)


@dataclass
class Cli:
    """The command line, and what is in the environment."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    place: tuple[str, ...] = ()
    program: str = "pricekeeper"
    secrets: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, place: tuple[str, ...] | None = None) -> Done:
        words = [*arguments, *(self.place if place is None else place)]
        self.monkeypatch.setattr(sys, "argv", [self.program, *words])
        self.capsys.readouterr()
        try:
            main()
        except SystemExit as ended:
            code = 0 if ended.code is None else int(ended.code)
        else:
            code = 0
        printed = self.capsys.readouterr()
        return Done(code, printed.out, printed.err)

    def ok(self, *arguments: str, place: tuple[str, ...] | None = None) -> Any:
        """The answer of a command that has to work."""
        done = self(*arguments, "--json", place=place)
        assert (done.code, done.err) == (0, ""), done
        return done.json

    def register(self) -> None:
        """An organisation with an app, and the secrets of both."""
        created = [
            self.ok("org", "put", ORG, *ORG_FLAGS),
            self.ok("app", "put", ORG, "chat", "--name", "Chat", "--rate-limit", "*:rpm=60/1m"),
        ]
        for answer in created:
            self.claim(answer)

    def claim(self, answer: Any) -> str:
        """Claim the secret that waits in an answer, and keep it; the id of its client."""
        claimed = self.ok("credentials", "claim", answer["secret_retrieval"]["token"])
        self.secrets[claimed["client_id"]] = claimed["client_secret"]
        return str(claimed["client_id"])

    @property
    def environment(self) -> dict[str, str]:
        """The store, for a process of its own."""
        return {name: os.environ[name] for name in ("PRICEKEEPER_STORE", "PRICEKEEPER_DATA_DIR")}

    def on_store(self, work: Callable[[Store], Awaitable[Any]]) -> Any:
        """Do something to the store, beside the commands."""
        return on_store(f"sqlite:///{self.folder}/demo.db", work)

    def on_services(self, work: Callable[[Services], Awaitable[Any]]) -> Any:
        """Do something with the services on this store."""

        async def main() -> Any:
            async with open_local_services(read_settings(os.environ)) as services:
                return await work(services)

        return asyncio.run(main())

    def log_in(self, client_id: str, user_agent: str) -> None:
        """Open a session at the service, as an app that calls itself so."""
        pair = base64.b64encode(f"{client_id}:{self.secrets[client_id]}".encode()).decode()
        headers = {"Authorization": f"Basic {pair}", "User-Agent": user_agent}
        request = Request(  # noqa: S310  # the loopback address
            f"{self.place[1]}/auth/token", b"grant_type=client_credentials", headers
        )
        with urlopen(request, timeout=30) as answer:  # noqa: S310
            assert answer.status == 200

    def authorize(self, app_id: str, **request: Any) -> str:
        """Authorize a call of an app, on the store: the id of the authorization."""

        async def authorize(services: Services) -> str:
            policy = await services.tenants.find_policy(OrgId(ORG), AppId(app_id))
            wanted = AuthorizationRequest(**request)
            granted = await services.authorizations.authorize(policy, wanted)
            return granted.authorization.shown_id

        return str(self.on_services(authorize))

    def become(self, client_id: str) -> None:
        """Use that client's credentials, where a service wants some."""
        self.monkeypatch.setenv("PRICEKEEPER_CLIENT_ID", client_id)
        self.monkeypatch.setenv("PRICEKEEPER_CLIENT_SECRET", self.secrets[client_id])


def told(text: str) -> list[str]:
    """The lines of a picture, blanks apart."""
    return [" ".join(line.split()) for line in text.splitlines()]


def drop_a_table(path: Path) -> None:
    """Take ``Sessions`` out of a database."""
    connection = apsw.Connection(str(path))
    connection.execute('DROP TABLE "Sessions"')
    connection.close()


@pytest.fixture(autouse=True)
def logs_that_can_be_undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command sets up logging for its process; this one has other tests to run."""
    monkeypatch.setattr(command, "quiet_logs", lambda: None)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on a store that does not exist yet."""
    for name in [name for name in os.environ if name.startswith("PRICEKEEPER_")]:
        monkeypatch.delenv(name)
    settings: Mapping[str, str] = {
        "PRICEKEEPER_STORE": f"sqlite:///{tmp_path}/demo.db",
        "PRICEKEEPER_DATA_DIR": str(tmp_path / "data"),
        "COLUMNS": "120",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Cli(tmp_path, monkeypatch, capsys)


@contextmanager
def serving(cli: Cli, **changes: Any) -> Iterator[None]:
    """Run a service on the store of the commands, which have its key and its URL."""
    settings = replace(demo_settings(cli.folder), **changes)
    with running_service(settings, SystemClock()) as url:
        cli.monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", settings.provisioning_key or "")
        cli.place = ("--url", url)
        yield


@pytest.fixture
def service(cli: Cli) -> Iterator[Cli]:
    """The same, with a running service on that store; its key is in the environment."""
    with serving(cli):
        yield cli


@pytest.fixture(params=["store", "service"])
def anywhere(request: pytest.FixtureRequest, cli: Cli) -> Cli:
    """Commands on the store, and once more against a service."""
    if request.param == "service":
        request.getfixturevalue("service")
    return cli
