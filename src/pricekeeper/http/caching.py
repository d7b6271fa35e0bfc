"""Answers that a client may cache: ETag, Cache-Control and 304."""

from __future__ import annotations

from pricekeeper.http.encoding import Encoded
from pricekeeper.http.operation import Answer, Call


def cached_answer(
    call: Call, encoded: Encoded, max_age_secs: int, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Answer:
    """The bytes, or 304 if the caller has them already; private to the caller either way."""
    all_headers = (
        (b"etag", encoded.etag),
        (b"cache-control", b"private, max-age=%d" % max_age_secs),
        (b"vary", b"Authorization"),
        *headers,
    )
    if matches(call.request.header(b"if-none-match"), encoded.etag):
        return Answer(304, None, all_headers)
    return Answer(200, encoded.data, all_headers)


def matches(known: str | None, etag: bytes) -> bool:
    """Whether ``If-None-Match`` or ``If-Match`` contains this ETag."""
    wanted = etag.decode()
    return known is not None and any(
        mark.strip().removeprefix("W/") == wanted for mark in known.split(",")
    )
