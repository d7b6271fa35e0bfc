"""What processes of an app remember of the service, and the allowance that they share."""

from pathlib import Path

import pytest

from pricekeeper.client.memory import Known, Memory
from pricekeeper.client.snapshot import HOUR_MS, Allowance


class TestMemory:
    @pytest.fixture
    def memory(self, tmp_path: Path) -> Memory:
        return Memory(tmp_path)

    def test_a_file_that_is_damaged_is_left_out(
        self, memory: Memory, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        memory.write(Known(is_refused=True))
        assert Memory(tmp_path).read().is_refused
        (tmp_path / "blind.json").write_bytes(b'{"is_refused":tr')
        assert Memory(tmp_path).read() == Known()
        assert "can't be read" in caplog.text

    def test_nobody_else_can_read_it(self, memory: Memory, tmp_path: Path) -> None:
        """It says how much money is left."""
        with memory.locked():
            memory.write(Known())
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        assert modes == {"blind.json": 0o600, "blind.lock": 0o600}

    def test_one_at_a_time_changes_it(self, memory: Memory, tmp_path: Path) -> None:
        with memory.locked() as first, Memory(tmp_path).locked() as second:
            assert (first, second) == (True, False)
        with Memory(tmp_path).locked() as again:
            assert again

    def test_a_disk_that_is_full_forgets_nothing(
        self, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else an allowance would be taken again; the process remembers it itself."""
        memory.write(Known())
        with monkeypatch.context() as full:
            full.setattr("pricekeeper.client.memory.write_all", _fail)
            memory.write(Known(allowance=Allowance(1, 2)))
        assert memory.read().allowance == Allowance(1, 2)
        memory.write(Known(allowance=Allowance(1, 3)))
        assert Memory(tmp_path).read().allowance == Allowance(1, 3)

    def test_without_a_folder_a_process_remembers_for_itself(self) -> None:
        memory = Memory(None)
        with memory.locked() as is_ours:
            assert is_ours
            memory.write(Known(is_refused=True))
        assert memory.read().is_refused


def _fail(_fd: int, _data: bytes) -> None:
    raise OSError(28, "no space left on device")


class TestAllowance:
    def test_an_hour_has_its_sum(self) -> None:
        first = Allowance().take(60, 100, now_ms=HOUR_MS)
        assert first == Allowance(HOUR_MS, 60)
        assert first.take(41, 100, now_ms=2 * HOUR_MS - 1) is None
        assert first.take(40, 100, now_ms=2 * HOUR_MS - 1) == Allowance(HOUR_MS, 100)
        assert first.take(100, 100, now_ms=2 * HOUR_MS) == Allowance(2 * HOUR_MS, 100)

    def test_a_clock_that_goes_back_begins_no_hour(self) -> None:
        """A minute back is the same hour; a day back ends a wrong one."""
        taken = Allowance(10 * HOUR_MS, 100)
        assert taken.take(1, 100, now_ms=10 * HOUR_MS - 60_000) is None
        assert taken.take(1, 100, now_ms=HOUR_MS) == Allowance(HOUR_MS, 1)
