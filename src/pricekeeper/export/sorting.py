"""Lines in the order of their keys, however many there are: sorted runs, merged.

A run is as many lines as memory shall hold (`RUN_LINES`). What is more goes to a file of the
scratch folder; `RUNS_MAX` such files become one, so that the number of open files is bounded too.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

RUN_LINES: Final = 50_000
"""About 30 MB. To sort and write them takes a seventh of a second, in a thread."""
RUNS_MAX: Final = 64
_SEPARATOR: Final = b"\t"


class SortedLines:
    """Takes lines in any order, and gives them in that of their keys."""

    def __init__(self, scratch: Path, *, run_lines: int = RUN_LINES) -> None:
        self._scratch = scratch
        self._run_lines = run_lines
        self._run: list[bytes] = []
        self._files: list[Path] = []
        self._numbers = itertools.count()
        self.count = 0

    def add(self, key: str, line: bytes) -> None:
        """Take a line. Neither it nor its key has a tab or a line break in it."""
        self._run.append(key.encode() + _SEPARATOR + line + b"\n")
        self.count += 1

    @property
    def is_full(self) -> bool:
        """Whether memory holds as many lines as it shall: time to spill."""
        return len(self._run) >= self._run_lines

    def spill(self) -> None:
        """Write the lines that are in memory to a file."""
        self._files.append(self._write(sorted(self._run)))
        self._run = []
        if len(self._files) >= RUNS_MAX:
            merged = self._write(self._merge())
            self.close()
            self._files = [merged]

    def lines(self) -> Iterator[bytes]:
        """Every line with its line break, in order."""
        for entry in self._merge():
            yield entry.partition(_SEPARATOR)[2]

    def close(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files = []

    def _merge(self) -> Iterator[bytes]:
        with ExitStack() as opened:
            files = [opened.enter_context(file.open("rb")) for file in self._files]
            yield from heapq.merge(*files, sorted(self._run))

    def _write(self, entries: Iterator[bytes] | list[bytes]) -> Path:
        path = self._scratch / f"run-{id(self):x}-{next(self._numbers)}"
        with path.open("wb") as file:
            file.writelines(entries)
        return path
