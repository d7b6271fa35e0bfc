"""Access tokens: claims, signature, checks, and the principal of a valid one.

The first part of a token must equal, byte for byte, the header that one of our keys writes. So
nothing is parsed or negotiated before the signature is ours: no other algorithm or type, no
``crit``, no unknown key.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from pricekeeper.authority import Permit
from pricekeeper.tenants import Client
from pricekeeper.tokens.keyring import ALGORITHM, SKEW_SECS, TokenKey
from pricekeeper.values import AppId, OrgId

ACCESS_TOKEN_LENGTH_MAX: Final = 2_048

_REGISTRY: Final = JWSRegistry(algorithms=[ALGORITHM])
_GENERATION: Final = "generation-"
"""The prefix of ``sid`` outside the session slots; a session's begins with digits."""


class TokenClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of an access token, in seconds since the epoch."""

    iss: str
    sub: str
    aud: str
    exp: int
    iat: int
    jti: str
    sid: str
    org_id: str
    scope: str
    client_id: str
    """Equal to ``sub``, as RFC 9068 requires."""
    app_id: str | None = None
    nbf: int | None = None
    """We never set it, but respect it."""


class Flaw(StrEnum):
    """Why a token is invalid, for the log only."""

    TOO_LONG = "longer than our tokens"
    UNKNOWN_HEADER = "its header is not ours"
    BAD_SIGNATURE = "its signature is wrong"
    MALFORMED = "its claims do not have our form"
    WRONG_ISSUER = "wrong issuer"
    WRONG_AUDIENCE = "wrong audience"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"


FORGERIES: Final = frozenset({Flaw.TOO_LONG, Flaw.UNKNOWN_HEADER, Flaw.BAD_SIGNATURE})
"""Flaws of tokens that we never signed; others are found after our own signature."""


class VerifyingKeys(Protocol):
    """A source of keys that verify tokens."""

    def verifying_key(self, header_segment: str) -> TokenKey | None: ...


def generation_sid(token_generation: str) -> str:
    """The ``sid`` of a token outside the session slots."""
    return _GENERATION + token_generation


def generation_in(sid: str) -> str | None:
    """The token generation in a ``sid``; ``None`` if it names a session."""
    return sid.removeprefix(_GENERATION) if sid.startswith(_GENERATION) else None


def sign(_: Permit, claims: TokenClaims, key: TokenKey) -> str:
    """Sign these claims. The permit comes from `may_produce`."""
    return jws.serialize_compact(
        key.header, msgspec.json.encode(claims), key.private, registry=_REGISTRY
    )


def verify(
    token: str, keys: VerifyingKeys, *, issuer: str, audience: str, now_epoch: int
) -> TokenClaims | Flaw:
    """The claims of a token, if it is ours, for us, and not expired."""
    if len(token) > ACCESS_TOKEN_LENGTH_MAX:
        return Flaw.TOO_LONG
    key = keys.verifying_key(token.partition(".")[0])
    if key is None or not token.isascii():
        return Flaw.UNKNOWN_HEADER
    try:
        signed = jws.deserialize_compact(token, key.public, registry=_REGISTRY)
    except JoseError:
        return Flaw.BAD_SIGNATURE
    try:
        claims = _decode(signed.payload)
    except msgspec.DecodeError:
        return Flaw.MALFORMED
    return _flaw(claims, issuer, audience, now_epoch) or claims


def _flaw(claims: TokenClaims, issuer: str, audience: str, now_epoch: int) -> Flaw | None:
    if claims.iss != issuer:
        return Flaw.WRONG_ISSUER
    if claims.aud != audience:
        return Flaw.WRONG_AUDIENCE
    if claims.exp <= now_epoch:
        return Flaw.EXPIRED
    if max(claims.iat, claims.nbf or 0) > now_epoch + SKEW_SECS:
        return Flaw.NOT_YET_VALID
    return None


_decode = msgspec.json.Decoder(TokenClaims).decode


ORG_READ: Final = "org:read"
APP_USE: Final = "app:use"
SCOPES: Final = (APP_USE, ORG_READ)


def scopes_of(client: Client) -> tuple[str, ...]:
    """The scopes of a client's tokens."""
    return SCOPES if client.app_id is None else (APP_USE,)


class Principal(msgspec.Struct, frozen=True):
    """The client that a valid access token belongs to."""

    org_id: OrgId
    app_id: AppId | None
    client_id: str
    scopes: frozenset[str]
    session_id: str
    token_id: str
    issued_at_epoch: int
    expires_at_epoch: int

    @property
    def client(self) -> Client:
        return Client(self.org_id, self.app_id)

    def may_use_app(self, org_id: OrgId, app_id: AppId) -> bool:
        return (
            APP_USE in self.scopes
            and org_id == self.org_id
            and (self.app_id is None or self.app_id == app_id)
        )

    def may_read_org(self, org_id: OrgId) -> bool:
        return ORG_READ in self.scopes and org_id == self.org_id and self.app_id is None
