"""The demo: a whole day end to end in a process of its own, and the parts that make it honest."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli
from pricekeeper.cli import demo
from pricekeeper.cli.demo import company
from pricekeeper.cli.demo.clock import SLOWDOWN, FastClock
from pricekeeper.cli.demo.traffic import (
    DAY_MS,
    HOUR_MS,
    LONG_JOBS,
    PERSONAS,
    SUPPORT,
    DemoLedger,
    Mismatch,
    Planned,
    Sums,
    cost_usd_picos,
    plan_day,
    quotas,
)
from pricekeeper.cli.demo.view import EXPECTED, Board, Result
from pricekeeper.pricing import load_catalogue

SMALL = ("--secs", "4", "--calls", "120")


def run_demo(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "pricekeeper", "demo", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_day_from_end_to_end() -> None:
    """All expected events happen, and every sum is equal. Stdout is JSON only."""
    done = run_demo(*SMALL, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)

    assert told["equal"] is True
    assert (told["differences"], told["not_seen"]) == ([], [])
    assert told["calls"] == sum(one["requests"] for one in told["sent"])
    assert told["calls"] == 120 + LONG_JOBS + 2 * len(PERSONAS)
    seen = Counter(told["seen"])
    assert seen["flip"] >= 2
    assert seen["denied"] >= seen["granted"] >= 1
    assert seen["evicted"] == 1
    assert 1 <= seen["midnight"] <= len(PERSONAS)  # those that had fallen back
    assert told["token_renewals"] > 20
    used = {one["model_label"] for one in told["sent"] if one["app_id"] == SUPPORT.app_id}
    assert used == {"premium", "standard", "economy"}


@pytest.mark.slow
def test_without_a_terminal_there_are_plain_lines(cli: Cli) -> None:
    """One for each event, the summary, the next commands; and the store is kept if asked."""
    kept = cli.folder / "kept"
    done = run_demo(*SMALL, "--keep", str(kept))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for told in (
        "denied: long_jobs has 0 of 1 tokens", "granted after the wait", "a duplicate, not counted",
        "its token refused", "premium → standard", "standard → economy", "quotas reset",
        "✓ equal", "pricekeeper usage show",
    ):  # fmt: skip
        assert told in done.stdout, told

    (org,) = cli.ok("org", "list", place=("--store", f"sqlite:///{kept}/demo.db"))
    assert org["org_name"] == "Larkspur Outfitters"
    assert run_demo("--keep", str(kept)).returncode == 2


def test_a_sum_that_differs_fails_the_demo(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token that was sent and not counted, or the other way round, is exit code 1."""
    monkeypatch.setattr(demo, "quiet_logs", lambda: None)
    monkeypatch.setattr(company, "AUDIT_LOOKS_MAX", 2)
    honest = DemoLedger.add
    cheated: list[Planned] = []

    def cheat(ledger: DemoLedger, call: Planned, day: str, label: str) -> Sums:
        sums = honest(ledger, call, day, label)
        if not cheated:
            cheated.append(call)
            sums["input_tokens"] += 1
        return sums

    monkeypatch.setattr(DemoLedger, "add", cheat)
    done = cli("demo", "--secs", "2", "--calls", "60", "--json")
    assert done.code == 1
    differing = {one["number"] for one in done.json["differences"]}
    assert "input_tokens" in differing
    assert done.json["equal"] is False


def test_a_day_that_shows_too_little_is_no_demonstration() -> None:
    """What should have been seen and was not is exit code 1 too."""
    board, ledger = Board(0, DAY_MS, {}), DemoLedger(load_catalogue())
    result = Result(board, ledger, [], renewals=0)
    assert result.missing[: len(EXPECTED)] == list(EXPECTED)
    board.counts.update(EXPECTED)
    for label in ("premium", "standard"):
        ledger.add(planned(), "2026-01-23", label)
    assert (result.missing, result.is_good) == (["support-chat on economy"], False)
    ledger.add(planned(), "2026-01-23", "economy")
    assert result.is_good


def planned(tokens: int = 1_000) -> Planned:
    return Planned(0, SUPPORT.app_id, tokens, 100, 10)


def test_the_ledger_finds_every_difference() -> None:
    """A missing model, an unused model, and a number that is off by one."""
    ledger = DemoLedger(load_catalogue())
    ledger.add(planned(), "2026-01-23", "premium")
    sent = ledger.sums[SUPPORT.app_id, "2026-01-23", "premium"].answer()

    def found(models: dict[str, dict[str, Any]]) -> list[Mismatch]:
        return list(ledger.differences(SUPPORT.app_id, "2026-01-23", models))

    nothing = dict.fromkeys(sent, 0)
    assert found({"premium": sent, "standard": nothing}) == []
    assert {one.number for one in found({})} == set(sent)
    assert [one.label for one in found({"premium": sent, "economy": {"requests": 1}})] == [
        "economy"
    ]
    off = {**sent, "cost_usd_micros": sent["cost_usd_micros"] + 1}
    assert [one.number for one in found({"premium": off})] == ["cost_usd_micros"]


def test_costs_are_made_by_multiplication() -> None:
    """1,000 tokens at $4.40 a million, 100 at $22, 10 cached at 22 cents: to the pico-dollar."""
    rates = load_catalogue().model("premium").default_pricing
    assert cost_usd_picos(planned(), rates) == 4_400_000_000 + 2_200_000_000 + 2_200_000


@pytest.mark.parametrize("calls", [60, 500, 3_000])
def test_any_number_of_calls_is_the_same_story(calls: int) -> None:
    """Each model's quota is what the app would spend until the hour at which it shall be spent."""
    day = plan_day(calls, seed=7)
    catalogue = load_catalogue()
    assert day == plan_day(calls, seed=7)
    assert day == sorted(day, key=lambda call: call.at_ms)
    assert sum(call.resend for call in day) >= len(PERSONAS)
    assert max(call.input_tokens for call in day) < 100_000, "no long-context prices"
    for persona in PERSONAS:
        limits = quotas(persona, day, catalogue)
        assert list(limits) == list(persona.order)
        mine = [call for call in day if call.app_id == persona.app_id]
        until_ms = persona.lasts_until_hour[0] * HOUR_MS
        rates = catalogue.model(persona.order[0]).default_pricing
        spent = sum(cost_usd_picos(call, rates) for call in mine if call.at_ms < until_ms)
        assert limits[persona.order[0]] == max(100_000, spent // 1_000_000)


async def test_time_passes_quickly_slowly_and_never_back() -> None:
    """Sleeping lasts as long as the clock says, also when its speed changes meanwhile."""
    clock = FastClock(1_000_000)
    clock.run(3_600)
    before_ms = clock.now_ms()
    await clock.sleep_ms(60_000)
    assert clock.now_ms() - before_ms >= 60_000
    with clock.slowly():
        slow = [clock.now_ms() for _ in range(1_000)]
        await clock.sleep_ms(1)
    assert slow == sorted(slow)
    assert slow[-1] - slow[0] < 1_000 * 3_600 // SLOWDOWN
    assert clock.monotonic_ms() >= slow[-1]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary store goes with the demo, also when it is interrupted."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def interrupted() -> None:
        with demo._folder(None) as folder:
            (folder / "demo.db").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
