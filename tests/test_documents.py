"""The documents about the project itself say what is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "pricekeeper"
ROW = re.compile(r"^- \[(\d+)\. (.+)\]\((\d{4}-[a-z0-9-]+\.md)\)$", re.MULTILINE)


def test_the_index_has_every_decision_under_its_title() -> None:
    listed = {
        name: (number, title)
        for number, title, name in ROW.findall((DOCS / "adr" / "README.md").read_text())
    }
    headings = {
        path.name: re.fullmatch(r"# (\d+)\. (.+)", path.read_text().splitlines()[0])
        for path in (DOCS / "adr").glob("0*.md")
    }
    assert listed == {name: found.groups() for name, found in headings.items() if found}
    assert listed.keys() == headings.keys()


def test_a_word_has_one_line_in_the_glossary() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    words = [
        word for row in rows if row != "Word" for word in re.sub(r" \(.*\)", "", row).split(", ")
    ]
    assert len(words) > 40
    assert sorted(words) == sorted(set(words))


def functions_in(path: Path) -> frozenset[str]:
    """The names that a module defines."""
    nodes = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in nodes if isinstance(node, kinds))


@pytest.mark.parametrize("name", ["tour.md", "architecture.md"])
def test_every_module_that_a_document_names_exists(name: str) -> None:
    """`folder/`, `folder/file.py`, `file.py` in any folder, or `folder/file.py:Class.function`."""
    text = (DOCS / name).read_text()
    named = re.findall(r"`([a-z][a-z0-9_/]*(?:\.py|/))(?::([\w.]+))?`", text)
    assert named
    for path, names in named:
        root = ROOT if path.startswith(("src/", "tests/", "dashboard/")) else PACKAGE
        is_there = (root / path).exists() if "/" in path else any(PACKAGE.rglob(path))
        assert is_there, path
        if names:
            assert set(names.split(".")) <= functions_in(root / path), f"{path}: {names}"


def test_every_method_that_the_tour_names_exists() -> None:
    """`Class.method`, where the module was named before."""
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", (DOCS / "tour.md").read_text()))
    assert named
    owners = "|".join(name.partition(".")[0] for name in named)
    defines_one = re.compile(rf"^class ({owners})\b", re.MULTILINE)
    texts = (path.read_text() for path in PACKAGE.rglob("*.py"))
    trees = [ast.parse(text) for text in texts if defines_one.search(text)]
    known = {
        f"{node.name}.{inner.name}"
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert named - known == set()


def test_every_link_to_a_decision_finds_its_page() -> None:
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
    links = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in pages
        for name in re.findall(r"(?:adr/|\()(\d{4}-[a-z0-9-]+\.md)", page.read_text())
    }
    known = {path.name for path in (DOCS / "adr").glob("0*.md")}
    assert [link for link in sorted(links) if link[1] not in known] == []


STATEMENT = re.compile(r"^\| (.+) \| (works|differs|in part) \| (.+) \|$")


def named_tests(path: Path) -> frozenset[str]:
    return frozenset(name for name in functions_in(path) if name.startswith("test_"))


def test_every_statement_of_the_documents_names_a_test_or_a_decision_that_exists() -> None:
    """A row is a statement, its state, and what shows it; what differs has a reason or a test."""
    text = (DOCS / "statements.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line for line in rows if line != "| Statement | State | Shown by |"]
    decisions = {int(path.name[:4]) for path in (DOCS / "adr").glob("0*.md")}
    tests = {path: named_tests(path) for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(rows) > 240
    for line in rows:
        row = STATEMENT.fullmatch(line)
        assert row, line
        for shown in row[3].split("; "):
            if adr := re.fullmatch("ADR ([0-9]+)", shown):
                assert int(adr[1]) in decisions, line
                continue
            named = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", shown)
            assert named, line
            assert named[2] in tests.get(ROOT / "tests" / named[1], ()), line


def test_the_page_about_tables_counts_the_statements() -> None:
    """The numbers at its beginning are those of the list."""
    rows = map(STATEMENT.fullmatch, (DOCS / "statements.md").read_text().splitlines())
    states = [row[2] for row in rows if row]
    told = re.search(
        r"has (\d+) statements: (\d+) work, (\d+) differ, (\d+) ", (DOCS / "schema.md").read_text()
    )
    assert told
    counts = [len(states), *map(states.count, ("works", "differs", "in part"))]
    assert [int(number) for number in told.groups()] == counts
