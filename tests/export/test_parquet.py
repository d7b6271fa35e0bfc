"""The same rows as Parquet, where pyarrow is installed: it is an extra, and large."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from export.conftest import ORGS, Company, rows, tree
from pricekeeper.export import FileFormat
from pricekeeper.export.files import write_rows
from pricekeeper.export.manifest import TotalRow, line_of

parquet: Any = pytest.importorskip(
    "pyarrow.parquet", reason="the extra `analytics` is not installed"
)


def read(path: Path) -> list[dict[str, Any]]:
    found = parquet.ParquetFile(path).read().to_pylist()
    return [
        {
            name: dict(value) if name == "tags" else int(value) if type(value) is Decimal else value
            for name, value in row.items()
        }
        for row in found
    ]


async def test_parquet_has_the_same_rows(company: Company, day: str, folder: Path) -> None:
    """In the same order, with the same values; and the same bytes each time."""
    await company.export(folder / "jsonl", day)
    for name in ("a", "b"):
        await company.export(folder / name, day, file_format=FileFormat.PARQUET)
    assert tree(folder / "a") == tree(folder / "b")
    for org_id in ORGS:
        for kind in ("records", "totals"):
            path = f"{kind}/day={day}/org={org_id}/{kind}"
            lines = rows((folder / "jsonl" / f"{path}.jsonl.gz").read_bytes())
            assert read(folder / "a" / f"{path}.parquet") == lines
    manifest = json.loads((folder / "a" / f"day={day}" / "manifest.json").read_bytes())
    assert manifest["format"] == "parquet"
    assert manifest["records"] == len(company.of(day))


async def test_a_correction_says_which_record_it_takes_out(
    voided: tuple[Company, str, dict[str, str]],
    folder: Path,
) -> None:
    """In a column that is null for every other record."""
    company, day, corrections = voided
    for file_format in FileFormat:
        await company.export(folder / file_format, day, file_format=file_format)
    path = f"records/day={day}/org={ORGS[0]}/records"
    records = read(folder / "parquet" / f"{path}.parquet")
    assert records == rows((folder / "jsonl" / f"{path}.jsonl.gz").read_bytes())
    found = {row["voids"]: row["request_id"] for row in records if row["voids"] is not None}
    assert found == corrections


def test_a_sum_may_be_longer_than_64_bits(tmp_path: Path) -> None:
    row = TotalRow("o", None, "ORG#o", "premium", "20260101", 10**19 + 1, 1, 2, 3, 4, 5, 6)
    lines = iter([line_of(row) + b"\n"])
    written = write_rows(tmp_path / "x.parquet", FileFormat.PARQUET, TotalRow, lines)
    assert written.rows == 1
    assert read(written.path)[0]["cost_usd_picos"] == 10**19 + 1
