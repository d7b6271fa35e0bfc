"""Sorts rows and writes them to a file of the scratch folder, in one of two formats.

Runs of `RUN_LINES` lines are sorted and `RUNS_MAX` files merged, so memory and files are bounded.
gzip headers have no name and time, so equal rows give equal bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from pricekeeper.errors import ExportError
from pricekeeper.export.manifest import FileFormat, RecordRow, TotalRow

RUN_LINES: Final = 50_000
"""About 30 MB; 0.14 s in a thread."""
RUNS_MAX: Final = 64
_SEPARATOR: Final = b"\t"
_LEVEL: Final = 6
_ROWS_AT_ONCE: Final = 10_000
_MISSING: Final = (
    "Parquet needs pyarrow: pip install 'bedrock-price-keeper[analytics]', or use jsonl"
)


class WrittenFile(NamedTuple):
    """A finished file of the scratch folder."""

    path: Path
    rows: int
    bytes: int
    sha256: str


def write_rows(
    path: Path, file_format: FileFormat, kind: type[RecordRow | TotalRow], lines: Iterator[bytes]
) -> WrittenFile:
    """Write these lines of JSON and sync the file."""
    with path.open("wb") as file:
        writer = _write_jsonl if file_format is FileFormat.JSONL else _write_parquet
        rows = writer(file, kind, lines)
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(path, rows, path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_format(file_format: FileFormat) -> None:
    """Raise `ExportError` if that format can't be written."""
    if file_format is FileFormat.PARQUET:
        _pyarrow()


def _write_jsonl(file: Any, kind: type[RecordRow | TotalRow], lines: Iterator[bytes]) -> int:
    del kind
    rows = 0
    with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
        while some := list(islice(lines, _ROWS_AT_ONCE)):
            packed.write(b"".join(some))
            rows += len(some)
    return rows


def _write_parquet(file: Any, kind: type[RecordRow | TotalRow], lines: Iterator[bytes]) -> int:
    arrow, parquet = _pyarrow()
    schema = arrow.schema([_field(arrow, one) for one in msgspec.structs.fields(kind)])
    decode: Callable[[bytes], RecordRow | TotalRow] = msgspec.json.Decoder(kind).decode
    rows = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := list(islice(lines, _ROWS_AT_ONCE)):
            values = [_plain(decode(line)) for line in some]
            writer.write_table(arrow.Table.from_pylist(values, schema))
            rows += len(some)
    return rows


def _plain(row: RecordRow | TotalRow) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    if "tags" in values:
        values["tags"] = sorted(values["tags"].items())
    return values


def _field(arrow: Any, field: msgspec.structs.FieldInfo) -> Any:
    """Sums of pico-dollars may need more than 64 bits."""
    types = {str: arrow.string(), int: arrow.int64(), bool: arrow.bool_()}
    if field.name == "cost_usd_picos":
        return arrow.field(field.name, arrow.decimal128(38, 0), nullable=False)
    if field.name == "tags":
        tags = arrow.map_(arrow.string(), arrow.string())
        return arrow.field(field.name, tags, nullable=False)
    is_optional = field.type not in types
    kind = arrow.string() if is_optional else types[field.type]
    return arrow.field(field.name, kind, nullable=is_optional)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - few need it, and it is large
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ExportError(_MISSING) from error
    return pa, parquet


class SortedLines:
    """Returns lines sorted by key."""

    def __init__(self, scratch: Path, *, run_lines: int = RUN_LINES) -> None:
        self._scratch = scratch
        self._run_lines = run_lines
        self._run: list[bytes] = []
        self._files: list[Path] = []
        self._numbers = itertools.count()
        self.count = 0

    def add(self, key: str, line: bytes) -> None:
        """Neither line nor key may contain a tab or line break."""
        self._run.append(key.encode() + _SEPARATOR + line + b"\n")
        self.count += 1

    @property
    def is_full(self) -> bool:
        return len(self._run) >= self._run_lines

    def spill(self) -> None:
        self._files.append(self._write(sorted(self._run)))
        self._run = []
        if len(self._files) >= RUNS_MAX:
            merged = self._write(self._merge())
            self.close()
            self._files = [merged]

    def lines(self) -> Iterator[bytes]:
        for entry in self._merge():
            yield entry.partition(_SEPARATOR)[2]

    def close(self) -> None:
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
