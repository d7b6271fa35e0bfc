"""The usage in an event stream, skimmed from its bytes as they pass.

Bytes are not changed and not kept: of each frame of AWS's encoding only the length is read, and
three payloads are looked at: the first two, where Anthropic says what was read from a cache, and
the last, where every model says what was used.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from pricekeeper.bedrock.operations import Operation
from pricekeeper.bedrock.usage import (
    Usage,
    usage_of_body,
    usage_of_converse,
    usage_of_metrics,
    with_rounds,
)

FRAME_BYTES_MAX: Final = 32 << 20
"""A frame that says it is longer is no frame: the rest of the stream is not looked at."""
_PRELUDE_BYTES: Final = 12
_unpack: Final = struct.Struct("!II").unpack_from
"""The lengths of a frame and of its headers; a checksum of both ends the prelude."""
_FRAME_BYTES_MIN: Final = 16
_CRC_BYTES: Final = 4
_FIRST: Final = 2


class StreamUsage:
    """What a stream says was used, once it has said so."""

    __slots__ = (
        "_before",
        "_buffer",
        "_first",
        "_is_converse",
        "_last",
        "_lost",
        "_needed",
        "_tier",
        "size",
    )

    def __init__(self, operation: Operation, service_tier: str | None = None) -> None:
        self._is_converse = operation.is_converse
        self._tier = service_tier
        self._buffer = bytearray()
        """The beginning of a frame whose end has not come."""
        self._needed = 0
        """How many bytes there must be before it is looked at again."""
        self._first: list[bytes] = []
        self._last = self._before = (b"", -1)
        """Bytes with the last frame in them, and where it begins; the same of the one before."""
        self._lost = False
        self.size = 0
        """How many bytes have passed."""

    def feed(self, chunk: bytes) -> bytes:
        """Look at the next bytes; they are to be passed on as they are."""
        self.size += len(chunk)
        if self._buffer:
            self._buffer += chunk
            if len(self._buffer) >= self._needed:
                data = bytes(self._buffer)
                self._buffer.clear()
                self._walk(data)
        elif not self._lost:
            self._walk(chunk)
        return chunk

    def _walk(self, data: bytes) -> None:
        """Go from frame to frame, and keep what is not whole yet."""
        at, end, before, last, needed = 0, len(data), -1, -1, _FRAME_BYTES_MIN
        latest = end - _FRAME_BYTES_MIN
        missing = _FIRST - len(self._first)
        while at <= latest:
            length, headers_length = _unpack(data, at)
            if not _FRAME_BYTES_MIN + headers_length <= length <= FRAME_BYTES_MAX:
                self._lost, at = True, end
                break
            if at + length > end:
                needed = length
                break
            if missing > 0:
                missing -= 1
                self._first.append(_payload_at(data, at))
            before, last = last, at
            at += length
        if last >= 0:
            self._before = (data, before) if before >= 0 else self._last
            self._last = (data, last)
        if at < end:
            self._buffer += data[at:]
            self._needed = needed

    def usage(self) -> Usage | None:
        """What was used; ``None`` as long as the stream has not said it."""
        payload = _payload_at(*self._last)
        if self._is_converse:
            last = _parsed(payload)
            return None if last is None else usage_of_converse(last)
        last = _chunk(payload)
        total = None if last is None else usage_of_metrics(last)
        if total is None:
            return None
        event = _chunk(_payload_at(*self._before))
        said = None if event is None else event.get("usage")
        if isinstance(said, dict):  # Anthropic's last word before the end
            total = with_rounds(total, said)
        return replace(self._with_cache(total), service_tier=self._tier)

    def _with_cache(self, total: Usage) -> Usage:
        """Add what the beginning says: what was read from the cache, and written for how long."""
        begun = next(self._found_first(), None)
        if begun is None:
            return total
        for_an_hour = begun.cache_write_1h_tokens
        written = max(total.cache_write_5m_tokens, begun.cache_write_5m_tokens + for_an_hour)
        return replace(
            total,
            cache_read_tokens=max(total.cache_read_tokens, begun.cache_read_tokens),
            cache_write_5m_tokens=written - for_an_hour,
            cache_write_1h_tokens=for_an_hour,
        )

    def _found_first(self) -> Iterator[Usage]:
        for payload in self._first:
            event = _chunk(payload)
            message = None if event is None else event.get("message")
            found = usage_of_body(message) if isinstance(message, dict) else None
            if found is not None:
                yield found


def _payload_at(data: bytes, at: int) -> bytes:
    """The payload of the whole frame that begins there; none before the first frame."""
    if at < 0:
        return b""
    length, headers_length = _unpack(data, at)
    return data[at + _PRELUDE_BYTES + headers_length : at + length - _CRC_BYTES]


def _parsed(payload: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _chunk(payload: bytes) -> dict[str, Any] | None:
    """What is inside of a chunk of an ``invoke`` stream."""
    outer = _parsed(payload)
    encoded = None if outer is None else outer.get("bytes")
    if not isinstance(encoded, str):
        return None
    try:
        return _parsed(base64.b64decode(encoded))
    except (binascii.Error, ValueError):
        return None
