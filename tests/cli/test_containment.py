"""A secret has leaked, on the command line: the same on the store and against a service."""

import sys

import pytest

from cli.conftest import MISSING_ORG, ORG, Cli, Done
from pricekeeper.cli import exits
from pricekeeper.cli.local import local_actor

CHAT = f"org-{ORG}-app-chat"
WHY = ("--reason", "found on GitHub")
SESSION = "000-Zm9vYmFyYmF6cXV4cXV1eA"


def done(cli: Cli, *words: str) -> Done:
    """Run a command that has to work; on the store it logs what it did."""
    outcome = cli(*words, "--json")
    assert outcome.code == 0, outcome
    return outcome


@pytest.fixture
def registered(anywhere: Cli) -> Cli:
    anywhere.register()
    anywhere.become(CHAT)
    return anywhere


def opens(cli: Cli) -> bool:
    """Whether the app's secret is good for a service."""
    return cli("sessions", "list", ORG, "chat").code == 0


def test_credentials_are_revoked(registered: Cli) -> None:
    """Everything; a rotation gives access again."""
    revoked = done(registered, "credentials", "revoke", ORG, "chat", *WHY, "--yes")
    assert revoked.json == {"client_id": CHAT, "status": "revoked", "secrets": "ALL"}
    if registered.place:
        assert not opens(registered)
    assert "client_secret_created_at" not in registered.ok("app", "get", ORG, "chat")
    assert "client_secret_created_at" in registered.ok("org", "get", ORG)
    token = registered.ok("credentials", "rotate", ORG, "chat")["secret_retrieval"]["token"]
    registered.secrets[CHAT] = registered.ok("credentials", "claim", token)["client_secret"]
    registered.become(CHAT)
    assert opens(registered)


def test_the_secret_before_is_revoked_alone(registered: Cli) -> None:
    """The present secret still works."""
    rotated = registered.ok("credentials", "rotate", ORG, "chat", "--grace-hours", "168")
    token = rotated["secret_retrieval"]["token"]
    registered.ok("credentials", "claim", token)
    words = ("credentials", "revoke", ORG, "chat", "--previous", *WHY, "--yes")
    assert done(registered, *words).json["secrets"] == "PREVIOUS"
    if registered.place:
        assert not opens(registered)
    assert "client_secret_created_at" in registered.ok("app", "get", ORG, "chat")


def test_revoking_asks_first(cli: Cli) -> None:
    """Without a terminal nothing happens."""
    cli.register()
    refused = cli("credentials", "revoke", ORG, *WHY)
    assert (refused.code, refused.out) == (exits.USAGE, "")
    assert "--yes" in refused.err
    assert "client_secret_created_at" in cli.ok("org", "get", ORG)
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return True

    cli.monkeypatch.setattr("typer.confirm", confirm)
    cli.monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert cli("credentials", "revoke", ORG, *WHY).code == 0
    assert asked == [f"Revoke every secret and token of {ORG}? It can't log in until you rotate."]


def test_a_freeze_is_set_shown_and_lifted(registered: Cli) -> None:
    """Where people look: the app, its organisation, and the lists."""
    frozen = done(registered, "freeze", ORG, *WHY).json
    assert (frozen["client_id"], frozen["frozen"]["scope"]) == (f"org-{ORG}", "ORG")
    assert frozen["frozen"]["reason"] == "found on GitHub"
    for words in (("org", "get", ORG), ("app", "get", ORG, "chat")):
        assert registered.ok(*words)["frozen"] == frozen["frozen"]
        assert "found on GitHub" in registered(*words).out
    for listing in (("org", "list"), ("app", "list", ORG)):
        shown = " ".join(registered(*listing).out.split())
        assert "frozen" in shown
        assert "GitHub" in shown
    lifted = done(registered, "unfreeze", ORG, "--reason", "it was a false alarm")
    assert lifted.json == {"org_id": ORG, "status": "unfrozen"}
    assert "frozen" not in registered.ok("org", "get", ORG)
    assert "frozen" not in registered("org", "list").out
    done(registered, "freeze", ORG, "chat", *WHY)
    assert "frozen" not in registered.ok("org", "get", ORG)
    assert registered.ok("app", "get", ORG, "chat")["frozen"]["scope"] == "APP"


def test_a_reason_is_never_markup(registered: Cli) -> None:
    """Nor does it crash a viewer."""
    done(registered, "freeze", ORG, "--reason", "[/evil] [bold]x[/bold]")
    for words in (("org", "get", ORG), ("org", "list"), ("app", "list", ORG)):
        shown = registered(*words)
        assert shown.code == 0
        assert "[/evil]" in shown.out


def test_limits_are_reset(registered: Cli) -> None:
    """Of an app or of an organisation, by name."""
    for words in ((ORG,), (ORG, "chat")):
        reset = done(registered, "limits", "reset", *words, *WHY)
        assert reset.json == {"client_id": f"org-{'-app-'.join(words)}", "labels": []}


def test_sessions_of_a_client_are_an_administrators_too(service: Cli) -> None:
    """With the provisioning key, by the client's id; its own credentials are not needed."""
    service.register()
    service.become(CHAT)
    assert service.ok("sessions", "list", ORG, "chat")["sessions"]
    service.monkeypatch.delenv("PRICEKEEPER_CLIENT_ID")
    service.monkeypatch.delenv("PRICEKEEPER_CLIENT_SECRET")
    assert service("sessions", "list", ORG, "chat").code != 0
    listed = service.ok("sessions", "list", "--client", CHAT)
    assert (listed["sessions"], listed["limit"]) == ([], 5)
    words = ("sessions", "end", "--client", CHAT)
    assert service(*words, "--session", SESSION, *WHY).code == exits.NOT_FOUND
    assert done(service, *words, "--all", *WHY).json == {"status": "ended", "session_id": None}


def test_on_the_store_too(cli: Cli) -> None:
    """Without credentials."""
    cli.register()
    assert cli.ok("sessions", "list", "--client", CHAT)["sessions"] == []
    assert done(cli, "sessions", "end", "--client", CHAT, "--all", *WHY).code == 0
    for words in (("list",), ("end", "--all", *WHY)):
        missing = cli("sessions", *words, "--client", f"org-{MISSING_ORG}")
        assert missing.code == exits.NOT_FOUND


@pytest.mark.parametrize(
    "words",
    [
        ("credentials", "revoke", ORG, "--yes"),
        ("freeze", ORG),
        ("unfreeze", ORG),
        ("limits", "reset", ORG),
        ("sessions", "end", "--client", CHAT, "--all"),
        ("sessions", "end", ORG, "chat", "--all", *WHY),
        ("sessions", "end", ORG, "--client", CHAT, "--all", *WHY),
        ("sessions", "list"),
        ("sessions", "list", "--client", "chat"),
        ("freeze", ORG, "--reason", " "),
        ("freeze", ORG, "--reason", "pks_" + "a" * 49),
    ],
    ids=" ".join,
)
def test_a_reason_is_needed_and_one_name_for_the_client(cli: Cli, words: tuple[str, ...]) -> None:
    """Else the command says what is missing, and does nothing."""
    cli.register()
    before = cli.ok("org", "get", ORG)
    refused = cli(*words)
    assert (refused.code, refused.out) == (exits.USAGE, "")
    assert refused.err
    assert cli.ok("org", "get", ORG) == before


def test_on_the_store_each_step_is_written_down_with_the_user(cli: Cli) -> None:
    """In the audit trail, as a service would."""
    cli.register()
    for words, action in (
        (("freeze", ORG, "chat", *WHY), "freeze"),
        (("unfreeze", ORG, "chat", *WHY), "unfreeze"),
        (("limits", "reset", ORG, "chat", *WHY), "limits.reset"),
        (("sessions", "end", "--client", CHAT, "--all", *WHY), "sessions.end_all"),
        (("credentials", "revoke", ORG, "chat", *WHY, "--yes"), "credentials.revoke"),
    ):
        outcome = cli(*words)
        assert outcome.code == 0
        entry = cli.ok("audit", "list", ORG)["entries"][0]
        assert (entry["action"], entry["target"]) == (action, CHAT)
        assert entry["reason"] == "found on GitHub"
        assert (entry["actor"], entry["address"]) == (local_actor(), "local")


def test_a_reason_may_be_given_wherever_the_api_takes_one(registered: Cli) -> None:
    """It is in the audit trail."""
    for words in (
        ("override", "set", ORG, "economy"),
        ("override", "clear", ORG),
        ("credentials", "rotate", ORG),
        ("app", "delete", ORG, "chat", "--yes"),
    ):
        done(registered, *words, *WHY)
        assert registered.ok("audit", "list", ORG)["entries"][0]["reason"] == "found on GitHub"


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no name."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert local_actor().startswith("cli/uid-")
