"""The decision itself: which label, why, and what has to be recorded for it to hold."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.selection.fallback import (
    Choice,
    LabelRole,
    Override,
    QuotaStatus,
    Reason,
    StickyFlip,
    StickyState,
    choose,
    quota_pct_hundredths,
    quota_status,
)
from pricekeeper.tenants import Client, Policy
from pricekeeper.values import ModelLabel
from selection.policies import CHAIN, ECONOMY, LABELS, ORG, PREMIUM, QUOTAS, STANDARD, TURBO, policy

ON_STANDARD = StickyState(STANDARD, 1, PREMIUM, 0, frozenset({PREMIUM}))
ON_ECONOMY = StickyState(ECONOMY, 2, STANDARD, 0, frozenset({PREMIUM, STANDARD}))


def by_hand(label: ModelLabel) -> Override:
    return Override(Client(ORG), label, 0)


def roles(choice: Choice) -> list[LabelRole]:
    return [use.role for use in choice.quotas]


def held(flip: StickyFlip | None) -> StickyState:
    """Give the record that a flip leaves behind."""
    assert flip is not None
    return StickyState(
        flip.label, flip.index, flip.previous_label, 0, flip.given_up, flip.quotas_usd_micros
    )


def recorded(state: StickyState | None, flip: StickyFlip) -> StickyState:
    """Give the record that a flip leaves behind after another one."""
    before = {} if state is None else state.given_up_at_usd_micros
    return replace(held(flip), given_up_at_usd_micros={**before, **flip.quotas_usd_micros})


# -- the line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spend", "quota", "tight_pct", "status"),
    [
        (0, 1_000, 95, QuotaStatus.NORMAL),
        (949, 1_000, 95, QuotaStatus.NORMAL),
        (950, 1_000, 95, QuotaStatus.TIGHT),
        (999, 1_000, 95, QuotaStatus.TIGHT),
        (1_000, 1_000, 95, QuotaStatus.EXCEEDED),
        (1_001, 1_000, 95, QuotaStatus.EXCEEDED),
        (999, 1_000, 100, QuotaStatus.NORMAL),
        (1, 3, 50, QuotaStatus.NORMAL),
        (2, 3, 50, QuotaStatus.TIGHT),
        (0, 1, 95, QuotaStatus.NORMAL),
        (0, 0, 95, QuotaStatus.EXCEEDED),
        (10**15 - 1, 10**15, 100, QuotaStatus.NORMAL),
    ],
)
def test_a_quota_is_gone_when_all_of_it_is_spent(
    spend: int, quota: int, tight_pct: int, status: QuotaStatus
) -> None:
    """The last micro-dollar exceeds it; the threshold itself is already tight."""
    assert quota_status(spend, quota, tight_pct) is status


@pytest.mark.parametrize(
    ("spend", "quota", "hundredths"),
    [(0, 7, 0), (1, 3, 33_33), (999_999, 1_000_000, 99_99), (7, 7, 100_00), (9, 4, 225_00)],
)
def test_percentages_are_rounded_down(spend: int, quota: int, hundredths: int) -> None:
    """So that 100 % is said of a spent quota and of no other."""
    assert quota_pct_hundredths(spend, quota) == hundredths


def test_a_quota_of_zero_is_spent_from_the_start() -> None:
    """There is nothing to divide by, and nothing to spend."""
    assert quota_pct_hundredths(0, 0) == 100_00


# -- following the totals ------------------------------------------------------------------


def test_the_first_label_is_chosen_while_it_has_quota() -> None:
    """Nothing is recorded on a normal day."""
    choice = choose(policy(), CHAIN, {PREMIUM: 10})

    assert (choice.label, choice.reason, choice.flip) == (PREMIUM, Reason.NORMAL, None)
    assert not choice.sticky_fallback_active
    assert roles(choice) == [LabelRole.CHOSEN, LabelRole.NOT_NEEDED, LabelRole.NOT_NEEDED]


def test_a_decision_shows_every_quota_it_looked_at() -> None:
    """Also of labels that were not needed, with their spend."""
    choice = choose(policy(), CHAIN, {PREMIUM: 950, ECONOMY: 300})

    assert [
        (use.label, use.spend_usd_micros, use.quota_usd_micros, use.quota_pct_hundredths)
        for use in choice.quotas
    ] == [(PREMIUM, 950, 1_000, 95_00), (STANDARD, 0, 500, 0), (ECONOMY, 300, 200, 150_00)]
    assert [use.status for use in choice.quotas] == ["TIGHT", "NORMAL", "EXCEEDED"]
    assert choice.mode is QuotaStatus.TIGHT


def test_an_exceeded_label_hands_over_to_the_next_and_asks_for_a_record() -> None:
    """The record names the label, its position, and the given-up labels."""
    choice = choose(policy(), CHAIN, {PREMIUM: 1_000})

    assert (choice.label, choice.reason) == (STANDARD, Reason.QUOTA_EXCEEDED)
    assert roles(choice) == [LabelRole.EXCEEDED, LabelRole.CHOSEN, LabelRole.NOT_NEEDED]
    assert choice.flip == StickyFlip(STANDARD, 1, PREMIUM, frozenset({PREMIUM}), {PREMIUM: 1_000})
    assert choice.recorded().sticky_fallback_active
    assert choice.recorded().flip is None


def test_when_all_are_exhausted_there_is_no_label() -> None:
    """Nothing is recorded: raising the last quota is enough."""
    choice = choose(policy(), CHAIN, {PREMIUM: 1_000, STANDARD: 500, ECONOMY: 200})

    assert (choice.label, choice.chosen, choice.flip) == (None, None, None)
    assert choice.reason is Reason.QUOTA_EXCEEDED
    assert choice.mode is QuotaStatus.TIGHT
    assert roles(choice) == [LabelRole.EXCEEDED] * 3


# -- the sticky state ----------------------------------------------------------------------


def test_a_label_that_was_given_up_comes_back_if_its_quota_is_raised() -> None:
    spends = {PREMIUM: 1_000}
    state = held(choose(policy(), CHAIN, spends).flip)
    raised = policy(quotas={**QUOTAS, PREMIUM: 1_001})

    choice = choose(raised, CHAIN, spends, state)

    assert (choice.label, choice.reason) == (PREMIUM, Reason.NORMAL)
    assert not choice.sticky_fallback_active
    assert choice.flip is None
    assert choose(policy(), CHAIN, {}, state).label == STANDARD  # for who does not know it yet


def test_a_label_that_came_back_is_given_up_again_at_its_new_quota() -> None:
    """Then only a higher quota brings it back."""
    raised = policy(quotas={**QUOTAS, PREMIUM: 2_000})
    state = held(choose(policy(), CHAIN, {PREMIUM: 1_000}).flip)

    choice = choose(raised, CHAIN, {PREMIUM: 2_000}, state)

    assert (choice.label, choice.reason) == (STANDARD, Reason.QUOTA_EXCEEDED)
    assert choice.flip is not None
    assert choice.flip.index > state.active_index
    again = held(choice.flip)
    assert choose(raised, CHAIN, {}, again).label == STANDARD
    assert choose(policy(), CHAIN, {}, again).label == STANDARD
    assert choose(policy(quotas={**QUOTAS, PREMIUM: 2_001}), CHAIN, {}, again).label == PREMIUM


def test_what_a_label_that_was_given_up_has_spent_is_what_the_totals_say() -> None:
    """Not its former quota: a record may have been voided since. The quota is stated beside it."""
    state = held(choose(policy(), CHAIN, {PREMIUM: 1_200}).flip)

    premium, standard, _ = choose(policy(), CHAIN, {PREMIUM: 300}, state).quotas

    assert (premium.role, premium.status) == (LabelRole.GIVEN_UP, QuotaStatus.NORMAL)
    assert (premium.spend_usd_micros, premium.given_up_at_usd_micros) == (300, QUOTAS[PREMIUM])
    assert (standard.role, standard.given_up_at_usd_micros) == (LabelRole.CHOSEN, 0)


def test_the_end_of_the_chain_can_be_raised() -> None:
    """The last label is exhausted but was never given up, so its quota still counts."""
    spends = {PREMIUM: 1_000, STANDARD: 500, ECONOMY: 200}

    assert choose(policy(), CHAIN, spends, ON_ECONOMY).label is None
    raised = policy(quotas={**QUOTAS, ECONOMY: 201})
    assert choose(raised, CHAIN, spends, ON_ECONOMY).label == ECONOMY


def test_without_sticky_fallback_the_totals_alone_decide() -> None:
    """A record from before it was switched off counts for nothing, and none is asked for."""
    free = policy(sticky=False)

    exceeded = choose(free, CHAIN, {PREMIUM: 1_000}, ON_ECONOMY)
    assert (exceeded.label, exceeded.reason) == (STANDARD, Reason.QUOTA_EXCEEDED)
    assert not exceeded.sticky_fallback_active
    assert exceeded.flip is None
    assert choose(free, CHAIN, {}, ON_ECONOMY).label == PREMIUM


# -- quota zero, and labels without a model ------------------------------------------------


def test_a_quota_of_zero_passes_a_label_over_without_giving_it_up() -> None:
    """It is how an organisation says "not this model", and it may change its mind."""
    without = policy(quotas={**QUOTAS, PREMIUM: 0})

    choice = choose(without, CHAIN, {})

    assert (choice.label, choice.reason, choice.flip) == (STANDARD, Reason.NORMAL, None)
    assert roles(choice)[0] is LabelRole.DISABLED
    moved_on = choose(without, CHAIN, {STANDARD: 500})
    assert moved_on.flip == StickyFlip(ECONOMY, 2, STANDARD, frozenset({STANDARD}), {STANDARD: 500})


def test_a_label_without_text_is_neither_chosen_nor_given_up() -> None:
    """Not first, not as the fallback, and not if all others are spent; an override may name it."""
    without_text = {PREMIUM, ECONOMY}
    choice = choose(policy(), CHAIN, {PREMIUM: 1_000}, without_text=without_text)
    assert (choice.label, choice.reason, choice.flip) == (STANDARD, Reason.NORMAL, None)
    assert choice.quotas[0].role is LabelRole.NO_TEXT
    spent = choose(policy(), CHAIN, {STANDARD: 500}, without_text=without_text)
    assert (spent.label, spent.flip) == (None, None)
    given_up = choose(policy(), CHAIN, {STANDARD: 500}, without_text={PREMIUM})
    assert given_up.flip is not None
    assert given_up.flip.given_up == {STANDARD}
    forced = choose(policy(), CHAIN, {}, None, [by_hand(ECONOMY)], without_text)
    assert (forced.label, forced.reason) == (ECONOMY, Reason.MANUAL_OVERRIDE)


def test_a_label_without_a_model_is_passed_over() -> None:
    """The deployment may have lost a model that an organisation still orders."""
    choice = choose(policy(), {STANDARD, ECONOMY}, {})

    assert (choice.label, choice.reason, choice.flip) == (STANDARD, Reason.NORMAL, None)
    assert roles(choice)[0] is LabelRole.UNDEFINED


# -- what is recorded, also where orders change during the day or differ between apps ----------

Expected: TypeAlias = tuple[ModelLabel | None, Reason, bool]
"""The label, its reason, and whether a fallback is in force."""

UNRECORDED: dict[str, tuple[Policy, Mapping[ModelLabel, int], StickyState | None, Expected]] = {
    "only quotas of zero are as good as exhausted": (
        policy(quotas=dict.fromkeys(CHAIN, 0)),
        {},
        None,
        (None, Reason.QUOTA_EXCEEDED, False),
    ),
    "a label given up at an unknown quota stays so: a raise can't be known": (
        policy(quotas={**QUOTAS, PREMIUM: 10**9}),
        {PREMIUM: 1_000},
        ON_STANDARD,
        (STANDARD, Reason.STICKY_FALLBACK, True),
    ),
    "the record knows more than a total that is a minute old": (
        policy(),
        {},
        ON_STANDARD,
        (STANDARD, Reason.STICKY_FALLBACK, True),
    ),
    "a sticky label that left the order: those given up stay so": (
        policy(ordering=(PREMIUM, ECONOMY)),
        {PREMIUM: 1_000},
        ON_STANDARD,
        (ECONOMY, Reason.STICKY_FALLBACK, True),
    ),
    "what another app gave up, and this order does not name, is no fallback": (
        policy(ordering=(STANDARD, ECONOMY)),
        {},
        ON_STANDARD,
        (STANDARD, Reason.NORMAL, False),
    ),
    "a label that is new at the front is used: it was never given up": (
        policy(ordering=(TURBO, *CHAIN)),
        {PREMIUM: 1_000},
        ON_STANDARD,
        (TURBO, Reason.NORMAL, True),
    ),
}


@pytest.mark.parametrize("case", UNRECORDED)
def test_a_decision_that_records_nothing(case: str) -> None:
    mine, spends, state, expected = UNRECORDED[case]
    choice = choose(mine, LABELS, spends, state)

    assert (choice.label, choice.reason, choice.sticky_fallback_active) == expected
    assert choice.flip is None


BOTH = frozenset({PREMIUM, STANDARD})
FLIPS: dict[str, tuple[Policy, Mapping[ModelLabel, int], StickyState | None, StickyFlip]] = {
    "several exceeded labels are one step": (
        policy(),
        {PREMIUM: 1_000, STANDARD: 600},
        None,
        StickyFlip(ECONOMY, 2, PREMIUM, BOTH, {PREMIUM: 1_000, STANDARD: 500}),
    ),
    "the record's label is no promise: its own quota counts, too": (
        policy(),
        {PREMIUM: 1_000, STANDARD: 500},
        ON_STANDARD,
        StickyFlip(ECONOMY, 2, STANDARD, BOTH, {STANDARD: 500}),
    ),
    "a turned order does not lead back to the label that was given up": (
        policy(ordering=(ECONOMY, STANDARD, PREMIUM)),
        {STANDARD: 500},
        StickyState(PREMIUM, 2, ECONOMY, 0, frozenset({ECONOMY})),
        StickyFlip(PREMIUM, 3, PREMIUM, frozenset({ECONOMY, STANDARD}), {STANDARD: 500}),
    ),
    "apps with different orders count on from each other": (
        policy(ordering=(STANDARD, ECONOMY)),
        {STANDARD: 500},
        ON_STANDARD,
        StickyFlip(ECONOMY, 2, STANDARD, BOTH, {STANDARD: 500}),
    ),
}


@pytest.mark.parametrize("case", FLIPS)
def test_a_decision_that_is_recorded(case: str) -> None:
    mine, spends, state, flip = FLIPS[case]
    choice = choose(mine, LABELS, spends, state)

    assert (choice.label, choice.reason) == (flip.label, Reason.QUOTA_EXCEEDED)
    assert choice.flip == flip


# -- the override --------------------------------------------------------------------------


def test_an_override_may_go_back_and_beyond_a_quota() -> None:
    """The operator decides; the mode warns that the quota is gone."""
    choice = choose(policy(), CHAIN, {PREMIUM: 2_000}, ON_STANDARD, [by_hand(PREMIUM)])

    assert (choice.label, choice.reason) == (PREMIUM, Reason.MANUAL_OVERRIDE)
    assert choice.override == by_hand(PREMIUM)
    assert choice.mode is QuotaStatus.TIGHT
    assert choice.sticky_fallback_active
    assert roles(choice) == [LabelRole.CHOSEN, LabelRole.NOT_NEEDED, LabelRole.NOT_NEEDED]


def test_an_override_leaves_the_record_alone() -> None:
    """The automatic decision rests meanwhile, and resumes where it was."""
    spends = {PREMIUM: 1_000, STANDARD: 500}

    assert choose(policy(), CHAIN, spends, ON_STANDARD, [by_hand(ECONOMY)]).flip is None
    assert choose(policy(), CHAIN, spends, ON_STANDARD).label == ECONOMY


def test_an_override_saves_an_exhausted_scope() -> None:
    """That is what it is for."""
    spends = {PREMIUM: 1_000, STANDARD: 500, ECONOMY: 200}

    assert choose(policy(), CHAIN, spends, None, [by_hand(STANDARD)]).label == STANDARD


def test_the_first_override_that_can_be_followed_counts() -> None:
    """An app's own comes before its organisation's; one outside the order is ignored."""
    both = [by_hand(ECONOMY), by_hand(STANDARD)]

    assert choose(policy(), CHAIN, {}, None, both).label == ECONOMY
    assert choose(policy(ordering=(PREMIUM, STANDARD)), CHAIN, {}, None, both).label == STANDARD
    assert choose(policy(ordering=(PREMIUM,)), CHAIN, {}, None, both).label == PREMIUM
    assert choose(policy(), {PREMIUM}, {}, None, both).label == PREMIUM


# -- always        ----------------------------------------------------------------------

orderings = st.lists(st.sampled_from(LABELS), min_size=1, unique=True)
spends_of = st.dictionaries(st.sampled_from(LABELS), st.integers(0, 30), max_size=4)
quotas_of = st.fixed_dictionaries({label: st.integers(0, 20) for label in LABELS})
policies = st.builds(
    lambda ordering, quotas, sticky: policy(ordering=ordering, quotas=quotas, sticky=sticky),
    orderings,
    quotas_of,
    st.booleans(),
)
sticky_policies = policies.map(lambda any_: replace(any_, sticky_fallback_enabled=True))


@given(policies, spends_of)
def test_a_chosen_label_has_quota_and_an_unchosen_scope_has_none(
    anyone: Policy, spends: dict[ModelLabel, int]
) -> None:
    """Without a record, the choice is the first of the order with anything left."""
    choice = choose(anyone, LABELS, spends)

    left = [label for label in anyone.model_ordering if spends.get(label, 0) < anyone.quotas[label]]
    assert choice.label == (left[0] if left else None)
    assert [use.label for use in choice.quotas] == list(anyone.model_ordering)


@given(st.lists(st.tuples(sticky_policies, spends_of), min_size=1, max_size=8))
def test_no_history_leads_back_to_a_label_that_was_given_up(
    history: list[tuple[Policy, dict[ModelLabel, int]]],
) -> None:
    """Orders and totals may change in any way: only a higher quota than it had spent does."""
    state: StickyState | None = None
    for now, spends in history:
        choice = choose(now, LABELS, spends, state)
        given_up = state.given_up if state else frozenset[ModelLabel]()
        if state is not None and choice.label in given_up:
            assert now.quotas[choice.label] > state.given_up_at_usd_micros[choice.label]
        if choice.flip is None:
            continue
        assert state is None or choice.flip.index > state.active_index
        assert choice.flip.index >= now.model_ordering.index(choice.flip.label)
        assert choice.flip.given_up >= given_up
        state = recorded(state, choice.flip)
        settled = choose(now, LABELS, spends, state)
        assert (settled.label, settled.flip) == (choice.label, None)
        assert settled.reason is Reason.STICKY_FALLBACK


@given(st.lists(spends_of, min_size=1, max_size=8), quotas_of)
def test_with_one_order_the_record_is_the_position(
    growing: list[dict[ModelLabel, int]], quotas: dict[ModelLabel, int]
) -> None:
    """What the schema document means by the index is what is recorded."""
    state: StickyState | None = None
    for spends in growing:
        flip = choose(policy(ordering=LABELS, quotas=quotas), LABELS, spends, state).flip
        if flip is not None:
            assert flip.index == LABELS.index(flip.label)
            state = held(flip)
