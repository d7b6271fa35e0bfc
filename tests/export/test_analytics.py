"""The questions of deploy/analytics, asked of an export: by DuckDB, and in Athena's columns."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from export.conftest import ORGS, Company, rows
from pricekeeper.export.manifest import RecordRow, TotalRow

ANALYTICS = Path(__file__).parents[2] / "deploy" / "analytics"
JANUARY = "BETWEEN '20260101' AND '20260131'"
TABLES = (("records", RecordRow), ("totals", TotalRow))


def questions() -> list[str]:
    text = (ANALYTICS / "questions.sql").read_text("utf-8")
    return [one for one in text.split(";") if "SELECT" in one]


@pytest.mark.parametrize(("name", "row"), TABLES)
def test_both_engines_know_every_column(name: str, row: type[msgspec.Struct]) -> None:
    """Athena's day is the partition's."""
    fields = {field.name for field in msgspec.structs.fields(row)} - {"day"}
    athena = (ANALYTICS / "athena.sql").read_text("utf-8")
    columns = re.search(rf"CREATE EXTERNAL TABLE {name} \((.*?)\n\)\nPART", athena, re.DOTALL)
    assert columns is not None
    assert set(re.findall(r"^  (\w+) ", columns[1], re.MULTILINE)) == fields
    assert f"'s3://BUCKET/PREFIX/{name}/day=${{day}}/'" in athena
    duck = (ANALYTICS / "duckdb.sql").read_text("utf-8").partition(f"CREATE VIEW {name} ")[2]
    assert set(re.findall(r"^    (\w+): '", duck.partition(");")[0], re.MULTILINE)) == fields


async def test_duckdb_answers_what_finance_asks(company: Company, day: str, folder: Path) -> None:
    """By app, by tag and by day, in dollars; and every total is the sum of its records."""
    import duckdb  # noqa: PLC0415 - it complains at exit if a module holds it

    await company.export(folder, day)
    written = [
        row
        for org_id in ORGS
        for row in rows((folder / f"records/day={day}/org={org_id}/records.jsonl.gz").read_bytes())
    ]
    with duckdb.connect() as engine:
        engine.execute((ANALYTICS / "duckdb.sql").read_text("utf-8").replace("EXPORT", str(folder)))
        by_app, by_tag, by_day, differing = (
            engine.execute(one.replace(JANUARY, f"= '{day}'")).fetchall() for one in questions()
        )

    assert differing == []
    assert in_picos((row[:3], row[3]) for row in by_app) == spend(
        written, lambda row: (row["org_id"], scope_app(row), row["model_label"])
    )
    assert in_picos(by_tag) == spend(written, lambda row: row["tags"].get("team"))
    assert in_picos(by_day) == spend(written, lambda row: row["day"])


def in_picos(answers: Any) -> dict[Any, int]:
    return {answer[0]: round(answer[1] * 1e12) for answer in answers}


def scope_app(row: dict[str, Any]) -> str | None:
    return row["scope_key"].partition("#APP#")[2] or None


def spend(records: list[dict[str, Any]], key: Any) -> Counter[Any]:
    sums: Counter[Any] = Counter()
    for row in records:
        sums[key(row)] += row["cost_usd_picos"]
    return sums
