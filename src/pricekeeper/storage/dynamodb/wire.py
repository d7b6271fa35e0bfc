"""Converts items to DynamoDB's attribute JSON and back.

A value is an object whose one entry names its type: ``{"N": "5"}``. Dispatch is by exact type
first, which fits nearly every value. Another program's fractions and types become `Foreign`: an
error here would lose the other items of the reply.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from pricekeeper.errors import InvalidOperationError
from pricekeeper.storage.tables import Key
from pricekeeper.storage.values import PARTITION_KEY, SORT_KEY, Foreign, Item, Value

Attribute: TypeAlias = dict[str, Any]
Attributes: TypeAlias = dict[str, Attribute]


def encode_item(item: Mapping[str, Value]) -> Attributes:
    """An item on the wire."""
    return {name: encode(value) for name, value in item.items()}


def encode_key(key: Key) -> Attributes:
    """A key on the wire."""
    if key.sk is None:
        return {PARTITION_KEY: {"S": key.pk}}
    return {PARTITION_KEY: {"S": key.pk}, SORT_KEY: {"S": key.sk}}


def encode(value: Value) -> Attribute:
    """One value with its type."""
    encoder = _ENCODERS.get(type(value))
    return _encode_subclass(value) if encoder is None else encoder(value)


def decode_item(attributes: Attributes) -> Item:
    """The item of these attributes."""
    return {name: decode(attribute) for name, attribute in attributes.items()}


def decode(attribute: Attribute) -> Value | Foreign:
    """The value of one attribute."""
    for kind, content in attribute.items():
        decoder = _DECODERS.get(kind)
        return Foreign(kind) if decoder is None else decoder(content)
    return Foreign("no type")


def _encode_list(value: Any) -> Attribute:
    return {"L": [encode(member) for member in value]}


def _encode_map(value: Any) -> Attribute:
    return {"M": encode_item(value)}


def _encode_set(value: Any) -> Attribute:
    return {"SS": sorted(value)}  # sorted, so that equal operations have equal bytes


_ENCODERS: Final[dict[type, Callable[[Any], Attribute]]] = {
    str: lambda value: {"S": value},
    int: lambda value: {"N": str(value)},
    bool: lambda value: {"BOOL": value},
    type(None): lambda _: {"NULL": True},
    bytes: lambda value: {"B": b64encode(value).decode()},
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
    set: _encode_set,
    frozenset: _encode_set,
}


def _encode_subclass(value: Value) -> Attribute:
    """A container of a derived type; the port allows no derived scalars."""
    if isinstance(value, (list, tuple)):
        return _encode_list(value)
    if isinstance(value, dict):
        return _encode_map(value)
    if isinstance(value, (set, frozenset)):
        return _encode_set(value)
    raise InvalidOperationError(f"an item can't hold a {type(value).__name__}")


def _decode_number(text: str) -> int | Foreign:
    try:
        return int(text)
    except ValueError:
        pass  # "5.0" and "1E+3" are integers too, in DynamoDB's other spellings
    try:
        number = Decimal(text)
        if number.is_finite() and number == number.to_integral_value():
            return int(number)
    except InvalidOperation:
        pass  # not a number at all
    return Foreign("a number that is not an integer")


_DECODERS: Final[dict[str, Callable[[Any], Value | Foreign]]] = {
    "S": lambda content: content,
    "N": _decode_number,
    "BOOL": lambda content: content,
    "NULL": lambda _: None,
    "B": b64decode,
    "L": lambda content: [decode(member) for member in content],  # type: ignore[misc]
    "M": decode_item,
    "SS": frozenset,
}
