"""The number of values of a body, bounded before it is parsed."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.bedrock.reading import DIGITS_AS_A_VALUE, EXPONENT_VALUES, VALUES_MAX, weigh

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(alphabet='a,[{]}"\\: \n\t\u00df', max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=30,
)


def values_in(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, inner))


@given(value=JSON, spaced=st.booleans())
def test_no_body_has_more_values_than_are_counted(value: Any, spaced: bool) -> None:
    """Without its texts it is counted closely: a mark for each value, and one for what is empty."""
    text = json.dumps(value, indent=1 if spaced else None, ensure_ascii=spaced).encode()
    counted = weigh(text)
    assert values_in(value) <= counted <= 2 * values_in(value) + len(text) // DIGITS_AS_A_VALUE


def test_many_texts_take_no_more_room_than_the_body() -> None:
    """They are refused by their number, without a list of them."""
    body = b"[" + b',""' * 500_000 + b"]"
    tracemalloc.start()
    try:
        assert weigh(body) > VALUES_MAX
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 3 * len(body)


@pytest.mark.parametrize(
    ("number", "least"),
    [(b"1e5", EXPONENT_VALUES), (b"2.4E-324", EXPONENT_VALUES), (b"9" * 4_299, 134), (b"true", 1)],
)
def test_numbers_that_take_long_count_for_more(number: bytes, least: int) -> None:
    many = weigh(b"[" + b",".join([number] * 1_000) + b"]")
    assert 1_000 * least <= many <= 1_000 * (least + 2)


def test_names_are_no_values() -> None:
    pairs = {str(number): "text" for number in range(60_000)}
    assert weigh(json.dumps(pairs).encode()) < VALUES_MAX
