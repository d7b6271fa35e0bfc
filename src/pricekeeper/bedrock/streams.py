"""Reads the usage of an AWS event stream as its bytes pass, neither changed nor kept.

Read are the length of each frame and three payloads: the first two, where Anthropic reports cache
reads, and the last, where every model reports its usage. The first frame's headers say whether the
stream begins with an exception, which is a refusal.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

from msgspec.structs import replace

from pricekeeper.bedrock.families import Operation
from pricekeeper.bedrock.refusals import is_refusal
from pricekeeper.bedrock.usage import (
    Usage,
    decode_object,
    usage_of_body,
    usage_of_converse,
    usage_of_metrics,
    with_rounds,
)

FRAME_BYTES_MAX: Final = 32 << 20
"""A longer frame is invalid: the rest of the stream is not read."""
_PRELUDE_BYTES: Final = 12
_unpack: Final = struct.Struct("!II").unpack_from
"""The lengths of a frame and of its headers; a checksum of both ends the prelude."""
_FRAME_BYTES_MIN: Final = 16
_CRC_BYTES: Final = 4
_FIRST: Final = 2
_EXCEPTION: Final = b":exception-type\x07"
"""A header's name and its type, text; its length follows."""
_LENGTH_BYTES: Final = 2


class StreamUsage:
    """The usage that a stream reports, once it has."""

    def __init__(self, operation: Operation, service_tier: str | None = None) -> None:
        self._is_converse = operation.is_converse
        self._tier = service_tier
        self._buffer = bytearray()
        self._needed = 0
        self._first: list[bytes] = []
        self._begins_with = ""
        self._last = self._before = (b"", -1)
        """Bytes with the last frame and its start; ``_before``: those of the frame before."""
        self._lost = False
        self.size = 0

    def feed(self, chunk: bytes) -> bytes:
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
                if missing == _FIRST:
                    self._begins_with = _exception_at(data, at)
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

    @property
    def is_refused(self) -> bool:
        is_all = len(self._first) == 1 and not self._buffer and not self._lost
        return is_all and is_refusal(self._begins_with, HTTPStatus.OK)

    def usage(self) -> Usage | None:
        payload = _payload_at(*self._last)
        if self._is_converse:
            last = decode_object(payload)
            return None if last is None else usage_of_converse(last)
        last = _chunk(payload)
        total = None if last is None else usage_of_metrics(last)
        if total is None:
            return None
        event = _chunk(_payload_at(*self._before))
        said = None if event is None else event.get("usage")
        if isinstance(said, dict):  # Anthropic's last event before the end
            total = with_rounds(total, said)
        return replace(self._with_cache(total), service_tier=self._tier)

    def _with_cache(self, total: Usage) -> Usage:
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
    if at < 0:
        return b""
    length, headers_length = _unpack(data, at)
    return data[at + _PRELUDE_BYTES + headers_length : at + length - _CRC_BYTES]


def _exception_at(data: bytes, at: int) -> str:
    headers_at = at + _PRELUDE_BYTES
    ends_at = headers_at + _unpack(data, at)[1]
    found = data.find(_EXCEPTION, headers_at, ends_at)
    if found < 0:
        return ""
    name_at = found + len(_EXCEPTION) + _LENGTH_BYTES
    length = int.from_bytes(data[name_at - _LENGTH_BYTES : name_at])
    name = data[name_at : min(name_at + length, ends_at)].decode("latin-1")
    return name[:1].upper() + name[1:]  # lower case there, upper case in an answer


def _chunk(payload: bytes) -> dict[str, Any] | None:
    outer = decode_object(payload)
    encoded = None if outer is None else outer.get("bytes")
    try:
        return decode_object(base64.b64decode(encoded)) if isinstance(encoded, str) else None
    except ValueError:
        return None
