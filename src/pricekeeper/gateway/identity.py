"""Identifies the caller: by an AWS signature made with our credentials, or by a bearer token.

The secret of a signature is derived from the token beside it, so there is no lookup. The token is
validated like any other. A bearer is an access token, or ``client_id:secret`` for clients that can
hold no token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import InvalidTokenError
from pricekeeper.gateway.errors import NotAuthenticatedRefusal
from pricekeeper.sigv4 import (
    ALGORITHM,
    Presented,
    SigningKey,
    derived_key,
    escaped_path,
    parse_presented,
    signature_by,
)
from pricekeeper.tags import TAG_PREFIX
from pricekeeper.tokens import Identity, Principal
from pricekeeper.tokens.aws_credentials import derive_access_key_id

SKEW_SECS_MAX: Final = 300
SERVICES: Final = frozenset({"bedrock", "bedrock-mantle"})
SIGNING_KEYS_MAX: Final = 4_096
PAIRS_MAX: Final = 4_096
PAIR_SECS: Final = 300
"""How long a token replaces a pair of id and secret; each call validates it."""
_NEEDED: Final = frozenset({"x-amz-date", "x-amz-security-token"})
"""What a signature must cover, besides the host."""
ACTED_ON: Final = (TAG_PREFIX, "x-amzn-bedrock-", "anthropic-")
"""Headers that change how a call is made or counted: signed, and never sent twice."""
_AUTHORITY: Final = ":authority"
"""Signed by an HTTP/2 client in place of ``host``; a proxy in front of us replaces it."""
_HOSTS: Final = frozenset({"host", _AUTHORITY})
_STAMPS_MAX: Final = 64
_STAMP: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")


class NotOursRefusal(NotAuthenticatedRefusal):
    """The signature was not made with a secret of ours: someone may be guessing."""

    def __init__(self) -> None:
        message = (
            "the signature does not belong to credentials of ours; SDKs take those of "
            "AWS_ACCESS_KEY_ID, AWS_PROFILE or a file before those of /auth/aws-credentials"
        )
        super().__init__("InvalidSignatureException", message)


class Signed(NamedTuple):
    """A signature, and the key that must have made it."""

    presented: Presented
    key: SigningKey
    token_id: str


class Identification:
    """Identifies callers."""

    def __init__(
        self, identity: Identity, clock: Clock, is_barred: Callable[[str | None], bool]
    ) -> None:
        """``is_barred``: whether an address has failed too often to be compared at once."""
        self._identity = identity
        self._clock = clock
        self._is_barred = is_barred
        self._pairs: BoundedCache[bytes, tuple[int, str]] = BoundedCache(PAIRS_MAX)
        self._signing_keys: BoundedCache[tuple[str, str], SigningKey] = BoundedCache(
            SIGNING_KEYS_MAX
        )
        """By the id of a valid token and the scope of the signature, which is one day."""

    async def identify(
        self, headers: Mapping[str, str], address: str | None
    ) -> tuple[Principal, Signed | None]:
        """Identify the client by the head of a request.

        A signature must still be checked with the body. Raises `Refusal`, or what the identity
        raises.
        """
        authorization = headers.get("authorization", "")
        scheme, _, rest = authorization.partition(" ")
        bearer = rest.strip() if scheme.lower() == "bearer" else ""
        if not authorization:
            # Anthropic's own SDK has a header of its own.
            bearer = headers.get("x-api-key", "")
        if bearer:
            return await self._by_bearer(bearer, address), None
        presented = parse_presented(authorization)
        if presented is None and authorization.startswith(ALGORITHM):
            raise NotOursRefusal
        if presented is None:
            raise NotAuthenticatedRefusal(
                "MissingAuthenticationTokenException",
                "missing credentials: send client_id:client_secret or an access token of an app as "
                "the API key or bearer token, or sign with credentials of /auth/aws-credentials",
            )
        self._check_head(presented, headers)
        token = headers.get("x-amz-security-token", "")
        recalled = self._identity.recall(token)
        scope = presented.claim.scope
        key = None if recalled is None else self._signing_keys.get((recalled.token_id, scope))
        if key is None:
            secret = self._identity.find_aws_secret(token)
            if secret is None:
                raise NotOursRefusal
            key = derived_key(secret, presented.claim)
        try:
            principal = recalled or await self._identity.validate(token)
        except InvalidTokenError as error:
            if error.genuine:
                raise
            raise NotOursRefusal from None
        if presented.claim.access_key != derive_access_key_id(principal.token_id):
            raise NotOursRefusal
        return principal, Signed(presented, key, principal.token_id)

    def check_signature(
        self,
        signed: Signed,
        *,
        method: str,
        raw_path: str,
        query: str,
        headers: Mapping[str, str],
        content_sha256: str,
    ) -> None:
        """Raise `Refusal` unless the signature is of this request, with that body."""
        claim = signed.presented.claim
        if headers.get("x-amz-content-sha256", content_sha256) != content_sha256:
            raise NotAuthenticatedRefusal(
                "InvalidSignatureException",
                "the body differs from the signed one; sign the bytes that are sent",
            )
        if _AUTHORITY in claim.names:
            headers = {**headers, _AUTHORITY: headers.get("host", "")}
        expected = signature_by(
            signed.key,
            claim,
            method=method,
            path=escaped_path(raw_path),
            query=_sorted_query(query),
            headers=headers,
            content_sha256=content_sha256,
            stamp=headers.get("x-amz-date", ""),
        )
        if not hmac.compare_digest(expected, signed.presented.signature):
            raise NotOursRefusal
        self._signing_keys.put((signed.token_id, claim.scope), signed.key)

    async def _by_bearer(self, bearer: str, address: str | None) -> Principal:
        client_id, separator, secret = bearer.partition(":")
        if not separator:
            return self._identity.recall(bearer) or await self._identity.validate(bearer)
        digest = hashlib.sha256(bearer.encode("utf-8", "surrogatepass")).digest()
        now_ms = self._clock.monotonic_ms()
        known = self._pairs.get(digest)
        if known is not None and now_ms < known[0]:
            try:
                return self._identity.recall(known[1]) or await self._identity.validate(known[1])
            except InvalidTokenError:
                self._pairs.pop(digest)
        authenticated = await self._identity.authenticate(
            unquote_plus(client_id), secret, doubted=self._is_barred(address)
        )
        issued = self._identity.issue_outside_slots(authenticated)
        self._pairs.put(digest, (now_ms + PAIR_SECS * 1000, issued.token))
        return await self._identity.validate(issued.token)

    def _check_head(self, presented: Presented, headers: Mapping[str, str]) -> None:
        claim = presented.claim
        names = set(claim.names)
        is_complete = names >= _NEEDED and headers.keys() >= names - {_AUTHORITY}
        if claim.service not in SERVICES or not is_complete or _HOSTS.isdisjoint(names):
            raise NotOursRefusal
        for name in headers.keys() - names:
            if name.startswith(ACTED_ON):
                raise NotAuthenticatedRefusal(
                    "InvalidSignatureException", f"the signature must cover {name}"
                )
        self._check_time(claim.day, headers.get("x-amz-date", ""))

    def _check_time(self, day: str, stamp: str) -> None:
        signed_epoch = _epoch_of(stamp)
        if signed_epoch is None:
            raise NotOursRefusal
        apart_secs = abs(signed_epoch - self._clock.now_ms() // 1000)
        if apart_secs > SKEW_SECS_MAX or not stamp.startswith(day):
            raise NotAuthenticatedRefusal(
                "InvalidSignatureException",
                "the signature is older than 5 minutes, or a clock is wrong",
            )


@lru_cache(_STAMPS_MAX)
def _epoch_of(stamp: str) -> int | None:
    """The time of an ``X-Amz-Date``, or ``None``; ten times faster than `time.strptime`."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    try:
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _sorted_query(query: str) -> str:
    """The query in its signed form: pairs in order, each with an equals sign."""
    if not query:
        return ""
    pairs = [part if "=" in part else f"{part}=" for part in query.split("&")]
    return "&".join(sorted(pairs))
