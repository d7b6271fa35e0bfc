"""Lists words that plain English does not need. docs/style.md says what to write in their place.

`make check` runs it on everything that a person reads: code, documents, deployment files, the page.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SUFFIXES: Final = frozenset(
    {".css", ".html", ".md", ".mjs", ".py", ".sh", ".toml", ".ts", ".tsx", ".yaml", ".yml"}
)
EXEMPT: Final = frozenset({"docs/style.md", "tools/plain.py", "tests/test_plain_tool.py"})
"""They name the words."""
PHRASES: Final = (
    "anew",
    "anybody",
    "as good as none",
    r"(?<!soon\s)as it (is|was)",
    "begins? again",
    "(is|are) away",
    "(is|are) no more",
    "(is|are|was|were) told",
    "go(es)? on",
    "nobody",
    "none such",
    "of whom",
    "of yours",
    "somebody",
    "stands",
    "what (it )?was",
    "whatever",
    "whichever",
    "whomever",
    "whoever",
    "whose it is",
)
_FOUND: Final = re.compile(rf"\b({'|'.join(PHRASES)})\b".replace(" ", " +"), re.IGNORECASE)


class Finding(NamedTuple):
    """A phrase, and where it is."""

    path: str
    line: int
    phrase: str


def find_phrases(path: str, text: str) -> Iterator[Finding]:
    """Find the phrases of a text. A phrase may continue on the next line."""
    for match in _FOUND.finditer(re.sub(r"\s+(?:[#*]|//)?[ \t]*", _same_length, text)):
        words = " ".join(match[0].lower().split())
        yield Finding(path, text.count("\n", 0, match.start()) + 1, words)


def _same_length(match: re.Match[str]) -> str:
    return " " * len(match[0])


def tracked(names: list[str]) -> list[str]:
    """Return the tracked files under these paths that a person reads."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *names],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = done.stdout.split("\0")
    return [one for one in files if Path(one).suffix in SUFFIXES and one not in EXEMPT]


def main() -> int:
    """Print each finding, then how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders; all by default")
    found = [
        one
        for path in tracked(parser.parse_args().paths)
        if (ROOT / path).exists()
        for one in find_phrases(path, (ROOT / path).read_text("utf-8"))
    ]
    for path, line, phrase in found:
        print(f"{path}:{line}: {phrase}")
    if found:
        print(f"plain: {len(found)} phrases to rewrite; docs/style.md says how", file=sys.stderr)
    return min(1, len(found))


if __name__ == "__main__":
    sys.exit(main())
