"""Rows as CSV (RFC 4180), safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Final

MEDIA_TYPE: Final = "text/csv"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins with one is a formula in a spreadsheet."""


def csv_text(names: Sequence[str], rows: Sequence[Mapping[str, str | int]]) -> str:
    """A line of names and a line per row, with the line ends of RFC 4180."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in names])
    writer.writerows([_cell(row[name]) for name in names] for row in rows)
    return written.getvalue()


def _cell(value: str | int) -> str | int:
    """With an apostrophe before text that would be a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
