"""``make size`` counts the package and prints its aims beside the figures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from size import read_source

TOOL = Path(__file__).parents[1] / "tools" / "size.py"
TEXT = '''"""Two words."""

import os  # a comment

# another comment
LIMIT = {
    "a": 1,
}
"""Three more words."""
TEXT = """not
a docstring"""


async def test_it() -> None:
    """One."""
    os.getpid()


def helper() -> None: ...
'''


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    """A string that is assigned is code, and a string after a field is a docstring."""
    assert read_source([TEXT]) == (1, 19, 9, 6, 1)
    assert read_source([TEXT, "x = 1\n"]) == (2, 20, 10, 6, 1)


@pytest.mark.slow
def test_the_table_has_every_aim_beside_its_figure() -> None:
    shown = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, str(TOOL)], capture_output=True, text=True, check=True
    ).stdout
    rows = dict(re.findall(r"^ *(\S.*?) +([\d,]+ +[\d,]+)$", shown, re.MULTILINE))
    assert list(rows) == [
        "lines of src",
        "lines of code in src",
        "modules",
        "words",
        "lines of tests",
        "hops of an authorize",
        "hops of a capture",
    ]
    for row in rows.values():
        now, most = (int(one.replace(",", "")) for one in row.split())
        assert min(now, most) > 50, shown
