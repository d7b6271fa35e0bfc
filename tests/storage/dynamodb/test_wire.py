"""Items on the wire and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage import Key
from pricekeeper.storage.dynamodb.wire import decode, decode_item, encode, encode_item, encode_key
from pricekeeper.storage.values import Foreign, same

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**38) + 1, 10**38 - 1)
    | st.text()
    | st.binary()
    | st.frozensets(st.text(), min_size=1),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), VALUES))
def test_every_item_survives_the_wire(item: dict[str, Any]) -> None:
    assert same(decode_item(encode_item(item)), item)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ("", {"S": ""}),
        (-5, {"N": "-5"}),
        (True, {"BOOL": True}),
        (None, {"NULL": True}),
        (b"\xff", {"B": "/w=="}),
        ((1, "a"), {"L": [{"N": "1"}, {"S": "a"}]}),
        ({"k": False}, {"M": {"k": {"BOOL": False}}}),
        ({"b", "a"}, {"SS": ["a", "b"]}),
    ],
    ids=["S", "N", "BOOL", "NULL", "B", "L", "M", "SS"],
)
def test_what_goes_over_the_wire(value: Any, attribute: dict[str, Any]) -> None:
    """DynamoDB's own spelling; sets in order, so that equal items have equal bytes."""
    assert encode(value) == attribute


def test_a_set_comes_back_frozen() -> None:
    assert type(decode({"SS": ["a"]})) is frozenset


@pytest.mark.parametrize(
    ("text", "number"), [("5", 5), ("-0", 0), ("5.0", 5), ("1E+3", 1000), ("12.50E1", 125)]
)
def test_an_integer_in_any_spelling(text: str, number: int) -> None:
    """What DynamoDB may make of a number that another program wrote."""
    decoded = decode({"N": text})
    assert decoded == number
    assert type(decoded) is int


@pytest.mark.parametrize("text", ["5.5", "1E-3", "NaN", "Infinity", "five", ""])
def test_a_fraction_is_never_cut_off(text: str) -> None:
    """It was not written by us, and rounding it would be a wrong sum: it is no number at all."""
    assert isinstance(decode({"N": text}), Foreign)


@pytest.mark.parametrize("attribute", [{"NS": ["1"]}, {"BS": ["AA=="]}, {}], ids=repr)
def test_a_type_that_the_port_lacks_is_told(attribute: dict[str, Any]) -> None:
    """Rather than handed on as something else; the items beside it are none the worse for it."""
    assert isinstance(decode(attribute), Foreign)


def test_a_foreign_value_can_not_be_written() -> None:
    with pytest.raises(InvalidOperationError):
        encode(Foreign("a fraction"))  # type: ignore[arg-type]


def test_derived_containers_are_their_kind_and_nothing_else_is() -> None:
    """The rule of the port: exact scalars, any list, tuple, dict or set."""

    class Names(list[str]):
        pass

    assert encode(Names(["a"])) == {"L": [{"S": "a"}]}
    with pytest.raises(InvalidOperationError):
        encode(1.5)  # type: ignore[arg-type]


def test_keys() -> None:
    assert encode_key(Key("a")) == {"PK": {"S": "a"}}
    assert encode_key(Key("a", "b")) == {"PK": {"S": "a"}, "SK": {"S": "b"}}
