"""The arithmetic of buckets and its writes, compared with a reference in fractions.

No store is needed: operations can apply themselves and check their conditions.
"""

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import Violation
from pricekeeper.limiter import Limit
from pricekeeper.limiter.bucket import (
    Bucket,
    Create,
    Debit,
    Denial,
    Holding,
    LimitStatus,
    Refill,
    TakeOnly,
    bearable,
    effective,
    new_bucket,
    plan,
    plan_refill,
    rescaled,
)
from pricekeeper.limiter.bucket_lines import BucketLine
from pricekeeper.limiter.items import bucket_item, bucket_of
from pricekeeper.limiter.writes import adjust_update, create_put, refill_update, take_update
from pricekeeper.storage import Item, Key, Update

NOW = 1_768_000_000_000
TEN = Limit.per_second("n", 10)

limits = st.builds(
    Limit,
    st.just("n"),
    st.integers(1, 50),
    st.integers(1, 50),
    st.sampled_from([1, 7, 777, 1_000, 60_000, 86_400_000]),
).filter(lambda limit: limit.filling_ms(limit.capacity_units) < 10**10)


@dataclass
class Reference:
    """The same limit as a total of debits against a total of refills that never stops.

    Both totals count from the start. ``owed`` minus the refill is missing from the capacity. A take
    from a full bucket starts at the refill so far. A charge counts from the last take from a full
    bucket.
    """

    limit: Limit
    owed: Fraction = Fraction(0)

    def refilled(self, now_ms: int) -> Fraction:
        return Fraction(self.limit.refill_amount * (now_ms - NOW), self.limit.refill_period_ms)

    def left(self, now_ms: int) -> Fraction:
        return self.limit.capacity - max(Fraction(0), self.owed - self.refilled(now_ms))

    def take(self, tokens: int, now_ms: int) -> bool:
        if self.left(now_ms) < tokens:
            return False
        self.settle(now_ms)
        self.owed += tokens
        return True

    def settle(self, now_ms: int) -> None:
        self.owed = max(self.owed, self.refilled(now_ms))


def debit_of(limit: Limit, tokens: int) -> Debit:
    return Debit(Key("e", "r"), {"n": limit}, {"n": tokens})


def status(bucket: Bucket, limit: Limit, now_ms: int) -> LimitStatus:
    return BucketLine(bucket, {limit.name: limit}, now_ms).statuses(now_ms)[limit.name]


def made(debit: Debit) -> Item:
    """Make the bucket, with the debit taken."""
    return create_put(debit.key, new_bucket(debit, NOW)).item


def holds(update: Update, item: Item) -> bool:
    assert update.condition is not None
    return update.condition.holds(item)


def refill_of(item: Item, debit: Debit, now_ms: int) -> Update:
    """Plan the debit, which must settle refill, and return its write."""
    step = plan(bucket_of(item), debit, now_ms)
    assert isinstance(step, Refill)
    return refill_update(debit, step)


def written(item: Item | None, debit: Debit, now_ms: int) -> tuple[Item | None, bool]:
    """Take the debit as the limiter does, and check that the write's condition holds."""
    step = plan(bucket_of(item), debit, now_ms)
    if isinstance(step, Denial):
        return item, False
    if isinstance(step, Create):
        put = create_put(debit.key, step.after)
        assert item is None
        return put.item, True
    update = refill_update(debit, step) if isinstance(step, Refill) else take_update(debit, step)
    assert item is not None
    assert holds(update, item)
    return update.apply(item), True


@given(
    limits,
    st.lists(
        st.tuples(
            st.sampled_from(["take", "take", "take", "use more", "give back"]),
            st.integers(0, 60),
            st.integers(0, 100_000),
        ),
        max_size=30,
    ),
)
def test_a_bucket_agrees_with_the_reference(
    limit: Limit, steps: list[tuple[str, int, int]]
) -> None:
    """Any sequence of takes, adjustments and waits gives the same answers as the reference."""
    item: Item | None = None
    now_ms = NOW
    reference = Reference(limit)
    for kind, tokens, waited_ms in steps:
        now_ms += waited_ms
        if kind == "take":
            item, granted = written(item, debit_of(limit, tokens), now_ms)
            assert granted == reference.take(tokens, now_ms)
        elif item is not None and tokens:
            delta = tokens if kind == "use more" else -tokens
            item = adjusted(item, reference, delta, now_ms)
        bucket = bucket_of(item)
        if bucket is not None:
            units = effective(bucket, bucket.holdings["n"], now_ms)
            assert Fraction(units, limit.units_per_token) == reference.left(now_ms)
            assert units >= -limit.debt_units_max


def adjusted(item: Item, reference: Reference, delta: int, now_ms: int) -> Item:
    """Adjust as the limiter does: up to the bound, settling the refill if necessary."""
    limit = reference.limit
    change, bucket = adjust_update(debit_of(limit, delta)), bucket_of(item)
    assert bucket is not None
    if not holds(change, item):
        borne = bearable(bucket, debit_of(limit, delta), now_ms)["n"]
        assert borne == (reference.left(now_ms) + 4 * limit.capacity) // 1
        item = refill_update(
            debit_of(limit, 0), plan_refill(bucket, debit_of(limit, 0), now_ms)
        ).apply(item)
        reference.settle(now_ms)
        delta = min(delta, borne)
        change = adjust_update(debit_of(limit, delta))
        assert holds(change, item)
    reference.owed += delta
    return change.apply(item)


@given(limits, st.integers(0, 60), st.integers(0, 100_000), st.integers(-50, 0))
def test_a_denial_says_exactly_how_long_to_wait(
    limit: Limit, tokens: int, waited_ms: int, debt: int
) -> None:
    """One millisecond less is not enough; more than the capacity is "never"."""
    units = debt * limit.units_per_token
    bucket = Bucket(NOW, NOW, {"n": Holding(limit, units)})
    now_ms = NOW + waited_ms
    outcome = plan(bucket, debit_of(limit, tokens), now_ms)
    if not isinstance(outcome, Denial):
        return
    wait_ms = outcome.retry_after_ms
    assert (wait_ms is None) == (tokens > limit.capacity)
    if outcome.settle is not None:  # a debt beyond its bound, which the denial cuts
        assert effective(bucket, bucket.holdings["n"], now_ms) < -limit.debt_units_max
        bucket = outcome.settle.after
        assert bucket.holdings["n"].units == -limit.debt_units_max
    if wait_ms is not None:
        assert not isinstance(plan(bucket, debit_of(limit, tokens), now_ms + wait_ms), Denial)
        assert isinstance(plan(bucket, debit_of(limit, tokens), now_ms + wait_ms - 1), Denial)


def test_a_lagging_clock_waits_for_the_time_of_the_bucket() -> None:
    """The bucket was refilled two seconds ahead of this clock; it refills again after that."""
    bucket = Bucket(NOW + 2_000, NOW, {"n": Holding(TEN, 0)})
    outcome = plan(bucket, debit_of(TEN, 1), NOW)

    assert isinstance(outcome, Denial)
    assert outcome.retry_after_ms == 2_100
    assert not isinstance(plan(bucket, debit_of(TEN, 1), NOW + 2_100), Denial)


def test_a_lagging_clock_takes_what_is_stored_and_moves_nothing_back() -> None:
    """For it no time has passed, and never a negative time."""
    bucket = Bucket(NOW + 2_000, NOW, {"n": Holding(TEN, 5 * TEN.units_per_token)})

    assert plan(bucket, debit_of(TEN, 5), NOW) == TakeOnly(NOW, NOW)
    assert effective(bucket, bucket.holdings["n"], NOW) == 5 * TEN.units_per_token
    over_full = Bucket(NOW + 2_000, NOW, {"n": Holding(TEN, 11 * TEN.units_per_token)})
    step = plan(over_full, debit_of(TEN, 1), NOW)
    assert isinstance(step, Refill)
    assert step.after.refilled_at_ms == NOW + 2_000


def test_a_take_only_is_refused_by_a_bucket_that_has_been_full() -> None:
    """Otherwise the stored balance could be taken twice: as stored, and as refilled since."""
    debit = debit_of(TEN, 10)
    full = made(debit_of(TEN, 0))
    an_hour_later = NOW + 3_600_000
    stale = take_update(debit, TakeOnly(NOW, an_hour_later))

    assert not holds(stale, full)


def test_a_refill_is_refused_if_others_took_its_tokens_meanwhile() -> None:
    """``rf`` does not show that: a `TakeOnly` does not change it."""
    item = made(debit_of(TEN, 0))
    later = NOW + 5_000
    update = refill_of(item, debit_of(TEN, 8), later)
    assert holds(update, item)

    robbed = take_update(debit_of(TEN, 5), TakeOnly(NOW, NOW)).apply(item)

    assert not holds(update, robbed)


def test_a_debt_is_not_cut_if_others_have_deepened_it_meanwhile() -> None:
    """The cut was computed from an old reading; it would leave a deeper debt."""
    bucket = Bucket(NOW, NOW, {"n": Holding(TEN, -TEN.debt_units_max - 1)})
    denial = plan(bucket, debit_of(TEN, 1), NOW)
    assert isinstance(denial, Denial)
    assert denial.settle is not None
    write = refill_update(debit_of(TEN, 1), denial.settle)
    item = bucket_item(Key("e", "r"), bucket)
    assert holds(write, item)

    assert not holds(write, {**item, "tk.n": item["tk.n"] - 1})


@pytest.mark.parametrize(
    ("first", "debit", "waited_ms"),
    [
        (10, debit_of(TEN, 1), 5_000),
        (1, Debit(Key("e", "r"), {"n": TEN, "new": Limit.per_day("new", 10)}, {"new": 10}), 0),
    ],
    ids=["a refill", "a new limit, in the same millisecond"],
)
def test_two_instances_that_write_the_same_refill_apply_it_once(
    first: int, debit: Debit, waited_ms: int
) -> None:
    """The second write is refused, or tokens that the first took would reappear."""
    item = made(debit_of(TEN, first))
    write = refill_of(item, debit, NOW + waited_ms)
    assert holds(write, item)

    assert not holds(write, write.apply(item))


def test_new_terms_are_refused_if_others_took_meanwhile() -> None:
    """New terms set the balance, so tokens that others took would reappear."""
    old, new = Limit.per_second("n", 10), Limit.per_second("n", 20)
    item = made(debit_of(old, 0))
    write = refill_of(item, debit_of(new, 1), NOW + 1)
    assert holds(write, item)

    assert not holds(write, take_update(debit_of(old, 1), TakeOnly(NOW, NOW)).apply(item))
    assert not holds(write, write.apply(item))


@given(limits, limits, st.integers(-100, 100))
def test_rescaling_never_gains(old: Limit, new: Limit, percent: int) -> None:
    """Full stays full, empty empty, a debt keeps its tokens; there and back gains nothing."""
    units = old.capacity_units * percent // 100
    there = rescaled(units, old, new)

    assert rescaled(old.capacity_units, old, new) == new.capacity_units
    assert there <= new.capacity_units
    assert rescaled(there, new, old) <= units
    if units < 0:
        owed = Fraction(-units, old.units_per_token)
        assert Fraction(-there, new.units_per_token) >= owed
        assert Fraction(-there, new.units_per_token) - owed < Fraction(1, new.units_per_token)


def test_a_bucket_whose_limits_changed_is_brought_up_to_date_even_by_a_denial() -> None:
    """So the new rate counts from now on, and the promised wait is right."""
    slow, fast = Limit.per_hour("n", 10), Limit.per_second("n", 10)
    bucket = Bucket(NOW, NOW, {"n": Holding(slow, 0)})
    outcome = plan(bucket, debit_of(fast, 5), NOW)

    assert isinstance(outcome, Denial)
    assert outcome.retry_after_ms == 500
    assert outcome.settle is not None
    settled = outcome.settle.after
    assert not isinstance(plan(settled, debit_of(fast, 5), NOW + 500), Denial)
    assert isinstance(plan(settled, debit_of(fast, 5), NOW + 499), Denial)


def test_a_limit_that_is_gone_is_kept_until_it_is_full() -> None:
    """Otherwise two instances with different settings could refill it by removing and adding it."""
    limit, gone = Limit.per_second("n", 10), Limit.per_minute("gone", 6)
    bucket = Bucket(NOW, NOW, {"n": Holding(limit, 0), "gone": Holding(gone, 0)})

    soon = plan(bucket, debit_of(limit, 10), NOW + 10_000)
    assert isinstance(soon, Refill)
    assert status(soon.after, gone, NOW + 10_000).remaining == 1
    late = plan(bucket, debit_of(limit, 10), NOW + 60_000)
    assert isinstance(late, Refill)
    assert late.after.holdings.keys() == {"n"}


@given(limits, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10**9)), max_size=20))
def test_a_bucket_expires_only_once_it_is_full(limit: Limit, uses: list[tuple[int, int]]) -> None:
    """An absent bucket is full, so expiring earlier would create tokens."""
    item: Item | None = None
    now_ms = NOW
    for tokens, waited_ms in uses:
        now_ms += waited_ms
        if item is not None and item["expires_at_epoch"] * 1_000 <= now_ms:
            item = None
        item, granted = written(item, debit_of(limit, tokens), now_ms)
        if item is not None and granted and tokens:
            item = adjust_update(debit_of(limit, tokens)).apply(item)
        bucket = bucket_of(item)
        if bucket is not None:
            full_at_ms = status(bucket, limit, now_ms).full_at_ms
            assert bucket.expires_at_epoch * 1_000 >= full_at_ms + 3_600_000


@pytest.mark.parametrize("tokens", [0, 5])
def test_naming_a_limit_with_nothing_insists_on_no_debt(tokens: int) -> None:
    """A request of 0 takes nothing, but a limit below zero denies it."""
    owing = Bucket(NOW, NOW, {"n": Holding(TEN, -1)})

    assert isinstance(plan(owing, debit_of(TEN, tokens), NOW), Denial)
    assert not isinstance(plan(owing, debit_of(TEN, 0), NOW + 1), Denial)


def test_a_refill_is_refused_if_others_took_from_a_limit_that_has_not_overflowed() -> None:
    """One limit has been full, so all are settled; the other one must still have enough."""
    full, scarce = Limit.per_second("full", 10), Limit.per_day("scarce", 10)
    both = {"full": full, "scarce": scarce}
    nothing = Debit(Key("e", "r"), both, {"scarce": 2})
    item = made(nothing)
    debit = Debit(Key("e", "r"), both, {"full": 1, "scarce": 6})
    write = refill_of(item, debit, NOW + 5_000)
    other = Debit(Key("e", "r"), both, {"scarce": 1})

    for taken, fits in ((2, True), (3, False)):
        robbed = item
        for _ in range(taken):
            robbed = take_update(other, TakeOnly(NOW, NOW + 5_000)).apply(robbed)
        assert holds(write, robbed) == fits


def test_a_bucket_that_is_just_full_has_nothing_to_settle() -> None:
    """Nothing has overflowed yet, so concurrent takes do not conflict."""
    bucket = new_bucket(debit_of(TEN, 5), NOW)

    assert isinstance(plan(bucket, debit_of(TEN, 1), NOW + 500), TakeOnly)
    assert isinstance(plan(bucket, debit_of(TEN, 1), NOW + 501), Refill)


def test_a_lagging_clock_does_not_say_that_it_takes_longer_until_a_limit_is_full() -> None:
    """The wait counts by the bucket's own time, which is ahead of ours."""
    bucket = Bucket(NOW + 2_000, NOW, {"n": Holding(TEN, 0)})

    assert status(bucket, TEN, NOW).full_at_ms == NOW + 1_000


def test_a_debt_is_kept_until_it_is_paid_though_another_limit_is_settled() -> None:
    """An absent bucket is full, so it may not expire before."""
    limit, owing = Limit.per_second("n", 10), Limit.per_day("owing", 10)
    debt = -owing.debt_units_max
    bucket = Bucket(NOW, NOW, {"n": Holding(limit, 0), "owing": Holding(owing, debt)})
    debit = Debit(Key("e", "r"), {"n": limit, "owing": owing}, {"n": 1})
    step = plan(bucket, debit, NOW + 5_000)

    assert isinstance(step, Refill)
    full_at_ms = status(step.after, owing, NOW + 5_000).full_at_ms
    assert step.after.expires_at_epoch * 1_000 > full_at_ms


def test_a_wait_is_shortened_by_what_has_passed_and_never_below_nothing() -> None:
    told = Denial(tuple(Violation("e", "r", "n", 1, 0, wait) for wait in (100, 30, None)))

    assert [one.retry_after_ms for one in told.after_waiting(40).violations] == [60, 0, None]
