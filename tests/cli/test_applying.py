"""``pricekeeper apply``: files become organisations and apps, after a plan, and once."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.conftest import MISSING_ORG, ORG, ORG_FLAGS, Cli, told
from cli.terminals import CTRL_C, in_a_terminal
from pricekeeper.client import Admin, ReplyLostError
from pricekeeper.errors import OutcomeUnknownError
from slowness import slow

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
OTHER = "11111111-2222-4333-8444-555555555555"
ACME: dict[str, Any] = {
    "org_id": ORG,
    "org_name": "Acme",
    "timezone": "Europe/Berlin",
    "quota_scope": "APP",
    "model_ordering": ["premium", "standard"],
    "quotas": {"premium": 50_000_000, "standard": 500_000},
    "rate_limits": {
        "*": {"rpm": {"capacity": 60, "refill_amount": 60, "refill_period_ms": 60_000}}
    },
    "budgets": [{"name": "monthly", "window": "MONTH", "limit_usd_micros": 200_000_000}],
    "apps": {
        "chat": {"app_name": "Chat", "session_limit": 9, "max_output_tokens_cap": 900},
        "web": {"app_name": "Web"},
    },
}


@pytest.fixture
def place(anywhere: Cli) -> Cli:
    """A store that exists, and a folder for files."""
    anywhere.ok("org", "put", OTHER, *ORG_FLAGS)
    anywhere.ok("org", "delete", OTHER, "--yes")
    return anywhere


@pytest.fixture
def on_tables(cli: Cli) -> Cli:
    """A store that exists, for what needs no second place."""
    cli.ok("tables", "create")
    return cli


def declare(cli: Cli, *changes: Mapping[str, Any], name: str = "acme.yaml") -> str:
    """Write a file with that organisation; a field that is changed to ``...`` is left out."""
    document = dict(ACME)
    for change in changes:
        document |= change
    kept = {field: value for field, value in document.items() if value is not ...}
    file = cli.folder / "policies" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept) if name.endswith("json") else yaml.safe_dump(kept), "utf-8")
    return str(file)


def applied(cli: Cli, path: str) -> Any:
    answer = cli.ok("apply", path, "--yes")
    assert answer["status"] in ("applied", "unchanged")
    return answer


def actions(answer: Any) -> dict[str, str]:
    return {step.get("app_id", step["org_id"]): step["action"] for step in answer["steps"]}


class TestThePlan:
    """What is shown before anything changes."""

    def test_what_is_new_is_shown_whole_and_not_made(self, place: Cli) -> None:
        """By --dry-run, with the way that each setting will be."""
        path = declare(place)
        done = place("apply", path, "--dry-run")
        assert (done.code, done.err) == (0, "")
        lines = told(done.out)
        assert lines[:2] == ["3 to create, 0 to change, 0 unchanged", f"+ Acme {ORG} {path}"]
        for line in (
            "quota premium none -> $50.00 a day",
            "rate limit *:rpm none -> 60/1m",
            "budget monthly none -> $200.00 a month",
            f"+ Chat {ORG} chat {path}",
            "sessions none -> 9 at most",
        ):
            assert line in lines
        assert place.ok("apply", path, "--dry-run")["status"] == "planned"
        assert place.ok("org", "list") == []

    def test_what_differs_is_shown_line_by_line(self, place: Cli) -> None:
        """Of settings, each quota, limit and budget, and what an app inherits again."""
        applied(place, declare(place))
        change = {
            "quotas": {"premium": 50_000_001, "standard": 500_000},
            "rate_limits": {},
            "session_limit": 7,
            "budgets": [{"name": "weekly", "window": "WEEK", "limit_usd_micros": 1}],
            "apps": {
                "chat": {"app_name": "Chat"},
                "web": {"app_name": "Web", "rate_limits": {}, "tight_mode_threshold_pct": 60},
            },
        }
        path = declare(place, change)
        before = [place.ok("org", "get", ORG), place.ok("app", "list", ORG)]
        assert told(place("apply", path, "--dry-run").out) == [
            "0 to create, 3 to change, 0 unchanged",
            f"~ Acme {ORG} {path}",
            "quota premium $50.00 a day -> $50.000001 a day",
            "sessions 5 at most -> 7 at most",
            "rate limit *:rpm 60/1m -> none",
            "budget monthly $200.00 a month -> none",
            "budget weekly none -> $0.000001 a week",
            f"~ Chat {ORG} chat {path}",
            "sessions 9 at most -> inherited",
            "longest answer 900 tokens -> inherited",
            f"~ Web {ORG} web {path}",
            "tight from 95 %, inherited -> 60 %",
            "rate limit *:rpm 60/1m, inherited -> none",
        ]
        assert [place.ok("org", "get", ORG), place.ok("app", "list", ORG)] == before

    def test_what_is_not_declared_is_named_and_left_alone(self, place: Cli) -> None:
        """Apps of a declared organisation; of a folder, other organisations too."""
        applied(place, declare(place))
        applied(place, declare(place, {"org_id": OTHER}, name="other.json"))
        (place.folder / "policies" / "other.json").unlink()
        path = declare(place, {"apps": {"web": {"app_name": "Web"}}})
        answer = place.ok("apply", path, "--yes")
        assert answer["undeclared"] == [{"org_id": ORG, "app_id": "chat"}]
        folder = str(place.folder / "policies")
        answer = place.ok("apply", folder, "--yes")
        assert answer["undeclared"] == [{"org_id": ORG, "app_id": "chat"}, {"org_id": OTHER}]
        line = f"left alone, because no file declares them: {ORG} chat, {OTHER}"
        assert line in told(place("apply", folder).out)
        assert place.ok("app", "get", ORG, "chat")["configuration"]["session_limit"] == 9
        assert len(place.ok("org", "list")) == 2


class TestApplying:
    """What comes of it."""

    def test_files_become_organisations_and_apps_once(self, place: Cli) -> None:
        """The second time there is nothing to do, and nothing is written."""
        path = declare(place)
        answer = applied(place, path)
        assert [step["outcome"] for step in answer["steps"]] == ["done"] * 3
        assert actions(answer) == {ORG: "create", "chat": "create", "web": "create"}
        settings = place.ok("org", "get", ORG)["configuration"]
        assert settings["quotas"] == ACME["quotas"]
        assert [budget["name"] for budget in settings["budgets"]] == ["monthly"]
        assert place.ok("app", "get", ORG, "chat")["configuration"]["session_limit"] == 9
        before = [place.ok("org", "get", ORG), place.ok("app", "list", ORG)]
        answer = applied(place, path)
        assert answer["status"] == "unchanged"
        assert set(actions(answer).values()) == {"unchanged"}
        assert told(place("apply", path).out) == ["✓ nothing to do: 3 as declared"]
        assert [place.ok("org", "get", ORG), place.ok("app", "list", ORG)] == before

    CHANGES: tuple[dict[str, Any], ...] = (
        {"quotas": {"premium": 1, "standard": 2, "economy": 3}},
        {"model_ordering": ["premium"], "quotas": {"premium": 1}},
        {"rate_limits": ...},
        {"budgets": []},
        {},
        {"budgets": ...},
        {
            "tag_keys": ["team"],
            "budgets": [
                {"name": "b", "window": "DAY", "limit_usd_micros": 1, "per_tag": "team"},
                {"name": "a", "window": "DAY", "limit_usd_micros": 1, "labels": ["premium"]},
                {"name": "c", "window": "HOUR", "limit_usd_micros": 0, "enforcement": "SOFT"},
            ],
        },
        {"quota_enforcement": "STRICT", "sticky_fallback_enabled": False, "session_limit": None},
        {"agg_shard_count": 8, "tight_mode_threshold_pct": 60},
        {"org_name": " Acme & Sons ", "timezone": "UTC", "quota_scope": "ORG"},
        {
            "apps": {
                "chat": {"app_name": "Chat", "quotas": {"premium": 1, "standard": 2}},
                "new": {"app_name": "New", "rate_limits": {}, "budgets": []},
            }
        },
        {
            "apps": {
                "chat": {
                    "app_name": "Chat",
                    "model_ordering": ["standard"],
                    "quotas": {"standard": 7},
                    "rate_limits": {
                        "premium": {
                            "rpm": {"capacity": 1, "refill_amount": 1, "refill_period_ms": 1}
                        }
                    },
                    "budgets": [{"name": "d", "window": "DAY", "limit_usd_micros": 1}],
                }
            }
        },
        {},
    )

    def test_whatever_changes_the_second_time_nothing_does(self, on_tables: Cli) -> None:
        """From each state to the next: applied, and then unchanged."""
        applied(on_tables, declare(on_tables))
        for change in self.CHANGES:
            path = declare(on_tables, change)
            assert applied(on_tables, path)["status"] == "applied", change
            assert applied(on_tables, path)["status"] == "unchanged", change

    def test_the_order_of_budgets_means_nothing(self, on_tables: Cli) -> None:
        two = [{"name": name, "window": "DAY", "limit_usd_micros": 1} for name in ("b", "a")]
        applied(on_tables, declare(on_tables, {"budgets": two}))
        answer = applied(on_tables, declare(on_tables, {"budgets": two[::-1]}))
        assert answer["status"] == "unchanged"

    def test_quotas_that_nobody_sees_do_not_come_back(self, place: Cli) -> None:
        """Those of apps, from before they shared their organisation's, when they no longer do."""
        quotas = {"premium": 1, "standard": 2}
        own = {
            "apps": {name: {"app_name": name, "quotas": dict(quotas)} for name in ("chat", "web")}
        }
        applied(place, declare(place, own))
        place.ok("org", "set", ORG, "--scope", "ORG")
        change = {
            "chat": {"app_name": "chat"},
            "web": {"app_name": "web", "model_ordering": ["premium"], "quotas": {"premium": 5}},
        }
        path = declare(place, {"apps": change})
        lines = told(place("apply", path, "--dry-run").out)
        assert "quotas its organisation's -> inherited" in lines
        assert "quotas its organisation's -> its own" in lines
        assert applied(place, path)["status"] == "applied"
        assert applied(place, path)["status"] == "unchanged"
        chat, web = place.ok("app", "list", ORG)
        assert "quotas" in chat["inherited_fields"]
        assert web["configuration"]["quotas"] == {"premium": 5}

    def test_what_was_changed_by_hand_is_undone(self, place: Cli) -> None:
        """The file is what counts, and the plan says so."""
        path = declare(place)
        applied(place, path)
        place.ok("org", "set", ORG, "--session-limit", "50", "--budget", "extra=DAY:1")
        place.ok("app", "set", ORG, "web", "--rate-limit", "*:tpm=1/1m")
        lines = told(place("apply", path).out)
        assert "sessions 50 at most -> 5 at most" in lines
        assert "budget extra $1.00 a day -> none" in lines
        assert "rate limit *:tpm 1/1m -> inherited" in lines
        assert applied(place, path)["status"] == "unchanged"

    def test_credentials_and_freezes_stay(self, place: Cli) -> None:
        """A secret that works, a token that lives, a freeze."""
        path = declare(place)
        applied(place, path)
        client_id = place.claim(
            place.ok("credentials", "rotate", ORG, "chat", "--grace-hours", "0")
        )
        assert place("freeze", ORG, "web", "--reason", "leaked").code == 0
        change = {"apps": {name: {"app_name": name} for name in ("chat", "web")}}
        applied(place, declare(place, change))
        assert place.ok("app", "get", ORG, "web")["frozen"]["reason"] == "leaked"
        if place.place:
            place.log_in(client_id, "agent/1.0")

    def test_the_way_to_a_secret_is_shown_and_no_token(self, place: Cli) -> None:
        """The output may be a log; its commands work as printed."""
        done = place("apply", declare(place))
        assert "pkr_" not in done.out
        commands = re.findall(r"^ *pricekeeper (credentials .*)$", done.out, re.MULTILINE)
        assert len(commands) == 3
        for words in commands:
            token = place.ok(*words.split())["secret_retrieval"]["token"]
            assert place.ok("credentials", "claim", token)["client_secret"].startswith("pks_")

    def test_the_guides_example_is_applied(self, place: Cli) -> None:
        """As printed; then there is nothing to do."""
        (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        file = place.folder / "acme.yaml"
        file.write_text(example, "utf-8")
        answer = applied(place, str(file))
        assert set(actions(answer).values()) == {"create"}
        assert applied(place, str(file))["status"] == "unchanged"
        (org,) = place.ok("org", "list")
        assert [budget["name"] for budget in org["configuration"]["budgets"]] == [
            *("monthly", "per-team"),
        ]
        assert org["configuration"]["quotas"]["premium"] == 50_000_000

    def test_what_is_shown_as_yaml_can_be_declared(self, place: Cli) -> None:
        """With its id and its apps, it is what there is."""
        applied(place, declare(place))
        text = f"org_id: {ORG}\n" + place("org", "get", ORG, "--yaml").out + "apps:\n"
        for app in ("chat", "web"):
            lines = place("app", "get", ORG, app, "--yaml").out.splitlines()
            text += f"  {app}:\n" + "".join(f"    {line}\n" for line in lines)
        file = place.folder / "shown.yml"
        file.write_text(text, "utf-8")
        assert applied(place, str(file))["status"] == "unchanged"


class TestFailing:
    """Part of it is done, and everybody knows which."""

    @contextmanager
    def failing(
        self, place: Cli, method: str, error: Exception, *, done: bool = False
    ) -> Iterator[None]:
        """Let a call fail wherever the command works, perhaps after it was done."""
        real = getattr(Admin, method)

        async def fail(self: Any, *given: Any) -> Any:
            if done:
                await real(self, *given)
            raise error

        with place.monkeypatch.context() as patched:
            patched.setattr(Admin, method, fail)
            yield

    def test_a_failure_says_what_was_done_and_what_was_not(self, place: Cli) -> None:
        """A label that the service does not have; the next run continues there."""
        gold = {"app_name": "Chat", "model_ordering": ["gold"], "quotas": {"gold": 1}}
        path = declare(place, {"apps": {"chat": gold, "web": {"app_name": "Web"}}})
        done = place("apply", path)
        assert done.code == 1
        lines = told(done.out)
        start = lines.index("✗ 1 of 3 are done")
        assert lines[start + 1] == f"✓ Acme {ORG} created"
        assert lines[start + 2].startswith(f"✗ Chat {ORG} chat INVALID_CONFIG ")
        assert "the labels of this deployment are economy, premium, standard" in lines[start + 2]
        assert lines[start + 3] == f"· Web {ORG} web not done"
        assert lines[-1] == "finished steps are kept; run the same command again to continue"
        assert place.ok("app", "list", ORG) == []
        answer = place("apply", path, "--json")
        assert answer.code == 1
        assert answer.json["status"] == "failed"
        came = [step.get("outcome") for step in answer.json["steps"]]
        assert came == [None, "failed", "not done"]
        assert answer.json["steps"][1]["error"]["code"] == "INVALID_CONFIG"
        assert actions(applied(place, declare(place))) == {
            ORG: "unchanged",
            "chat": "create",
            "web": "create",
        }

    @pytest.mark.parametrize("arrived", [False, True])
    def test_a_lost_reply_is_not_taken_for_a_failure(self, place: Cli, arrived: bool) -> None:
        """It may have been done; the next run finds out."""
        lost = ReplyLostError("http://x", "cut") if place.place else OutcomeUnknownError("cut")
        path = declare(place)
        with self.failing(place, "put_app", lost, done=arrived):
            done = place("apply", path, "--json")
        assert done.code == 1
        came = [step["outcome"] for step in done.json["steps"]]
        assert came == ["done", "unknown", "not done"]
        answer = applied(place, path)
        wanted = "unchanged" if arrived else "create"
        assert actions(answer) == {ORG: "unchanged", "chat": wanted, "web": "create"}
        assert applied(place, path)["status"] == "unchanged"

    def test_nothing_is_done_if_the_plan_can_not_be_made(self, place: Cli) -> None:
        """The service can't be reached, or a field can't be changed."""
        path = declare(place)
        with self.failing(place, "get_org", OutcomeUnknownError("away")):
            done = place("apply", path)
        assert (done.code, done.out) == (5, "")
        assert place.ok("org", "list") == []
        applied(place, path)
        other = declare(place, {"agg_shard_count": 16, "session_limit": 3})
        done = place("apply", other)
        assert (done.code, done.out) == (1, "")
        assert "acme.yaml: agg_shard_count: is 8" in done.err
        assert place.ok("org", "get", ORG)["configuration"]["session_limit"] == 5

    def test_a_key_that_is_wrong_is_told_at_once(self, service: Cli) -> None:
        done = service("apply", declare(service), "--key", "wrong-key-wrong-key-wrong-key-!!")
        assert (done.code, done.out) == (4, "")

    def test_a_store_that_is_not_there_is_not_made(self, cli: Cli) -> None:
        done = cli("apply", declare(cli), "--yes")
        assert done.code == 1
        assert "pricekeeper tables create" in done.err


MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a.yaml": ("org_name: [", ("line 1",)),
    "twice.yaml": ("org_name: a\norg_name: b", ("the key 'org_name' is there twice",)),
    "twice.json": ('{"org_name": 1, "org_name": 2}', ("the key 'org_name' is there twice",)),
    "b.json": ("{", ("is not JSON: line 1, column 2",)),
    "half.json": ('{"org_name": "\\ud800"}', ("is not JSON",)),
    "list.yaml": ("- 1", ("write the fields of an organisation",)),
    "empty.yaml": ("", ("write the fields of an organisation",)),
    "two.yaml": ("a: 1\n---\nb: 2", ("line 2, column 1: but found another document",)),
    "latin.yaml": ("\udce4", ("is not UTF-8 text",)),
    "apps.yaml": ("apps: [chat]", ("apps: must be a mapping", "org_id: is missing")),
    "id.yaml": ("org_id: 5\norg_name: x", ("org_id: ", "timezone: is required")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_file_that_can_not_be_read_is_named(cli: Cli, name: str) -> None:
    """With the place in it, before a store is looked for."""
    text, wanted = MISTAKES[name]
    (cli.folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    done = cli("apply", name)
    assert (done.code, done.out) == (2, "")
    for part in wanted:
        assert re.search(rf"{name}: .*{re.escape(part)}", done.err), done.err
    assert done.err.count("\n") == 1


def test_every_mistake_is_named_by_file_and_path(place: Cli) -> None:
    """Of all files at once, of organisations and apps; and nothing is done."""
    declare(place, {"org_id": MISSING_ORG}, name="right.yaml")
    change: dict[str, Any] = {
        "timezone": "Mars/Olympus",
        "colour": "red",
        "quotas": {"premium": "5", "Standard": 1},
        "apps": {
            "a/b": {"app_name": "x"},
            "chat": {"session_limit": 0, "timezone": "UTC"},
            "web": 5,
            "own": {"app_name": "x", "model_ordering": ["premium"], "quotas": {"standard": 1}},
        },
    }
    declare(place, change, name="a.yaml")
    declare(place, {"budgets": [{"name": "x"}]}, name="b.json")
    done = place("apply", str(place.folder / "policies"))
    assert (done.code, done.out) == (2, "")
    for part in (
        *("a.yaml: timezone: ", "a.yaml: colour: is not a known field", "a.yaml: quotas.premium: "),
        *("a.yaml: quotas.Standard: ", "a.yaml: quotas.standard: is missing"),
        *("a.yaml: apps.a/b: ", "a.yaml: apps.chat.app_name: is required"),
        *("a.yaml: apps.chat.session_limit: ", "a.yaml: apps.chat.timezone: is set on the org"),
        *("a.yaml: apps.web: must be a mapping", "a.yaml: apps.own.quotas.premium: is missing"),
        *("b.json: budgets[0].window: ", "b.json: budgets[0].limit_usd_micros: "),
    ):
        assert part in done.err, (part, done.err)
    assert "right.yaml" not in done.err
    assert place.ok("org", "list") == []


def test_what_would_not_count_can_not_be_declared(cli: Cli) -> None:
    """Quotas of an app whose organisation shares its own: no plan could ever be finished."""
    quotas = {"premium": 1, "standard": 1}
    apps = {"chat": {"app_name": "Chat", "quotas": quotas}}
    done = cli("apply", declare(cli, {"quota_scope": "ORG", "apps": apps}))
    assert done.code == 2
    assert "acme.yaml: apps.chat.quotas: have no effect" in done.err


def test_an_organisation_has_one_file(cli: Cli) -> None:
    declare(cli)
    declare(cli, {"org_id": ORG.upper()}, name="b.yml")
    done = cli("apply", "policies")
    assert done.code == 2
    assert "b.yml: org_id: policies/acme.yaml declares this organisation, too" in done.err


def test_a_folder_is_read_with_the_folders_in_it(place: Cli) -> None:
    """Hidden files and files of other kinds are no policies; without any there is nothing."""
    folder = place.folder / "policies"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config.yaml").write_text("[")
    done = place("apply", str(folder))
    assert done.code == 2
    assert "has no .yaml, .yml or .json file" in done.err
    (folder / "README.md").write_text("[")
    declare(place)
    declare(place, {"org_id": OTHER}, name="team/other.json")
    answer = applied(place, str(folder))
    assert [step["org_id"] for step in answer["steps"]] == [ORG] * 3 + [OTHER] * 3
    assert place("apply", str(folder / "nope.yaml")).code == 2


@pytest.mark.parametrize(
    ("typed", "code", "count"), [("y\n", 0, 3), *slow(("n\n", 1, 0), (CTRL_C, 130, 0))]
)
def test_a_person_is_asked_after_the_plan(
    on_tables: Cli, typed: str, code: int, count: int
) -> None:
    """Yes, no, and ctrl-c."""
    path, environment = declare(on_tables), on_tables.environment
    with in_a_terminal("apply", path, environment=environment) as terminal:
        shown = terminal.read_until("Apply these changes to 3 of 3? [y/N]")
        assert "3 to create" in shown
        terminal.type(typed)
        assert terminal.end() == code
    orgs = on_tables.ok("org", "list")
    assert len(orgs and on_tables.ok("app", "list", ORG)) == max(0, count - 1)


@pytest.mark.slow
def test_nobody_is_asked_if_there_is_nothing_to_ask(on_tables: Cli) -> None:
    """After --yes, for a plan alone, and if there is nothing to do."""
    path, environment = declare(on_tables), on_tables.environment
    for words in (("--dry-run",), ("--yes",), ()):
        with in_a_terminal("apply", path, *words, environment=environment) as terminal:
            assert terminal.end() == 0
            assert "[y/N]" not in terminal.printed
    assert "nothing to do" in terminal.printed
