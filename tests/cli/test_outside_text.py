"""Text from outside is never markup, and never controls the terminal."""

import json
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.text import Text

from cli.conftest import ORG, ORG_FLAGS, Cli
from cli.test_widths import APP, MORE_RUNS, RUNS, filled, kept, shown
from http_handler import Handler, serving
from pricekeeper import cli as cli_package
from pricekeeper.cli import clients
from pricekeeper.cli.command import print_json
from pricekeeper.cli.local import LocalTransport
from pricekeeper.cli.settings_input import settings_file
from pricekeeper.cli.terminal import harmless, is_harmless, make_console
from pricekeeper.client import Request
from pricekeeper.values import settings_tag

__all__ = ["filled", "kept"]  # the fixtures

PATHS = [
    pytest.param(path, marks=[pytest.mark.slow] if place % 4 else [])
    for place, path in enumerate(RUNS)
]
"""One command in four is quick: all have the same way out."""
MARKUP = "[/evil][red]x[link=http://127.0.0.1]:smile:"
ORDERS = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\x7f\u202e\n✓ all checks passed"
EVIL = MARKUP + ORDERS
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FIELDS = {"org_name", "app_name", "user_agent", "address", "timezone"}
"""Fields of answers that others have filled in."""


def spoil(answer: Any) -> Any:
    """The same answer, with evil in every text that others have filled in."""
    if isinstance(answer, list):
        return [spoil(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    return {
        name: f"{value}{EVIL}" if name in FIELDS and isinstance(value, str) else spoil(value)
        for name, value in answer.items()
    }


def tag_of_spoiled(answer: dict[str, Any]) -> str:
    """The tag of the settings as they are in the store."""
    sound: dict[str, Any] = json.loads(json.dumps(answer).replace(json.dumps(EVIL)[1:-1], ""))
    return settings_tag(sound)


@pytest.fixture
def spoiled(filled: Cli) -> Cli:
    """A store whose every answer is evil where it can be."""
    send = LocalTransport.send

    async def send_spoiled(self: LocalTransport, request: Request) -> Any:
        return spoil(await send(self, request))

    filled.monkeypatch.setattr(LocalTransport, "send", send_spoiled)
    filled.monkeypatch.setattr(clients, "settings_tag", tag_of_spoiled)
    filled.monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", "a-key-of-thirty-two-characters--")
    return filled


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_no_answer_is_markup_or_an_order(spoiled: Cli, path: tuple[str, ...]) -> None:
    """Every output at any width ends well and has the text."""
    found = shown(spoiled, *path, *RUNS[path](spoiled))
    for text in found.at.values():
        assert not HARMFUL.search(text), text
        assert "✓ all checks passed" not in text.splitlines()
        assert MARKUP in text or "/evil" not in text


def test_evil_is_shown(spoiled: Cli) -> None:
    """The test above would be empty if nothing of it came through."""
    for words in (("org", "list"), ("org", "get", ORG), ("app", "list", ORG)):
        assert MARKUP in shown(spoiled, *words).at[None]
    sessions = shown(spoiled, "sessions", "list", ORG, APP).at[None]
    assert sessions.count(MARKUP) == 2


@pytest.mark.parametrize("words", MORE_RUNS.values(), ids=MORE_RUNS)
def test_nor_with_an_option(spoiled: Cli, words: tuple[str, ...]) -> None:
    """YAML has escapes of its own, and is the same afterwards."""
    text = shown(spoiled, *words).at[None]
    assert not HARMFUL.search(text)
    if "--yaml" in words:
        (name,) = (value for field, value in yaml.safe_load(text).items() if field.endswith("name"))
        assert name.endswith(EVIL)


def test_a_user_agent_that_is_markup(service: Cli) -> None:
    """As it comes over HTTP, with a real login: it used to end the command."""
    service.register()
    service.become(f"org-{ORG}-app-chat")
    service.log_in(f"org-{ORG}-app-chat", "evil/1.0 [/evil] [bold]")
    done = service("sessions", "list", ORG, "chat", place=())
    assert done.code == 0
    assert "evil/1.0 [/evil] [bold]" in done.out


def evil_service(status: int, body: bytes) -> AbstractContextManager[str]:
    """A service that answers everything with that."""

    class Evil(Handler):
        def answer(self) -> None:
            self.reply(status, body)

    return serving(Evil)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"code": EVIL, "detail": EVIL}).encode(),
        json.dumps({"code": "X", "detail": "no", "details": {"valid_labels": [EVIL]}}).encode(),
        EVIL.encode(),
    ],
    ids=["problem", "labels", "no problem"],
)
def test_a_services_error_is_text(cli: Cli, body: bytes) -> None:
    """It is one line."""
    with evil_service(400, body) as url:
        done = cli("org", "get", ORG, "--url", url)
    assert (done.code, done.out) == (2, "")
    assert MARKUP in done.err
    assert done.err.count("\n") == 1
    assert not HARMFUL.search(done.err)


def test_what_a_service_says_to_the_doctor_is_text(cli: Cli) -> None:
    """Also where it is not ready."""
    with evil_service(503, EVIL.encode()) as url:
        done = cli("doctor", "--url", url)
    assert done.code == 1
    assert "/evil" in done.out
    assert not HARMFUL.search(done.out)


def test_names_of_files_and_words_of_the_command_line_are_text(cli: Cli) -> None:
    """In errors and in what is shown."""
    name = MARKUP.replace("/", "_")
    cli.register()
    for words in (
        ("org", "put", ORG, "--file", f"{name}.yaml"),
        ("org", "list", "--store", f"sqlite:///{name}.db"),
        ("org", "list", "--config", f"{name}.yaml"),
        ("org", "list", "--store", name),
        ("org", "put", ORG, *ORG_FLAGS, "--quota", name),
        ("prices", "show", "--config", f"{name}\x1b.yaml"),
    ):
        done = cli(*words)
        assert done.code in (1, 2), words
        assert name in done.err
        assert not HARMFUL.search(done.err)
    cli.monkeypatch.setenv("PRICEKEEPER_DATA_DIR", str(Path(cli.folder) / name))
    assert name in cli("doctor").out


@pytest.mark.parametrize(
    "words",
    [
        (MARKUP,),
        ("org", "list", MARKUP),
        ("org", "list", f"--{MARKUP}"),
        ("usage", "show", ORG, "--from", MARKUP),
    ],
)
def test_a_command_line_that_can_not_be_read_is_text(cli: Cli, words: tuple[str, ...]) -> None:
    """Typer tells that, in a box of its own."""
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert "[/evil][red]x" in done.err


def test_json_gives_no_orders_either(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters become escapes of the same JSON."""
    print_json({"name": EVIL, "plain": "Zürich"})
    text = capsys.readouterr().out
    assert not HARMFUL.search(text)
    assert json.loads(text) == {"name": EVIL, "plain": "Zürich"}
    assert "Zürich" in text


def test_a_console_lets_no_order_through(capsys: pytest.CaptureFixture[str]) -> None:
    """However the text gets there."""
    console = make_console()
    for one in (EVIL, Text(EVIL), f"{EVIL} {MARKUP}"):
        console.print(one, soft_wrap=True)
    assert not HARMFUL.search(capsys.readouterr().out)


def test_one_place_makes_consoles() -> None:
    """Any other would read markup again, and let orders through."""
    folder = Path(cli_package.__file__).parent
    makes = re.compile(r"(?<!class Harmless)\bConsole\(|from_markup|rich\.print|render_markup")
    found = [path.name for path in folder.rglob("*.py") if makes.search(path.read_text("utf-8"))]
    assert found == []


def test_every_control_character_has_an_escape() -> None:
    """And everything that can be read is left alone."""
    for code in range(0x3000):
        character = chr(code)
        if HARMFUL.search(character) or character == "\n":
            assert harmless(character).startswith("\\"), hex(code)
        elif code != 0x061C:
            assert harmless(character) == character, hex(code)
    assert is_harmless("two\nlines")
    assert not is_harmless("\x1b")


def test_a_file_to_be_put_again_means_the_same() -> None:
    """Plain characters stay readable in it."""
    answer = {"org_name": "Zürich", "configuration": {"timezone": "UTC"}}
    assert "Zürich" in settings_file(answer)
    evil = settings_file({**answer, "org_name": EVIL})
    assert is_harmless(evil)
    assert yaml.safe_load(evil)["org_name"] == EVIL
