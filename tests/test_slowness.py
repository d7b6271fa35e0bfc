"""The judge of the quick suite, on test files of its own with a clock that they set."""

import os
import re
import subprocess
import sys
from pathlib import Path

from slowness import BUDGET_CPU_S, FACTOR

SECONDS = FACTOR * BUDGET_CPU_S
CONFTEST = """
import pytest, slowness
from slowness import *

class Clock:
    now_s = 0
    def spend(self, spent_s):
        self.now_s += spent_s

CLOCK = Clock()
slowness.cpu_s = lambda: CLOCK.now_s

@pytest.fixture(scope="session")
def clock():
    return CLOCK

@pytest.fixture
def own(clock):
    clock.spend({seconds} - 1)

@pytest.fixture(scope="module")
def shared(clock):
    clock.spend(10 * {seconds})
"""


JUDGED = """
import pytest
from slowness import batches

def test_over(clock): clock.spend({seconds} + 1)
def test_over_with_its_fixture(own, clock): clock.spend(2)
def test_within_the_factor(clock): clock.spend({seconds})
def test_of_a_shared_fixture(shared, own): pass

@pytest.mark.slow
def test_marked(clock): clock.spend({seconds} + 1)

@pytest.mark.parametrize("first", batches(500, 50))
def test_histories(first): pass
"""


def run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.format(seconds=SECONDS))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (folder / "test_it.py").write_text(JUDGED.format(seconds=SECONDS))
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, folder],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def test_an_unmarked_slow_test_fails(tmp_path: Path) -> None:
    """Its own fixtures count, shared ones do not; the message says what to do."""
    shown = run(tmp_path)
    failed = re.findall(r"^FAILED \S+::(\w+)", shown, re.MULTILINE)
    assert failed == ["test_over", "test_over_with_its_fixture"]
    assert shown.count(f"used {SECONDS + 1}.0 s of CPU") >= 2
    assert "mark it with @pytest.mark.slow" in shown


def test_the_first_histories_are_quick(tmp_path: Path) -> None:
    """The batches of both suites together are all histories, each once."""
    assert "2 passed, 13 deselected" in run(tmp_path, "-k", "histories", "-m", "not slow")
    assert "8 passed, 7 deselected" in run(tmp_path, "-k", "histories", "-m", "slow")
