"""Run real clients of Bedrock through our service, and compare our ledger with the bill.

::

    python tools/clients.py                             every client, wrapped
    python tools/clients.py --kind gateway              every client, through the gateway
    python tools/clients.py --only strands-agents --scenario stream
    python tools/clients.py --install                   only make the environments

Each client is installed in a virtual environment of its own under ``.clients/``, and driven by its
script in ``tests/clients/scripts/``: one process for each scenario. What ``docs/client.md`` shows
for a framework is run there, too. It fails if anything is wrong with any of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client_matrix.environments import (
    CLIENTS,
    PACKAGES,
    Client,
    Kind,
    command_of,
    interpreter,
    prepare,
)
from client_matrix.judging import Result, violations, violations_later
from client_matrix.scenarios import (
    SCENARIOS,
    SNIPPET,
    Scenario,
    scenarios_of,
    snippet_scenario,
)
from client_matrix.world import EXPIRY_SECS_MAX, World, open_world
from snippets import Snippet, run_snippet, snippets

SCRIPT_SECS_MAX: Final = 240
SETTLE_SECS_MAX: Final = {"wrapped": 3, "gateway": 20}
"""How long we wait for the ledger to equal the bill; a gateway reads abandoned streams to their
end after their callers have gone."""
POLL_SECS: Final = 0.1

Program: TypeAlias = Callable[[dict[str, str], Path], tuple[list[Mapping[str, Any]], str]]
"""What is run in an environment and a folder; its steps, and what it has printed."""

console: Final = Console(width=None if sys.stdout.isatty() else 160)


def main() -> int:
    """Run the chosen scenarios; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="real clients against the stand-in for Bedrock")
    parser.add_argument("--kind", choices=("wrapped", "gateway"), default="wrapped")
    parser.add_argument("--only", action="append", metavar="CLIENT", help="may be repeated")
    parser.add_argument("--scenario", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument("--install", action="store_true", help="only make the environments")
    given = parser.parse_args()
    clients = [one for one in CLIENTS if given.kind in one.kinds and _is_in(given.only, one.name)]
    scenarios = [one for one in SCENARIOS if _is_in(given.scenario, one.name)]
    shown = [
        one
        for one in snippets()
        if given.kind == "wrapped" and one.needs in PACKAGES
        if _is_in(given.only, one.needs) and _is_in(given.scenario, SNIPPET)
    ]
    if not (clients and scenarios) and not shown:
        parser.error(f"nothing fits; clients are {', '.join(one.name for one in CLIENTS)}")
    needed = [*(one.environment for one in clients if scenarios), *(one.needs for one in shown)]
    for name in dict.fromkeys(needed):
        prepare(name)
    return 0 if given.install else run(given.kind, clients, scenarios, shown)


def run(kind: Kind, clients: list[Client], scenarios: list[Scenario], shown: list[Snippet]) -> int:
    """Run the scenarios of the clients and what is shown, and print the results."""
    wrong: list[str] = []
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="pricekeeper-clients-") as folder,
        open_world(kind, Path(folder)) as world,
    ):
        with world.serving():
            for result in _run_all(world, clients, scenarios, shown, Path(folder)):
                found = [_sentence(result, what) for what in violations(result)]
                console.print(_line(result), *found, sep="\n", markup=False)
                results.append(result)
                wrong += found
        wrong += _judge_later(world, results)
    console.print(_table(results))
    for sentence in wrong:
        console.print(f"WRONG: {sentence}", markup=False, style="red")
    console.print(f"clients: {len(results)} scenarios, {len(wrong)} violations")
    return 1 if wrong else 0


def _run_all(
    world: World,
    clients: list[Client],
    scenarios: list[Scenario],
    shown: list[Snippet],
    folder: Path,
) -> Iterator[Result]:
    for client in clients:
        for scenario in scenarios_of(world.kind, client, scenarios):
            run_script = partial(_run_script, client, scenario)
            yield _run_one(world, client, scenario, folder, run_script)
    for snippet in shown:
        client = Client(f"docs, {snippet.needs}", snippet.needs, "", (world.kind,))
        scenario = snippet_scenario(snippet.line)
        yield _run_one(world, client, scenario, folder, partial(_run_snippet, snippet))


def _run_one(
    world: World, client: Client, scenario: Scenario, folder: Path, run_program: Program
) -> Result:
    """Run a program under a budget of its own, and note the result."""
    result = Result(client, scenario, world.prepare(scenario))
    home = Path(tempfile.mkdtemp(dir=folder))
    world.upstream.ledger.clear()
    before, began = world.count_requests(), time.monotonic()
    try:
        result.steps, result.output = run_program(world.environment(client, result.app, home), home)
    except subprocess.TimeoutExpired as error:
        result.output = str(error)
    result.secs = time.monotonic() - began
    _wait_for_ledger(world, result)
    result.requests = world.count_requests() - before
    result.upstream = world.count_upstream()
    return result


def _run_script(
    client: Client, scenario: Scenario, environment: dict[str, str], home: Path
) -> tuple[list[Mapping[str, Any]], str]:
    """Run the script of a client; its steps, and all that it has printed."""
    ran = subprocess.run(
        [*command_of(client), json.dumps(scenario.steps)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECS_MAX,
        check=False,
    )
    last = ran.stdout.strip().rpartition("\n")[2]
    steps = json.loads(last)["steps"] if last.startswith('{"steps"') else []
    return steps, f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"


def _run_snippet(
    snippet: Snippet, environment: dict[str, str], home: Path
) -> tuple[list[Mapping[str, Any]], str]:
    """Run what the document shows, as one step."""
    ran = run_snippet(interpreter(snippet.needs), snippet, environment, home)
    output = f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    if ran.returncode:
        return [], output
    return [{"outcome": "ok", "chars": 1, "errors": []}], output


def _wait_for_ledger(world: World, result: Result) -> None:
    until = time.monotonic() + SETTLE_SECS_MAX[world.kind]
    while True:
        result.account, result.bill = world.account(result.app), world.bill_usd_micros()
        is_settled = not result.account.held and result.account.charged == result.bill
        if is_settled or time.monotonic() > until:
            return
        time.sleep(POLL_SECS)


def _judge_later(world: World, results: list[Result]) -> list[str]:
    """Look again at all that was left held, after it has expired."""
    held = [result for result in results if result.account.held]
    wrong: list[str] = []
    if not held:
        return wrong
    console.print(f"clients: {len(held)} scenarios left something held; an hour later:")
    with world.an_hour_later():
        until = time.monotonic() + EXPIRY_SECS_MAX
        for result in held:
            while (account := world.account(result.app)).held and time.monotonic() < until:
                time.sleep(POLL_SECS)
            what = f"{account.unsettled} unsettled of {account.charged}, billed {result.bill}"
            console.print(f"  {_sentence(result, what)}", markup=False)
            wrong += [_sentence(result, one) for one in violations_later(result, account)]
    return wrong


def _table(results: list[Result]) -> Table:
    table = Table("client", "version", "scenario", "outcome", box=None)
    for name in ("secs", "asked", "upstream", "bill", "ours", "above"):
        table.add_column(name, justify="right")
    for result in results:
        above = result.account.charged - result.bill
        table.add_row(
            result.client.name,
            result.client.version,
            result.scenario.name,
            result.outcome,
            f"{result.secs:.1f}",
            str(result.requests),
            str(result.upstream),
            str(result.bill),
            str(result.account.charged),
            str(above or ""),
            style="red" if any(violations(result)) else None,
        )
    return table


def _line(result: Result) -> str:
    return f"{result.client.name}, {result.scenario.name}: {result.outcome}, {result.secs:.1f} s"


def _sentence(result: Result, what: str) -> str:
    return f"{result.client.name}, {result.scenario.name}: {what}"


def _is_in(chosen: list[str] | None, name: str) -> bool:
    return chosen is None or name in chosen


if __name__ == "__main__":
    sys.exit(main())
