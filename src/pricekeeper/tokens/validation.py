"""Whether an access token counts: its signature once, its standing every half minute.

Signatures don't change, so a token that was verified is remembered by its digest. Whether it
still stands is asked of the store, in one reading, and the answer is believed for
`STANDING_AGE_MS_MAX` from the moment the reading began: the token was not revoked, and its
session is still in its slot. Whether its client stands is what `Tenants` knows, as young. A
token that has fallen never rises again, so that answer is kept.

What this instance ends itself is seen at once: whoever ends something says what was touched,
and an answer from before is asked for again. A store that can't be read is told to the caller;
it never counts as a yes.
"""

from __future__ import annotations

import hashlib
from typing import Final

import structlog

from pricekeeper.clock import Clock
from pricekeeper.concurrency import BoundedCache, SingleFlight
from pricekeeper.errors import InvalidTokenError, InvalidValueError, NotFoundError
from pricekeeper.sessions import SessionId, generation_of, parse_session_id, slot_key
from pricekeeper.storage import Store
from pricekeeper.storage.tables import SESSIONS
from pricekeeper.tenants import Tenants, parse_client_id
from pricekeeper.tokens.access_token import (
    ACCESS_TOKEN_LENGTH_MAX,
    FORGERIES,
    Claims,
    Flaw,
    verify,
)
from pricekeeper.tokens.items import revoked_place
from pricekeeper.tokens.keys import Keys
from pricekeeper.tokens.meter import IdentityMeter
from pricekeeper.tokens.principal import Principal

STANDING_AGE_MS_MAX: Final = 30_000
VERIFIED_MAX: Final = 20_000
TOUCHED_MAX: Final = 10_000

_log = structlog.get_logger(__name__)


class _Verified:
    """A token whose signature is right, and what was last heard of its standing."""

    __slots__ = ("asked", "asked_ms", "fallen", "principal", "session_id", "token_generation")

    def __init__(self, principal: Principal, session_id: SessionId) -> None:
        self.principal = principal
        self.session_id = session_id
        self.token_generation = ""
        self.asked = -1
        self.asked_ms = 0
        self.fallen = ""


class Validator:
    """Remembers at most ``verified_max`` tokens, the ones used last."""

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
        meter: IdentityMeter | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._keys = keys
        self._tenants = tenants
        self._issuer = issuer
        self._audience = audience
        self._meter = meter or IdentityMeter()
        self._verified: BoundedCache[bytes, _Verified] = BoundedCache(verified_max)
        self._asking: SingleFlight[tuple[int, str], None] = SingleFlight("pricekeeper-token-check")
        self._revision = keys.revision
        self._changes = 0
        self._touched: dict[str, int] = {}
        self._all_touched = 0

    async def validate(self, token: str) -> Principal:
        """Whom the token speaks for; `InvalidTokenError` if it does not count."""
        verified = self._verified_token(token)
        principal = verified.principal
        if principal.expires_at_epoch <= self._clock.now_ms() // 1000:
            raise self._refusal(Flaw.EXPIRED, principal)
        known = bool(verified.fallen) or self._is_fresh(verified)
        if not known:
            # A reading from before something ended here is not shared after it.
            key = (self._changes, principal.token_id)
            await self._asking.run(key, lambda: self._ask(verified))
        if not verified.fallen:
            await self._match_client(verified)
        if verified.fallen:
            raise self._refusal(verified.fallen, principal)
        self._meter.checks_from_memory += known
        self._meter.checks_from_store += not known
        return principal

    def touch(self, name: str) -> None:
        """Something that has this name, a session's nonce or a token's id, may have ended here."""
        self._changes += 1
        if len(self._touched) >= TOUCHED_MAX:
            self._touched.clear()
            self._all_touched = self._changes
        self._touched[name] = self._changes

    def _verified_token(self, token: str) -> _Verified:
        """The token as it was verified before, or now."""
        if len(token) > ACCESS_TOKEN_LENGTH_MAX:
            raise self._refusal(Flaw.TOO_LONG)
        if self._keys.revision != self._revision:
            self._revision = self._keys.revision
            self._verified.clear()
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
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
        if principal is None or session_id is None:
            raise self._refusal(Flaw.MALFORMED)
        return _Verified(principal, session_id)

    def _is_fresh(self, verified: _Verified) -> bool:
        """Whether what is known of its standing is young, and nothing was touched since."""
        asked = verified.asked
        return (
            asked >= self._all_touched
            and self._touched.get(verified.session_id.nonce, 0) <= asked
            and self._touched.get(verified.principal.token_id, 0) <= asked
            and self._clock.monotonic_ms() - verified.asked_ms < STANDING_AGE_MS_MAX
        )

    async def _ask(self, verified: _Verified) -> None:
        """Ask the store whether the token stands: one reading."""
        asked, asked_ms = self._changes, self._clock.monotonic_ms()
        principal, session_id = verified.principal, verified.session_id
        revoked, slot = await self._store.batch_get(
            [
                revoked_place(principal.token_id),
                (SESSIONS, slot_key(principal.client_id, session_id.slot)),
            ]
        )
        token_generation = generation_of(session_id, slot)
        if revoked is not None:
            verified.fallen = "revoked"
        elif token_generation is None:
            verified.fallen = "its session has ended"
        elif asked_ms >= verified.asked_ms:  # else somebody asked later and has heard already
            verified.token_generation = token_generation
            verified.asked, verified.asked_ms = asked, asked_ms

    async def _match_client(self, verified: _Verified) -> None:
        """Let the token fall if its client is gone, or has ended everything it held.

        What is remembered of the client may be older than the session: then it is read again.
        """
        client = verified.principal.client
        try:
            policy = await self._tenants.find_registered_policy(client.org_id, client.app_id)
            if policy.token_generation != verified.token_generation:
                policy = await self._tenants.get(client)
        except NotFoundError:
            verified.fallen = "its client is gone"
        else:
            if policy.token_generation != verified.token_generation:
                verified.fallen = "everything of its client was ended"

    def _refusal(self, reason: str, principal: Principal | None = None) -> InvalidTokenError:
        """Tell the log why, and the caller nothing."""
        self._meter.checks_refused += 1
        _log.info(
            "access_token_refused",
            reason=str(reason),
            client_id=principal.client_id if principal else None,
            session_id=principal.session_id if principal else None,
        )
        return InvalidTokenError(genuine=reason not in FORGERIES)


def _principal(claims: Claims) -> Principal | None:
    """Whom the claims name; ``None`` if they contradict themselves."""
    try:
        client = parse_client_id(claims.sub)
    except InvalidValueError:
        return None
    if (client.org_id, client.app_id) != (claims.org_id, claims.app_id):
        return None
    if claims.client_id not in (None, claims.sub):
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
