"""Packs items as msgpack, with two extension types.

Sets and integers beyond 64 bits take a slower path than plain values.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pricekeeper.storage.tables import Key
from pricekeeper.storage.values import DAMAGED, Foreign, Item, Value, number_bytes

_SET: Final = 1
_WIDE_INTEGER: Final = 2
_PLAIN: Final = frozenset({str, int, bool, bytes, type(None)})
_WORD: Final = range(-(2**63), 2**64)


def _extension(code: int, data: memoryview) -> Any:
    if code == _SET:
        return frozenset(msgspec.msgpack.decode(data, type=list[str]))
    if code == _WIDE_INTEGER:
        return int(bytes(data))
    raise ValueError(f"unknown extension {code} in a stored item")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_extension).decode


def pack(item: Item) -> bytes:
    """The bytes of an item."""
    for value in item.values():
        if type(value) not in _PLAIN:
            break
    else:
        try:
            return _encode(item)
        except OverflowError:
            pass  # a wide integer: take the road below
    return _encode({name: _encodable(value) for name, value in item.items()})


def unpack(data: bytes, key: Key) -> Item:
    """The item of these bytes at that key; undecodable ones give its key and a mark."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError):  # ValueError: an extension that is not ours
        return {**key.attributes, DAMAGED: Foreign("bytes that can't be decoded")}


def _encodable(value: Value) -> object:
    if isinstance(value, (set, frozenset)):
        return msgspec.msgpack.Ext(_SET, _encode(sorted(value)))
    if type(value) is int and value not in _WORD:
        number_bytes(value)  # refuses what no store can hold: an ADD may have got us here
        return msgspec.msgpack.Ext(_WIDE_INTEGER, str(value).encode())
    if isinstance(value, (list, tuple)):
        return [_encodable(member) for member in value]
    if isinstance(value, dict):
        return {name: _encodable(member) for name, member in value.items()}
    return value
