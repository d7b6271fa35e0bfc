"""What only a service can refuse, and which place a command chooses."""

import pytest

from cli.conftest import ORG, Cli
from free_port import free_port


@pytest.mark.parametrize("key", ["wrong-wrong-wrong-wrong", None])
def test_without_the_key_it_is_refused(
    service: Cli, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4, and the variable to set."""
    monkeypatch.delenv("PRICEKEEPER_PROVISIONING_KEY")
    done = service("org", "list", *(("--key", key) if key else ()))

    assert (done.code, done.out) == (4, "")
    assert "PRICEKEEPER_PROVISIONING_KEY" in done.err


def test_the_key_can_be_given_on_the_command_line(
    service: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts before the environment's."""
    import os  # noqa: PLC0415

    key = os.environ["PRICEKEEPER_PROVISIONING_KEY"]
    monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", "another-key-entirely")
    assert service("org", "list", "--key", key).code == 0


def test_a_clients_own_matters_need_its_credentials(
    service: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None, another's, a wrong secret: refused, each with the fix."""
    service.register()
    done = service("usage", "show", ORG, "chat")
    assert done.code == 4
    assert "PRICEKEEPER_CLIENT_ID" in done.err

    service.become(f"org-{ORG}-app-chat")
    done = service("usage", "show", ORG)
    assert done.code == 4
    assert f"org-{ORG}" in done.err

    monkeypatch.setenv("PRICEKEEPER_CLIENT_SECRET", "pks_wrong")
    done = service("usage", "show", ORG, "chat")
    assert done.code == 4
    assert "PRICEKEEPER_CLIENT_SECRET" in done.err


def test_an_organisation_sees_its_apps_but_not_their_sessions(service: Cli) -> None:
    """Usage and limits may be looked at from above; sessions belong to the client."""
    service.register()
    service.become(f"org-{ORG}")
    assert service.ok("limits", "show", ORG, "chat")["resources"]
    assert service("sessions", "list", ORG, "chat").code == 4


def test_looking_leaves_no_session_behind(service: Cli) -> None:
    """A command ends the session that it opened, so that it pushes nobody out for long."""
    service.register()
    service.become(f"org-{ORG}-app-chat")
    for _ in range(3):
        service.ok("usage", "show", ORG, "chat")
    assert service.ok("sessions", "list", ORG, "chat", place=())["sessions"] == []


def test_nobody_there_is_unavailable(cli: Cli) -> None:
    """Exit code 5, in one line."""
    done = cli("org", "list", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out) == (5, "")
    assert len(done.err.splitlines()) == 1


def test_the_environment_can_name_the_service(
    service: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--store`` on the command line counts before it; both on the command line exclude."""
    service.register()
    monkeypatch.setenv("PRICEKEEPER_URL", service.place[1])
    monkeypatch.setenv("PRICEKEEPER_STORE", "sqlite:///nowhere.db")
    assert [one["org_id"] for one in service.ok("org", "list", place=())] == [ORG]

    here = ("--store", f"sqlite:///{service.folder}/demo.db")
    monkeypatch.setenv("PRICEKEEPER_PROVISIONING_KEY", "a-key-that-is-not-asked-for")
    assert [one["org_id"] for one in service.ok("org", "list", place=here)] == [ORG]
    assert service("org", "list", place=(*service.place, *here)).code == 2
