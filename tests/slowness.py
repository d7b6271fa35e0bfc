"""Two suites: `make test` runs what is quick, `make test-slow` runs the tests marked `slow`.

A test that measurably takes more than `BUDGET_CPU_S` gets the mark. An unmarked test that uses
`FACTOR` times as much fails, so that the quick suite stays quick. The judge counts CPU time, of
this process and of the child processes that ended, because other work on the machine makes a test
last longer but costs it no CPU. Fixtures of a wider scope serve many tests and are not counted.
"""

import resource
import time
from collections.abc import Generator
from typing import Final

import hypothesis
import pytest
from _pytest.mark import ParameterSet
from _pytest.nodes import Node

BUDGET_CPU_S: Final = 2
FACTOR: Final = 8
"""Wide, since one second of CPU does less on a slower or a busier machine."""
QUICK_HISTORIES: Final = 100
"""Of each simulation. The slow suite plays the others."""
EXAMPLES_MAX: Final = 100
"""Hypothesis's own number. With more examples (`HYPOTHESIS_PROFILE=dev`) nothing is judged."""
_SPENT: Final = pytest.StashKey[float]()


def batches(histories: int, each: int) -> list[ParameterSet]:
    """The first seed of each batch of simulated histories, those of the quick suite first."""
    return [
        pytest.param(first, marks=[pytest.mark.slow] if first >= QUICK_HISTORIES else [])
        for first in range(0, histories, each)
    ]


def slow(*cases: object) -> list[ParameterSet]:
    """Cases of a test that the slow suite runs; tuples are values of several parameters."""
    rows = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Charge a fixture to its node. That is the test itself only if no other test shares it."""
    before_s = cpu_s()
    result = yield
    _add(request.node, cpu_s() - before_s)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    before_s = cpu_s()
    yield
    _add(item, cpu_s() - before_s)


def _add(node: Node, spent_s: float) -> None:
    node.stash[_SPENT] = node.stash.get(_SPENT, 0.0) + spent_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that passed, is not marked, and is far too slow for the quick suite."""
    report = yield
    spent_s = item.stash.get(_SPENT, 0.0)
    is_judged = (
        call.when == "call"
        and report.passed
        and item.get_closest_marker("slow") is None
        and hypothesis.settings().max_examples <= EXAMPLES_MAX
    )
    if is_judged and spent_s > FACTOR * BUDGET_CPU_S:
        report.outcome = "failed"
        report.longrepr = (
            f"used {spent_s:.1f} s of CPU, and a test of the quick suite may use {BUDGET_CPU_S} s: "
            "make it cheaper, or mark it with @pytest.mark.slow to run it in `make test-slow`"
        )
    return report
