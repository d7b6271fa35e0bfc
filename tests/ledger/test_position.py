"""Positions of sheets, and ids of authorizations."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.ledger.position import (
    NUMBERS_MAX,
    ON_SHEET_MAX,
    SALT_BITS,
    Chapter,
    Position,
    authorization_id_of,
    begin_chapter,
    chapter_in,
    number_in,
    outcome_name,
    outcomes_sort_key,
    region_of,
    sheet_number,
    sheet_sort_key,
    sheets_between,
)
from pricekeeper.ticks import TICK_MS

NOW_MS = 1_790_000_000_000
moments = st.integers(0, 4_000_000_000_000)
salts = st.integers(0, (1 << SALT_BITS) - 1)
numbers = st.integers(0, NUMBERS_MAX - 1)
on_sheet = st.integers(0, ON_SHEET_MAX - 1)


@given(moments, salts, numbers, on_sheet)
def test_an_id_says_where_its_authorization_is(
    at_ms: int, salt: int, number: int, which: int
) -> None:
    """It is a UUID of version 8, and has all of the position in it."""
    position = Position(begin_chapter(at_ms, salt), number)
    one = authorization_id_of(position.sort_key, which)
    assert str(UUID(one)) == one
    assert (UUID(one).version, UUID(one).variant) == (8, "specified in RFC 4122")
    assert sheet_sort_key(one) == position.sort_key
    assert position.sort_key.startswith(position.prefix)
    assert sheet_number(one) == which
    assert region_of(one) == position.chapter.region
    assert chapter_in(position.sort_key) == position.chapter.name
    assert number_in(position.sort_key) == number


@given(moments, salts, numbers, numbers)
def test_sort_keys_are_in_the_order_of_the_sheets(
    at_ms: int, salt: int, one: int, other: int
) -> None:
    chapter = begin_chapter(at_ms, salt)
    keys = [Position(chapter, number).sort_key for number in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


def test_chapters_follow_each_other_in_the_order_of_their_names() -> None:
    """Also if the clock of who begins the next one is behind."""
    first = begin_chapter(NOW_MS, 1)
    names = [first.name]
    for at_ms in (NOW_MS, NOW_MS - 10 * TICK_MS, NOW_MS + TICK_MS, NOW_MS, NOW_MS + 2 * TICK_MS):
        following = first.following(at_ms, 2)
        assert following is not None
        assert Chapter.parse(following.text) == following
        first = following
        names.append(first.name)
    assert names == sorted(set(names))


def test_a_region_has_names_for_sixteen_chapters() -> None:
    chapter: Chapter | None = begin_chapter(NOW_MS, 0)
    count = 0
    while chapter is not None:
        count += 1
        chapter = chapter.following(NOW_MS, count)
    assert count == 16


@pytest.mark.parametrize("text", ["", "0166d9360", "0166d9360" + "0" * 12, "x" * 22])
def test_what_names_no_chapter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"chapter|literal"):
        Chapter.parse(text)


def test_how_many_sheets_lie_between() -> None:
    chapter = begin_chapter(NOW_MS, 5)
    claim = authorization_id_of(Position(chapter, 0xFE).sort_key, 0)
    other = chapter.following(NOW_MS, 6)
    assert other is not None
    assert sheets_between(claim, Position(chapter, 0x101)) == 3
    assert sheets_between(claim, Position(chapter, 0xF0)) == -14
    assert sheets_between(claim, Position(other, 0x101)) is None


@given(moments, salts, st.integers(0, 600), st.integers(0, 20), on_sheet, st.integers(0, 1))
def test_outcomes_of_sixteen_sheets_are_filed_together_under_names_of_their_own(
    at_ms: int, salt: int, first: int, further: int, which: int, other: int
) -> None:
    chapter, second = begin_chapter(at_ms, salt), first + further
    ids = [
        authorization_id_of(Position(chapter, number).sort_key, number_there)
        for number, number_there in ((first, which), (second, which ^ other))
    ]
    together = outcomes_sort_key(ids[0]) == outcomes_sort_key(ids[1])
    assert together == (first >> 4 == second >> 4)
    if together:
        assert (outcome_name(ids[0]) == outcome_name(ids[1])) == (ids[0] == ids[1])
