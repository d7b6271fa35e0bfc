"""Validates access tokens: the signature once, the state in the store every half minute.

A verified token is cached by its digest. One read shows whether it is revoked and its session
exists, or for a token outside the slots its client's token generation. The result is used for
`VALIDITY_AGE_MS_MAX` from the start of the read. A valid token is recalled for `RECALL_MS` without
these checks; an invalid one stays invalid.

Changes by this instance are seen at once (`mark_changed`). If the store can't be read, the caller
gets that error; a failure never makes a token valid.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, SingleFlight
from pricekeeper.errors import InvalidTokenError, InvalidValueError, NotFoundError
from pricekeeper.sessions import SessionId, generation_of, parse_session_id, slot_key
from pricekeeper.storage import ITEM_ABSENT, Key, Put, Store
from pricekeeper.storage.tables import REVOKED_TOKENS, SESSIONS
from pricekeeper.tenants import Tenants, parse_client_id
from pricekeeper.tokens.access_token import (
    ACCESS_TOKEN_LENGTH_MAX,
    FORGERIES,
    Flaw,
    Principal,
    TokenClaims,
    generation_in,
    verify,
)
from pricekeeper.tokens.keys import Keys
from pricekeeper.tokens.meter import IdentityMeter

VALIDITY_AGE_MS_MAX: Final = 29_000
RECALL_MS: Final = 1_000
VERIFIED_MAX: Final = 20_000
CHANGED_MAX: Final = 10_000

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Verified:
    """A token with a right signature, and its last check in the store."""

    principal: Principal
    session_id: SessionId | None
    """``None`` outside the slots; only there the generation is known from the start."""
    token_generation: str
    checked: int = -1
    checked_ms: int = 0
    invalid_because: str = ""
    recalled_until: tuple[int, int, int] = (-1, -1, 0)
    """The numbers of changes when it was found valid, and the end of its recall."""


class Validator:
    """Caches the last ``verified_max`` tokens."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        keys: Keys,
        tenants: Tenants,
        issuer: str,
        audience: str,
        verified_max: int = VERIFIED_MAX,
        meter: IdentityMeter,
    ) -> None:
        self._store = store
        self._clock = clock
        self._keys = keys
        self._tenants = tenants
        self._issuer = issuer
        self._audience = audience
        self.meter = meter
        self._verified: BoundedCache[bytes, _Verified] = BoundedCache(verified_max)
        self._checks: SingleFlight[tuple[int, str], None] = SingleFlight("pricekeeper-token-check")
        self._revision = keys.revision
        self._changes = 0
        self._changed_at: dict[str, int] = {}
        self._all_changed_at = 0

    def recall_digest(self, digest: bytes) -> Principal | None:
        """The principal of a token that was valid a moment ago, if nothing has changed here.

        ``None``: validate the token.
        """
        verified = self._verified.peek(digest)
        if verified is None or verified.invalid_because:
            return None
        changes, tenant_changes, until_ms = verified.recalled_until
        if (
            changes != self._changes
            or tenant_changes != self._tenants.changes
            or self._clock.monotonic_ms() >= until_ms
        ):
            return None
        self.meter.checks_from_memory += 1
        return verified.principal

    async def validate(self, token: str, *, fresh: bool = False) -> Principal:
        """The principal; raises `InvalidTokenError`. ``fresh`` ignores earlier results."""
        verified = self._verified_token(token)
        principal = verified.principal
        changes = (self._changes, self._tenants.changes)
        left_ms = principal.expires_at_epoch * 1000 - self._clock.now_ms()
        recalled_until_ms = self._clock.monotonic_ms() + min(RECALL_MS, left_ms)
        if left_ms <= 0:
            raise self._refusal(Flaw.EXPIRED, principal)
        known = bool(verified.invalid_because) or (not fresh and self._is_fresh(verified))
        if not known:
            # A read from before a change here is not shared after it.
            key = (self._changes, principal.token_id)
            await self._checks.run(key, lambda: self._check_store(verified))
        if not verified.invalid_because:
            await self._match_client(verified, fresh=fresh)
        if verified.invalid_because:
            raise self._refusal(verified.invalid_because, principal)
        verified.recalled_until = (*changes, recalled_until_ms)
        self.meter.checks_from_memory += known
        self.meter.checks_from_store += not known
        return principal

    def mark_changed(self, name: str) -> None:
        """Check the session with this nonce, or the token with this id, again."""
        self._changes += 1
        if len(self._changed_at) >= CHANGED_MAX:
            self._changed_at.clear()
            self._all_changed_at = self._changes
        self._changed_at[name] = self._changes

    def _verified_token(self, token: str) -> _Verified:
        if len(token) > ACCESS_TOKEN_LENGTH_MAX:
            raise self._refusal(Flaw.TOO_LONG)
        if self._keys.revision != self._revision:
            self._revision = self._keys.revision
            self._verified.clear()
        digest = digest_of(token)
        verified = self._verified.get(digest)
        if verified is None:
            verified = self._verify(token)
            self._verified.put(digest, verified)
        return verified

    def _verify(self, token: str) -> _Verified:
        claims = verify(
            token,
            self._keys,
            issuer=self._issuer,
            audience=self._audience,
            now_epoch=self._clock.now_ms() // 1000,
        )
        if isinstance(claims, Flaw):
            raise self._refusal(claims)
        principal, session_id = _principal(claims), parse_session_id(claims.sid)
        token_generation = generation_in(claims.sid)
        if principal is None or (session_id is None and token_generation is None):
            raise self._refusal(Flaw.MALFORMED)
        return _Verified(principal, session_id, token_generation or "")

    def _is_fresh(self, verified: _Verified) -> bool:
        checked, session_id = verified.checked, verified.session_id
        return (
            checked >= self._all_changed_at
            and (session_id is None or self._changed_at.get(session_id.nonce, 0) <= checked)
            and self._changed_at.get(verified.principal.token_id, 0) <= checked
            and self._clock.monotonic_ms() - verified.checked_ms < VALIDITY_AGE_MS_MAX
        )

    async def _check_store(self, verified: _Verified) -> None:
        """Read the token's revocation and session: one call."""
        checked, checked_ms = self._changes, self._clock.monotonic_ms()
        principal, session_id = verified.principal, verified.session_id
        keys = [(REVOKED_TOKENS, Key(principal.token_id))]
        if session_id is not None:
            keys.append((SESSIONS, slot_key(principal.client_id, session_id.slot)))
        revoked, *slots = await self._store.batch_get(keys)
        token_generation: str | None = verified.token_generation
        if session_id is not None:
            token_generation = generation_of(session_id, slots[0])
        if revoked is not None:
            verified.invalid_because = "revoked"
        elif token_generation is None:
            verified.invalid_because = "its session has ended"
        elif checked_ms >= verified.checked_ms:  # else a later check has finished
            verified.token_generation = token_generation
            verified.checked, verified.checked_ms = checked, checked_ms

    async def _match_client(self, verified: _Verified, *, fresh: bool) -> None:
        """Mark the token invalid if its client is deleted, or has ended all tokens.

        The cached policy may be older than the session; then it is read again.
        """
        client = verified.principal.client
        try:
            if fresh:
                self._tenants.forget(client)
            policy = await self._tenants.find_registered_policy(client.org_id, client.app_id)
            if policy.token_generation != verified.token_generation:
                policy = await self._tenants.read_registered_policy(client)
                self._changes += 1  # tokens of one of the two have ended: none is recalled
        except NotFoundError:
            verified.invalid_because = "its client is deleted"
        else:
            if policy.token_generation != verified.token_generation:
                verified.invalid_because = "all tokens of its client have ended"

    def _refusal(self, reason: str, principal: Principal | None = None) -> InvalidTokenError:
        self.meter.checks_refused += 1
        _log.info(
            "access_token_refused",
            reason=str(reason),
            client_id=principal.client_id if principal else None,
            session_id=principal.session_id if principal else None,
        )
        return InvalidTokenError(genuine=reason not in FORGERIES)


def revocation(revoked: Principal, now_epoch: int) -> Put:
    """Revoke an access token, unless it is revoked. One that ends with its session has no item."""
    item = {
        "PK": revoked.token_id,
        "token_type": "access",
        "client_id": revoked.client_id,
        "revoked_at_epoch": now_epoch,
        "original_expiry_epoch": revoked.expires_at_epoch,
        "expires_at_epoch": revoked.expires_at_epoch,
    }
    return Put(REVOKED_TOKENS, item, ITEM_ABSENT)


def digest_of(token: str) -> bytes:
    """The digest under which a token is cached, so that the token itself is not."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _principal(claims: TokenClaims) -> Principal | None:
    try:
        client = parse_client_id(claims.sub)
    except InvalidValueError:
        return None
    if (client.org_id, client.app_id) != (claims.org_id, claims.app_id):
        return None
    if claims.client_id != claims.sub:
        return None
    return Principal(
        org_id=client.org_id,
        app_id=client.app_id,
        client_id=claims.sub,
        scopes=frozenset(claims.scope.split()),
        session_id=claims.sid,
        token_id=claims.jti,
        issued_at_epoch=claims.iat,
        expires_at_epoch=claims.exp,
    )
