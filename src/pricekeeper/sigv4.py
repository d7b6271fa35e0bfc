"""AWS Signature Version 4: signs our requests and checks signatures of requests to us.

DynamoDB's client has a faster signer for its one form of request.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import msgspec

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_CLAIM: Final = re.compile(
    rf"{ALGORITHM} ++Credential=(?P<key>[A-Za-z0-9]{{16,128}}+)/(?P<day>[0-9]{{8}})"
    r"/(?P<region>[a-z0-9-]{1,64}+)/(?P<service>[a-z0-9-]{1,64}+)/aws4_request, *+"
    r"SignedHeaders=(?P<names>[a-z0-9;:_.-]{1,4096}+), *+Signature="
)
_SIGNATURE: Final = re.compile(r"[0-9a-f]{64}")
_SIGNATURE_LENGTH: Final = 64
_NEEDS_ESCAPE: Final = re.compile(r"[^A-Za-z0-9_.~/-]")
_TERMINATOR: Final = "aws4_request"
_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_LENGTH_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """The keys that sign requests; never in a repr, so in no log."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class Claim(msgspec.Struct, frozen=True):
    """What an ``Authorization`` header states; equal for a client all day."""

    access_key: str
    day: str
    region: str
    service: str
    names: tuple[str, ...]
    scope: str


class Presented(msgspec.Struct, frozen=True):
    """A signature and its claim."""

    claim: Claim
    signature: str


def claim_of(access_key: str, day: str, region: str, service: str, names: Sequence[str]) -> Claim:
    """The claim of a signature over these headers."""
    scope = f"{day}/{region}/{service}/{_TERMINATOR}"
    return Claim(access_key, day, region, service, tuple(names), scope)


def stamp_of(epoch: int) -> str:
    """A time as in ``X-Amz-Date``."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch))


def escaped_path(path: str) -> str:
    """A path as every service but S3 signs it: encoded a second time."""
    # `quote` calls a function for each character, if one needs to be encoded.
    return _NEEDS_ESCAPE.sub(_escaped, path) if path.isascii() else quote(path, safe="/~")


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def signed_headers(
    keys: AwsKeys,
    *,
    service: str,
    method: str,
    host: str,
    path: str,
    region: str,
    content_sha256: str,
    now_epoch: int,
    headers: Mapping[str, str],
) -> dict[str, str]:
    """All headers of a request with its signature; names in ``headers`` are lower case.

    ``path`` is in its signed form: see `escaped_path`.
    """
    stamp = stamp_of(now_epoch)
    sent = {**headers, "host": host, "x-amz-content-sha256": content_sha256, "x-amz-date": stamp}
    if keys.session_token:
        sent["x-amz-security-token"] = keys.session_token
    names = sorted(sent)
    made = claim_of(keys.access_key, stamp[:8], region, service, names)
    signature = signature_by(
        derived_key(keys.secret_key, made), made, method=method, path=path, query="", headers=sent,
        content_sha256=content_sha256, stamp=stamp,
    )  # fmt: skip
    sent["authorization"] = (
        f"{ALGORITHM} Credential={keys.access_key}/{made.scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return sent


def parse_presented(authorization: str) -> Presented | None:
    """The signature and claim of the header; ``None`` if it has another scheme."""
    text, signature = authorization[:-_SIGNATURE_LENGTH], authorization[-_SIGNATURE_LENGTH:]
    parse = _parse_again if len(text) <= _REMEMBERED_LENGTH_MAX else _parse_claim
    claim = parse(text)
    if claim is None or _SIGNATURE.fullmatch(signature) is None:
        return None
    return Presented(claim, signature)


def _parse_claim(text: str) -> Claim | None:
    found = _CLAIM.fullmatch(text)
    if found is None:
        return None
    names = found["names"].split(";")
    return claim_of(found["key"], found["day"], found["region"], found["service"], names)


_parse_again: Final = lru_cache(_REMEMBERED_MAX)(_parse_claim)


def signature_by(
    key: SigningKey,
    claim: Claim,
    *,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    content_sha256: str,
    stamp: str,
) -> str:
    """The signature over exactly the claimed headers, which must all be present."""
    # Values are signed stripped, with inner spaces collapsed.
    lines = [f"{name}:{' '.join(headers[name].split())}\n" for name in claim.names]
    canonical = (
        f"{method}\n{path}\n{query}\n{''.join(lines)}\n{';'.join(claim.names)}\n{content_sha256}"
    )
    digest = sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    to_sign = f"{ALGORITHM}\n{stamp}\n{claim.scope}\n{digest}"
    return key.sign(to_sign.encode())


class SigningKey:
    """An HMAC-SHA256 key with the hashes of its two pads computed once.

    OpenSSL takes longer to look up the algorithm than to hash a line with it.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = sha256(padded.translate(_INNER))
        self._outer = sha256(padded.translate(_OUTER))

    def sign(self, message: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.hexdigest()


_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(one ^ 0x36 for one in range(256))
_OUTER: Final = bytes(one ^ 0x5C for one in range(256))


def derived_key(secret_key: str, claim: Claim) -> SigningKey:
    """The key for the claim's day, region and service."""
    return key_of_day(secret_key, claim.day, claim.region, claim.service)


@lru_cache(_REMEMBERED_MAX)
def key_of_day(secret_key: str, *parts: str) -> SigningKey:
    """The key for that day, region and service."""
    key = f"AWS4{secret_key}".encode()
    for part in (*parts, _TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return SigningKey(key)
