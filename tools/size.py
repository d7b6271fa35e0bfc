"""Prints how large the package is, beside its aims: lines, modules, words, tests and hops.

A line of code is one that is not blank, a comment or part of a docstring. A docstring is any string
that is a statement by itself, so those of fields count, too. A test is a test function, however
many cases it has.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import walk

ROOT: Final = Path(__file__).parents[1]
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)


class Row(NamedTuple):
    """A figure, and the most that it should be; ``None`` if there is no aim for it."""

    name: str
    amount: int
    aim: int | None = None


class Source(NamedTuple):
    """What is in one or more Python files."""

    modules: int
    lines: int
    code: int
    words: int
    """Of the docstrings."""
    tests: int


def read_source(texts: Iterable[str]) -> Source:
    """Count the modules, lines, lines of code, words of docstrings and tests of some files."""
    found = [(text, list(ast.walk(ast.parse(text)))) for text in texts]
    docstrings = [[node for node in nodes if _is_docstring(node)] for _, nodes in found]
    return Source(
        len(found),
        sum(len(text.splitlines()) for text, _ in found),
        sum(
            len(_token_lines(text) - {line for node in strings for line in _lines_of(node)})
            for (text, _), strings in zip(found, docstrings, strict=True)
        ),
        sum(len(ast.unparse(node).split()) for strings in docstrings for node in strings),
        sum(_is_test(node) for _, nodes in found for node in nodes),
    )


def _is_docstring(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_test(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name.startswith("test_")


def _lines_of(node: ast.AST) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]


def _token_lines(text: str) -> set[int]:
    """The numbers of the lines that hold part of a token that is code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        line
        for one in tokens
        if one.type not in _NO_CODE
        for line in range(one.start[0], one.end[0] + 1)
    }


def _texts(folder: str, pattern: str) -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).glob(pattern)))


def _words(folder: str) -> int:
    return sum(len(text.split()) for text in _texts(folder, "*.md"))


def measure() -> list[Row]:
    """Count everything."""
    src, tests = (read_source(_texts(one, "**/*.py")) for one in ("src", "tests"))
    documents, decisions = _words(".") + _words("docs"), _words("docs/adr")
    hops = walk.all_walks()
    return [
        Row("lines of src", src.lines, 70_000),
        Row("lines of code in src", src.code, 45_000),
        Row("modules", src.modules, 440),
        Row("words", src.words + documents + decisions, 135_000),
        Row("  of docstrings in src", src.words),
        Row("  of documents, README and changelog", documents),
        Row("  of ADRs", decisions),
        Row("lines of tests", tests.lines, 90_000),
        Row("tests", tests.tests),
        Row("hops of an authorize", len(hops["authorize"]), 250),
        Row("hops of a capture", len(hops["capture"]), 150),
    ]


def main() -> None:
    """Print the table."""
    print(f"{'':36} {'now':>9} {'at most':>9}")
    for name, amount, aim in measure():
        shown = "" if aim is None else f"{aim:9,}"
        print(f"{name:36} {amount:9,} {shown}".rstrip())


if __name__ == "__main__":
    main()
