"""The lines of an earlier export: parsed, and held against each other. No I/O, no clock.

An export has chain after chain, each from its oldest entry to its end. A file out of which lines
were taken holds less against the store than it seems to, so it is refused, with the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from pricekeeper.audit.entry import TrailEntry, hash_of
from pricekeeper.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class ExportedLine:
    """One line of an export."""

    number: int
    """Its number in the file: the first is 1."""
    body: bytes
    entry: TrailEntry


def read_lines(lines: Iterable[bytes], now_epoch: int) -> Iterator[ExportedLine]:
    """Each line with the entry that it is; raises `InvalidValueError` where the file has a gap.

    What had expired before the export is missing at the beginning of a chain, and by right.
    """
    before: ExportedLine | None = None
    chains = set[str]()
    for number, text in enumerate(lines, 1):
        if not (body := text.strip()):
            continue
        line = ExportedLine(number, body, _parse(number, body))
        if before is not None and before.entry.chain == line.entry.chain:
            _check_next(before, line)
        elif line.entry.chain in chains:
            raise _refusal(number, f"{_name(line.entry)} does not follow the line before")
        elif line.entry.previous_expires_at_epoch > now_epoch:
            raise _missing(line)
        chains.add(line.entry.chain)
        yield line
        before = line
    if before is None:
        raise InvalidValueError("against", "is empty; name a file that `audit export` wrote")


def _check_next(before: ExportedLine, line: ExportedLine) -> None:
    """Check that a line follows the one before it in their chain."""
    if line.entry.seq > before.entry.seq + 1:
        raise _missing(line)
    if line.entry.seq <= before.entry.seq:
        raise _refusal(line.number, f"{_name(line.entry)} does not follow the line before")
    if line.entry.previous != hash_of(before.body):
        raise _refusal(line.number, "it does not name the hash of the line before")


def _missing(line: ExportedLine) -> InvalidValueError:
    text = f"entry {line.entry.seq - 1} of {line.entry.chain} is missing before it"
    return _refusal(line.number, text)


def _name(entry: TrailEntry) -> str:
    return f"entry {entry.seq} of {entry.chain}"


def _parse(number: int, body: bytes) -> TrailEntry:
    try:
        return msgspec.json.decode(body, type=TrailEntry)
    except msgspec.MsgspecError as error:
        raise _refusal(number, "it is no entry") from error


def _refusal(number: int, problem: str) -> InvalidValueError:
    text = f"must be a file as `audit export` wrote it; line {number}: {problem}"
    return InvalidValueError("against", text)
