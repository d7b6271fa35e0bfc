"""A decision told: in words, in times, and as advice to the client."""

from dataclasses import replace

import pytest

from pricekeeper.selection import Decision, QuotaStatus
from pricekeeper.selection.decision import pct_text
from pricekeeper.selection.fallback import Choice, Override, StickyState, choose
from pricekeeper.tenants import Client, Policy
from selection.conftest import NOON_MS
from selection.policies import APP, CHAIN, ECONOMY, ORG, PREMIUM, QUOTAS, STANDARD, policy

HOUR_MS = 3_600_000
MIDNIGHT_MS = NOON_MS + 12 * HOUR_MS
RESET = "; the quotas reset at 2030-01-16T00:00:00Z"


def decided(choice: Choice, mine: Policy | None = None) -> Decision:
    return Decision(
        policy=mine or policy(),
        choice=choice,
        model=None,
        prices=None,
        org_day="20300115",
        day_starts_at_ms=MIDNIGHT_MS - 24 * HOUR_MS,
        checked_at_ms=NOON_MS,
        resets_at_ms=MIDNIGHT_MS,
        live=False,
    )


ONLY = policy(ordering=(PREMIUM,))
LOST = policy(ordering=("lost", *CHAIN), quotas={**QUOTAS, STANDARD: 0})
GIVEN_UP = StickyState(ECONOMY, 2, PREMIUM, 0, frozenset({PREMIUM}))
GIVEN_UP_AT = StickyState(STANDARD, 1, PREMIUM, 0, frozenset({PREMIUM}), {PREMIUM: 1_000})
BY_HAND = [[Override(whom, STANDARD, 0)] for whom in (Client(ORG), Client(ORG, APP))]


def spent(pct: str, micros: int, quota: int) -> str:
    return f"{pct} % of its quota is spent ({micros} of {quota} micro-dollars)"


WORDS: dict[str, tuple[Choice, list[str]]] = {
    "a normal day": (
        choose(policy(), CHAIN, {PREMIUM: 123}),
        [f"premium is recommended: {spent('12.30', 123, 1000)}"],
    ),
    "a fallback": (
        choose(LOST, CHAIN, {PREMIUM: 1_200}, GIVEN_UP),
        [
            "lost is not a model of this deployment",
            f"premium was given up earlier today: {spent('120.00', 1200, 1000)}",
            "standard has no quota",
            f"economy is recommended: {spent('0.00', 0, 200)}",
        ],
    ),
    "a label without text": (
        choose(policy(), CHAIN, {}, without_text={PREMIUM}),
        ["premium writes no text", f"standard is recommended: {spent('0.00', 0, 500)}"],
    ),
    "a label that was given up and has room again": (
        choose(policy(), CHAIN, {PREMIUM: 100}, GIVEN_UP_AT),
        [
            "premium was given up earlier today, until midnight or a higher quota: "
            + spent("10.00", 100, 1000),
            f"standard is recommended: {spent('0.00', 0, 500)}",
        ],
    ),
    "the end": (
        choose(ONLY, CHAIN, {PREMIUM: 1_000}),
        [f"premium is exhausted: {spent('100.00', 1000, 1000)}", "no model may be used"],
    ),
    "an organisation's override": (
        choose(policy(), CHAIN, {STANDARD: 600}, None, BY_HAND[0]),
        [f"standard was set by hand for the organisation: {spent('120.00', 600, 500)}"],
    ),
    "an app's override": (
        choose(policy(), CHAIN, {STANDARD: 600}, None, BY_HAND[1]),
        [f"standard was set by hand for the app: {spent('120.00', 600, 500)}"],
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_decision_in_words(case: str) -> None:
    """Every label on the way and its obstacle, how much is spent, and until when that counts."""
    choice, words = WORDS[case]
    assert decided(choice).explanation == "; ".join(words) + RESET


@pytest.mark.parametrize(
    ("hundredths", "text"), [(0, "0.00"), (5, "0.05"), (99_99, "99.99"), (123_45, "123.45")]
)
def test_percentages_have_two_decimals(hundredths: int, text: str) -> None:
    """Made from an integer, digit by digit."""
    assert pct_text(hundredths) == text


@pytest.mark.parametrize(
    ("micros", "mode", "check_frequency", "secs"),
    [(0, QuotaStatus.NORMAL, "PERIODIC_300S", 300), (950, QuotaStatus.TIGHT, "PERIODIC_60S", 60)],
)
def test_guidance_follows_the_mode(
    micros: int, mode: QuotaStatus, check_frequency: str, secs: int
) -> None:
    """A client asks again every five minutes, and every minute when it gets tight."""
    decision = decided(choose(policy(), CHAIN, {PREMIUM: micros}))

    guidance = decision.guidance(NOON_MS)

    assert decision.mode is mode
    assert guidance.check_frequency == check_frequency
    assert guidance.cache_duration_secs == secs


def test_no_answer_is_to_be_kept_beyond_the_day() -> None:
    """Yesterday's fallback ends for the client when it ends for us."""
    decision = decided(choose(policy(), CHAIN, {}))

    assert decision.guidance(MIDNIGHT_MS - 10_999).cache_duration_secs == 10
    assert decision.guidance(MIDNIGHT_MS + 1).cache_duration_secs == 0
    assert decision.guidance(MIDNIGHT_MS - 10_999).check_frequency == "PERIODIC_300S"


def test_a_decision_knows_the_organisations_clock() -> None:
    """The moment is the same, the wall it is read from is not."""
    mine = replace(policy(), timezone="Asia/Kolkata")
    decision = decided(choose(mine, CHAIN, {}), mine)

    assert decision.org_local_time.isoformat() == "2030-01-15T17:30:00+05:30"
    assert decision.checked_at_ms == NOON_MS
    assert decision.resets_at.isoformat() == "2030-01-16T00:00:00+00:00"


def test_an_exhausted_decision_is_an_error_with_everything_in_it() -> None:
    """Hundredths of a percent by label, the reset, and the words."""
    mine = policy(quotas={**QUOTAS, ECONOMY: 0})
    decision = decided(choose(mine, CHAIN, {PREMIUM: 1_000, STANDARD: 501}), mine)

    error = decision.exhausted()

    assert error.code == "QUOTA_EXCEEDED"
    assert error.models == {"premium": 100_00, "standard": 100_20, "economy": 100_00}
    assert error.resets_at_ms == MIDNIGHT_MS
    assert str(error) == decision.explanation
