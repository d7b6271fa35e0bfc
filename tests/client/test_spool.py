"""The spool: appended entries outlive the process, despite failures of disk and processes."""

import errno
import gc
import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from pricekeeper.client import spool as spools
from pricekeeper.client import spool_files
from pricekeeper.client.spool import Spool, SpoolEntry, find_folder, read_folder, read_refused

URL = "http://127.0.0.1:8080"
CLIENT = "org-550e8400-e29b-41d4-a716-446655440000-app-chat"
USED = {"input_tokens": 1_000, "output_tokens": 100}


def entry(
    name: object = 1, kind: Literal["capture", "usage", "void"] = "capture", **body: Any
) -> SpoolEntry:
    return SpoolEntry(kind, str(name), body or dict(USED), 1_768_000_000_000)


def keep(spool: Spool, one: SpoolEntry) -> SpoolEntry:
    kept = spool.append(one)
    assert kept is not None
    return kept


def leave(folder: Path, *names: object) -> None:
    """As a process that has ended did."""
    gone = Spool(folder)
    for name in names:
        gone.append(entry(name))
    gone.close()


def ids(entries: list[SpoolEntry]) -> list[str]:
    return [one.id for one in entries]


def on_disk(folder: Path) -> list[str]:
    """The ids in all files, as a process that comes later would find them."""
    return [one.id for _, _, entries in read_folder(folder) for one in entries]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = find_folder(str(tmp_path / "spool"), URL, CLIENT)
    assert found is not None
    return found


@pytest.fixture
def spool(folder: Path) -> Iterator[Spool]:
    made = Spool(folder)
    yield made
    made.finish(made.pending(spools.ENTRIES_MAX))
    made.close()


def fail_with(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


class TestOneProcess:
    def test_what_is_appended_is_in_the_file_at_once(self, spool: Spool, folder: Path) -> None:
        """Before the append returns."""
        spool.append(entry(1))
        assert on_disk(folder) == ["1"]
        spool.append(entry(2, "void", reason="why"))
        assert on_disk(folder) == ["1", "2"]

    def test_what_was_told_is_forgotten(self, spool: Spool, folder: Path) -> None:
        for name in range(3):
            spool.append(entry(name))
        spool.finish(spool.pending(2))
        assert (on_disk(folder), ids(spool.pending(9))) == (["2"], ["2"])
        spool.finish(spool.pending(1))
        assert [path.stat().st_size for path in folder.iterdir()] == [0]

    def test_two_entries_with_one_id_are_two(self, spool: Spool, folder: Path) -> None:
        capture = keep(spool, entry(1))
        spool.append(entry(1, "void"))
        assert [one.kind for one in spool.pending(9)] == ["capture", "void"]
        spool.finish([capture])
        assert [one.kind for one in spool.pending(9)] == ["void"]
        assert on_disk(folder) == ["1"]

    def test_what_is_put_off_goes_behind_the_others(self, spool: Spool) -> None:
        for name in range(3):
            spool.append(entry(name))
        spool.postpone(spool.pending(1)[0])
        assert ids(spool.pending(9)) == ["1", "2", "0"]

    def test_what_is_no_json_is_not_kept(self, spool: Spool, folder: Path) -> None:
        with pytest.raises(TypeError):
            spool.append(entry(1, tags={"a": object()}))
        assert (len(spool), on_disk(folder)) == (0, [])

    def test_an_empty_file_is_deleted_at_the_end_and_another_is_left(self, folder: Path) -> None:
        Spool(folder).close()
        assert list(folder.iterdir()) == []
        leave(folder, 1)
        assert on_disk(folder) == ["1"]

    def test_what_comes_after_the_end_is_kept_too(self, folder: Path) -> None:
        spool = Spool(folder)
        spool.append(entry(1))
        spool.close()
        spool.append(entry(2))
        assert sorted(on_disk(folder)) == ["1", "2"]
        spool.close()
        assert sorted(on_disk(folder)) == ["1", "2"]

    def test_threads_append_at_once(self, spool: Spool, folder: Path) -> None:
        def append(number: int) -> None:
            for count in range(50):
                spool.append(entry(f"{number}-{count}"))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(on_disk(folder))) == len(spool) == 400

    def test_a_finalizer_may_append_in_the_middle_of_an_append(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The garbage collector may run in a thread that holds the lock."""

        class Forgotten:
            def __del__(self) -> None:
                spool.append(entry("finalizer"))

        def collect_and_frame(line: spool_files.Line) -> bytes:
            if line.entry is not None and line.entry.id == "1":
                forgotten = [Forgotten()]
                forgotten.append(forgotten)  # type: ignore[arg-type]
                del forgotten
                gc.collect()
            return spool_files.framed(line)

        monkeypatch.setattr(spools, "framed", collect_and_frame)
        appending = threading.Thread(target=spool.append, args=(entry(1),), daemon=True)
        appending.start()
        appending.join(10)
        assert not appending.is_alive()
        assert sorted(ids(spool.pending(9))) == ["1", "finalizer"]


class TestBounds:
    def test_calls_are_refused_before_entries_are(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spools, "ENTRIES_FULL", 2)
        monkeypatch.setattr(spools, "ENTRIES_MAX", 3)
        assert (spool.append(entry(1)), spool.is_full) != (None, True)
        assert (spool.append(entry(2)), spool.is_full) != (None, False)
        assert spool.append(entry(3)) is not None
        assert spool.append(entry(4)) is None
        assert ids(spool.pending(9)) == ["1", "2", "3"]

    def test_a_long_file_is_written_anew(
        self, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise a process that always has something to report would fill the disk."""
        monkeypatch.setattr(spools, "FILE_BYTES_MAX", 2_000)
        spool.append(entry("stays"))
        for name in range(200):
            kept = keep(spool, entry(name))
            spool.finish([kept])
            assert sum(path.stat().st_size for path in folder.iterdir()) < 2_500
        assert on_disk(folder) == ["stays"]

    def test_a_file_of_what_waits_is_not_written_anew_for_each_answer(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only when most of it was reported: otherwise reporting would be quadratic."""
        monkeypatch.setattr(spools, "FILE_BYTES_MAX", 2_000)
        for name in range(500):
            spool.append(entry(name))
        begun = 0
        create = spool_files.create_file

        def count(folder: Path) -> tuple[Path, int]:
            nonlocal begun
            begun += 1
            return create(folder)

        monkeypatch.setattr(spools, "create_file", count)
        while len(spool) > 10:
            spool.finish(spool.pending(10))
        assert 1 <= begun <= 6

    def test_the_refused_are_kept_apart_with_their_reason(self, spool: Spool, folder: Path) -> None:
        kept = keep(spool, entry(1))
        spool.refuse(kept, "CONFLICT: was voided")
        (refused,) = read_refused(folder)
        assert (refused["id"], refused["kind"]) == ("1", "capture")
        assert refused["reason"] == "CONFLICT: was voided"
        assert refused["body"] == USED
        assert (len(spool), on_disk(folder)) == (0, [])

    def test_the_refused_are_bounded(
        self, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spool_files, "REFUSED_BYTES_MAX", 1_000)
        for name in range(50):
            kept = keep(spool, entry(name))
            spool.refuse(kept, "no")
        assert (folder / "refused.log").stat().st_size < 1_300
        assert len(spool) == 0


class TestAdopting:
    def test_what_a_process_has_left_is_taken_over(self, spool: Spool, folder: Path) -> None:
        leave(folder, "of the gone")
        live = Spool(folder)
        live.append(entry("of the live"))
        assert spool.adopt() == 1
        assert ids(spool.pending(9)) == ["of the gone"]
        assert sorted(on_disk(folder)) == ["of the gone", "of the live"]
        assert spool.adopt() == 0
        live.finish(live.pending(1))
        live.close()

    def test_the_file_goes_only_after_its_entries_are_safe(
        self, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Twice is harmless, never is not."""
        leave(folder, 1)
        with monkeypatch.context() as patch:
            patch.setattr(spools, "write_all", fail_with(errno.ENOSPC))
            assert spool.adopt() == 1
        assert "1" in on_disk(folder)

    def test_more_than_fits_is_left_where_it_is(
        self, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spools, "ENTRIES_FULL", 4)
        monkeypatch.setattr(spools, "ENTRIES_MAX", 5)
        leave(folder, *range(5))
        mine = keep(spool, entry("mine"))
        assert (spool.adopt(), len(spool)) == (0, 1)
        assert len(on_disk(folder)) == 6
        spool.finish([mine])
        assert (spool.adopt(), len(spool)) == (5, 5)

    def test_a_file_that_was_just_made_is_nobodys_to_take(
        self, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between its creation and its lock: the creator makes another one."""
        locks: list[int] = []
        lock = spool_files._lock

        def adopt_first(fd: int) -> bool:
            locks.append(fd)
            if len(locks) == 1:
                spool.adopt()
            return lock(fd)

        monkeypatch.setattr(spool_files, "_lock", adopt_first)
        late = Spool(folder)
        late.append(entry("late"))
        assert on_disk(folder) == ["late"]
        late.finish(late.pending(1))
        late.close()

    def test_two_processes_take_over_at_once(self, folder: Path) -> None:
        for number in range(20):
            leave(folder, *(f"{number}-{count}" for count in range(5)))
        processes = [
            subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", ADOPT, str(folder)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        taken = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
        for process in processes:
            process.communicate("go\n", timeout=60)
        assert sorted(taken[0] + taken[1]) == sorted({*taken[0], *taken[1]})
        assert len(taken[0] + taken[1]) == 100
        assert sorted(on_disk(folder)) == sorted(taken[0] + taken[1])


ADOPT = textwrap.dedent(
    """
    import json, os, pathlib, sys
    from pricekeeper.client.spool import Spool

    spool = Spool(pathlib.Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    spool.adopt()
    print(json.dumps([one.id for one in spool.pending(1000)]), flush=True)
    sys.stdin.readline()  # a process that ends leaves what it took to the other
    os._exit(0)
    """
)


class TestDamage:
    def left(self, folder: Path) -> Path:
        leave(folder, "first", "second", "third")
        (path,) = folder.glob("*.spool")
        return path

    def test_a_line_that_was_cut_is_left_out(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = self.left(folder)
        path.write_bytes(path.read_bytes()[:-10])
        spool = Spool(folder)
        assert (spool.adopt(), ids(spool.pending(9))) == (2, ["first", "second"])
        assert "1 lines are damaged" in caplog.text
        spool.finish(spool.pending(9))
        spool.close()

    @pytest.mark.parametrize(
        "change",
        [
            lambda data: data[:-1],
            lambda data: b"\x00\xff\n\n" + data + b"{}\n" + b"x" * 3_000_000,
        ],
        ids=["its end is missing, and its checksum is right", "what never was a line"],
    )
    def test_a_whole_line_is_read(self, folder: Path, change: Callable[[bytes], bytes]) -> None:
        path = self.left(folder)
        path.write_bytes(change(path.read_bytes()))
        assert on_disk(folder) == ["first", "second", "third"]

    @pytest.mark.parametrize("position", [0, 3, 12, 40, 70])
    def test_a_wrong_byte_is_found(self, folder: Path, position: int) -> None:
        path = self.left(folder)
        lines = path.read_bytes().splitlines(keepends=True)
        changed = bytearray(lines[1])
        changed[position] ^= 1
        path.write_bytes(lines[0] + bytes(changed) + lines[2])
        assert on_disk(folder) == ["first", "third"]


class TestDisk:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_disk_that_is_full_for_a_while_has_everything_afterwards(
        self,
        spool: Spool,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        spool.append(entry("before"))
        with monkeypatch.context() as patch:
            write = os.write

            def write_half(fd: int, data: bytes) -> int:
                if b"half" in data:
                    write(fd, data[:20])
                raise OSError(code, os.strerror(code))

            patch.setattr(os, "write", write_half)
            spool.append(entry("half"))
            spool.append(entry("meanwhile"))
        assert ids(spool.pending(9)) == ["before", "half", "meanwhile"]
        assert "kept in memory" in caplog.text
        spool.append(entry("after"))
        assert on_disk(folder) == ["before", "half", "meanwhile", "after"]

    def test_a_long_file_that_can_not_be_written_anew_stays(
        self, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The old file is better than half of a new one."""
        monkeypatch.setattr(spools, "FILE_BYTES_MAX", 300)
        for name in range(10):
            spool.append(entry(name))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_with(errno.ENOSPC))
            spool.finish(spool.pending(5))
        assert on_disk(folder) == ["5", "6", "7", "8", "9"]

    def test_the_disk_is_asked_to_keep_it_once(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[int] = []
        spool.append(entry(1))
        spool.append(entry(2))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_with(errno.EIO))
            spool.sync()
        monkeypatch.setattr(os, "fsync", asked.append)
        spool.sync()
        spool.sync()
        assert len(asked) == 1


class TestFolder:
    def test_folder_and_files_are_the_users_own(self, folder: Path, spool: Spool) -> None:
        kept = spool.append(entry(1))
        spool.append(entry(2))
        assert kept is not None
        spool.refuse(kept, "no")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert set(modes.values()) == {0o600}
        assert len(modes) == 2
        assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)} == {0o700}

    def test_a_folder_that_others_may_read_is_closed(self, folder: Path, tmp_path: Path) -> None:
        folder.chmod(0o777)
        assert find_folder(str(tmp_path / "spool"), URL, CLIENT) == folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_a_link_is_not_followed(
        self, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Another user may have put it there, in a temporary folder for example."""
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
        assert find_folder(str(tmp_path / "spool"), URL, CLIENT) is None
        assert "in memory only" in caplog.text

    def test_anothers_folder_is_not_used(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
        assert find_folder(str(tmp_path / "spool"), URL, CLIENT) is None

    def test_a_temporary_folder_that_another_has_made_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its owner could replace ours."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "state"))
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        root = tmp_path / f"pricekeeper-spool-{os.getuid()}"
        found = find_folder(None, URL, CLIENT)
        assert found is not None
        assert found.parent == root
        root.rename(tmp_path / "real")
        root.symlink_to(tmp_path / "real")
        assert find_folder(None, URL, CLIENT) is None

    def test_without_a_setting_it_is_in_the_users_state(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        found = {find_folder(None, url, CLIENT) for url in (URL, f"{URL}/", "http://other")}
        assert len(found) == 2
        assert {one.parent for one in found if one} == {tmp_path / "pricekeeper" / "spool"}

    def test_where_no_file_can_be_written_all_is_in_memory(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(spools, "create_file", fail_with(errno.EROFS))
        spool = Spool(folder)
        assert spool.folder is None
        assert "in memory only" in caplog.text
        assert spool.append(entry(1)) is not None
        assert (ids(spool.pending(9)), spool.adopt()) == (["1"], 0)
        caplog.clear()
        spool.close()
        assert "1 entries were kept in memory only, and are lost" in caplog.text

    def test_memory_can_be_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.chdir(tmp_path)
        caplog.set_level(logging.WARNING)
        assert find_folder("memory", URL, CLIENT) is None
        assert (list(tmp_path.iterdir()), caplog.text) == ([], "")
