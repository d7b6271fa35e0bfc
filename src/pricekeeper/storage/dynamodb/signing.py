"""AWS Signature Version 4, as much of it as one service with one URL needs.

Every request is a POST to ``/`` with the same few headers, so the canonical request is one
f-string, and the time stamp is made once a second. A test holds the result equal to botocore's.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from pricekeeper.sigv4 import ALGORITHM, AwsKeys, key_of_day, stamp_of

CONTENT_TYPE: Final = "application/x-amz-json-1.0"

_SERVICE: Final = "dynamodb"
_SIGNED: Final = "content-type;host;x-amz-date;x-amz-target"
_SIGNED_SESSION: Final = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"


class Signer:
    """Makes the headers of requests to one host in one region."""

    __slots__ = ("_host", "_region", "_second", "_stamp")

    def __init__(self, region: str, host: str) -> None:
        self._region = region
        self._host = host
        self._second = -1
        self._stamp = ""

    @property
    def constant_headers(self) -> dict[str, str]:
        """What every request carries, and two of which are part of what is signed."""
        return {"Host": self._host, "Accept-Encoding": "identity", "Content-Type": CONTENT_TYPE}

    def headers(
        self, credentials: AwsKeys, target: str, body: bytes, now_epoch: int
    ) -> dict[str, str]:
        """The headers of one request, the signature among them, to go with the constant ones."""
        if now_epoch != self._second:
            self._stamp = stamp_of(now_epoch)
            self._second = now_epoch
        stamp = self._stamp
        day = stamp[:8]
        token = credentials.session_token
        signed = _SIGNED_SESSION if token else _SIGNED
        token_line = f"x-amz-security-token:{token}\n" if token else ""
        canonical = (
            f"POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{self._host}\nx-amz-date:{stamp}\n"
            f"{token_line}x-amz-target:{target}\n\n{signed}\n{sha256(body).hexdigest()}"
        )
        scope = f"{day}/{self._region}/{_SERVICE}/aws4_request"
        to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        key = key_of_day(credentials.secret_key, day, self._region, _SERVICE)
        headers = {
            "X-Amz-Target": target,
            "X-Amz-Date": stamp,
            "Authorization": (
                f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
                f"SignedHeaders={signed}, Signature={key.sign(to_sign.encode())}"
            ),
        }
        if token:
            headers["X-Amz-Security-Token"] = token
        return headers
