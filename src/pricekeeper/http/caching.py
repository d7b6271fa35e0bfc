"""Answers that a client may keep: ETag, Cache-Control, and 304 for who has it already."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from pricekeeper.http.operation import Answer, Call

_encode = msgspec.json.Encoder().encode


def etag_of(data: bytes) -> bytes:
    """The mark of an answer: another body, another mark."""
    return b'"%s"' % hashlib.blake2b(data, digest_size=12).hexdigest().encode()


def cached(
    call: Call, body: Any, max_age_secs: int, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Answer:
    """The body, encoded, as an answer that may be kept."""
    data = _encode(body)
    return cached_answer(call, data, etag_of(data), max_age_secs, headers)


def cached_answer(
    call: Call,
    data: bytes,
    etag: bytes,
    max_age_secs: int,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> Answer:
    """The bytes, or 304 if the caller has the same ones; private to the caller either way."""
    told = (
        (b"etag", etag),
        (b"cache-control", b"private, max-age=%d" % max_age_secs),
        (b"vary", b"Authorization"),
        *headers,
    )
    known, wanted = call.request.header(b"if-none-match"), etag.decode()
    if known and any(mark.strip().removeprefix("W/") == wanted for mark in known.split(",")):
        return Answer(304, None, told)
    return Answer(200, data, told)
