"""Encoded answers, cached while the same value is answered again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from pricekeeper.concurrency import BoundedCache
from pricekeeper.tenants import Client

ENCODED_MAX: Final = 10_000
"""Clients with a cached answer."""
_encode: Final = msgspec.json.Encoder().encode
_Value = TypeVar("_Value")


class Encoded(NamedTuple):
    """The bytes of an answer and their ETag."""

    data: bytes
    etag: bytes


def encode_answer(body: Any) -> Encoded:
    """Encode a body as JSON, with its ETag."""
    data = _encode(body)
    return Encoded(data, b'"%s"' % hashlib.blake2b(data, digest_size=12).hexdigest().encode())


class EncodedAnswers:
    """The last answer of each client. Beyond `ENCODED_MAX`, the oldest is evicted."""

    def __init__(self, entries_max: int = ENCODED_MAX) -> None:
        self._entries: BoundedCache[Client, tuple[object, Encoded]] = BoundedCache(entries_max)

    def encode(self, client: Client, value: _Value, body_of: Callable[[_Value], Any]) -> Encoded:
        known = self._entries.get(client)
        if known is not None and known[0] is value:
            return known[1]
        encoded = encode_answer(body_of(value))
        self._entries.put(client, (value, encoded))
        return encoded

    def __contains__(self, client: Client) -> bool:
        return client in self._entries
