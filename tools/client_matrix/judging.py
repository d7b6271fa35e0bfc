"""What is wrong with a scenario's result, if anything.

The ledger must equal the bill of the stand-in to the micro-dollar. Where the use of a call is
unknown it may be above the bill, and the difference is unsettled in the end. It is never
below, and nothing stays held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from client_matrix.environments import Client
from client_matrix.scenarios import Scenario, is_error
from client_matrix.world import Account, App


@dataclass(slots=True)
class Result:
    """One scenario of one client."""

    client: Client
    scenario: Scenario
    app: App
    steps: list[Mapping[str, Any]] = field(default_factory=list)
    output: str = ""
    """What the script has printed, if that was not what it should."""
    requests: int = 0
    """How many calls our service was asked for."""
    upstream: int = 0
    """How many calls have reached the stand-in."""
    bill: int = 0
    account: Account = field(default_factory=lambda: Account(0, 0, 0))
    secs: float = 0

    @property
    def is_refused_by_client(self) -> bool:
        """Whether the client is known to refuse the name of the model."""
        return self.scenario.name in self.client.refuses

    @property
    def outcome(self) -> str:
        """The results of the steps, in a few words."""
        if not self.steps:
            return "no result"
        return ", ".join(
            "ok" if step["outcome"] == "ok" else step["errors"][0] for step in self.steps
        )


def violations(result: Result) -> Iterator[str]:
    """Everything that is wrong, each in one sentence."""
    if len(result.steps) != len(result.scenario.calls):
        yield f"the script did not take its steps: {result.output[-1_500:]}"
        return
    yield from _wrong_outcomes(result)
    yield from _wrong_attempts(result)
    yield from _wrong_account(result)


def _wrong_outcomes(result: Result) -> Iterator[str]:
    scenario = result.scenario
    for number, step in enumerate(result.steps, 1):
        errors = step["errors"]
        if result.is_refused_by_client:
            if step["outcome"] == "ok":
                yield f"call {number} was made, and the client is listed as refusing this model"
        elif scenario.error is not None:
            if not is_error(scenario.error, errors):
                yield f"call {number} ended with {errors or 'ok'} instead of {scenario.error}"
        elif step["outcome"] == "ok":
            if not step["chars"]:
                yield f"call {number} brought no text"
        elif number == 1 or not is_error(scenario.may_fail_with, errors):
            yield f"call {number} failed: {errors} {step.get('message', '')}"


def _wrong_attempts(result: Result) -> Iterator[str]:
    scenario, calls = result.scenario, len(result.steps)
    if result.is_refused_by_client:
        return
    if scenario.name == "denied":
        if result.upstream:
            yield f"{result.upstream} calls have reached the model without a budget"
        if result.requests != calls:
            yield f"{calls} denied calls were asked for {result.requests} times"
    elif scenario.name == "throttled":
        served = sum(step["outcome"] == "ok" for step in result.steps)
        if result.upstream != served:
            yield f"{result.upstream} calls have reached the model, and {served} were served"
    elif result.upstream < calls:
        yield f"only {result.upstream} of {calls} calls have reached the model"


def _wrong_account(result: Result) -> Iterator[str]:
    account, bill = result.account, result.bill
    if account.charged < bill:
        yield f"{account.charged} is charged, less than the bill of {bill}"
    elif account.charged > bill and not result.scenario.may_be_above:
        yield f"{account.charged} is charged (held: {account.held}) and the bill is {bill}"
    elif account.spent > bill:
        yield f"{account.spent} was spent, more than the bill of {bill}, and is not marked"


def violations_later(result: Result, account: Account) -> Iterator[str]:
    """What is wrong after everything that was held has expired."""
    if account.held:
        yield f"{account.held} is still held after it has expired"
    if account.charged < result.bill:
        yield f"{account.charged} is charged in the end, less than the bill of {result.bill}"
    if account.charged > result.bill and not account.unsettled:
        yield "what is above the bill is not marked as unsettled"
