"""``make simulate`` plays what it is asked for, and ends with the first seed that fails."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import simulate

TOOL = Path(__file__).parents[1] / "tools" / "simulate.py"


def fail_at(seed_failing: int) -> Callable[[str], Callable[[int], object]]:
    def player(what: str) -> Callable[[int], object]:
        def play(seed: int) -> None:
            assert (what, seed) != ("metering", seed_failing), "it went back"

        return play

    return player


def test_every_seed_of_every_kind_is_played() -> None:
    chunks = simulate.chunks_of(("metering", "alerts"), 7, 60, 2)
    played = [(one.what, seed) for one in chunks for seed in range(one.first, one.first + one.size)]
    assert sorted(played) == sorted(
        (what, seed) for what in ("metering", "alerts") for seed in range(7, 67)
    )
    assert [one.what for one in chunks[:4]] == ["metering", "alerts"] * 2


def test_the_first_seed_that_fails_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "player", fail_at(123))
    assert simulate.play_all(("authorizations", "metering"), 100, 200, 2) == 1
    told = capsys.readouterr().out
    assert "metering: seed 123 breaks a promise: AssertionError: it went back" in told
    assert "again: make simulate ARGS='--what metering --first 123 --histories 1'" in told
    assert simulate.play_all(("metering",), 124, 50, 2) == 0


def test_real_histories_are_played_and_counted() -> None:
    """From the seed that was given on, with how many a second and how long it will take."""
    shown = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, str(TOOL), "--histories", "3", "--first", "5000"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "of 6 histories" in shown
    assert " a second, 0:00:00 left" in shown
    assert shown.endswith("6 histories from seed 5000 on: no promise was broken\n")


def test_whoever_interrupts_it_is_told_how_to_go_on() -> None:
    """With a seed before which everything was played."""
    command = [sys.executable, str(TOOL), "--histories", "100000", "--first", "1000", "--jobs", "1"]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        shown = ""
        while " left" not in shown:
            shown += running.stdout.read(1)
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        told = running.stdout.read()
    assert running.returncode == 130
    assert (
        "to continue: make simulate ARGS='--what authorizations --what metering --first 1" in told
    )


def test_a_planted_bug_is_found() -> None:
    assert simulate.find_seed("metering", 3, "moment replaced") == 0
    assert simulate.find_seed("alerts", 3, "settled before it is sent") == 0
    assert simulate.find_seed("authorizations", 3, "hold beside the sheet") == 1
