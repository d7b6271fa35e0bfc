"""The matrix of clients finds mistakes: a judge that accepts everything proves nothing."""

from dataclasses import replace
from typing import Any

import pytest

from client_matrix.environments import CLIENTS, PACKAGES, SCRIPTS
from client_matrix.judging import Result, violations, violations_later
from client_matrix.scenarios import SCENARIOS, Scenario, scenarios_of
from client_matrix.world import Account, App
from snippets import GATEWAY_DOCUMENT, shell_blocks

BOTO3 = CLIENTS[0]
OK = {"outcome": "ok", "chars": 10, "errors": []}


def scenario(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


def error(*names: str) -> dict[str, Any]:
    return {"outcome": "error", "chars": 0, "errors": list(names)}


def result(name: str, *steps: Any, spent: int = 0, bill: int | None = None, **more: Any) -> Result:
    made = Result(BOTO3, scenario(name), App("id", "secret"), list(steps), upstream=len(steps))
    made.requests = len(steps)
    made.account = Account(spent, more.pop("held", 0), more.pop("unsettled", 0))
    made.bill = spent if bill is None else bill
    for field, value in more.items():
        setattr(made, field, value)
    return made


QUOTA = error("ServiceQuotaExceededException")
THROTTLED = error("RateLimitError", "HTTP 429")


@pytest.mark.parametrize(
    "right",
    [
        result("plain", OK, spent=880),
        result("left", OK, bill=880, held=45_000),
        result("denied", QUOTA, QUOTA, upstream=0),
        result("throttled", OK, THROTTLED, spent=880, upstream=1),
        result("throttled", OK, OK, spent=1_760, requests=4),
    ],
    ids=lambda one: one.scenario.name,
)
def test_what_is_right_passes(right: Result) -> None:
    assert list(violations(right)) == []


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (result("plain", OK, spent=879, bill=880), "less than the bill"),
        (result("plain", OK, spent=881, bill=880), "the bill is 880"),
        (result("plain", OK, bill=880, held=45_000), "held: 45000"),
        (result("left", OK, spent=900, bill=880), "is not marked"),
        (result("plain", error("ValueError")), "failed"),
        (result("plain", {**OK, "chars": 0}), "no text"),
        (result("plain", OK, upstream=0), "only 0 of 1"),
        (result("plain"), "did not take its steps"),
        (result("denied", QUOTA, OK, upstream=0), "instead of ServiceQuotaExceededException"),
        (result("denied", QUOTA, QUOTA, upstream=1), "without a budget"),
        (result("denied", QUOTA, QUOTA, upstream=0, requests=3), "asked for 3 times"),
        (result("throttled", OK, THROTTLED, spent=880, upstream=2), "1 were served"),
        (result("throttled", THROTTLED, THROTTLED, upstream=0), "call 1 failed"),
    ],
)
def test_what_is_wrong_is_found(wrong: Result, found: str) -> None:
    assert found in " ".join(violations(wrong))


@pytest.mark.parametrize(
    ("account", "found"),
    [
        (Account(0, 0, 45_000), ""),
        (Account(880, 0, 0), ""),
        (Account(0, 45_000, 0), "still held"),
        (Account(0, 0, 0), "less than the bill"),
        (Account(900, 0, 0), "not marked"),
    ],
)
def test_in_the_end_nothing_is_held_and_what_is_above_is_marked(
    account: Account, found: str
) -> None:
    sentences = list(violations_later(result("left", OK, bill=880), account))
    assert found in " ".join(sentences)
    assert bool(sentences) == bool(found)


def test_a_client_that_refuses_a_model_is_expected_to() -> None:
    refusing = replace(BOTO3, refuses=("auto",))
    refused = result("auto", error("ValueError"), error("ValueError"), upstream=0, requests=0)
    refused.client = refusing
    assert list(violations(refused)) == []
    accepted = result("auto", OK, OK, spent=1_760)
    accepted.client = refusing
    assert "listed as refusing" in " ".join(violations(accepted))


def test_a_client_without_streams_has_none_to_read() -> None:
    silent = replace(BOTO3, streams=False)
    steps = [step for one in scenarios_of("wrapped", silent, SCENARIOS) for step in one.steps]
    assert {step["do"] for step in steps} == {"call"}


def test_every_client_has_a_script_and_an_environment() -> None:
    assert {one.environment for one in CLIENTS} <= PACKAGES.keys()
    scripts = {path.name for path in SCRIPTS.iterdir() if path.is_file()}
    shared = {"driving.py", "driving.mjs", "anthropic_messages.py"}
    assert {one.script for one in CLIENTS} | shared == scripts
    assert len({one.name for one in CLIENTS}) == len(CLIENTS)


def test_the_lines_that_a_client_needs_are_in_the_document() -> None:
    for block in {one.block for one in CLIENTS}:
        assert len(shell_blocks(GATEWAY_DOCUMENT, block)) == 1, block
