"""The documents about the project itself say what is there."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(
    r"^\| (\d+) \| \[(.+)\]\((\d{4}-[a-z0-9-]+\.md)\) \| "
    r"(accepted|superseded by \d+) \| \d{4}-\d{2}-\d{2} \|$",
    re.MULTILINE,
)


def test_the_index_has_every_decision_under_its_title() -> None:
    listed = {
        name: (number, title)
        for number, title, name, _ in ROW.findall((DOCS / "adr" / "README.md").read_text())
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
