"""``org set`` and ``app set``: flags change what they name and keep the rest."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from cli.conftest import MISSING_ORG, ORG, ORG_FLAGS, Cli, told
from pricekeeper.cli.backends import Backend, Where, open_backend
from pricekeeper.cli.clients import set_app, set_org
from pricekeeper.cli.settings_input import AppFlags, OrgFlags, Removals, parse_budget

QUOTAS = {"premium": 50_000_000, "standard": 20_000_000, "economy": 500_000}
RPM = {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60_000}


def test_a_flag_changes_what_it_names(anywhere: Cli) -> None:
    """Of an organisation: everything else stays, and each line that changed is shown."""
    flags = ("--rate-limit", "*:rpm=60/1m", "--budget", "monthly=MONTH:200")
    before = anywhere.ok("org", "put", ORG, *ORG_FLAGS, *flags)["configuration"]
    done = anywhere(
        *("org", "set", ORG, "--quota", "premium=50.000001", "--session-limit", "20"),
        *("--rate-limit", "premium:tpm=9000/1m/20000", "--budget", "daily=DAY:5:soft"),
        *("--strict", "--name", "Acme & Sons", "--timezone", "UTC"),
    )
    assert (done.code, done.err) == (0, "")
    assert told(done.out) == [
        f"✓ Acme & Sons org-{ORG}",
        "name Acme -> Acme & Sons",
        "timezone Europe/Berlin -> UTC",
        "quota premium $50.00 a day -> $50.000001 a day",
        "sessions 5 at most -> 20 at most",
        "quotas are ADVISORY -> STRICT",
        "rate limit premium:tpm none -> 9000/1m/20000",
        "budget daily none -> $5.00 a day, soft",
        f"in force everywhere within 30 s; next: pricekeeper org get {ORG}",
    ]
    after = anywhere.ok("org", "get", ORG)["configuration"]
    names = [budget["name"] for budget in after["budgets"]]
    assert names == ["monthly", "daily"]
    assert after == {
        **before,
        "timezone": "UTC",
        "quotas": {**QUOTAS, "premium": 50_000_001},
        "session_limit": 20,
        "rate_limits": {"*": {"rpm": RPM}, "premium": after["rate_limits"]["premium"]},
        "budgets": after["budgets"],
        "quota_enforcement": "STRICT",
    }


def test_a_cap_is_set_shown_and_removed(anywhere: Cli) -> None:
    """An app has its organisation's, or its own; it is in the YAML only where it is stated."""
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--output-cap", "8192")
    anywhere.ok("app", "put", ORG, "chat", "--name", "Chat")

    def cap(*client: str) -> Any:
        return anywhere.ok(*client)["configuration"]["max_output_tokens_cap"]

    app = ("app", "get", ORG, "chat")
    assert (cap("org", "get", ORG), cap(*app)) == (8_192, 8_192)
    assert "longest answer 8192 tokens, inherited" in told(anywhere(*app).out)
    done = anywhere("app", "set", ORG, "chat", "--output-cap", "16000")
    assert "longest answer 8192 tokens, inherited -> 16000 tokens" in told(done.out)
    assert cap(*app) == 16_000
    assert "max_output_tokens_cap: 16000" in anywhere(*app, "--yaml").out
    anywhere.ok("app", "set", ORG, "chat", "--unset", "max-output-tokens-cap")
    assert cap(*app) == 8_192
    anywhere.ok("org", "set", ORG, "--unset", "max_output_tokens_cap")
    assert (cap("org", "get", ORG), cap(*app)) == (None, None)
    assert "max_output_tokens_cap" not in anywhere("org", "get", ORG, "--yaml").out


def test_what_is_removed(anywhere: Cli) -> None:
    """A budget, a limit, a quota that no ordering needs, and fields that have a default."""
    flags = (
        *("--rate-limit", "*:rpm=60/1m", "--rate-limit", "*:tpm=9/1m", "--session-limit", "9"),
        *("--rate-limit", "premium:rpm=1/1m", "--budget", "a=DAY:1", "--budget", "b=DAY:2"),
    )
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, *flags)
    answer = anywhere.ok(
        *("org", "set", ORG, "--no-budget", "a", "--no-rate-limit", "*:tpm"),
        *("--no-rate-limit", "premium:rpm", "--order", "premium,economy", "--no-quota", "standard"),
        *("--unset", "session-limit"),
    )
    settings = answer["configuration"]
    assert [budget["name"] for budget in settings["budgets"]] == ["b"]
    assert settings["rate_limits"] == {"*": {"rpm": RPM}}
    assert settings["model_ordering"] == ["premium", "economy"]
    assert settings["quotas"] == {"premium": 50_000_000, "economy": 500_000}
    assert settings["session_limit"] == 5
    assert answer["status"] == "updated"
    swap = ("--no-rate-limit", "*:rpm", "--rate-limit", "*:tpm=60/1m")
    assert anywhere.ok("org", "set", ORG, *swap)["configuration"]["rate_limits"] == {
        "*": {"tpm": RPM}
    }


def test_a_quota_that_an_app_inherits_brings_the_others_with_it(anywhere: Cli) -> None:
    """They are copied to the app, and the output says how to undo it."""
    anywhere.register()
    done = anywhere("app", "set", ORG, "chat", "--quota", "premium=2")
    undo = f"pricekeeper app set {ORG} chat --unset quotas"
    assert done.code == 0
    assert told(done.out) == [
        f"✓ Chat org-{ORG}-app-chat",
        "quota premium $50.00 a day, inherited -> $2.00 a day",
        "quota standard $20.00 a day, inherited -> $20.00 a day",
        "quota economy $0.50 a day, inherited -> $0.50 a day",
        f"its quotas are its own now; to inherit them again: {undo}",
        f"in force everywhere within 30 s; next: pricekeeper app get {ORG} chat",
    ]
    answer = anywhere.ok("app", "set", ORG, "chat", "--quota", "economy=3")
    assert answer["configuration"]["quotas"] == {
        **QUOTAS,
        "premium": 2_000_000,
        "economy": 3_000_000,
    }
    answer = anywhere.ok("app", "set", ORG, "chat", "--unset", "quotas")
    assert answer["configuration"]["quotas"] == QUOTAS
    assert "quotas" in answer["inherited_fields"]


def test_so_does_a_limit(anywhere: Cli) -> None:
    """No limit is lost because another one was added, or taken away."""
    limits = ("--rate-limit", "*:rpm=60/1m", "--rate-limit", "premium:tpm=9/1m")
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, *limits)
    anywhere.ok("app", "put", ORG, "chat", "--name", "Chat")
    settings: Any = anywhere.ok("app", "set", ORG, "chat", "--rate-limit", "*:tpm=60/1m")
    assert settings["configuration"]["rate_limits"] == {
        "*": {"rpm": RPM, "tpm": RPM},
        "premium": {"tpm": {"capacity": 9, "refill_amount": 9, "refill_period_ms": 60_000}},
    }
    anywhere.ok("app", "set", ORG, "chat", "--unset", "rate_limits")
    settings = anywhere.ok("app", "set", ORG, "chat", "--no-rate-limit", "premium:tpm")
    assert settings["configuration"]["rate_limits"] == {"*": {"rpm": RPM}}
    assert "rate_limits" not in settings["inherited_fields"]


def test_a_budget_keeps_what_the_flag_does_not_say(anywhere: Cli) -> None:
    """Its labels and its alerts, and its place in the list."""
    anywhere.register()
    file = anywhere.folder / "app.json"
    budgets = [
        {"name": "a", "window": "DAY", "limit_usd_micros": 1, "labels": ["premium"]},
        {"name": "b", "window": "DAY", "limit_usd_micros": 1, "alert_at_pct": [80]},
    ]
    file.write_text(json.dumps({"app_name": "Chat", "budgets": budgets}), encoding="utf-8")
    anywhere.ok("app", "put", ORG, "chat", "--file", str(file))
    done = anywhere("app", "set", ORG, "chat", "--budget", "a=WEEK:2", "--budget", "c=HOUR:1")
    assert told(done.out)[1:3] == [
        "budget a $0.000001 a day, of premium -> $2.00 a week, of premium",
        "budget c none -> $1.00 an hour",
    ]
    shown = anywhere.ok("app", "get", ORG, "chat")["configuration"]["budgets"]
    assert [(one["name"], one["labels"], one["alert_at_pct"]) for one in shown] == [
        ("a", ["premium"], []),
        ("b", None, [80]),
        ("c", None, []),
    ]


def test_what_is_so_already_is_told(anywhere: Cli) -> None:
    """And is no failure."""
    anywhere.register()
    done = anywhere("app", "set", ORG, "chat", "--name", "Chat")
    assert (done.code, told(done.out)[1]) == (0, "no change: the settings had these values already")


MISTAKES: dict[tuple[str, ...], tuple[int, str]] = {
    ("org", "set", ORG): (2, "name a setting to change"),
    ("org", "set", MISSING_ORG, "--name", "x"): (3, "pricekeeper org list"),
    ("app", "set", ORG, "nope", "--name", "x"): (3, "pricekeeper org list"),
    ("org", "set", ORG, "--quota", "gold=1"): (2, "economy, premium, standard"),
    ("org", "set", ORG, "--quota", "premium=much"): (2, "write LABEL=USD"),
    ("org", "set", ORG, "--order", "premium,,economy"): (2, "is not a model label"),
    ("org", "set", ORG, "--unset", "colour"): (2, "colour"),
    ("org", "set", ORG, "--unset", "org_name"): (2, "org_name"),
    ("app", "set", ORG, "chat", "--unset", "timezone"): (2, "timezone"),
    ("org", "set", ORG, "--unset", "session_limit", "--session-limit", "3"): (2, "another flag"),
    ("org", "set", ORG, "--unset", "budgets", "--budget", "a=DAY:1"): (2, "another flag"),
    ("org", "set", ORG, "--unset", "quotas", "--no-quota", "premium"): (2, "another flag"),
    ("org", "set", ORG, "--no-budget", "nope"): (2, "not found"),
    ("org", "set", ORG, "--no-quota", "gold"): (2, "choose one of: premium, standard, economy"),
    ("org", "set", ORG, "--no-quota", "premium"): (2, "quotas.premium"),
    ("app", "set", ORG, "chat", "--no-rate-limit", "*:tpm"): (2, "choose one of: *:rpm"),
    ("org", "set", ORG, "--strict", "--advisory"): (2, "give one of them"),
}


def test_what_goes_wrong_changes_nothing(anywhere: Cli) -> None:
    """With its exit code, and the fix in one line on stderr."""
    anywhere.register()
    before = [anywhere.ok("org", "get", ORG), anywhere.ok("app", "get", ORG, "chat")]
    for words, (code, text) in MISTAKES.items():
        done = anywhere(*words)
        assert (done.code, done.out) == (code, ""), (words, done)
        assert text in done.err, (words, done.err)
        assert done.err.count("\n") == 1
    assert [anywhere.ok("org", "get", ORG), anywhere.ok("app", "get", ORG, "chat")] == before


def test_quotas_of_an_app_that_would_not_count_are_refused(anywhere: Cli) -> None:
    """Where the apps share their organisation's; what counts is named."""
    anywhere.register()
    anywhere.ok("org", "set", ORG, "--scope", "ORG")
    for flag in (("--quota", "premium=2"), ("--no-quota", "premium")):
        done = anywhere("app", "set", ORG, "chat", *flag)
        assert done.code == 2
        assert f"pricekeeper org set {ORG}" in done.err


def test_budgets_that_are_added_at_the_same_time_are_all_there(anywhere: Cli) -> None:
    """Of an organisation and of an app, from several places that opened the store for themselves.

    All have read the list before the first write, and a list is replaced as a whole.
    """
    anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--budget", "old=DAY:1")
    anywhere.ok("app", "put", ORG, "chat", "--name", "Chat")
    target = Where(url=anywhere.place[1] if anywhere.place else None)
    names = ["a", "b", "c", "d"]

    async def add(backend: Backend, name: str) -> None:
        of_org = OrgFlags(budget=[parse_budget(f"{name}=DAY:1")])
        await set_org(backend, ORG, flags=of_org, removals=Removals())
        of_app = AppFlags(budget=[parse_budget(f"{name}=DAY:2")], quota=[("premium", 1)])
        await set_app(backend, ORG, "chat", flags=of_app, removals=Removals())

    async def add_all() -> None:
        async with AsyncExitStack() as closing:
            backends = [await closing.enter_async_context(open_backend(target)) for _ in names]
            await asyncio.gather(*map(add, backends, names))

    asyncio.run(add_all())
    of_org = anywhere.ok("org", "get", ORG)["configuration"]["budgets"]
    of_app = anywhere.ok("app", "get", ORG, "chat")["configuration"]["budgets"]
    assert sorted(one["name"] for one in of_org) == ["a", "b", "c", "d", "old"]
    assert sorted(one["name"] for one in of_app) == names
