"""AWS Signature Version 4 for requests to S3. A test holds the result equal to botocore's."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from pricekeeper.storage.dynamodb.signing import AwsKeys

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_SERVICE: Final = "s3"


def encoded_path(*parts: str) -> str:
    """The path of an object as it is sent and signed: S3 wants it encoded once."""
    return "/" + quote("/".join(parts), safe="/-_.~")


def signed_headers(
    keys: AwsKeys,
    *,
    method: str,
    host: str,
    path: str,
    region: str,
    content_sha256: str,
    now_epoch: int,
    headers: Mapping[str, str],
) -> dict[str, str]:
    """All headers of a request, the signature among them; ``headers`` have names in lower case."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_epoch))
    scope = f"{stamp[:8]}/{region}/{_SERVICE}/aws4_request"
    sent = {**headers, "host": host, "x-amz-content-sha256": content_sha256, "x-amz-date": stamp}
    if keys.session_token:
        sent["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name].strip()}\n" for name in sorted(sent))
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{content_sha256}"
    to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    sent["authorization"] = (
        f"{_ALGORITHM} Credential={keys.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return sent
