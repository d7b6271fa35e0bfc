"""Who calls: by a signature of AWS's made with credentials of ours, or by a bearer.

The secret of a signature follows from the token that comes with it, so nothing is looked up for
it; the token is validated like any other. A bearer is an access token, or ``client_id:secret`` for
clients that can hold nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_plus

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache
from pricekeeper.errors import InvalidTokenError
from pricekeeper.gateway.errors import Refusal
from pricekeeper.sigv4 import (
    ALGORITHM,
    Presented,
    SigningKey,
    derived_key,
    escaped_path,
    parse_presented,
    signature_by,
)
from pricekeeper.tokens import Identity, Principal
from pricekeeper.tokens.aws_credentials import derive_access_key_id

SKEW_SECS_MAX: Final = 300
SERVICES: Final = frozenset({"bedrock", "bedrock-mantle"})
SIGNING_KEYS_MAX: Final = 4_096
PAIRS_MAX: Final = 4_096
PAIR_SECS: Final = 300
"""For how long a token stands in for a pair of id and secret; it is validated on every call."""
_NEEDED: Final = frozenset({"x-amz-date", "x-amz-security-token"})
"""What a signature has to cover, besides the host."""
ACTED_ON: Final = ("x-pricekeeper-tag-", "x-amzn-bedrock-", "anthropic-")
"""Headers by which a call is counted or made otherwise: where there is a signature, it has to cover
them; and of one that is there twice, nobody knows which is meant."""
_AUTHORITY: Final = ":authority"
"""What a client of HTTP/2 signs in the place of ``host``; a proxy in front of us makes it that."""
_NOBODYS: Final = SigningKey(b"")
"""What is signed with for a token that has no secret, so that it takes as long as any other."""
_STAMPS_MAX: Final = 64
_STAMP: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")


class NotOursRefusal(Refusal):
    """A signature that was not made with a secret of ours: somebody may be guessing."""

    def __init__(self) -> None:
        message = (
            "the signature does not belong to credentials of ours; SDKs take those of "
            "AWS_ACCESS_KEY_ID, AWS_PROFILE or a file before those of /auth/aws-credentials"
        )
        super().__init__(403, "InvalidSignatureException", message)


class Identification:
    """Finds out who calls."""

    def __init__(
        self, identity: Identity, clock: Clock, is_barred: Callable[[str | None], bool]
    ) -> None:
        """``is_barred`` says whether an address has failed too often to be compared at once."""
        self._identity = identity
        self._clock = clock
        self._is_barred = is_barred
        self._pairs: BoundedCache[bytes, tuple[int, str]] = BoundedCache(PAIRS_MAX)
        """The token that was issued for a pair, by the pair's digest."""
        self._signing_keys: BoundedCache[tuple[str, str], SigningKey] = BoundedCache(
            SIGNING_KEYS_MAX
        )
        """By the ids of tokens that were valid, and what was signed for; each is of one day."""

    async def identify(
        self,
        *,
        method: str,
        raw_path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes,
        address: str | None,
    ) -> Principal:
        """The client that sends a request; raises `Refusal`, or what the identity raises."""
        authorization = headers.get("authorization", "")
        scheme, _, rest = authorization.partition(" ")
        bearer = rest.strip() if scheme.lower() == "bearer" else ""
        if not authorization:
            # Anthropic's own SDK sends its key in a header of its own.
            bearer = headers.get("x-api-key", "")
        if bearer:
            return await self._by_bearer(bearer, address)
        presented = parse_presented(authorization)
        if presented is None and authorization.startswith(ALGORITHM):
            raise NotOursRefusal
        if presented is None:
            raise Refusal(
                403,
                "MissingAuthenticationTokenException",
                "sign the request with credentials of /auth/aws-credentials, or send a bearer",
            )
        token = headers.get("x-amz-security-token", "")
        recalled = self._identity.recall(token)
        scope = presented.claim.scope
        known = None if recalled is None else self._signing_keys.get((recalled.token_id, scope))
        key = self._check_signature(presented, token, known, method, raw_path, query, headers, body)
        principal = recalled or await self._identity.validate(token)
        if presented.claim.access_key != derive_access_key_id(principal.token_id):
            raise NotOursRefusal
        if known is None:
            self._signing_keys.put((principal.token_id, scope), key)
        return principal

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

    def _check_signature(
        self,
        presented: Presented,
        token: str,
        known: SigningKey | None,
        method: str,
        raw_path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> SigningKey:
        """Raise unless the signature was made with the token's secret, over this request, now.

        Returns the key of that scope, which follows from the secret; it may be ``known``.
        """
        stamp, claim = headers.get("x-amz-date", ""), presented.claim
        names = claim.names
        if _AUTHORITY in names:
            headers = {**headers, _AUTHORITY: headers.get("host", "")}
        elif "host" not in names:
            raise NotOursRefusal
        is_complete = _NEEDED.issubset(names) and headers.keys() >= set(names)
        if claim.service not in SERVICES or not is_complete:
            raise NotOursRefusal
        for name in headers:
            if name.startswith(ACTED_ON) and name not in names:
                raise Refusal(403, "InvalidSignatureException", f"not signed: {name}")
        self._check_time(claim.day, stamp)
        content = hashlib.sha256(body).hexdigest()
        if headers.get("x-amz-content-sha256", content) != content:
            raise Refusal(403, "InvalidSignatureException", "the body is not what was signed")
        key = known
        if key is None and (secret := self._identity.find_aws_secret(token)) is not None:
            key = derived_key(secret, claim)
        expected = signature_by(
            key or _NOBODYS,
            claim,
            method=method,
            path=escaped_path(raw_path),
            query=_sorted_query(query),
            headers=headers,
            content_sha256=content,
            stamp=stamp,
        )
        if key is None or not hmac.compare_digest(expected, presented.signature):
            raise NotOursRefusal
        return key

    def _check_time(self, day: str, stamp: str) -> None:
        signed_epoch = _epoch_of(stamp)
        if signed_epoch is None:
            raise NotOursRefusal
        apart_secs = abs(signed_epoch - self._clock.now_ms() // 1000)
        if apart_secs > SKEW_SECS_MAX or not stamp.startswith(day):
            raise Refusal(
                403, "InvalidSignatureException", "the signature is too old, or a clock is wrong"
            )


@lru_cache(_STAMPS_MAX)
def _epoch_of(stamp: str) -> int | None:
    """The moment of an ``X-Amz-Date``; ``None`` if it is none. `time.strptime` takes ten times."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    try:
        return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _sorted_query(query: str) -> str:
    """The query as it is signed: pairs in order, each with a sign of equality."""
    if not query:
        return ""
    pairs = [part if "=" in part else f"{part}=" for part in query.split("&")]
    return "&".join(sorted(pairs))
