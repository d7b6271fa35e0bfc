"""One write for adjustments and acquires together means the same as one for each of them."""

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pricekeeper.limiter import Limit
from pricekeeper.limiter.bucket import (
    Bucket,
    Debit,
    Denial,
    Holding,
    Refill,
    TakeOnly,
    effective,
    plan,
)
from pricekeeper.limiter.draft import BucketDraft
from pricekeeper.limiter.items import STORED, bucket_item, bucket_of
from pricekeeper.limiter.writes import adjust_update, refill_update, take_update
from pricekeeper.storage import Item, Key, Put

NOW = 1_768_000_000_000
N, M = Limit("n", 10, 7, 1_000), Limit("m", 20, 3, 1_000)
LIMITS = {"n": N, "m": M}
NOTHING = Debit("e", "r", LIMITS, {})

buckets = st.builds(
    lambda n, m: Bucket(
        NOW,
        NOW // 1_000,
        {"n": Holding(N, n * N.units_per_token), "m": Holding(M, m * M.units_per_token)},
    ),
    st.integers(-40, 12),
    st.integers(-80, 22),
)
adjustments = st.lists(
    st.dictionaries(st.sampled_from("nm"), st.integers(-30, 60).filter(bool), min_size=1),
    min_size=1,
    max_size=4,
)


def debit_of(tokens: dict[str, int]) -> Debit:
    return Debit("e", "r", LIMITS, tokens)


def draft_of(bucket: Bucket | None, changes: list[dict[str, int]], now_ms: int) -> BucketDraft:
    """Draft these adjustments, each as far as the bucket can bear it."""
    draft = BucketDraft(NOTHING, bucket, seen=True, is_fresh=True, reading_ms=now_ms)
    for change in changes:
        taken = dict(change)
        for name, most in draft.bearable(debit_of(change)).items():
            taken[name] = min(taken[name], most)
        draft.adjust(debit_of(change), taken)
        change.update(taken)
    return draft


def sum_of(changes: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(change.get(name, 0) for change in changes) for name in "nm"}


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # most of these are denied
@given(buckets, adjustments, st.integers(0, 12), st.integers(0, 15_000))
def test_the_bucket_is_the_same_after_one_write_as_after_two(
    bucket: Bucket, changes: list[dict[str, int]], tokens: int, waited_ms: int
) -> None:
    """First the adjustments, then what acquires take: the same balances and totals."""
    now_ms, item = NOW + waited_ms, bucket_item(Key("e", "r"), bucket)
    draft = draft_of(bucket, changes, now_ms)
    debit = debit_of({"n": tokens})
    assume(not isinstance(draft.plan(debit), Denial))
    draft.take(debit)
    written = draft.operation()
    assert written is not None
    together, after = written
    assert together.condition is not None
    assert together.condition.holds(item)

    total = {name: count for name, count in sum_of(changes).items() if count}
    apart = adjust_update(debit_of(total)).apply(item) if total else item
    between = bucket_of(apart)
    assert between is not None
    step = plan(between, debit, now_ms)
    if isinstance(step, TakeOnly):
        apart = take_update(debit, step).apply(apart)
    else:
        assert isinstance(step, Refill)
        apart = refill_update(debit, step).apply(apart)
    assert not isinstance(together, Put)
    found, expected = bucket_of(together.apply(item)), bucket_of(apart)
    assert found is not None
    assert expected is not None
    assert after is not None
    assert found.holdings == after.holdings
    for name in "nm":  # one of them may have settled a refill that the other has not
        one, other = found.holdings[name], expected.holdings[name]
        assert effective(found, one, now_ms) == effective(expected, other, now_ms)
        assert one.consumed == other.consumed


@given(
    buckets,
    adjustments,
    st.integers(0, 12) | st.none(),
    st.integers(0, 15_000),
    st.integers(-30, 90),
    st.integers(-30, 90),
)
def test_what_others_do_meanwhile_breaks_no_bound(
    bucket: Bucket,
    changes: list[dict[str, int]],
    tokens: int | None,
    waited_ms: int,
    others_n: int,
    others_m: int,
) -> None:
    """``rf`` is where it was, balances are not: the write is refused, or its result is right."""
    now_ms = NOW + waited_ms
    draft = draft_of(bucket, changes, now_ms)
    if tokens is not None:
        debit = debit_of({"n": tokens})
        assume(not isinstance(draft.plan(debit), Denial))
        draft.take(debit)
    written = draft.operation()
    assume(written is not None)
    assert written is not None
    operation, _ = written
    item: Item = bucket_item(Key("e", "r"), bucket)
    for limit, others in ((N, others_n), (M, others_m)):
        item[STORED + limit.name] -= others * limit.units_per_token
    before = bucket_of(item)
    assert operation.condition is not None
    assert before is not None
    if not operation.condition.holds(item):
        return
    assert not isinstance(operation, Put)
    found = bucket_of(operation.apply(item))
    assert found is not None
    for name, count in sum_of(changes).items():
        held = found.holdings[name]
        units = effective(found, held, now_ms)
        if tokens is not None and name == "n":
            assert units >= 0
        elif count > 0:
            assert units >= -held.limit.debt_units_max
        room = held.limit.capacity_units - min(0, count) * held.limit.units_per_token
        assert units <= room


@given(adjustments, st.integers(0, 12))
def test_an_absent_bucket_is_made_full_less_all_of_it(
    changes: list[dict[str, int]], tokens: int
) -> None:
    """Nothing can be given back to it, and a debt ends at its bound."""
    draft = draft_of(None, changes, NOW)
    debit = debit_of({"n": tokens})
    assume(not isinstance(draft.plan(debit), Denial))
    draft.take(debit)
    written = draft.operation()
    assert written is not None
    assert isinstance(written[0], Put)
    found = bucket_of(written[0].item)
    assert found is not None
    used = {name: sum(max(0, one.get(name, 0)) for one in changes) for name in "nm"}
    used["n"] += tokens
    for name, limit in LIMITS.items():
        held = found.holdings[name]
        assert held.units == limit.capacity_units - used[name] * limit.units_per_token
        assert held.consumed == used[name]
        assert held.units >= -limit.debt_units_max
