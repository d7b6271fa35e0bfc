"""``budgets`` and ``authorizations``: what is held for calls, on the store and at a service."""

import re
import uuid

import pytest

from cli.conftest import ORG, ORG_FLAGS, Cli

CHAT = f"org-{ORG}-app-chat"
CALL = {"model": "premium", "input_tokens": 1_000, "max_output_tokens": 500}
WORST = 15_400
"""Micro-dollars of that call, at the prices of the built-in deployment file."""


@pytest.fixture
def registered(anywhere: Cli) -> Cli:
    """An app whose organisation has a budget for the month, and that has one for the day."""
    answers = [
        anywhere.ok("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=MONTH:0.02", "--strict"),
        anywhere.ok("app", "put", ORG, "chat", "--name", "Chat", "--budget", "daily=DAY:1:soft"),
    ]
    for answer in answers:
        anywhere.claim(answer)
    return anywhere


def test_every_budget_is_shown(registered: Cli) -> None:
    """As the contract has it, and drawn: the organisation's, the app's, and the strict quotas."""
    registered.authorize("chat", **CALL)
    answer = registered.ok("budgets", ORG, "chat")
    by_name = {one["name"]: one for one in answer["budgets"]}
    assert [*by_name][:2] == ["monthly", "daily"]
    assert by_name["monthly"]["held_usd_micros"] == WORST
    assert by_name["daily"]["enforcement"] == "SOFT"
    drawn = registered("budgets", ORG, "chat").out
    assert "monthly" in drawn
    assert "daily soft" in drawn
    assert "77.0 %" in drawn
    assert "━" in drawn
    (ours,) = registered.ok("budgets", ORG)["budgets"]
    assert ours == by_name["monthly"]


def test_usage_and_budgets_show_one_percentage(registered: Cli) -> None:
    """Of a strict quota, with the calls in flight, before anything is counted."""
    registered.authorize("chat", **CALL)
    shown = []
    for command, row in (("budgets", "quota-premium"), ("usage show", "premium")):
        lines = registered(*command.split(), ORG, "chat").out.splitlines()
        (line,) = [one for one in lines if one.split()[:1] == [row]]
        shown += re.findall(r"[\d.]+ %", line)
    assert shown[0] == shown[1] != "0.0 %"


def test_what_was_overdrawn_is_below_zero(registered: Cli) -> None:
    """With its sign, in dollars."""
    registered.ok("org", "put", ORG, *ORG_FLAGS, "--budget", "monthly=MONTH:0.01:soft")
    registered.authorize("chat", **CALL)
    assert "-$0.005400" in registered("budgets", ORG).out


def test_who_has_none_is_told_how_to_get_one(anywhere: Cli) -> None:
    """No empty table."""
    anywhere.ok("org", "put", ORG, *ORG_FLAGS)
    assert "--budget" in anywhere("budgets", ORG).out
    assert anywhere.ok("budgets", ORG) == {"budgets": []}


def test_what_is_held_is_listed_shown_and_voided(registered: Cli) -> None:
    """Its id is whole, and its reason is kept."""
    authorization_id = registered.authorize("chat", **CALL, tags={"team": "red"})
    (listed,) = registered.ok("authorizations", "list", ORG, "chat")["authorizations"]
    assert (listed["authorization_id"], listed["status"]) == (authorization_id, "open")
    drawn = registered("authorizations", "list", ORG, "chat").out
    assert authorization_id in drawn
    assert "$0.01 held for 1 calls" in drawn
    assert "team:red" in drawn
    unsettled = registered.ok("authorizations", "list", ORG, "chat", "--status", "unsettled")
    assert unsettled == {"authorizations": []}
    assert registered.ok("authorizations", "show", ORG, "chat", authorization_id) == listed
    registered.become(CHAT)
    void = ("authorizations", "void", ORG, "chat", authorization_id)
    answer = registered.ok(*void, "--reason", "never sent")
    assert (answer["authorization_id"], answer["status"]) == (authorization_id, "voided")
    shown = registered("authorizations", "show", ORG, "chat", authorization_id).out
    assert "never sent" in shown
    assert "voided" in shown
    assert registered.ok("budgets", ORG)["budgets"][0]["held_usd_micros"] == 0


@pytest.mark.parametrize("anywhere", ["store"], indirect=True)
def test_who_voids_on_the_store_is_written_down(registered: Cli) -> None:
    """It is a person who does it there, not the app."""
    authorization_id = registered.authorize("chat", **CALL)
    registered.ok("authorizations", "void", ORG, "chat", authorization_id, "--reason", "never sent")
    (entry,) = registered.ok("audit", "list", "--action", "authorization.void")["entries"]
    assert (entry["reason"], entry["actor"][:4]) == ("never sent", "cli/")


def test_mistakes_are_told_in_a_line(registered: Cli) -> None:
    """A missing one, a bad id, and an unlisted status."""
    registered.become(CHAT)
    absent = str(uuid.uuid4())
    for words in (("show", ORG, "chat", absent), ("void", ORG, "chat", absent)):
        done = registered("authorizations", *words)
        assert (done.code, done.out) == (3, "")
        assert "authorizations list" in done.err
    assert registered("authorizations", "show", ORG, "chat", "x").code == 2
    assert registered("authorizations", "list", ORG, "chat", "--status", "captured").code == 2
    assert registered("authorizations", "list", ORG, "missing").code == 3


def test_a_key_looks_and_does_not_void(service: Cli) -> None:
    """That takes the app's credentials, or its organisation's."""
    service.register()
    authorization_id = service.authorize("chat", input_tokens=1, max_output_tokens=1)
    assert service("authorizations", "show", ORG, "chat", authorization_id).code == 0
    assert service("authorizations", "void", ORG, "chat", authorization_id).code == 4
    service.become(f"org-{ORG}")
    assert service("authorizations", "void", ORG, "chat", authorization_id).code == 0
