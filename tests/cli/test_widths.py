"""Every output is whole: in a terminal of 40 or 80 columns, and in a pipe.

The commands are found in the command line itself, so that a new one can't be left out.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.conftest import ORG, ORG_FLAGS, Cli, serving
from cli.test_face import COMMANDS, SERVES, spool_settings
from pricekeeper.bootstrap import Services
from pricekeeper.cli import command
from pricekeeper.cli.command import Output
from pricekeeper.cli.demo.traffic import DemoLedger, Mismatch, Sums
from pricekeeper.cli.demo.view import AppState, Board, Result, going_on, summary
from pricekeeper.cli.drawing import pct_bar
from pricekeeper.cli.tables import Listing, table
from pricekeeper.client.spool import Spool, SpoolEntry, find_folder
from pricekeeper.metering import Usage
from pricekeeper.pricing import load_catalogue
from pricekeeper.tenants import Client
from pricekeeper.values import AppId, OrgId

APP = "a-chat-with-an-id-that-is-long-enough-to-be-in-the-way-0123456789"[:64]
NAME = "Chat, which has a name of several words, and one is Donaudampfschifffahrtsgesellschaft"
KEY_NAME = "the night shift of the platform team, second floor, room 42"
DECLARATION = "acme.json"
WIDTHS = ("40", "80", None)
"""In columns; none is a pipe."""
BY_THEMSELVES = SERVES | {("demo",), ("adopt",)}
"""Commands that print in another way; they have tests of their own below and elsewhere."""

Words = Callable[[Cli], tuple[str, ...]]


def retrieval_token(cli: Cli) -> str:
    token: str = cli.ok("credentials", "rotate", ORG)["secret_retrieval"]["token"]
    return token


def authorized(cli: Cli) -> str:
    """The id of an authorization that holds nothing: there is no budget for more."""
    return cli.authorize(APP, input_tokens=0, max_output_tokens=0, tags={"team": NAME})


def recorded(cli: Cli) -> str:
    """The id of a usage record."""
    authorization_id = authorized(cli)
    nothing = Usage(request_id="", model_label="", input_tokens=0, output_tokens=0)

    async def capture(services: Services) -> None:
        policy = await services.tenants.find_policy(OrgId(ORG), AppId(APP))
        await services.authorizations.capture(policy, authorization_id, nothing)

    cli.on_services(capture)
    return authorization_id


def become_an_app(cli: Cli) -> tuple[str, ...]:
    for name, value in spool_settings(cli).items():
        cli.monkeypatch.setenv(name, value)
    return ()


def app_with_entries(cli: Cli) -> tuple[str, ...]:
    """An app that was ended before it could tell everything."""
    ids = [authorized(cli) for _ in range(3)]
    become_an_app(cli)
    folder, url = os.environ["PRICEKEEPER_SPOOL_DIR"], os.environ["PRICEKEEPER_URL"]
    spool = Spool(find_folder(folder, url, os.environ["PRICEKEEPER_CLIENT_ID"]))
    spool.append(SpoolEntry("usage", ids[0], {}, 0))
    spool.append(SpoolEntry("capture", ids[1], {}, 0))
    spool.append(SpoolEntry("void", ids[2], {}, 0))
    spool.refuse(spool.pending(1)[0], NAME)
    spool.close()
    return ()


CHANNEL = ("--org", ORG, "--to", "https://hooks.example.com/x", "--secret", "0123456789abcdef")


def channel(cli: Cli) -> str:
    """The name of a channel for alerts."""
    cli.ok("alerts", "set", "ops", *CHANNEL)
    return "ops"


def admin_key(cli: Cli) -> str:
    """The id of a key that has something in every column."""
    words = ("admin-keys", "create", KEY_NAME, "--role", "OPERATOR", "--org", ORG, "--days", "9")
    key_id: str = cli.ok(*words)["key_id"]
    return key_id


RUNS: dict[tuple[str, ...], Words] = {
    ("aggregate",): lambda _: (),
    ("doctor",): lambda _: (),
    ("migrate",): lambda _: (),
    ("export",): lambda _: ("--day", "2026-01-31", "--into", "exports"),
    ("apply",): lambda _: (DECLARATION, "--yes"),
    ("org", "put"): lambda _: ("new", *ORG_FLAGS),
    ("org", "set"): lambda _: (ORG, "--name", NAME, "--quota", "premium=0.000001"),
    ("org", "get"): lambda _: (ORG,),
    ("org", "list"): lambda _: (),
    ("org", "delete"): lambda _: (ORG, "--yes"),
    ("app", "put"): lambda _: (ORG, "another-" + APP[:50], "--name", NAME),
    ("app", "set"): lambda _: (ORG, APP, "--quota", "premium=2", "--no-budget", "hourly"),
    ("app", "get"): lambda _: (ORG, APP),
    ("app", "list"): lambda _: (ORG,),
    ("app", "delete"): lambda _: (ORG, APP, "--yes"),
    ("admin-keys", "create"): lambda _: (KEY_NAME, "--role", "VIEWER", "--org", ORG, "--days", "9"),
    ("admin-keys", "list"): lambda cli: (admin_key(cli), ())[1],
    ("admin-keys", "rotate"): lambda cli: (admin_key(cli),),
    ("admin-keys", "delete"): lambda cli: (admin_key(cli), "--yes"),
    ("admin-keys", "whoami"): lambda _: (),
    ("credentials", "rotate"): lambda _: (ORG, APP),
    ("credentials", "claim"): lambda cli: (retrieval_token(cli),),
    ("credentials", "provisioning-key"): lambda _: (ORG,),
    ("credentials", "revoke"): lambda _: (ORG, APP, "--reason", NAME, "--yes"),
    ("freeze",): lambda _: (ORG, APP, "--reason", NAME),
    ("unfreeze",): lambda _: (ORG, APP, "--reason", NAME),
    ("override", "set"): lambda _: (ORG, "economy", APP),
    ("override", "clear"): lambda _: (ORG, APP),
    ("usage", "show"): lambda _: (ORG, APP),
    ("watch",): lambda _: (ORG, "--once"),
    ("usage", "list"): lambda _: (ORG, APP),
    ("spend",): lambda _: ("--from", "2026-01-01", "--to", "2026-01-03"),
    ("ledger", "rebuild"): lambda _: ("--day", "20260101"),
    ("ledger", "check"): lambda _: (),
    ("limits", "show"): lambda _: (ORG, APP),
    ("limits", "reset"): lambda _: (ORG, APP, "--reason", NAME),
    ("limits", "repair"): lambda _: (),
    ("authorizations", "list"): lambda cli: (ORG, authorized(cli) and APP),
    ("authorizations", "show"): lambda cli: (ORG, APP, authorized(cli)),
    ("authorizations", "void"): lambda cli: (ORG, APP, authorized(cli), "--reason", NAME),
    ("budgets",): lambda _: (ORG, APP),
    ("forecast",): lambda _: (ORG, APP),
    ("sessions", "list"): lambda _: (ORG, APP),
    ("sessions", "end"): lambda _: (ORG, APP, "--all"),
    ("prices", "show"): lambda _: (),
    ("prices", "refresh"): lambda _: ("--source", "genai-prices"),
    ("prices", "check"): lambda _: ("--source", "genai-prices"),
    ("tables", "create"): lambda _: (),
    ("tables", "status"): lambda _: (),
    ("tables", "show"): lambda _: ("Config",),
    ("keys", "rotate"): lambda _: (),
    ("alerts", "list"): lambda _: (),
    ("alerts", "channels"): lambda cli: (channel(cli), ("--org", ORG))[1],
    ("alerts", "set"): lambda _: ("ops", *CHANNEL),
    ("alerts", "remove"): lambda cli: (channel(cli), "--org", ORG),
    ("alerts", "test"): lambda _: ("--org", ORG),
    ("authorizations", "revoke"): lambda cli: (ORG, authorized(cli), "--reason", NAME),
    ("usage", "void"): lambda cli: (ORG, recorded(cli), "--reason", NAME),
    ("audit", "list"): lambda _: (),
    ("audit", "verify"): lambda _: (),
    ("audit", "export"): lambda _: ("--to", "audit.jsonl"),
    ("keys", "new"): lambda _: (),
    ("keys", "new-pepper"): lambda _: (),
    ("spool", "show"): app_with_entries,
    ("spool", "flush"): become_an_app,
}
"""How to run each command, so that it has something to show."""
MORE_RUNS: dict[str, tuple[str, ...]] = {
    "org get --yaml": ("org", "get", ORG, "--yaml"),
    "apply --dry-run": ("apply", DECLARATION, "--dry-run"),
    "org set what it is": ("org", "set", ORG, "--name", "Acme"),
    "app get --yaml": ("app", "get", ORG, APP, "--yaml"),
    "usage of the organisation": ("usage", "show", ORG),
    "budgets of the organisation": ("budgets", ORG),
    "usage of everybody": ("usage", "show", "--all"),
    "usage of a range": ("usage", "show", ORG, APP, "--from", "2026-01-01", "--to", "2026-01-03"),
}


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test keeps its store for the others: it takes a service to make one."""
    return tmp_path_factory.mktemp("filled") / "store"


@pytest.fixture
def filled(cli: Cli, kept: Path) -> Cli:
    """A store with an app that has a long id and name, and a session."""
    if not kept.exists():
        with serving(cli):
            fill(cli)
        cli.place = ()
        shutil.copytree(cli.folder, kept)
    shutil.copytree(kept, cli.folder, dirs_exist_ok=True)
    return cli


def fill(cli: Cli) -> None:
    cli.ok("org", "put", ORG, *ORG_FLAGS)
    limits = ("--rate-limit", "*:rpm=60/1m", "--rate-limit", "*:tpm=9000000/1m/20000000")
    budgets = ("--budget", f"{'b' * 32}=MONTH:1000000000:soft", "--budget", "hourly=HOUR:0.000001")
    client_id = cli.claim(cli.ok("app", "put", ORG, APP, "--name", NAME, *limits, *budgets))
    cli.log_in(client_id, "agent/1.0 (with a long description of itself)")
    declared = {
        "org_id": ORG,
        "org_name": NAME,
        "timezone": "UTC",
        "quota_scope": "APP",
        "model_ordering": ["premium"],
        "quotas": {"premium": 1},
        "apps": {APP: {"app_name": NAME}, "another-" + APP[:50]: {"app_name": NAME}},
    }
    (cli.folder / DECLARATION).write_text(json.dumps(declared), "utf-8")


@dataclass
class Shown:
    """One outcome of a command at several widths."""

    answer: Any
    at: dict[str | None, str]


def shown(cli: Cli, *words: str) -> Shown:
    """What a command shows; it runs once, and its outcome is drawn for each width."""
    outcomes: list[Output] = []
    keep = lambda outcome, as_json: outcomes.append(outcome)  # noqa: ARG005, E731
    with cli.monkeypatch.context() as patched:
        patched.setattr(command, "show", keep)
        done = cli(*words)
    assert (done.code, len(outcomes)) == (0, 1), done
    answer = msgspec.to_builtins(outcomes[0].answer)
    return Shown(answer, {width: drawn(cli, outcomes[0].picture, width) for width in WIDTHS})


def drawn(cli: Cli, picture: Any, width: str | None) -> str:
    with cli.monkeypatch.context() as patched:
        patched.delenv("COLUMNS")
        if width is not None:
            patched.setenv("COLUMNS", width)
        cli.capsys.readouterr()
        command.show(Output(None, picture), as_json=False)
        return cli.capsys.readouterr().out


def parts(text: str) -> set[str]:
    """The words and numbers in it, without lines and bars."""
    return {word for word in text.split() if not re.fullmatch("[─━╸╺]+", word)}


def ids(answer: Any, field: str = "") -> Iterator[str]:
    """Every id, secret and token in an answer."""
    if isinstance(answer, str):
        if re.search(r"(^|_)(id|ids|kid|key|secret|token)$", field):
            yield answer
    elif isinstance(answer, dict):
        for name, value in answer.items():
            yield from ids(value, str(name))
    elif isinstance(answer, list):
        for value in answer:
            yield from ids(value, field)


def assert_whole(found: Shown) -> None:
    """Nothing that the pipe gets is missing or broken elsewhere, and an id is shown as a whole."""
    for width, text in found.at.items():
        assert parts(found.at[None]) <= parts(text), (width, text)
        for one in ids(found.answer):
            assert one in text or one[:8] not in text, (width, one, text)


def test_every_command_is_tried() -> None:
    """A new command is added here."""
    assert set(RUNS) | BY_THEMSELVES == set(COMMANDS)


@pytest.mark.parametrize("path", RUNS, ids=" ".join)
def test_nothing_is_lost_in_a_narrow_terminal(filled: Cli, path: tuple[str, ...]) -> None:
    """Every word and number of the wide picture is in the narrow ones, unbroken."""
    filled.monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", "a-key-of-thirty-two-characters--")
    assert_whole(shown(filled, *path, *RUNS[path](filled)))


@pytest.mark.parametrize("words", MORE_RUNS.values(), ids=MORE_RUNS)
def test_nor_by_an_option(filled: Cli, words: tuple[str, ...]) -> None:
    """The same for what a command shows otherwise."""
    assert_whole(shown(filled, *words))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_whole(cli: Cli, path: tuple[str, ...]) -> None:
    """No name of an option or a setting is cut."""
    for width in ("40", "80"):
        cli.monkeypatch.setenv("COLUMNS", width)
        text = cli(*path, "--help").out
        assert "…" not in text, (width, text)
        for option in COMMANDS[path].params:
            assert all(name in text for name in option.opts if name.startswith("-")), option.opts


def test_secrets_and_ids_are_shown(filled: Cli) -> None:
    """In full, on one line, ready to be copied."""
    rotated = shown(filled, "credentials", "rotate", ORG, APP)
    token = rotated.answer["secret_retrieval"]["token"]
    claimed = shown(filled, "credentials", "claim", token)
    sessions = shown(filled, "sessions", "list", ORG, APP)
    for width in WIDTHS:
        assert token in rotated.at[width]
        for name in ("client_id", "client_secret"):
            variable = f"PRICEKEEPER_{name.upper()}"
            assert f"export {variable}={claimed.answer[name]}\n" in claimed.at[width]
        assert sessions.answer["sessions"][0]["session_id"] in sessions.at[width]


def test_an_error_is_one_whole_line(cli: Cli) -> None:
    """However long it is."""
    cli.register()
    name = "a" * 60
    for width in ("40", "80"):
        cli.monkeypatch.setenv("COLUMNS", width)
        done = cli("override", "set", ORG, name)
        assert done.err.count("\n") == 1
        assert name in done.err


def test_a_table_gives_way_between_words_and_then_stacks(cli: Cli) -> None:
    """First the column that wraps; then each cell has its line, and bars are left out."""
    rows = table("id", "", "told", "n", numbers=["n"], wraps=["told"])
    rows.add_row("0123456789", pct_bar(50, "green", 4), "some words to wrap", "1,234,567")
    wide, narrow, barless, stacked = (drawn(cli, rows, width) for width in ("80", "40", "33", "25"))
    assert re.search("^0123456789  ━.*  some words to wrap  1,234,567$", wide, re.MULTILINE)
    assert re.search("^0123456789  ━.*  some words *1,234,567$", narrow, re.MULTILINE)
    assert re.search("^0123456789  some words *1,234,567$", barless, re.MULTILINE)
    assert [max(map(len, text.splitlines())) for text in (narrow, barless)] == [40, 33]
    assert stacked.splitlines() == [
        "id    0123456789",
        "told  some words to wrap",
        "n     1,234,567",
    ]


def test_a_pipe_has_a_line_for_each_row(filled: Cli) -> None:
    """For ``grep`` and ``wc -l``, however long the line is."""
    (row,) = [
        line for line in shown(filled, "app", "list", ORG).at[None].splitlines() if APP in line
    ]
    assert NAME in row
    assert "premium > standard > economy" in row
    assert "$70.50" in row


def test_the_demos_summary_is_whole(cli: Cli) -> None:
    """Sent and counted usage, and the next commands."""
    board = Board(0, 1, {"support": AppState("support", {})})
    ledger = DemoLedger(load_catalogue())
    ledger.sums["support", "2026-01-01", "premium"] = Sums(
        requests=1_234, input_tokens=123_456_789, output_tokens=98_765_432
    )
    differing = [Mismatch("support", "2026-01-01", "premium", "requests", 1_234, 1_233)]
    org = str(Client(OrgId(ORG), AppId("x")).org_id)
    for picture in (
        summary(Result(board, ledger, differing, renewals=1)),
        going_on(f"sqlite:///{'/a/long/folder' * 8}/demo.db", org),
    ):
        texts = {width: drawn(cli, picture, width) for width in WIDTHS}
        assert_whole(Shown({"org_id": org}, texts))


def test_json_has_no_width(filled: Cli) -> None:
    """It is the same everywhere."""
    texts = set()
    for width in ("40", "80", "1000"):
        filled.monkeypatch.setenv("COLUMNS", width)
        texts.add(filled("org", "get", ORG, "--json").out)
    assert len(texts) == 1
    assert json.loads(texts.pop())["org_id"] == ORG


def test_a_listing_is_drawn_twice_alike(cli: Cli) -> None:
    """Drawing changes nothing in it."""
    rows: Listing = table("a", "b")
    rows.add_row("1", "2")
    rows.add_section()
    rows.add_row("3", "4")
    assert drawn(cli, rows, "40") == drawn(cli, rows, "40")
