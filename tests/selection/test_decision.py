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


def test_a_normal_day_in_words() -> None:
    """How much is spent, of how much, and until when that counts."""
    told = decided(choose(policy(), CHAIN, {PREMIUM: 123})).explanation

    spent = "12.30 % of its quota is spent (123 of 1000 micro-dollars)"
    assert told == f"premium is recommended: {spent}{RESET}"


def test_a_fallback_in_words() -> None:
    """Every label on the way, and what kept it from being recommended."""
    mine = policy(ordering=("lost", *CHAIN), quotas={**QUOTAS, STANDARD: 0})
    given_up = StickyState(ECONOMY, 2, PREMIUM, 0, frozenset({PREMIUM}))

    assert decided(choose(mine, CHAIN, {PREMIUM: 1_200}, given_up), mine).explanation == (
        "lost is not a model of this deployment; premium was given up earlier today: "
        "120.00 % of its quota is spent (1200 of 1000 micro-dollars); standard has no quota; "
        "economy is recommended: 0.00 % of its quota is spent (0 of 200 micro-dollars)" + RESET
    )


def test_a_label_without_text_in_words() -> None:
    choice = choose(policy(), CHAIN, {}, without_text={PREMIUM})
    told = decided(choice).explanation
    assert told.startswith("premium writes no text; standard is recommended: ")


def test_a_label_that_was_given_up_and_has_room_again_in_words() -> None:
    """It says why the label is not used, though its quota is not spent."""
    given_up = StickyState(STANDARD, 1, PREMIUM, 0, frozenset({PREMIUM}), {PREMIUM: 1_000})

    assert decided(choose(policy(), CHAIN, {PREMIUM: 100}, given_up)).explanation == (
        "premium was given up earlier today, until midnight or a higher quota: "
        "10.00 % of its quota is spent (100 of 1000 micro-dollars); "
        "standard is recommended: 0.00 % of its quota is spent (0 of 500 micro-dollars)" + RESET
    )


def test_the_end_in_words() -> None:
    """Each exhausted quota is named."""
    only = policy(ordering=(PREMIUM,))

    assert decided(choose(only, CHAIN, {PREMIUM: 1_000}), only).explanation == (
        "premium is exhausted: 100.00 % of its quota is spent (1000 of 1000 micro-dollars); "
        "no model may be used" + RESET
    )


@pytest.mark.parametrize(
    ("client", "whom"), [(Client(ORG), "organisation"), (Client(ORG, APP), "app")]
)
def test_an_override_in_words(client: Client, whom: str) -> None:
    """It says for whom it was set, and what it costs."""
    choice = choose(policy(), CHAIN, {STANDARD: 600}, None, [Override(client, STANDARD, 0)])

    assert decided(choice).explanation == (
        f"standard was set by hand for the {whom}: "
        "120.00 % of its quota is spent (600 of 500 micro-dollars)" + RESET
    )


@pytest.mark.parametrize(
    ("hundredths", "text"), [(0, "0.00"), (5, "0.05"), (99_99, "99.99"), (123_45, "123.45")]
)
def test_percentages_have_two_decimals(hundredths: int, text: str) -> None:
    """Made from an integer, digit by digit."""
    assert pct_text(hundredths) == text


@pytest.mark.parametrize(
    ("spent", "mode", "check_frequency", "secs"),
    [(0, QuotaStatus.NORMAL, "PERIODIC_300S", 300), (950, QuotaStatus.TIGHT, "PERIODIC_60S", 60)],
)
def test_guidance_follows_the_mode(
    spent: int, mode: QuotaStatus, check_frequency: str, secs: int
) -> None:
    """A client asks again every five minutes, and every minute when it gets tight."""
    decision = decided(choose(policy(), CHAIN, {PREMIUM: spent}))

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
