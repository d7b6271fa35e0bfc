"""``pricekeeper spool``: showing and sending reports that wait or were refused."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from client.conftest import APP, Acme
from free_port import free_port
from pricekeeper.client import spool_command
from pricekeeper.client.spool import Spool, SpoolEntry, find_folder
from pricekeeper.clock import SystemClock
from pricekeeper.values import new_request_id
from tokens.conftest import MovableClock

CLIENT = f"org-550e8400-e29b-41d4-a716-446655440000-app-{APP}"
SENT = {"model_label": "premium", "input_tokens": 1_000, "output_tokens": 100}


class App:
    """The environment of an app, and what it has left in its folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> None:
        self._monkeypatch = monkeypatch
        self._root = str(tmp_path / "spool")
        self.become(url, CLIENT, "pks_made-up")
        monkeypatch.setenv("PRICEKEEPER_SPOOL_DIR", self._root)
        monkeypatch.setenv("PRICEKEEPER_DEADLINE_MS", "1000")

    def become(self, url: str, client_id: str, secret: str) -> None:
        for name, value in (("URL", url), ("CLIENT_ID", client_id), ("CLIENT_SECRET", secret)):
            self._monkeypatch.setenv(f"PRICEKEEPER_{name}", value)
        self.folder = find_folder(self._root, url, client_id)

    def spool(self) -> Spool:
        return Spool(self.folder)

    def leave(self, *entries: SpoolEntry) -> None:
        """As a process that was killed does."""
        spool = self.spool()
        for entry in entries:
            spool.append(entry)
        spool.close()


@pytest.fixture
def clock() -> MovableClock:
    """The machine's own time, as the command has it."""
    return MovableClock()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> App:
    """An app whose service is not there."""
    return App(monkeypatch, tmp_path, f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def holding(app: App) -> Iterator[Spool]:
    spool = app.spool()
    yield spool
    spool.finish(spool.pending(100))
    spool.close()


def entry(
    kind: Literal["capture", "usage", "void"] = "usage", age_ms: int = 0, **body: Any
) -> SpoolEntry:
    now_ms = SystemClock().now_ms()
    return SpoolEntry(kind, new_request_id(now_ms), body or dict(SENT), now_ms - age_ms)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; its code, and what it prints."""

    def run_command(*words: str) -> tuple[int, str, str]:
        code = spool_command.main(list(words))
        return code, *capsys.readouterr()

    return run_command


def test_what_waits_is_shown_by_file_kind_and_age(app: App, holding: Spool, run: Run) -> None:
    app.leave(entry("capture", 71_000), entry("capture", 7_300_000), entry("void", 5_000))
    holding.append(entry("usage", 3_000))

    code, shown, _ = run("show")
    answer = json.loads(run("show", "--json")[1])

    assert code == 0
    assert shown.splitlines()[0] == f"{CLIENT}: 4 waiting in {app.folder}"
    files = {file["in_use"]: file["waiting"] for file in answer["files"]}
    assert files[False]["capture"] == {"entries": 2, "oldest_secs": 7300, "newest_secs": 71}
    assert {kind: about["entries"] for kind, about in files[True].items()} == {"usage": 1}
    assert "2 captures, for 1 min to 2 h\n" in shown
    assert "1 void, for 5 s\n" in shown
    assert shown.count("of a running process") == shown.count("of a process that has ended") == 1


def test_what_was_refused_is_shown_and_orders_a_terminal_nothing(app: App, run: Run) -> None:
    """The reason is text from a service."""
    spool, refused = app.spool(), entry()
    spool.append(refused)
    spool.refuse(refused, "VALIDATION: \x1b[2J\u202ewhy")
    spool.close()

    _, shown, _ = run("show")

    assert "refused for good: 1\n" in shown
    assert f"usage {refused.id}: VALIDATION: \\x1b[2J\\u202ewhy\n" in shown


def test_looking_changes_nothing(app: App, run: Run) -> None:
    app.leave(entry(age_ms=90 * 60_000))

    first = run("show")
    assert run("show") == first


async def test_what_was_left_is_told(app: App, acme: Acme, run: Run) -> None:
    client_id = f"org-{acme.org_id}-app-{APP}"
    app.become(acme.url, client_id, acme.secrets[client_id])
    told = [entry() for _ in range(3)]
    app.leave(*told[:2])
    app.leave(told[2], told[0], entry(model_label="no-such-model", input_tokens=1, output_tokens=1))

    code, shown, _ = await asyncio.to_thread(run, "flush")
    async with acme.keeper() as keeper:
        records = (await keeper.usage_records())["records"]

    assert sorted(one["request_id"] for one in records) == sorted(one.id for one in told)
    assert shown.startswith(
        f"{client_id}: 3 reported, 1 refused for good, 0 left in {app.folder}\n"
    )
    assert code == 0
    assert "no-such-model" in run("show")[1]


def test_what_can_not_be_told_is_left(app: App, run: Run) -> None:
    app.leave(entry(), entry("void"))

    code, shown, logged = run("flush")

    assert (code, logged) == (1, "")
    assert shown.startswith(f"{CLIENT}: 0 reported, 0 refused for good, 2 left in {app.folder}\n")
    assert "2 entries wait to be reported to the price keeper" in shown
    assert "2 waiting in" in run("show")[1]


def test_what_a_running_app_has_is_left_to_it(app: App, holding: Spool, run: Run) -> None:
    holding.append(entry())

    code, shown, _ = run("flush")

    assert code == 0
    assert "0 reported, 0 refused for good, 0 left" in shown
    assert "1 more wait in running processes, which report them" in shown
    assert len(holding) == 1


def test_without_files_there_is_nothing_to_do(
    app: App, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("PRICEKEEPER_SPOOL_DIR", "memory")

    for command in ("show", "flush"):
        code, shown, _ = run(command)
        assert (code, shown) == (
            0,
            f"{CLIENT}: reports are kept in memory only, so there are no files\n",
        )


def test_a_setting_that_is_missing_is_told(
    app: App, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.delenv("PRICEKEEPER_CLIENT_ID")

    code, shown, told = run("show")

    assert (code, shown) == (2, "")
    assert "PRICEKEEPER_CLIENT_ID" in told


WITHOUT_SERVER = """
import sys
sys.modules["typer"] = None
from importlib import util
found = util.find_spec
util.find_spec = lambda name: None if name == "typer" else found(name)
from pricekeeper.cli import main
main()
"""


def without_server(*words: str) -> "subprocess.CompletedProcess[str]":
    """The program where one package of the extra is not installed."""
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", WITHOUT_SERVER, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_the_server_the_program_says_what_to_install() -> None:
    done = without_server("serve", "--demo")

    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'bedrock-price-keeper[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_server_there_is_the_spool(app: App) -> None:
    app.leave(entry())

    done = without_server("spool", "show")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{CLIENT}: 1 waiting in ")
