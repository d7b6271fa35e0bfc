"""The server's answers to bytes that are no request, in HTTP/1.1 and in HTTP/2.

The server speaks HTTP/1.1 only (ADR 152). An HTTP/2 caller gets a 400 in HTTP/2, then the
connection ends with ``HTTP_1_1_REQUIRED``. Frames are skipped until one opens a stream.
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

from pricekeeper.http.problems import RETRY_SECS, Problem

HTTP_2_CODE: Final = "HTTP_2_NOT_SUPPORTED"
HTTP_2_HINT: Final = (
    "This server speaks HTTP/1.1, and the request came in HTTP/2. In the AWS SDK for JavaScript, "
    "pass requestHandler: new NodeHttpHandler() of @smithy/node-http-handler to the client. Or put "
    "a proxy in front that ends TLS and HTTP/2; docs/gateway.md has an example for nginx."
)
PREFACE_BYTES: Final = 24
PREFACE_ERROR: Final = "Pause on PRI/Upgrade"
"""The parser's error after the whole preface of HTTP/2."""
FRAMES_BYTES_MAX: Final = 16 * 1024
"""Before the first request. Clients send less than 100."""
_HEAD_BYTES: Final = 9
_DATA: Final = 0
_HEADERS: Final = 1
_RST_STREAM: Final = 3
_SETTINGS: Final = 4
_GOAWAY: Final = 7
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_HTTP_1_1_REQUIRED: Final = 13
_STATUS_400: Final = b"\x8c"
"""``:status 400`` in the static table of HPACK."""


def refusal(status: int, code: str, detail: str) -> bytes:
    """An answer in HTTP/1.1: a problem that closes the connection."""
    request_id = secrets.token_hex(16)
    body = Problem(status, code, detail).body(request_id)
    return (
        b"HTTP/1.1 %d %s\r\n"
        b"content-type: application/problem+json\r\n"
        b"content-length: %d\r\n"
        b"x-request-id: %s\r\n"
        b"%s"
        b"connection: close\r\n\r\n%s"
        % (
            status,
            HTTPStatus(status).phrase.encode(),
            len(body),
            request_id.encode(),
            b"retry-after: %d\r\n" % RETRY_SECS
            if status == HTTPStatus.SERVICE_UNAVAILABLE
            else b"",
            body,
        )
    )


class Http2Refusal:
    """Reads frames up to the first request, and answers it."""

    def __init__(self) -> None:
        self._left = FRAMES_BYTES_MAX
        self._skip = 0
        self._head = bytearray()

    def answer(self, data: bytes) -> bytes | None:
        """The answer that ends the connection; ``None`` if no request has begun yet."""
        self._left -= len(data)
        at = 0
        while at < len(data):  # takes at least one byte each round
            if self._skip:
                taken = min(self._skip, len(data) - at)
                self._skip -= taken
                at += taken
                continue
            part = data[at : at + _HEAD_BYTES - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) < _HEAD_BYTES:
                break
            if self._head[3] == _HEADERS:
                return _answer(int.from_bytes(self._head[5:]) & 0x7FFFFFFF)
            self._skip = int.from_bytes(self._head[:3])
            self._head.clear()
        return GOAWAY if self._left < 0 else None


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4)
    return head + payload


def _goaway(last_stream: int) -> bytes:
    return _frame(_GOAWAY, 0, 0, last_stream.to_bytes(4) + _HTTP_1_1_REQUIRED.to_bytes(4))


def _answer(stream: int) -> bytes:
    """A 400 that AWS's SDKs show as a ``ValidationException`` and do not retry."""
    if stream % 2 == 0:  # no client may open such a stream
        return GOAWAY
    problem = Problem(400, HTTP_2_CODE, HTTP_2_HINT, {"message": HTTP_2_HINT})
    headers = (
        _STATUS_400
        + _field(b"content-type", b"application/problem+json")
        + _field(b"x-amzn-errortype", b"ValidationException")
    )
    return (
        _frame(_HEADERS, _END_HEADERS, stream, headers)
        + _frame(_DATA, _END_STREAM, stream, problem.body(secrets.token_hex(16)))
        + _frame(_RST_STREAM, 0, stream, bytes(4))  # no error: the rest of the body is not needed
        + _goaway(stream)
    )


def _field(name: bytes, value: bytes) -> bytes:
    """A header in HPACK without tables. Name and value are below 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


SETTINGS: Final = _frame(_SETTINGS, 0, 0)
GOAWAY: Final = _goaway(0)
