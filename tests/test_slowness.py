"""The judge of the quick suite, on test files of its own with a clock that they set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def outcome(folder: Path, test: str, *options: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST.format(seconds=SECONDS))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (folder / "test_it.py").write_text(f"import pytest\n{test.format(seconds=SECONDS)}")
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, folder],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_an_unmarked_slow_test_fails(tmp_path: Path) -> None:
    """The message says what to do."""
    status, shown = outcome(tmp_path, "def test_it(clock): clock.spend({seconds} + 1)")
    assert status == 1
    assert f"used {SECONDS + 1}.0 s of CPU" in shown
    assert "mark it with @pytest.mark.slow" in shown


def test_a_fixture_of_its_own_counts(tmp_path: Path) -> None:
    status, shown = outcome(tmp_path, "def test_it(own, clock): clock.spend(2)")
    assert (status, f"used {SECONDS + 1}.0 s of CPU" in shown) == (1, True)


@pytest.mark.parametrize(
    "test",
    [
        "def test_it(clock): clock.spend({seconds})",
        "def test_it(shared, own): pass",
        "@pytest.mark.slow\ndef test_it(clock): clock.spend({seconds} + 1)",
    ],
    ids=["within-the-factor", "a-shared-fixture", "marked"],
)
def test_others_pass(tmp_path: Path, test: str) -> None:
    status, shown = outcome(tmp_path, test)
    assert (status, "1 passed" in shown) == (0, True)


def test_the_first_histories_are_quick(tmp_path: Path) -> None:
    """The batches of both suites together are all histories, each once."""
    test = """
from slowness import batches

@pytest.mark.parametrize("first", batches(500, 50))
def test_it(first): pass
"""
    assert "2 passed, 8 deselected" in outcome(tmp_path, test, "-m", "not slow")[1]
    assert "8 passed, 2 deselected" in outcome(tmp_path, test, "-m", "slow")[1]
