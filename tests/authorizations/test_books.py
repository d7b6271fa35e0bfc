"""The books decide as a bucket alone would: what is kept running is what would be planned anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authorizations.conftest import a_budget
from metering.conftest import PREMIUM, a_policy
from pricekeeper.authorizations.books import Books
from pricekeeper.budgets import Balance, accounts_for
from pricekeeper.budgets.account import AccountMemory
from pricekeeper.budgets.items import balances_of
from pricekeeper.errors import UnreadableItemError
from pricekeeper.limiter import Limit
from pricekeeper.limiter.bucket import Bucket, Debit, Denial, Holding, expected, plan, status
from pricekeeper.tenants import Policy, Window

NOW_MS = 1_768_000_000_000
KEY = ("app", PREMIUM)
HOUR_MS = 3_600_000

limits = st.builds(
    Limit, st.just("tpm"), st.integers(1, 50), st.integers(1, 50), st.sampled_from([7, 60_000])
)


@st.composite
def buckets(draw: st.DrawFn) -> Bucket | None:
    """None, full, used or in debt, on these or other terms, refilled before or after now."""
    if draw(st.booleans()):
        return None
    limit = draw(limits)
    units = draw(st.integers(-limit.debt_units_max, limit.capacity_units))
    ago_ms = draw(st.sampled_from((-5_000, 0, 1, 60_000, 13 * HOUR_MS)))
    return Bucket(NOW_MS - ago_ms, NOW_MS // 1000 + 10**6, {"tpm": Holding(limit, units, 7)})


@given(
    buckets(),
    limits,
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.integers(0, 30),
    st.booleans(),
)
def test_each_command_is_decided_as_if_it_were_planned_with_all_before_it(
    bucket: Bucket | None, limit: Limit, wishes: list[int], owed: int, changed: bool
) -> None:
    """Also where tokens are owed to the bucket, or it still has older limits."""
    if bucket is not None and not changed:
        limit = bucket.holdings["tpm"].limit
    books = Books({}, {KEY: bucket}, NOW_MS)
    due = 0
    if owed:
        books.owed = {KEY: Debit(*KEY, {"tpm": limit}, {"tpm": -owed})}
        if bucket is not None and bucket.holdings["tpm"].limit == limit:
            due = -owed
    reading_ms = max(NOW_MS, bucket.refilled_at_ms) if bucket else NOW_MS
    taken = 0
    for tokens in wishes:
        debit = Debit(*KEY, {"tpm": limit}, {"tpm": tokens})
        beside = books.taken(debit, "tpm")
        assert taken + due <= beside <= taken
        together = Debit(*KEY, {"tpm": limit}, {"tpm": beside + tokens})
        alone = plan(bucket, together, reading_ms)
        denial = books.find_violations(debit)
        assert denial == (alone if isinstance(alone, Denial) else None)
        if denial is None:
            books.take([debit])
            taken += tokens
    planned = books.plan_buckets()
    assert set(planned) == ({KEY} if taken or any(w == 0 for w in wishes) else set()) or not taken
    if KEY in planned:
        one = planned[KEY]
        net = Debit(*KEY, {"tpm": limit}, {"tpm": taken + due})
        assert one.debit == net
        assert one.given_back == ({"tpm": due} if due else {})
        after = expected(one.step, bucket, one.debit)
        assert books.scarcest([net]) == status(after, {"tpm": limit}, NOW_MS)


def test_the_limits_of_a_bucket_may_change_between_two_commands() -> None:
    """What the first has taken counts under the limits of the second."""
    old, new = (Limit("tpm", capacity, 1, 60_000) for capacity in (10, 20))
    books = Books({}, {KEY: None}, NOW_MS)
    books.take([Debit(*KEY, {"tpm": old, "rpm": Limit("rpm", 9, 9, 9)}, {"tpm": 8, "rpm": 1})])
    assert books.find_violations(Debit(*KEY, {"tpm": old}, {"tpm": 3})) is not None
    assert books.find_violations(Debit(*KEY, {"tpm": new}, {"tpm": 12})) is None
    assert books.find_violations(Debit(*KEY, {"tpm": new}, {"tpm": 13})) is not None


@given(
    st.lists(st.integers(0, 40 * 24), min_size=1, max_size=12),
    st.lists(st.sampled_from(Window), max_size=3),
    st.booleans(),
)
def test_remembered_accounts_are_those_of_the_moment(
    hours: list[int], windows: list[Window], by_tag: bool
) -> None:
    """Whichever way time jumps, and whatever the tags; one window's accounts are made once."""
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
            if not by_tag:
                assert memory.find(policy, PREMIUM, tags, at_ms) is found


def test_another_policy_has_other_accounts_at_once() -> None:
    """A budget that was raised is another policy, of the same client."""
    memory = AccountMemory()
    for limit_usd_micros in (1, 2, 1):
        policy = a_policy(budgets=(a_budget(limit_usd_micros),))
        (account,) = memory.find(policy, PREMIUM, {}, NOW_MS)
        assert account.limit_usd_picos == limit_usd_micros * 1_000_000


def test_an_account_that_can_not_be_read_concerns_nobody_else() -> None:
    """Whoever needs it hears of it; its neighbours in the same item go on."""
    policy = a_policy(budgets=(a_budget(name="sound"), a_budget(name="strange")))
    sound, strange = accounts_for(policy, PREMIUM, {}, NOW_MS)
    item = {"PK": sound.key.pk, "SK": "ALL", f"u:{sound.id}": 5, f"u:{strange.id}": "junk"}
    books = Books({sound.key: balances_of(item)}, {}, NOW_MS)
    books.hold([sound], 7)
    assert books.balance(sound) == Balance(12, 7, 0)
    with pytest.raises(UnreadableItemError):
        books.balance(strange)
