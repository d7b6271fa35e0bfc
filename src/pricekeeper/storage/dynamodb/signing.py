"""AWS Signature Version 4, as much of it as one service with one URL needs.

Every request is a POST to ``/`` with the same few headers, so the canonical request is one
f-string. What stays the same is made once: the signing key for a day, a region and credentials,
the time stamp for a second. A test holds the result equal to botocore's.
"""

from __future__ import annotations

import hmac
import time
from hashlib import sha256
from typing import Final

from pricekeeper.sigv4 import AwsKeys

CONTENT_TYPE: Final = "application/x-amz-json-1.0"

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SIGNED: Final = "content-type;host;x-amz-date;x-amz-target"
_SIGNED_SESSION: Final = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"


class Signer:
    """Makes the headers of requests to one host in one region."""

    __slots__ = ("_host", "_mac", "_mac_for", "_region", "_second", "_stamp")

    def __init__(self, region: str, host: str) -> None:
        self._region = region
        self._host = host
        self._second = -1
        self._stamp = ""
        self._mac = hmac.new(b"", digestmod="sha256")
        self._mac_for: tuple[str, AwsKeys] | None = None

    @property
    def constant_headers(self) -> dict[str, str]:
        """What every request carries, and two of which are part of what is signed."""
        return {"Host": self._host, "Accept-Encoding": "identity", "Content-Type": CONTENT_TYPE}

    def headers(
        self, credentials: AwsKeys, target: str, body: bytes, now_epoch: int
    ) -> dict[str, str]:
        """The headers of one request, the signature among them, to go with the constant ones."""
        if now_epoch != self._second:
            self._stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_epoch))
            self._second = now_epoch
        stamp = self._stamp
        day = stamp[:8]
        if self._mac_for != (day, credentials):
            key = _signing_key(credentials.secret_key, day, self._region)
            self._mac = hmac.new(key, digestmod="sha256")
            self._mac_for = (day, credentials)
        token = credentials.session_token
        signed = _SIGNED_SESSION if token else _SIGNED
        token_line = f"x-amz-security-token:{token}\n" if token else ""
        canonical = (
            f"POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{self._host}\nx-amz-date:{stamp}\n"
            f"{token_line}x-amz-target:{target}\n\n{signed}\n{sha256(body).hexdigest()}"
        )
        scope = f"{day}/{self._region}/dynamodb/aws4_request"
        to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        mac = self._mac.copy()  # half the price of hmac.digest, which prepares the key again
        mac.update(to_sign.encode())
        headers = {
            "X-Amz-Target": target,
            "X-Amz-Date": stamp,
            "Authorization": (
                f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
                f"SignedHeaders={signed}, Signature={mac.hexdigest()}"
            ),
        }
        if token:
            headers["X-Amz-Security-Token"] = token
        return headers


def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "dynamodb", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
