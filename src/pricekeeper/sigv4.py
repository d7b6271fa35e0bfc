"""AWS Signature Version 4: made for requests of ours, checked on requests to us.

Tests hold what is made equal to botocore's, and have real clients make what is checked. DynamoDB
has a quicker way of its own for the one form of request that it takes.
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
_PRESENTED: Final = re.compile(
    rf"{ALGORITHM} ++Credential=(?P<key>[A-Za-z0-9]{{16,128}}+)/(?P<day>[0-9]{{8}})"
    r"/(?P<region>[a-z0-9-]{1,64}+)/(?P<service>[a-z0-9-]{1,64}+)/aws4_request, *+"
    r"SignedHeaders=(?P<names>[a-z0-9;:_.-]{1,4096}+), *+Signature=(?P<signature>[0-9a-f]{64})"
)
_TERMINATOR: Final = "aws4_request"
_DERIVED_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """What requests are signed with. Nothing of it shows in a repr, and so in no log."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class Presented(msgspec.Struct, frozen=True):
    """What an ``Authorization`` header says about its signature."""

    access_key: str
    day: str
    region: str
    service: str
    names: tuple[str, ...]
    signature: str

    @property
    def scope(self) -> str:
        """The day, region and service that it was made for."""
        return f"{self.day}/{self.region}/{self.service}/{_TERMINATOR}"


def stamp_of(epoch: int) -> str:
    """A moment as ``X-Amz-Date`` has it."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(epoch))


def escaped_path(path: str) -> str:
    """A path as every service but S3 wants it signed: what is encoded is encoded once more."""
    return quote(path, safe="/~")


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
    """All headers of a request, the signature among them; ``headers`` have names in lower case.

    ``path`` is as it is to be signed: see `escaped_path`.
    """
    stamp = stamp_of(now_epoch)
    sent = {**headers, "host": host, "x-amz-content-sha256": content_sha256, "x-amz-date": stamp}
    if keys.session_token:
        sent["x-amz-security-token"] = keys.session_token
    names = sorted(sent)
    made = Presented(keys.access_key, stamp[:8], region, service, tuple(names), "")
    signature = signature_of(
        keys.secret_key, made, method=method, path=path, query="", headers=sent,
        content_sha256=content_sha256, stamp=stamp,
    )  # fmt: skip
    sent["authorization"] = (
        f"{ALGORITHM} Credential={keys.access_key}/{made.scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return sent


def parse_presented(authorization: str) -> Presented | None:
    """What the header says; ``None`` if it is not of this kind."""
    found = _PRESENTED.fullmatch(authorization)
    if found is None:
        return None
    names = tuple(found["names"].split(";"))
    return Presented(
        found["key"], found["day"], found["region"], found["service"], names, found["signature"]
    )


def signature_of(
    secret_key: str,
    presented: Presented,
    *,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    content_sha256: str,
    stamp: str,
) -> str:
    """The signature over exactly the headers that are presented; those must all be there."""
    return signature_by(
        derived_key(secret_key, presented),
        presented,
        method=method,
        path=path,
        query=query,
        headers=headers,
        content_sha256=content_sha256,
        stamp=stamp,
    )


def signature_by(
    key: bytes,
    presented: Presented,
    *,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    content_sha256: str,
    stamp: str,
) -> str:
    """The same, by the key of its day, region and service (`derived_key`)."""
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in presented.names)
    names = ";".join(presented.names)
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{content_sha256}"
    digest = sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    to_sign = f"{ALGORITHM}\n{stamp}\n{presented.scope}\n{digest}"
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def derived_key(secret_key: str, presented: Presented) -> bytes:
    """What requests of a day, region and service are signed with in place of the secret."""
    return _derived_key(secret_key, (presented.day, presented.region, presented.service))


@lru_cache(_DERIVED_MAX)
def _derived_key(secret_key: str, parts: Sequence[str]) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (*parts, _TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
