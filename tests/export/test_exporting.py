"""A day in files: everything that was counted, once, in order, the same bytes each time."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from export.conftest import ORGS, Company, names, rows, tree
from metering.conftest import DAY_MS, a_policy
from pricekeeper.errors import ExportError
from pricekeeper.export import Progress
from pricekeeper.export.files import WrittenFile
from pricekeeper.export.folder import FolderDestination
from pricekeeper.metering.counters import COUNTER_NAMES
from pricekeeper.storage import Key, Set, Store, Update
from pricekeeper.storage.tables import DAILY_TOTAL
from stores import ShiftedClock


async def test_every_record_of_the_day_is_in_the_files_once(
    company: Company, day: str, folder: Path
) -> None:
    """Of each organisation by its own calendar, sorted by request id, with what it has used."""
    manifest = await company.export(folder, day)
    found = 0
    for org_id in ORGS:
        reported = company.of(day, org_id)
        records = rows((folder / f"records/day={day}/org={org_id}/records.jsonl.gz").read_bytes())
        assert [row["request_id"] for row in records] == sorted(reported)
        for row in records:
            policy, usage = reported[row["request_id"]]
            assert (row["org_id"], row["app_id"], row["day"]) == (org_id, policy.app_id, day)
            assert row["model_label"] == usage.model_label
            assert (row["input_tokens"], row["output_tokens"]) == (
                usage.input_tokens,
                usage.output_tokens,
            )
            assert row["happened_at_ms"] == usage.timestamp_ms
            assert row["is_error"] is (usage.status == "ERROR")
            assert row["tags"] == usage.tags
        found += len(records)
    assert found == manifest["records"] == len(company.of(day)) > 10
    assert manifest["totals_equal_records"] is manifest["is_final"] is True


async def test_the_days_add_up_to_what_was_reported(company: Company, folder: Path) -> None:
    """No record is in no day, or in two."""
    days = sorted({day for _, day, _ in company.reported})
    manifests = [await company.export(folder, day) for day in days]
    assert sum(one["records"] for one in manifests) == len(company.reported)
    tokens = sum(usage.input_tokens for _, _, usage in company.reported)
    assert sum(one["record_sums"]["input_tokens"] for one in manifests) == tokens


async def test_the_manifest_says_what_is_in_the_files(
    company: Company, day: str, folder: Path
) -> None:
    """Counts, sums in pico-dollars, tokens; size and sha256 of each file, and no other file."""
    manifest = await company.export(folder, day)
    files = tree(folder)
    del files[f"day={day}/manifest.json"]
    listed = {file["path"]: file for org in manifest["organisations"] for file in org["files"]}
    assert listed.keys() == files.keys()
    for path, content in files.items():
        assert listed[path]["bytes"] == len(content)
        assert listed[path]["sha256"] == hashlib.sha256(content).hexdigest()
        assert listed[path]["rows"] == len(rows(content))
    for kind, sums in (("records", "record_sums"), ("totals", "total_sums")):
        found = [row for path in files if kind in path for row in rows(files[path])]
        for name in ("cost_usd_picos", "input_tokens", "output_tokens", "cache_read_tokens"):
            assert manifest[sums][name] == sum(row[name] for row in found)
    assert set(manifest["record_sums"]) == set(COUNTER_NAMES)


async def test_the_same_day_gives_the_same_bytes(
    clock: ShiftedClock, company: Company, day: str, folder: Path
) -> None:
    """Later, elsewhere, again in the same folder, and with many small runs in place of one."""
    first = await company.export(folder / "a", day)
    clock.shift_ms += 7 * DAY_MS
    await company.export(folder / "b", day, run_lines=3)
    assert tree(folder / "a") == tree(folder / "b")
    assert await company.export(folder / "a", day) == first
    assert tree(folder / "a") == tree(folder / "b")


async def test_what_is_written_is_canonical(company: Company, day: str, folder: Path) -> None:
    """JSON with sorted names, no blanks and integers only; gzip without a name and a time."""
    await company.export(folder, day)
    for path, content in tree(folder).items():
        if not path.endswith(".gz"):
            continue
        assert content[3:8] == bytes(5)  # flags: no name; then the time
        for line in gzip.decompress(content).splitlines():
            row = json.loads(line, parse_float=_refuse)
            told = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            assert line.decode() == told


async def test_a_correction_says_which_record_it_takes_out(
    voided: tuple[Company, str, dict[str, str]],
    folder: Path,
) -> None:
    """Both are there, the correction with negative amounts; the same bytes each time."""
    company, day, corrections = voided
    manifest = await company.export(folder / "a", day)
    records = rows(gzip_of(folder / "a", day, ORGS[0], "records"))
    by_id = {row["request_id"]: row for row in records}
    assert by_id.keys() == company.of(day).keys() | set(corrections.values())
    found = {row["voids"]: row["request_id"] for row in records if row["voids"] is not None}
    assert found == corrections
    for first, correction in ((by_id[one], by_id[two]) for one, two in corrections.items()):
        for name in ("app_id", "model_label", "day", "happened_at_ms", "is_error", "tags"):
            assert correction[name] == first[name]
        for name in ("cost_usd_picos", "input_tokens", "output_tokens"):
            assert correction[name] == -first[name]
    assert manifest["records"] == len(records)
    assert manifest["totals_equal_records"] is manifest["is_final"] is True
    assert manifest["record_sums"]["requests"] == len(company.of(day)) - len(corrections)
    await company.export(folder / "b", day, run_lines=3)
    assert tree(folder / "a") == tree(folder / "b")


def _refuse(text: str) -> Any:
    raise AssertionError(text)


async def test_a_total_that_is_not_the_sum_is_told(
    store: Store, company: Company, day: str, folder: Path
) -> None:
    """With both sides, by account; the others are not concerned."""
    before = await company.export(folder, day)
    total = rows(gzip_of(folder, day, ORGS[1], "totals"))[0]
    key = Key(f"{total['scope_key']}#LABEL#{total['model_label']}", f"DAY#{day}")
    await store.update(Update(DAILY_TOTAL, key, (Set("input_tokens", 10**9),)))
    manifest = await company.export(folder, day)
    assert before["totals_equal_records"] is True
    assert manifest["totals_equal_records"] is False
    (difference,) = manifest["organisations"][1]["differences"]
    assert difference["scope_key"] == total["scope_key"]
    assert difference["model_label"] == total["model_label"]
    assert difference["records"]["input_tokens"] == total["input_tokens"]
    assert difference["total"]["input_tokens"] == 10**9
    assert [org["differing_accounts"] for org in manifest["organisations"]] == [0, 1, 0]


def gzip_of(folder: Path, day: str, org_id: str, kind: str) -> bytes:
    return (folder / f"{kind}/day={day}/org={org_id}/{kind}.jsonl.gz").read_bytes()


async def test_progress_is_told_as_it_goes(company: Company, day: str, folder: Path) -> None:
    """Which organisation of how many, and how many records so far: never fewer than before."""
    told: list[Progress] = []

    async def note(progress: Progress) -> None:
        told.append(progress)

    manifest = await company.export(folder, day, run_lines=2, observe=note)
    assert [one.org_number for one in told] == sorted(one.org_number for one in told)
    assert {(one.day, one.org_count) for one in told} == {(day, len(ORGS))}
    counts = [one.records for one in told]
    assert counts == sorted(counts)
    assert len(set(counts)) > len(ORGS)
    assert 0 <= manifest["records"] - counts[-1] <= 2


async def test_one_organisation_alone_has_its_own_manifest(
    company: Company, day: str, folder: Path
) -> None:
    """Its files are those of the whole day, and the day's manifest is left alone."""
    await company.export(folder / "all", day)
    destination = FolderDestination(str(folder / "one"))
    await company.exporter(destination).export_day(day, ORGS[0])
    await destination.close()
    one, everything = tree(folder / "one"), tree(folder / "all")
    own = f"day={day}/org={ORGS[0]}/manifest.json"
    manifest = json.loads(one.pop(own))
    assert one == {path: everything[path] for path in everything if ORGS[0] in path}
    assert len(one) == 2
    assert [org["org_id"] for org in manifest["organisations"]] == [ORGS[0]]


async def test_a_day_without_usage_has_a_manifest_all_the_same(
    company: Company, folder: Path
) -> None:
    manifest = await company.export(folder, "20200101")
    assert (manifest["records"], manifest["organisations"]) == (0, [])
    assert manifest["totals_equal_records"] is True
    assert list(tree(folder)) == ["day=20200101/manifest.json"]


@pytest.mark.parametrize("missing", ["time", "aggregation"])
async def test_a_day_is_final_when_nothing_can_change(
    store: Store, clock: ShiftedClock, missing: str, folder: Path
) -> None:
    """Two days after its end, and when the aggregator is past that."""
    company = Company(store, clock)
    await company.report(5)
    day = company.reported[0][1]
    clock.shift_ms += (0 if missing == "time" else 4) * DAY_MS
    if missing == "time":
        await company.aggregate()
    manifest = await company.export(folder, day)
    assert manifest["is_final"] is False
    assert not [path for path in tree(folder) if path.endswith(".part")]
    clock.shift_ms += 4 * DAY_MS
    await company.aggregate()
    manifest = await company.export(folder, day)
    assert manifest["is_final"] is manifest["totals_equal_records"] is True


async def test_an_id_leads_out_of_no_folder(company: Company, folder: Path) -> None:
    policy = a_policy(org_id="../../x")
    await company.report(1, policies=[policy])
    day = company.reported[-1][1]
    await company.export(folder / "deep" / "folder", day)
    assert names(folder) == {"deep"}
    assert f"deep/folder/records/day={day}/org=..%2F..%2Fx/records.jsonl.gz" in tree(folder)


async def test_a_file_is_replaced_in_one_step(folder: Path) -> None:
    """A reader has the old file to its end; half a file is never visible."""
    destination = FolderDestination(str(folder))
    path = folder / "day=1" / "manifest.json"
    await destination.put_bytes("day=1/manifest.json", b"old")
    with path.open("rb") as reading:
        await destination.put_bytes("day=1/manifest.json", b"new, and longer")
        assert reading.read() == b"old"
    aside = destination.scratch / "x"
    aside.write_bytes(b"a file")
    with path.open("rb") as reading:
        await destination.put_file("day=1/manifest.json", WrittenFile(aside, 1, 6, ""))
        assert reading.read() == b"new, and longer"
    assert path.read_bytes() == b"a file"
    await destination.close()


async def test_a_folder_that_can_not_be_written_is_told(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(ExportError, match=r"can't write to .*file/x: Not a directory"):
        FolderDestination(str(folder / "file" / "x"))


async def test_abandoned_scratch_folders_are_removed_and_others_are_not(folder: Path) -> None:
    (folder / ".scratch-left").mkdir()
    (folder / ".scratch-left" / "run-1").write_text("x")
    first = FolderDestination(str(folder))
    second = FolderDestination(str(folder))
    assert first.scratch.is_dir()
    assert names(folder) == {first.scratch.name, second.scratch.name}
    await first.close()
    await second.close()
    assert names(folder) == set()
