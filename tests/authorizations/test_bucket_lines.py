"""Calls that take together take as a bucket alone would give, and accounts are made once."""

from hypothesis import given
from hypothesis import strategies as st

from authorizations.conftest import a_budget
from metering.conftest import PREMIUM, a_policy
from pricekeeper.authorizations.bucket_lines import Block, BucketLine
from pricekeeper.budgets import AccountMemory, accounts_for
from pricekeeper.budgets.account import REMEMBERED_MAX
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
def test_each_call_is_decided_as_if_it_were_planned_with_all_before_it(
    bucket: Bucket | None, limit: Limit, wishes: list[int], owed: int, changed: bool
) -> None:
    """Also where tokens are owed to the bucket, or it still has older limits."""
    if bucket is not None and not changed:
        limit = bucket.holdings["tpm"].limit
    debt = Debit(*KEY, {"tpm": limit}, {"tpm": -owed}) if owed else None
    line = BucketLine(bucket, {"tpm": limit}, NOW_MS, debt)
    due = 0
    if owed and bucket is not None and bucket.holdings["tpm"].limit == limit:
        due = -owed
    reading_ms = max(NOW_MS, bucket.refilled_at_ms) if bucket else NOW_MS
    taken = 0
    for tokens in wishes:
        debit = Debit(*KEY, {"tpm": limit}, {"tpm": tokens})
        beside = line.beside("tpm", tokens)
        assert taken + due <= beside <= taken
        together = Debit(*KEY, {"tpm": limit}, {"tpm": beside + tokens})
        alone = plan(bucket, together, reading_ms)
        assert line.has_room(debit.tokens) == (not isinstance(alone, Denial))
        if isinstance(alone, Denial):
            assert line.deny(debit) == alone
        else:
            line.take(debit.tokens)
            taken += tokens
    if line.taken:
        one = line.plan(KEY)
        assert one.debit == Debit(*KEY, {"tpm": limit}, {"tpm": taken + due})
        assert one.given_back == ({"tpm": due} if due else {})
        after = expected(one.step, bucket, one.debit)
        assert {"tpm": line.status("tpm", NOW_MS)} == status(after, {"tpm": limit}, NOW_MS)


@given(buckets(), limits, st.integers(1, 40), st.integers(0, 9))
def test_a_block_is_at_most_half_of_what_is_left(
    bucket: Bucket | None, limit: Limit, tokens: int, times: int
) -> None:
    """So the next process that asks finds some; and all of it together can be taken."""
    line = BucketLine(bucket, {"tpm": limit}, NOW_MS, None)
    if not line.has_room({"tpm": tokens}):
        return
    line.take({"tpm": tokens})
    left = line.status("tpm", NOW_MS).remaining
    ahead = line.ahead(times)["tpm"]
    assert ahead == max(0, min(times * tokens, left // 2))
    line.take({"tpm": ahead})
    line.plan(KEY)


def test_a_block_is_spent_once_in_its_time_and_under_its_limits() -> None:
    limit = Limit("tpm", 10, 1, 60_000)
    block = Block(KEY, {"tpm": limit}, {"tpm": 5}, expires_ms=100)
    debit = Debit(*KEY, {"tpm": limit}, {"tpm": 3})
    other = Debit(*KEY, {"tpm": Limit("tpm", 20, 1, 60_000)}, {"tpm": 3})
    assert block.has(debit, 99)
    assert not block.has(debit, 100)
    assert not block.has(other, 0)
    block.spend(debit)
    assert not block.has(debit, 0)
    assert block.rest.tokens == {"tpm": -2}


@given(
    st.lists(st.integers(0, 40 * 24), min_size=1, max_size=12),
    st.lists(st.sampled_from(Window), max_size=3),
    st.booleans(),
)
def test_remembered_accounts_are_those_of_the_moment(
    hours: list[int], windows: list[Window], by_tag: bool
) -> None:
    """For any time and tags; the accounts of one window are made once."""
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
