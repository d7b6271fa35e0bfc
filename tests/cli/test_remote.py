"""What only a service can refuse, and which place a command chooses."""

import asyncio

import pytest

from cli.conftest import MISSING_ORG, ORG, ORG_FLAGS, Cli
from pricekeeper.client import Api


def test_an_organisation_sees_its_apps_but_not_their_sessions(service: Cli) -> None:
    """Usage and limits may be looked at from above; sessions belong to the client."""
    service.register()
    service.become(f"org-{ORG}")
    assert service.ok("limits", "show", ORG, "chat")["resources"]
    assert service("sessions", "list", ORG, "chat").code == 4


def test_an_administrator_sees_usage_and_limits_with_the_key(service: Cli) -> None:
    """Of the deployment or of the organisation; the credentials of another client do not matter."""
    service.register()
    own = service.ok("credentials", "provisioning-key", ORG)["provisioning_key"]
    service.become(f"org-{ORG}-app-chat")
    for key in ((), ("--key", own)):
        assert service.ok("usage", "show", ORG, *key)["org_id"] == ORG
        assert service.ok("usage", "show", ORG, "chat", *key)["app_id"] == "chat"
        assert service.ok("limits", "show", ORG, "chat", *key)["resources"]
    assert service("usage", "show", MISSING_ORG, "--key", own).code == 3


@pytest.mark.parametrize("where", ["service", "store"])
def test_everybodys_spend_of_today_by_name(service: Cli, where: str) -> None:
    """Dollars and quotas by label, organisation by organisation, as far as was asked for."""
    service.register()
    service.ok("org", "put", MISSING_ORG, *ORG_FLAGS, "--name", "Beta", "--scope", "ORG")
    service.ok("app", "put", ORG, "quiet", "--name", "Quiet [bold]")
    service.become(f"org-{ORG}-app-chat")
    record_a_call(service)
    if where == "store":
        service.place = ()
    service.ok("aggregate", place=())

    answer = service.ok("usage", "show", "--all")

    assert [org["org_name"] for org in answer["orgs"]] == ["Acme", "Beta"]
    acme, beta = answer["orgs"]
    assert acme["total_cost_usd_micros"] == 4_400_000
    assert [app["app_name"] for app in acme["apps"]] == ["Chat", "Quiet [bold]"]
    chat = acme["apps"][0]["models"]["premium"]
    assert (chat["cost_usd_micros"], chat["quota_usd_micros"]) == (4_400_000, 50_000_000)
    assert (beta["apps"], beta["total_cost_usd_micros"]) == ([], 0)
    assert answer["next"] is None
    shown = service("usage", "show", "--all").out
    assert all(text in shown for text in ("Acme", "Chat", "Quiet [bold]", "Beta", "$4.40", "8.8 %"))

    first = service.ok("usage", "show", "--all", "--limit", "1")
    assert ([org["org_name"] for org in first["orgs"]], first["next"]) == (["Acme"], ORG)
    assert f"--after {ORG}" in service("usage", "show", "--all", "--limit", "1").out
    rest = service.ok("usage", "show", "--all", "--after", first["next"])
    assert [org["org_name"] for org in rest["orgs"]] == ["Beta"]


def test_a_key_of_one_organisation_sees_that_one_of_all(service: Cli) -> None:
    """The others do not exist."""
    service.register()
    service.ok("org", "put", MISSING_ORG, *ORG_FLAGS)
    own = service.ok("credentials", "provisioning-key", ORG)["provisioning_key"]
    answer = service.ok("usage", "show", "--all", "--key", own)
    assert [org["org_id"] for org in answer["orgs"]] == [ORG]


@pytest.mark.parametrize(
    "words", [(), ("--all", ORG), ("--all", "--from", "2026-01-01"), ("--all", "--limit", "1001")]
)
def test_one_or_all_has_to_be_said(service: Cli, words: tuple[str, ...]) -> None:
    """Exit code 2, and what helps."""
    done = service("usage", "show", *words)
    assert done.code == 2
    assert done.err


def record_a_call(cli: Cli) -> None:
    """Use a model for 4.40 dollars as the app, through the service."""
    url = cli.place[1]
    client_id = f"org-{ORG}-app-chat"

    async def record() -> None:
        async with Api(url, client_id, cli.secrets[client_id]) as keeper:
            await keeper.record("premium", 1_000_000, 0)

    asyncio.run(record())


def test_looking_leaves_no_session_behind(service: Cli) -> None:
    """A command ends the session that it opened."""
    service.register()
    service.become(f"org-{ORG}-app-chat")
    for _ in range(3):
        service.ok("usage", "show", ORG, "chat")
    assert service.ok("sessions", "list", ORG, "chat", place=())["sessions"] == []


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
