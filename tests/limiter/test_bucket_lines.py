"""A batch takes the same tokens as single requests, and a block is spent once."""

from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.limiter import Limit
from pricekeeper.limiter.bucket import Bucket, Debit, Denial, Holding, TakeOnly, plan
from pricekeeper.limiter.bucket_lines import Block, BucketLine
from pricekeeper.limiter.items import bucket_item, bucket_of
from pricekeeper.limiter.writes import take_update
from pricekeeper.storage import Key

NOW_MS = 1_768_000_000_000
KEY = Key("app", "premium")
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
    """Also with pending refunds, or while the bucket still has older limits."""
    if bucket is not None and not changed:
        limit = bucket.holdings["tpm"].limit
    debt = Debit(KEY, {"tpm": limit}, {"tpm": -owed}) if owed else None
    reading_ms = max(NOW_MS, bucket.refilled_at_ms) if bucket else NOW_MS
    line = BucketLine(bucket, {"tpm": limit}, reading_ms, debt)
    due = 0
    if owed and bucket is not None and bucket.holdings["tpm"].limit == limit:
        due = -owed
    taken = 0
    for tokens in wishes:
        debit = Debit(KEY, {"tpm": limit}, {"tpm": tokens})
        beside = line.beside("tpm", tokens)
        assert taken + due <= beside <= taken
        together = Debit(KEY, {"tpm": limit}, {"tpm": beside + tokens})
        alone = plan(bucket, together, reading_ms)
        assert line.has_room(debit.tokens) == (not isinstance(alone, Denial))
        if isinstance(alone, Denial):
            assert line.deny(debit) == alone
        else:
            line.take(debit.tokens)
            taken += tokens
    if line.taken:
        one = line.plan(KEY)
        assert one.debit == Debit(KEY, {"tpm": limit}, {"tpm": taken + due})
        assert one.given_back == ({"tpm": due} if due else {})
        if isinstance(one.step, TakeOnly):
            assert bucket is not None
            write = take_update(one.debit, one.step)
            after = bucket_of(write.apply(bucket_item(KEY, bucket)))
        else:
            after = one.step.after
        assert line.statuses(NOW_MS) == BucketLine(after, {"tpm": limit}, NOW_MS).statuses(NOW_MS)


@given(buckets(), limits, st.integers(1, 40), st.integers(0, 9))
def test_a_block_is_at_most_half_of_what_is_left(
    bucket: Bucket | None, limit: Limit, tokens: int, times: int
) -> None:
    """So the next process finds some tokens, and the whole block can be taken."""
    reading_ms = max(NOW_MS, bucket.refilled_at_ms) if bucket else NOW_MS
    line = BucketLine(bucket, {"tpm": limit}, reading_ms, None)
    if not line.has_room({"tpm": tokens}):
        return
    line.take({"tpm": tokens})
    left = line.statuses(NOW_MS)["tpm"].remaining
    ahead = line.ahead(times)["tpm"]
    assert ahead == max(0, min(times * tokens, left // 2))
    line.take({"tpm": ahead})
    line.plan(KEY)


def test_a_block_is_spent_once_in_its_time_and_under_its_limits() -> None:
    limit = Limit("tpm", 10, 1, 60_000)
    block = Block(KEY, {"tpm": limit}, {"tpm": 5}, expires_ms=100)
    debit = Debit(KEY, {"tpm": limit}, {"tpm": 3})
    other = Debit(KEY, {"tpm": Limit("tpm", 20, 1, 60_000)}, {"tpm": 3})
    assert block.has(debit, 99)
    assert not block.has(debit, 100)
    assert not block.has(other, 0)
    block.spend(debit)
    assert not block.has(debit, 0)
    assert block.rest.tokens == {"tpm": -2}
