"""One signed request to a service of AWS that is asked now and then, on a connection of its own.

The store's own client keeps connections and counts what it does; this is for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import aiohttp
import yarl

from pricekeeper.sigv4 import AwsKeys, signed_headers
from pricekeeper.storage.dynamodb.credentials import AwsAccess

REPLY_BYTES_MAX: Final = 256 * 1024
_AUTO_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


async def post_signed(
    access: AwsAccess,
    keys: AwsKeys,
    service: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    now_epoch: int,
) -> tuple[int, bytes]:
    """Send the body; returns the status and as much of the reply as there is room for.

    Raises what aiohttp raises. How long it may take is the caller's.
    """
    signed = signed_headers(
        keys,
        service=service,
        method="POST",
        host=access.host,
        path="/",
        region=access.region,
        content_sha256=sha256(body).hexdigest(),
        now_epoch=now_epoch,
        headers=headers,
    )
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.trust),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO_HEADERS,
        ) as session,
        session.post(
            yarl.URL(f"{access.endpoint}/"), data=body, headers=signed, allow_redirects=False
        ) as response,
    ):
        reply = bytearray()
        while part := await response.content.read(REPLY_BYTES_MAX - len(reply)):
            reply += part  # what is read at a time is what has arrived
    return response.status, bytes(reply)
