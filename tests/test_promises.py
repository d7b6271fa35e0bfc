"""docs/promises.md names tests that exist, and the promises that are made elsewhere."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "promises.md").read_text()
ROWS = [
    *re.findall(r"^\| (\d+) \| (.+) \| (`.+`) \|$", PAGE, re.MULTILINE),
    *re.findall(r"^(-) (.+?): (`.+`)$", PAGE, re.MULTILINE),
]
NAMED = re.compile(r"`([a-z0-9_/]+\.py)(?:::(test_\w+))?`")


@cache
def names_of_tests(path: str) -> frozenset[str]:
    """The names of the tests in a file, also of those in classes."""
    tree = ast.parse((TESTS / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, functions) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_every_promise_is_held_by_tests_that_exist(row: tuple[str, str, str]) -> None:
    named = NAMED.findall(row[-1])
    assert len(named) == row[-1].count("`") // 2 > 0
    for path, name in named:
        found = names_of_tests(path)
        assert name in found if name else found, f"{path} has no {name or 'tests'}"


def test_the_promises_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    made = readme.split("## What it promises")[1].split("\n## ")[0]
    numbers = re.findall(r"^(\d+)\. ", made, re.MULTILINE)
    assert [row[0] for row in ROWS if row[0] != "-"] == numbers == [str(n + 1) for n in range(13)]


def test_no_promise_is_made_twice_or_overlooked() -> None:
    promises = [row[1] for row in ROWS]
    assert len(promises) == len(re.findall(r"^(?:- |\| \d)", PAGE, re.MULTILINE))
    assert len(set(promises)) == len(promises)
