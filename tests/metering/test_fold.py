"""How a total moves forward, without a store: nothing counts twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.metering.counters import NOTHING, Counters
from pricekeeper.metering.fold import Behind, Fold, add_up


def some(requests: int) -> Counters:
    return Counters(requests * 7, requests * 3, requests=requests)


def moved(fold: Fold | None) -> Fold:
    assert fold is not None, "nothing has changed"
    return fold


def test_an_open_tick_is_summed_anew() -> None:
    """What an earlier fold had seen of it is replaced, not added to."""
    first = moved(Fold().forward({5: some(1)}, 5, 3))
    second = moved(first.forward({5: some(4)}, 5, 3))
    assert (first.total, second.total, second.rev) == (some(1), some(4), 2)
    assert second.parts == {5: some(4)}


def test_a_closed_tick_stays_in_the_total_and_is_forgotten_by_itself() -> None:
    """It is not counted again if it is read once more."""
    fold = moved(Fold().forward({5: some(1), 6: some(2)}, 6, 5))
    assert (fold.total, fold.closed, fold.parts) == (some(3), 5, {6: some(2)})
    assert fold.forward({5: some(1), 6: some(2)}, 6, 5) is None
    assert fold.counters_with({5: some(1), 6: some(2)}) == some(3)


def test_nothing_new_changes_nothing() -> None:
    """Then nothing is written."""
    assert Fold().forward({}, 5, 3) is None
    fold = moved(Fold().forward({5: some(1)}, 5, 3))
    assert fold.forward({5: some(1)}, 5, 4) is None


@pytest.mark.parametrize("found", [{}, {5: some(1)}, {5: Counters(99, 99, requests=1)}])
def test_who_has_read_less_than_what_is_stored_reads_again(found: dict[int, Counters]) -> None:
    """In one number is enough."""
    fold = moved(Fold().forward({5: some(2)}, 5, 3))
    with pytest.raises(Behind):
        fold.forward(found, 5, 3)


def test_a_part_that_was_not_read_stays() -> None:
    """Another run has seen later ticks than this one has looked at."""
    fold = moved(Fold().forward({5: some(1), 7: some(2)}, 7, 3))
    more = moved(fold.forward({5: some(3)}, 6, 3))
    assert (more.total, more.parts) == (some(5), {5: some(3), 7: some(2)})


def test_a_part_before_what_was_read_stays_until_it_is_closed() -> None:
    """A run sums many ticks in portions, and the last ticks of a portion may be open."""
    fold = moved(Fold().forward({5: some(1), 6: some(2)}, 6, 5))
    more = moved(fold.forward({7: some(4)}, 7, 5, 7))
    assert (more.total, more.parts) == (some(7), {6: some(2), 7: some(4)})
    closed = moved(more.forward({7: some(4)}, 7, 6, 7))
    assert (closed.total, closed.parts) == (some(7), {7: some(4)})


def test_what_was_adopted_is_one_part_that_only_grows() -> None:
    """It is added once; a smaller sum changes nothing."""
    fold = moved(Fold().forward({5: some(1)}, 5, 3))
    with_adopted = moved(fold.with_adopted(some(10)))
    assert with_adopted.total == some(11)
    assert with_adopted.with_adopted(some(10)) is None
    assert with_adopted.with_adopted(some(9)) is None
    more = moved(with_adopted.with_adopted(some(12)))
    assert (more.total, more.adopted) == (some(13), some(12))
    rebuilt = moved(more.rebuilt({5: some(2)}, 5))
    assert (rebuilt.total, rebuilt.adopted) == (some(14), some(12))


def test_a_total_made_anew_never_goes_back_and_finds_what_was_missed() -> None:
    """A record of a closed tick that arrived late is in it then, once."""
    fold = moved(Fold().forward({5: some(1), 8: some(1)}, 8, 6))
    late = moved(fold.rebuilt({5: some(2), 8: some(1)}, 6))
    assert (late.total, late.closed, late.parts) == (some(3), 6, {8: some(1)})
    assert late.rebuilt({5: some(2), 8: some(1)}, 6) is None
    less = moved(late.rebuilt({5: some(1)}, 6))
    assert less.total == some(3)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["post", "fold", "stale", "rebuild"]),
        st.integers(min_value=0, max_value=3),
        st.integers(min_value=1, max_value=5),
    ),
    max_size=30,
)


@given(STEPS)
def test_however_folds_and_records_alternate_the_total_is_the_sum(steps: Any) -> None:
    """Time passes, records are posted in the present tick, and two runs fold, one of them late."""
    now, fold, closed = 10, Fold(), 7
    posted: dict[int, Counters] = {}
    stale: tuple[dict[int, Counters], int, int] | None = None
    for what, ticks, count in steps:
        now += ticks
        if what == "post":
            posted[now] = posted.get(now, NOTHING) + some(count)
            continue
        read = {tick: sums for tick, sums in posted.items() if tick > closed}
        before = fold
        try:
            if what == "rebuild":
                fold = fold.rebuilt(posted, now - 2) or fold
            elif what == "fold" and posted:
                fold = fold.forward(read, max(posted), now - 2) or fold
                closed = now - 2
            elif stale is not None:
                fold = fold.forward(*stale) or fold
        except Behind:
            pass
        stale = (read, max(posted, default=0), now - 2)
        assert fold.total.dominates(before.total)
        assert add_up(posted.values()).dominates(fold.total)
    fold = fold.rebuilt(posted, now) or fold
    assert fold.total == add_up(posted.values())
