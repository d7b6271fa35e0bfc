"""What operations have in common: requests, answers, streams and errors.

A frame of AWS's event stream: its length, its headers' length, their checksum, string headers (type
7), payload, checksum.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from binascii import crc32
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from pricekeeper.standin.read_request import Body, ReadRequest
from pricekeeper.standin.refusals import AwsFault, exception_body
from pricekeeper.standin.turn import Turn

JSON: Final = b"application/json"
REQUEST_ID: Final = b"x-amzn-requestid"
BROKE_OFF: Final = "the stream broke off, as scripted"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request with a JSON body."""

    model_id: str
    headers: Mapping[bytes, bytes]
    """In lower case."""
    body: Body


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole answer."""

    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    status: int = 200
    media_type: bytes = JSON


@dataclass(frozen=True, slots=True)
class ModelStream:
    """An answer in parts."""

    media_type: bytes
    frames: list[bytes]
    ends_after: int
    """Frames before a stream breaks off."""
    headers: Sequence[tuple[bytes, bytes]] = ()


class ModelApi(ABC):
    """One operation; by default it runs a model and has AWS's errors."""

    name: str
    is_free = False

    @abstractmethod
    def read(self, request: ModelRequest) -> ReadRequest: ...

    @abstractmethod
    def reply(self, turn: Turn) -> ModelReply: ...

    def stream(self, turn: Turn) -> ModelStream:
        raise NotImplementedError(f"{self.name} is no stream: {turn}")

    def failure(self) -> bytes:
        body = exception_body("ModelStreamErrorException", BROKE_OFF)
        return exception_frame("modelStreamErrorException", body)

    def refuse(self, refusal: AwsFault) -> ModelReply:
        return refuse_as_aws(refusal)


def refuse_as_aws(refusal: AwsFault) -> ModelReply:
    """An error of AWS's REST-JSON protocol."""
    body = exception_body(refusal.name, refusal.message)
    return ModelReply(body, [(b"x-amzn-errortype", refusal.name.encode())], refusal.status)


MEDIA_TYPE: Final = b"application/vnd.amazon.eventstream"
_AROUND_BYTES: Final = 16
"""Two lengths and two checksums."""
_STRING: Final = 7


def event_frame(name: str, payload: bytes) -> bytes:
    """One event of a stream."""
    return _frame(_headers("event", name), payload)


def exception_frame(name: str, payload: bytes) -> bytes:
    """An exception in a stream; its name begins with a small letter."""
    return _frame(_headers("exception", name), payload)


def _frame(headers: bytes, payload: bytes) -> bytes:
    lengths = struct.pack("!II", _AROUND_BYTES + len(headers) + len(payload), len(headers))
    message = b"".join((lengths, struct.pack("!I", crc32(lengths)), headers, payload))
    return message + struct.pack("!I", crc32(message))


@cache  # a dozen kinds of events
def _headers(kind: str, name: str) -> bytes:
    fields = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", _STRING, len(value))
        + value.encode()
        for key, value in fields.items()
    )  # fmt: skip
