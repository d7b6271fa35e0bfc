"""Lines come in the order of their keys, however few of them memory may hold."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.export import files
from pricekeeper.export.files import SortedLines

KEYS = st.lists(st.integers(0, 10**6).map(lambda number: f"{number:08x}"), unique=True)


@given(keys=KEYS, run_lines=st.integers(1, 50))
def test_lines_are_merged_in_order(
    keys: list[str], run_lines: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    lines = SortedLines(scratch, run_lines=run_lines)
    for key in keys:
        lines.add(key, b'{"key":"%s"}' % key.encode())
        if lines.is_full:
            lines.spill()
    assert list(lines.lines()) == [b'{"key":"%s"}\n' % key.encode() for key in sorted(keys)]
    assert lines.count == len(keys)
    lines.close()
    assert list(scratch.iterdir()) == []


def test_memory_and_open_files_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many lines are in memory, and so many files are there, at most."""
    monkeypatch.setattr(files, "RUNS_MAX", 4)
    lines = SortedLines(tmp_path, run_lines=10)
    most_lines = most_files = 0
    for number in range(1_000):
        lines.add(f"{number * 7919 % 1_000:04}", b"x")
        most_lines = max(most_lines, len(lines._run))
        if lines.is_full:
            lines.spill()
        most_files = max(most_files, len(list(tmp_path.iterdir())))
    assert (most_lines, most_files) == (10, 3)
    assert len(list(lines.lines())) == 1_000
    lines.close()
