"""AWS's event stream encoding: what a stream of Bedrock's consists of.

A frame is its length, the length of its headers, a checksum of both, headers, a payload and a
checksum of all of that. Every header here is a string, which is type 7 of the encoding.
"""

from __future__ import annotations

import struct
from binascii import crc32
from functools import cache
from typing import Final

MEDIA_TYPE: Final = b"application/vnd.amazon.eventstream"
_AROUND_BYTES: Final = 16
"""Two lengths and two checksums."""
_STRING: Final = 7


def event_frame(name: str, payload: bytes) -> bytes:
    """One event of a stream."""
    return _frame(_headers("event", name), payload)


def exception_frame(name: str, payload: bytes) -> bytes:
    """An exception in the middle of a stream; the name begins with a small letter there."""
    return _frame(_headers("exception", name), payload)


def _frame(headers: bytes, payload: bytes) -> bytes:
    lengths = struct.pack("!II", _AROUND_BYTES + len(headers) + len(payload), len(headers))
    message = b"".join((lengths, struct.pack("!I", crc32(lengths)), headers, payload))
    return message + struct.pack("!I", crc32(message))


@cache  # one for each kind of event, and there are a dozen
def _headers(kind: str, name: str) -> bytes:
    fields = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", _STRING, len(value))
        + value.encode()
        for key, value in fields.items()
    )  # fmt: skip
