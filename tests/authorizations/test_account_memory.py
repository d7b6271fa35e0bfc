"""The accounts of a policy are made once for each window, and bounded for each client."""

from hypothesis import given
from hypothesis import strategies as st

from authorizations.conftest import a_budget
from metering.conftest import PREMIUM, a_policy
from pricekeeper.budgets import AccountMemory, accounts_for
from pricekeeper.budgets.account import REMEMBERED_MAX
from pricekeeper.tenants import Policy, Window

NOW_MS = 1_768_000_000_000
HOUR_MS = 3_600_000


@given(
    st.lists(st.integers(0, 40 * 24), min_size=1, max_size=12),
    st.lists(st.sampled_from(Window), max_size=3),
    st.booleans(),
)
def test_remembered_accounts_are_those_of_the_moment(
    hours: list[int], windows: list[Window], by_tag: bool
) -> None:
    """For any jump of time and any tags; one window's accounts are made once."""
    memory = AccountMemory()
    budgets = [a_budget(name=f"b{n}", window=window) for n, window in enumerate(windows)]
    if by_tag:
        budgets.append(a_budget(name="team", per_tag="team"))
    policy: Policy = a_policy(budgets=tuple(budgets), timezone="America/Sao_Paulo")
    for hour in hours:
        for tags in ({}, {"team": "a"}):
            at_ms = NOW_MS + hour * HOUR_MS
            found = memory.find(policy, PREMIUM, tags, at_ms)
            assert found == accounts_for(policy, PREMIUM, tags, at_ms)
            assert memory.find(policy, PREMIUM, tags, at_ms) is found


def test_another_policy_has_other_accounts_at_once() -> None:
    """A budget that was raised is another policy, of the same client."""
    memory = AccountMemory()
    for limit_usd_micros in (1, 2, 1):
        policy = a_policy(budgets=(a_budget(limit_usd_micros),))
        (account,) = memory.find(policy, PREMIUM, {}, NOW_MS)
        assert account.limit_usd_picos == limit_usd_micros * 1_000_000


def test_whoever_makes_up_values_of_tags_forgets_its_own_alone() -> None:
    """Another client's accounts stay, and so do those of its own that came last."""
    memory, tagged = AccountMemory(), (a_budget(per_tag="team"),)
    flooding, other = a_policy(budgets=tagged), a_policy(budgets=tagged)
    kept = memory.find(other, PREMIUM, {"team": "a"}, NOW_MS)
    first = memory.find(flooding, PREMIUM, {"team": "0"}, NOW_MS)
    for number in range(1, REMEMBERED_MAX + 2):
        last = memory.find(flooding, PREMIUM, {"team": str(number)}, NOW_MS)
    assert memory.find(other, PREMIUM, {"team": "a"}, NOW_MS) is kept
    assert memory.find(flooding, PREMIUM, {"team": str(number)}, NOW_MS) is last
    again = memory.find(flooding, PREMIUM, {"team": "0"}, NOW_MS)
    assert again == first
    assert again is not first
