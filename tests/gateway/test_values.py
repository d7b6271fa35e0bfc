"""How many values a body has, as it is judged before anybody reads it."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.gateway import planning
from pricekeeper.gateway.planning import VALUES_MAX, count_values

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


@pytest.mark.parametrize("most", [0, 5, 1_000])
@given(value=JSON, spaced=st.booleans())
def test_no_body_has_more_values_than_are_counted(most: int, value: Any, spaced: bool) -> None:
    """Without its texts it is counted closely: a mark for each value, and one for what is empty."""
    text = json.dumps(value, indent=1 if spaced else None, ensure_ascii=spaced).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "VALUES_MAX", most)
        counted = count_values(text)
    assert counted >= min(values_in(value), most + 1)
    assert counted <= 2 * values_in(value) or counted <= most


def test_many_texts_take_no_more_room_than_the_body() -> None:
    """They are too many by their number; nobody makes a list of them."""
    body = b"[" + b',""' * 500_000 + b"]"
    tracemalloc.start()
    try:
        assert count_values(body) > VALUES_MAX
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 3 * len(body)
