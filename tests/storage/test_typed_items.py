"""Attributes with the types they must have: what is not so is reported, and raised."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import pytest

from pricekeeper.errors import UnreadableItemError
from pricekeeper.storage import TypedItem
from pricekeeper.storage.tables import CONFIG
from pricekeeper.storage.typed_items import StrangeItems
from pricekeeper.storage.values import DAMAGED, Foreign

KEY = {"PK": "ORG#a", "SK": "ORG"}


def item(**attributes: Any) -> TypedItem:
    return TypedItem(CONFIG, {**KEY, **attributes})


def test_what_is_there_and_right_is_returned() -> None:
    typed = item(n=5, s="text", m={"a": 1}, names=["a"], some=frozenset({"b"}))
    assert typed.whole("n", least=5) == 5
    assert typed.text("s") == "text"
    assert typed.mapping("m") == {"a": 1}
    assert typed.texts("names") == ["a"]
    assert typed.texts("some") == {"b"}
    assert typed.whole("absent", 7) == 7
    assert typed.wholes(("n", "absent")) == [5, 0]
    assert typed.text("absent", None) is None


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda one: one.whole("absent"), "absent is missing"),
        (lambda one: one.whole("text"), "text must be an integer, not str"),
        (lambda one: one.whole("flag"), "flag must be an integer, not bool"),
        (lambda one: one.whole("foreign"), "foreign must be an integer, not Foreign"),
        (lambda one: one.whole("nothing"), "nothing must be an integer, not null"),
        (lambda one: one.whole("number", least=6), "number must be at least 6"),
        (lambda one: one.wholes(("number", "flag")), "flag must be an integer, not bool"),
        (lambda one: one.wholes(("number", "debt")), "debt must be at least 0"),
        (lambda one: one.text("number"), "number must be a string, not int"),
        (lambda one: one.mapping("names"), "names must be a map, not list"),
        (lambda one: one.texts("text"), "text must be a list of strings, not str"),
        (lambda one: one.texts("mixed"), "mixed must be a list of strings, not list"),
    ],
)
def test_what_is_not_is_reported_with_its_key_and_raised(
    read: Callable[[TypedItem], Any], reason: str
) -> None:
    """By table; the value itself is nowhere, because it may be a secret."""
    typed = item(
        number=5,
        debt=-1,
        text="pks_secret",
        flag=True,
        foreign=Foreign("NS"),
        nothing=None,
        names=["a"],
        mixed=["a", 5],
    )
    with StrangeItems() as strange, pytest.raises(UnreadableItemError) as caught:
        read(typed)
    assert str(caught.value) == f"the Config item ORG#a / ORG can't be read: {reason}"
    assert strange.counts == {"Config": 1}
    assert list(strange.latest) == [f"Config ORG#a / ORG: {reason}"]


class Colour(StrEnum):
    RED = "RED"


@dataclass(frozen=True)
class Car:
    colour: Colour
    doors: tuple[str, ...]
    seats: Annotated[int, msgspec.Meta(ge=1)] = 4


def test_an_item_is_a_value_of_a_type() -> None:
    """By the names of its fields: other attributes do not count, and a set is as good as a list."""
    assert item(colour="RED", doors=["left"]).convert(Car) == Car(Colour.RED, ("left",))
    assert item(colour="RED", doors=frozenset({"a"}), seats=1).convert(Car).doors == ("a",)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"colour": "pks_secret"}, "colour: invalid enum value"),
        ({"doors": ["a", 5]}, "doors[1]: expected str, got int"),
        ({"seats": 0}, "seats: expected int >= 1"),
        ({"seats": Foreign("NS")}, "seats: expected int, got Foreign"),
    ],
)
def test_what_is_of_no_such_type_is_reported_and_raised(
    attributes: dict[str, Any], reason: str
) -> None:
    typed = item(**{"colour": "RED", "doors": [], **attributes})
    with StrangeItems() as strange, pytest.raises(UnreadableItemError) as caught:
        typed.convert(Car)
    assert str(caught.value) == f"the Config item ORG#a / ORG can't be read: {reason}"
    assert strange.counts == {"Config": 1}


def test_what_is_strange_is_counted_by_whoever_counts_now() -> None:
    with StrangeItems() as first:
        with StrangeItems() as second, pytest.raises(UnreadableItemError):
            item(number="5").whole("number")
        with pytest.raises(UnreadableItemError):
            item(number="5").whole("number")
    assert (first.counts["Config"], second.counts["Config"]) == (2, 1)
    assert StrangeItems().counts == {}


def test_an_item_that_can_not_be_decoded_has_no_attributes_at_all() -> None:
    """Not even absent ones, which might count as nothing."""
    with pytest.raises(UnreadableItemError):
        item(**{DAMAGED: Foreign("bytes")})
