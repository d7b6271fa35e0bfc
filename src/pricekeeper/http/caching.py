"""Answers that a client may keep: ETag, Cache-Control, and 304 for who has it already."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from pricekeeper.http.operation import Answer, Call

_encode = msgspec.json.Encoder().encode


def cached_answer(
    call: Call,
    body: Any,
    max_age_secs: int,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> Answer:
    """The body, or 304 if the caller has the same one; private to the caller either way."""
    data = body if isinstance(body, bytes) else _encode(body)
    etag = b'"%s"' % hashlib.blake2b(data, digest_size=12).hexdigest().encode()
    told = (
        (b"etag", etag),
        (b"cache-control", b"private, max-age=%d" % max_age_secs),
        (b"vary", b"Authorization"),
        *headers,
    )
    known = call.request.headers.get("if-none-match", "")
    if known and any(mark.strip().removeprefix("W/") == etag.decode() for mark in known.split(",")):
        return Answer(304, None, told)
    return Answer(200, data, told)
