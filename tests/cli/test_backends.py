"""Every command that can work on a service or on the store does the same in both."""

import re
from pathlib import Path

import pytest

from cli.conftest import MISSING_ORG, ORG, ORG_FLAGS, Cli
from pricekeeper.cli.backends import client_of
from pricekeeper.cli.local import open_local
from pricekeeper.errors import RequestRefusedError
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.usecases.table import USE_CASES
from pricekeeper.wire.operations import OPERATIONS

CHAT = f"org-{ORG}-app-chat"


def test_the_store_does_what_an_administrator_asks_of_a_service() -> None:
    """Every operation has a use case, but for what is about HTTP, tokens or a running service."""
    without = {one.name for one in OPERATIONS if one.name not in USE_CASES}
    assert without == {
        *("recordUsage", "recordUsageBatch", "selectModel", "acquire"),
        *("authorize", "captureAuthorizations"),
        *("issueToken", "refreshToken", "issueAwsCredentials", "revokeToken", "introspectToken"),
        *("jwks", "serverMetadata", "streamEvents", "getPage", "getAsset"),
        *("healthz", "readyz", "metrics", "openapi", "documentation"),
    }


async def test_what_takes_a_service_is_refused_on_the_store(tmp_path: Path) -> None:
    """With what to do instead."""
    settings = Settings(SqliteLocation(MEMORY), data_dir=tmp_path)
    async with open_local(settings, may_create=True) as backend:
        with pytest.raises(RequestRefusedError, match="--url"):
            await backend.reader(client_of(ORG, "chat")).select()


def test_an_organisation_from_flags(anywhere: Cli) -> None:
    """Dollars become micro-dollars, exactly; the secret waits to be claimed."""
    answer = anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--rate-limit", "*:tpm=9000/1m/20000")

    assert answer["status"] == "created"
    assert answer["secret_retrieval"]["token"].startswith("pkr_")
    settings = answer["configuration"]
    assert settings["quotas"] == {"premium": 50_000_000, "standard": 20_000_000, "economy": 500_000}
    assert settings["rate_limits"] == {
        "*": {"tpm": {"capacity": 20_000, "refill_amount": 9_000, "refill_period_ms": 60_000}}
    }


def test_budgets_from_flags(anywhere: Cli) -> None:
    """Of an organisation and of an app, in dollars; quotas are strict if that is said."""
    flags = ("--budget", "monthly=MONTH:200", "--budget", "hourly=hour:0.000001:soft", "--strict")
    answer = anywhere.ok("org", "put", ORG, *ORG_FLAGS, *flags)
    shown = [
        tuple(budget[name] for name in ("name", "window", "limit_usd_micros", "enforcement"))
        for budget in answer["configuration"]["budgets"]
    ]
    assert shown == [("monthly", "MONTH", 200_000_000, "HARD"), ("hourly", "HOUR", 1, "SOFT")]
    assert answer["configuration"]["quota_enforcement"] == "STRICT"
    picture = " ".join(anywhere("org", "get", ORG).out.split())
    assert "budget monthly $200.00 a month budget hourly $0.000001 an hour, soft" in picture
    assert "quotas are STRICT" in picture

    app = anywhere.ok("app", "put", ORG, "chat", "--name", "Chat", "--budget", "day=DAY:1")
    assert [budget["name"] for budget in app["configuration"]["budgets"]] == ["day"]
    picture = " ".join(anywhere("app", "get", ORG, "chat").out.split())
    assert "budget day $1.00 a day" in picture
    assert "monthly" not in picture

    answer = anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--advisory")
    assert answer["configuration"]["quota_enforcement"] == "ADVISORY"
    assert answer["configuration"]["budgets"] == []
    assert "budgets" not in anywhere("org", "get", ORG).out


BUDGETS = """
tag_keys: [team]
quota_enforcement: STRICT
budgets:
- {name: teams, window: DAY, limit_usd_micros: 1, labels: [premium, economy], per_tag: team,
   enforcement: SOFT, alert_at_pct: [100, 80]}
- {name: weekly, window: WEEK, limit_usd_micros: 2}
"""


def test_a_budget_from_a_flag_goes_over_the_files(anywhere: Cli) -> None:
    """The one of its name: what the flag does not say of it stays, and so do the others."""
    file = anywhere.folder / "budgets.yaml"
    file.write_text(BUDGETS, encoding="utf-8")
    flags = ("--budget", "teams=HOUR:3", "--budget", "monthly=MONTH:4", "--budget", "monthly=DAY:5")
    put = ("org", "put", ORG, *ORG_FLAGS, "--file", str(file))
    settings = anywhere.ok(*put, *flags)["configuration"]
    teams, weekly, monthly = settings["budgets"]
    assert teams == {
        "name": "teams",
        "window": "HOUR",
        "limit_usd_micros": 3_000_000,
        "labels": ["premium", "economy"],
        "per_tag": "team",
        "enforcement": "SOFT",
        "alert_at_pct": [80, 100],
    }
    assert (weekly["name"], weekly["limit_usd_micros"]) == ("weekly", 2)
    assert (monthly["window"], monthly["limit_usd_micros"]) == ("DAY", 5_000_000)
    assert settings["quota_enforcement"] == "STRICT"
    picture = " ".join(anywhere("org", "get", ORG).out.split())
    told = "teams $3.00 an hour, of premium + economy, per team, soft, alerts at 80% 100%"
    assert f"budget {told} budget weekly" in picture
    assert anywhere.ok(*put, "--budget", "teams=DAY:1:hard")["configuration"]["budgets"][0] == {
        **teams,
        "window": "DAY",
        "limit_usd_micros": 1_000_000,
        "enforcement": "HARD",
    }
    for words in ("budgets: 5", "budgets: [5, {name: []}]"):
        file.write_text(words, encoding="utf-8")
        done = anywhere(*put, "--budget", "day=DAY:1")
        assert done.code == (2 if "[" in words else 0)
    assert "budgets[0]" in done.err
    assert "budgets[1].name" in done.err


def test_what_is_shown_as_yaml_can_be_put_again(anywhere: Cli) -> None:
    """For an app it is what the app says itself, not what it inherits."""
    anywhere.register()
    flags = ("--budget", "monthly=MONTH:200:soft", "--strict")
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, *flags)
    anywhere.ok("app", "put", ORG, "chat", "--name", "Chat", "--budget", "day=DAY:1")
    for words in (("org", "get", ORG), ("app", "get", ORG, "chat")):
        before = anywhere.ok(*words)
        assert len(before["configuration"]["budgets"]) == 1
        text = anywhere(*words, "--yaml").out
        file = anywhere.folder / "settings.yaml"
        file.write_text(text, encoding="utf-8")
        put = anywhere.ok(words[0], "put", *words[2:], "--file", str(file))

        assert put["status"] == "updated"
        assert put["configuration"] == before["configuration"]
        assert put.get("inherited_fields") == before.get("inherited_fields")
    assert "timezone" not in text


def test_lists_and_deletions(anywhere: Cli) -> None:
    """A client is listed until it is deleted."""
    anywhere.register()
    assert [one["org_id"] for one in anywhere.ok("org", "list")] == [ORG]
    assert [one["app_id"] for one in anywhere.ok("app", "list", ORG)] == ["chat"]
    anywhere.ok("app", "delete", ORG, "chat", "--yes")
    assert anywhere.ok("app", "list", ORG) == []
    anywhere.ok("org", "delete", ORG, "--yes")
    assert anywhere.ok("org", "list") == []


def test_a_secret_is_rotated_and_claimed_once(anywhere: Cli) -> None:
    """The second claim finds nothing."""
    anywhere.register()
    rotated = anywhere.ok("credentials", "rotate", ORG, "chat", "--grace-hours", "1")
    token = rotated["secret_retrieval"]["token"]
    claimed = anywhere.ok("credentials", "claim", token)
    assert claimed["client_id"] == CHAT
    assert claimed["client_secret"].startswith("pks_")
    assert "old_secret_expires_at" in claimed
    assert anywhere("credentials", "claim", token).code == 3


def test_an_override_is_set_and_cleared(anywhere: Cli) -> None:
    """It shows in what is in use today."""
    anywhere.register()
    anywhere.become(CHAT)
    assert anywhere.ok("override", "set", ORG, "economy", "chat")["model_label"] == "economy"
    assert anywhere.ok("usage", "show", ORG, "chat")["current_active_model"] == "economy"
    anywhere.ok("override", "clear", ORG, "chat")
    assert anywhere.ok("usage", "show", ORG, "chat")["current_active_model"] == "premium"


def test_usage_limits_and_sessions_are_shown(anywhere: Cli) -> None:
    """With the app's credentials where a service wants them, with none on the store."""
    anywhere.register()
    anywhere.ok("org", "set", ORG, "--rate-limit", "*:rpm=90/1m")
    anywhere.become(CHAT)
    assert anywhere.ok("usage", "show", ORG, "chat")["total_quota_usd_micros"] == 70_500_000
    days = anywhere.ok("usage", "show", ORG, "chat", "--from", "2026-01-01", "--to", "2026-01-03")
    assert [day["date"] for day in days["days"]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    limits = anywhere.ok("limits", "show", ORG, "chat")
    for whose, left in (("resources", 60), ("org_resources", 90)):
        assert {name: limit["rpm"]["remaining"] for name, limit in limits[whose].items()} == {
            "premium": left,
            "standard": left,
            "economy": left,
        }
    assert anywhere.ok("sessions", "list", ORG, "chat")["limit"] == 5
    anywhere.ok("sessions", "end", ORG, "chat", "--all")


def test_both_places_answer_alike(service: Cli) -> None:
    """The same store, looked at from both sides: the same JSON."""
    service.register()
    for client_id, commands in {
        CHAT: [
            ("org", "list"),
            ("org", "get", ORG),
            ("app", "get", ORG, "chat"),
            ("usage", "show", ORG, "chat"),
            ("usage", "show", ORG, "chat", "--from", "2026-01-01"),
            ("usage", "show", ORG, "chat", "--from", "2026-01-01", "--to", "2026-01-02"),
        ],
        f"org-{ORG}": [("usage", "show", ORG), ("limits", "show", ORG, "chat")],
    }.items():
        service.become(client_id)
        for words in commands:
            there, here = service.ok(*words), service.ok(*words, place=())
            assert _timeless(there) == _timeless(here), words


def _timeless(answer: object) -> str:
    """Without the moments at which it was asked: a bucket that is full is full now."""
    return re.sub(r"'(resets_at|updated_at)': ('[^']*'|None)", "", str(answer))


def test_a_session_that_ended_is_gone(service: Cli) -> None:
    """The operator ends on the store what the service has opened."""
    service.register()
    service.become(CHAT)
    assert len(service.ok("sessions", "list", ORG, "chat")["sessions"]) == 1
    assert service.ok("sessions", "list", ORG, "chat", place=())["sessions"] == []


MISTAKES: dict[tuple[str, ...], int] = {
    ("credentials", "claim", "pkr_nothing"): 3,
    ("org", "get", "no-uuid"): 2,
    ("org", "put", ORG, "--name", "x"): 2,
    ("org", "put", ORG): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--quota", "gold=1"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--quota", "premium=much"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--quota", "premium=0.0000001"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--rate-limit", "rpm=60"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=200"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=MONTH:much"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=MONTH:0.0000001"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=MONTH:1:firm"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--budget", "yearly=YEAR:1"): 2,
    ("org", "put", ORG, *ORG_FLAGS, "--strict", "--advisory"): 2,
    ("app", "put", ORG, "chat", "--name", "x", "--budget", "quota-x=DAY:1"): 2,
    ("org", "put", ORG, "--file", "nowhere.yaml"): 2,
    ("app", "put", ORG, "a#b", "--name", "x"): 2,
    ("override", "set", ORG, "gold"): 2,
    ("credentials", "rotate", ORG, "--grace-hours", "999"): 2,
    ("sessions", "end", ORG): 2,
    ("usage", "show", ORG, "--to", "2026-01-01"): 2,
    ("usage", "show", ORG, "--from", "yesterday"): 2,
    ("usage", "show", ORG, "--from", "2026-01-01", "--to", "2026-12-31"): 2,
    ("org", "delete", ORG): 2,
}


def test_what_goes_wrong_has_its_exit_code(anywhere: Cli) -> None:
    """Not found is 3, a mistake on the command line is 2; both say why, on stderr alone."""
    anywhere.register()
    anywhere.become(f"org-{ORG}")
    for words, code in MISTAKES.items():
        done = anywhere(*words, "--json")
        assert (done.code, done.out) == (code, ""), words
        assert done.err, words
    assert anywhere.ok("org", "get", ORG)["configuration"]["timezone"] == "Europe/Berlin"


def test_an_error_of_ours_is_one_line_with_the_fix(anywhere: Cli) -> None:
    """What happened, and what to do."""
    anywhere.register()
    (line,) = anywhere("org", "put", ORG, *ORG_FLAGS, "--quota", "gold=1").err.splitlines()
    assert "quotas.gold" in line
    assert "economy, premium, standard" in line


def test_pictures_show_what_matters(anywhere: Cli) -> None:
    """What people look for is in what they see."""
    anywhere.register()
    anywhere.become(CHAT)
    for words, wanted in {
        ("org", "get", ORG): ["Acme", "Europe/Berlin", "quota premium", "$0.50 a day"],
        ("app", "get", ORG, "chat"): ["Chat", "rate limit *:rpm", "inherited"],
        ("org", "list"): [ORG, "Acme", "$70.50"],
        ("app", "list", ORG): ["chat", "premium > standard > economy"],
        ("usage", "show", ORG, "chat"): ["premium ◂", "$0.00 of $70.50", "0.0 %"],
        ("limits", "show", ORG, "chat"): ["rpm", "60", "is full"],
        ("sessions", "list", ORG, "chat"): ["of at most 5 sessions"],
        ("credentials", "rotate", ORG): ["echo pkr_", "| pricekeeper credentials claim -"],
    }.items():
        shown = anywhere(*words)
        assert shown.code == 0, shown
        for text in wanted:
            assert text in shown.out, (words, text)


def test_an_organisation_gets_a_key_of_its_own(anywhere: Cli) -> None:
    """Shown whole, once; then it is gone, and withdrawing it is another thing."""
    anywhere.register()
    shown = anywhere("credentials", "provisioning-key", ORG).out.split("=")[-1].strip()
    assert (shown[:4], len(shown)) == ("pkp_", 75)
    answer = anywhere.ok("credentials", "provisioning-key", ORG)
    assert answer.keys() == {"org_id", "provisioning_key"}
    if anywhere.place:
        own = ("--key", answer["provisioning_key"], *anywhere.place)
        assert [org["org_id"] for org in anywhere.ok("org", "list", place=own)] == [ORG]
        assert anywhere("org", "get", MISSING_ORG, place=own).code == 3
        assert anywhere("credentials", "provisioning-key", ORG, place=own).code == 4
    withdrawn = anywhere.ok("credentials", "provisioning-key", ORG, "--withdraw")
    assert withdrawn == {"org_id": ORG, "status": "withdrawn"}
    if anywhere.place:
        assert anywhere("org", "list", place=own).code == 4
    assert anywhere("credentials", "provisioning-key", MISSING_ORG).code == 3


def test_a_hint_calls_the_program_as_it_was_called(cli: Cli) -> None:
    """Where a shell would not find it by its name, as in a fresh checkout."""
    cli.ok("org", "put", ORG, *ORG_FLAGS)
    cli.monkeypatch.setenv("PATH", str(cli.folder))
    assert "| pricekeeper credentials claim -" in cli("credentials", "rotate", ORG).out
    cli.program = ".venv/bin/pricekeeper"
    assert "| .venv/bin/pricekeeper credentials claim -" in cli("credentials", "rotate", ORG).out
